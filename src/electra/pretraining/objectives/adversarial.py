"""Masked rows -> the discriminator's loss, and a generator that follows the samples which raised it.

The generator is not trained to be right but to mislead: by REINFORCE, with the discriminator's loss at a
sampled token as that token's reward. What is expected anyway, the baseline, is subtracted: it changes
nothing about the direction, but takes most of the noise away.
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import DETECTION_HEADS, token_loss
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, TokenFacts, pick
from electra.pretraining.metrics import Sums, detection_sums, mean
from electra.pretraining.networks import FixedGenerator, HostGenerator, build_networks
from electra.pretraining.objectives.electra import (
    detect,
    detection_views,
    masked_hidden,
    proposal_sums,
    propose,
    suspicion,
)
from electra.pretraining.objectives.protocol import (
    Counts,
    Objective,
    Owner,
    StepOutput,
    require_true_samples,
    share,
)


class Adversarial(Objective):
    """Replaced token detection against a generator that tries to raise the discriminator's loss."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        require_true_samples(config)
        generator, head, self.discriminator = build_networks(config.generator, encoder, tokens)
        if isinstance(generator, FixedGenerator | HostGenerator) or head is None:
            raise InputError(
                f"generator.kind is {config.generator.kind}, which learns nothing, but adversarial trains "
                f"the generator: set it to mlm"
            )
        self.generator, self.generator_head = generator, head
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        self.generator_baseline: nn.Linear | None = None
        self.moving_reward: Tensor
        if config.adversarial.baseline == "learned":
            self.generator_baseline = nn.Linear(head.dense.in_features, 1)
        else:
            # Fading sum and fading count of steps: their quotient is right from the first step on.
            self.register_buffer("moving_reward", torch.zeros(2, dtype=torch.float64))

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Policy gradient for the generator, cross-entropy for the discriminator and the baseline."""
        hidden_PD = masked_hidden(self.generator, inputs, masked)
        table_VE = self.generator.embeddings.word_embeddings.weight
        reduce = partial(self.generator_head.reduce, hidden_PD, table_VE)
        proposal = propose(reduce, masked, self.generating)
        corrupted, logits_BL, losses_BL, _ = detect(
            self.discriminator, self.discriminator_head, inputs, masked, proposal.sampled_P
        )
        # As in the paper, a token is rewarded for the loss at its own position only.
        reward_P = pick(losses_BL.detach(), masked.positions_P)
        baseline_P, baseline_losses_P = self.baseline(hidden_PD, reward_P)
        (surprise_P,) = reduce(token_loss, proposal.sampled_P)
        policy_losses_P = (reward_P - baseline_P) * surprise_P
        losses_N, replaced_N = (pick(values, inputs.text_N) for values in (losses_BL, corrupted.replaced_BL))
        return StepOutput(
            loss=self.config.generator_weight * share(policy_losses_P + baseline_losses_P, totals.masked)
            + self.discriminator_weight * share(losses_N, totals.tokens),
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                **detection_sums(losses_N, pick(logits_BL, inputs.text_N), replaced_N),
                "replaced_fraction": mean(replaced_N),
                "reward": mean(reward_P),
                "baseline": mean(baseline_P),
            },
            views=detection_views(masked, corrupted, logits_BL),
        )

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)

    def baseline(self, hidden_PD: Tensor, reward_P: Tensor) -> tuple[Tensor, Tensor]:
        """The reward that was to be expected, and the loss of expecting it wrongly."""
        if self.generator_baseline is None:
            total, count = self.moving_reward
            expected = torch.where(count > 0, total / count.clamp(min=1e-9), 0.0).to(reward_P.dtype)
            return expected.expand_as(reward_P), torch.zeros_like(reward_P)
        # As in the paper: exp(-reward) is the probability that the discriminator gave to the truth, so the
        # baseline predicts a probability, and cross-entropy trains it. It must not change the generator.
        logit_P = self.generator_baseline(hidden_PD.detach()).squeeze(-1).float()
        losses_P = functional.binary_cross_entropy_with_logits(logit_P, (-reward_P).exp(), reduction="none")
        return -functional.logsigmoid(logit_P).detach(), losses_P

    def end_step(self, sums: Sums) -> None:
        """Move the average reward."""
        if self.generator_baseline is None:
            total, count = sums["reward"]
            now = torch.stack([total / count.clamp(min=1), torch.ones_like(count)])
            decay = self.config.adversarial.baseline_decay
            self.moving_reward.mul_(decay).add_(now.to(self.moving_reward.device), alpha=1 - decay)
