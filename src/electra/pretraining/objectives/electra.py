"""Masked rows -> the generator's loss and the discriminator's: ELECTRA, replaced token detection.

The generator learns to fill masks by maximum likelihood, the discriminator to tell at every position whether
the token is original or the generator's. No gradient passes from one to the other through the samples.

Masked rows -> losses as ELECTRA, but the discriminator learns from the masked positions only.

The paper's ELECTRA 15 %: how much of ELECTRA's gain comes from learning at all positions.
"""

from typing import ClassVar

from torch import Tensor

from electra.model.heads import DiscriminatorHead
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.corruption import detect, detection_views, proposal_sums, run_generator, suspicion
from electra.pretraining.masking import Inputs, Masked, Masker, TokenFacts, pick
from electra.pretraining.metrics import detection_sums, mean
from electra.pretraining.networks import build_networks
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share


class Electra(Objective):
    """Replaced token detection at every position."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        self.generator, self.generator_head, self.discriminator = build_networks(
            config.generator, encoder, tokens
        )
        self.discriminator_head = DiscriminatorHead(encoder)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's and discriminator's loss, weighted."""
        proposal = run_generator(self.generator, self.generator_head, inputs, masked, self.config.generator)
        detection = detect(self.discriminator, self.discriminator_head, inputs, masked, proposal.sampled_P)
        corrupted, logits_BL, losses_BL = detection
        judged_N, num_judged = self.judged(inputs, masked, totals)
        losses_N = pick(losses_BL, judged_N)
        generator_loss = share(proposal.loss_P, totals.masked)
        discriminator_loss = share(losses_N, num_judged)
        return StepOutput(
            loss=self.config.generator_weight * generator_loss
            + self.config.discriminator_weight * discriminator_loss,
            sums={
                **proposal_sums(proposal, masked),
                **detection_sums(losses_N, pick(logits_BL, judged_N), pick(corrupted.replaced_BL, judged_N)),
                "replaced_fraction": mean(pick(corrupted.replaced_BL, inputs.text_N)),
            },
            views=detection_views(masked, corrupted, logits_BL),
        )

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)

    def judged(self, inputs: Inputs, masked: Masked, totals: Counts) -> tuple[Tensor, int]:
        """The positions at which the discriminator learns, and how many the global batch has."""
        return inputs.text_N, totals.tokens


class Electra15(Electra):
    """Replaced token detection at the masked positions."""

    def judged(self, inputs: Inputs, masked: Masked, totals: Counts) -> tuple[Tensor, int]:
        """The masked positions."""
        return masked.chosen_U, totals.masked
