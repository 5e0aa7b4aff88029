"""Masked rows -> the generator's loss; from some step on, the discriminator's with the generator frozen.

The paper's two-stage training. The second stage may begin with the generator's encoder copied into the
discriminator; without it the discriminator may never leave the majority class.
"""

from collections.abc import Callable
from typing import ClassVar, Self, cast

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.heads import DETECTION_HEADS
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, TokenFacts, pick
from electra.pretraining.metrics import detection_sums, mean
from electra.pretraining.networks import build_networks
from electra.pretraining.objectives.electra import (
    Proposal,
    detect,
    detection_views,
    proposal_sums,
    run_generator,
    suspicion,
)
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share


class TwoStage(Objective):
    """The generator alone, then the discriminator alone."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        _require_separate_networks(config)
        self.generator, self.generator_head, self.discriminator = build_networks(
            config.generator, encoder, tokens
        )
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        self.second_stage: Tensor
        # Part of the state, so that the switch is made once, whatever steps a resumed run leaves out.
        self.register_buffer("second_stage", torch.tensor(False))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move all but the flag: it is read in every step, and for a flag of its own a GPU would stop."""
        flag, apply = self.second_stage, cast(Callable[..., Self], super()._apply)
        apply(fn, recurse)
        self.second_stage = flag
        return self

    def begin_step(self, step: int, progress: float = 0.0) -> None:
        """Switch to the second stage when its first step comes."""
        super().begin_step(step, progress)
        if step < self.config.two_stage.first_stage_steps or self.second_stage:
            return
        if self.config.two_stage.discriminator_start == "generator":
            self.discriminator.load_state_dict(self.generator.state_dict())
        self.second_stage.fill_(True)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """The loss of the network whose turn it is."""
        if not self.second_stage:
            proposal = self.propose(inputs, masked)
            return StepOutput(
                loss=self.config.generator_weight * share(proposal.loss_P, totals.masked),
                sums=proposal_sums(proposal, masked, self.masker.mask_id),
                views={"masked_ids_BL": masked.masked_ids_BL},
            )
        with torch.no_grad():
            proposal = self.propose(inputs, masked)
        corrupted, logits_BL, losses_BL, _ = detect(
            self.discriminator, self.discriminator_head, inputs, masked, proposal.sampled_P
        )
        losses_N, replaced_N = (pick(values, inputs.text_N) for values in (losses_BL, corrupted.replaced_BL))
        return StepOutput(
            loss=self.discriminator_weight * share(losses_N, totals.tokens),
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                **detection_sums(losses_N, pick(logits_BL, inputs.text_N), replaced_N),
                "replaced_fraction": mean(replaced_N),
            },
            views=detection_views(masked, corrupted, logits_BL),
        )

    @property
    def learning_encoder(self) -> Encoder:
        """The generator while it is its turn: what it has learned may become the discriminator's start."""
        if self.second_stage:
            return self.encoder
        assert isinstance(self.generator, Encoder)
        return self.generator

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits, once it is trained."""
        if not self.second_stage:
            return None
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)

    def propose(self, inputs: Inputs, masked: Masked) -> Proposal:
        """What the generator says."""
        return run_generator(self.generator, self.generator_head, inputs, masked, self.generating)


def _require_separate_networks(config: PretrainConfig) -> None:
    generator = config.generator
    if generator.kind != "mlm":
        raise InputError(
            f"generator.kind is {generator.kind}, but two_stage first trains an mlm: set it to mlm"
        )
    if generator.sharing != "none":
        raise InputError(
            f"generator.sharing is {generator.sharing}, but two_stage freezes one network and trains the "
            f"other: set it to none"
        )
    if config.two_stage.discriminator_start == "generator" and (generator.width, generator.depth) != (1, 1):
        raise InputError(
            f"two_stage.discriminator_start is generator, but the generator has width {generator.width} and "
            f"depth {generator.depth}: set both to 1, or discriminator_start to fresh"
        )
