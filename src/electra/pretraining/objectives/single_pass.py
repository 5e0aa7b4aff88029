"""Masked and corrupted rows -> the loss of naming the masked tokens and of detecting the replaced ones.

One encoder, one pass: in each row some tokens are [MASK], to be named as in masked language modelling, and
some of the others are replaced by proposals of a generator without a network (`generator.kind` ngram, unigram
or uniform), to be detected as in ELECTRA, at every position that is not masked. Both heads read the same
hidden states, so that no step goes into a network that is thrown away, and the proposals are as good in the
first step as in the last.

The encoder is both networks of ELECTRA by name: fine-tuning finds it as the discriminator, and RUN/final has
it with either head.

B rows, L positions, P masked positions, R positions with a proposal, N judged positions: no mask, no padding.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.heads import DETECTION_HEADS, GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import UNTRAINED, PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import Sums, detection_sums, mean, mean_where
from electra.pretraining.networks import host_generator
from electra.pretraining.objectives.electra import detection_losses, predict_tokens, suspicion
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share


@dataclass(frozen=True, kw_only=True)
class MaskedAndCorrupted(Masked):
    """Rows as the one encoder sees them."""

    seen_ids_BL: Tensor
    """The rows with masks and with proposals."""
    proposed_R: Tensor
    """Positions with a proposal, row by row."""
    proposals_R: Tensor
    """The tokens there."""
    judged_N: Tensor
    """Positions of tokens that are not masked, row by row."""


class SinglePass(Objective):
    """Name masked tokens and detect replaced ones in the same pass."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        if config.generator.kind not in UNTRAINED:
            raise InputError(
                f"generator.kind is {config.generator.kind}, but single_pass has no network beside its "
                f"encoder: set it to {', '.join(UNTRAINED[:-1])} or {UNTRAINED[-1]}"
            )
        self.proposer = host_generator(config.generator, tokens)
        self.generator = self.discriminator = Encoder(encoder)
        self.generator_head = GeneratorHead(encoder)
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)

    def mask(self, inputs: Inputs, random: StepRandom) -> MaskedAndCorrupted:
        """Mask some tokens and replace some of the others, on the host."""
        noise_BLK = random.noise(self.masker, len(inputs.input_ids_BL))
        masked = self.masker(inputs.input_ids_BL, inputs.lengths_B, noise_BLK)
        proposed_R, uniform_R = self.masker.others(
            masked, noise_BLK, share=self.config.single_pass.replace_prob
        )
        proposals_R = self.proposer.propose(inputs.input_ids_BL, proposed_R, uniform_R)
        seen = masked.masked_ids_BL.flatten().index_copy(0, proposed_R, proposals_R)
        return MaskedAndCorrupted(
            **vars(masked),
            seen_ids_BL=seen.view_as(masked.masked_ids_BL),
            proposed_R=proposed_R,
            proposals_R=proposals_R,
            judged_N=inputs.text_N[~torch.isin(inputs.text_N, masked.chosen_U)],
        )

    def count(self, inputs: Inputs, masked: Masked) -> Counts:
        """Masked and judged positions, and those with a proposal."""
        assert isinstance(masked, MaskedAndCorrupted)
        counts = super().count(inputs, masked)
        return counts._replace(judged=len(masked.judged_N), proposed=len(masked.proposed_R))

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Cross-entropy of the masked tokens and of the verdicts on all others, weighted."""
        assert isinstance(masked, MaskedAndCorrupted)
        hidden_BLD = self.discriminator(masked.seen_ids_BL, **inputs.context)
        losses_P, correct_P = self.name_tokens(hidden_BLD, masked.positions_P, masked.original_P)
        logits_BL = self.discriminator_head(hidden_BLD).float()
        # A masked token is not judged: neither original nor replaced stands there.
        replaced = torch.zeros_like(inputs.input_ids_BL, dtype=torch.bool).flatten()
        original_R = pick(inputs.input_ids_BL, masked.proposed_R)
        replaced = replaced.index_copy(0, masked.proposed_R, masked.proposals_R != original_R)
        replaced_N = replaced.index_select(0, masked.judged_N)
        logits_N = pick(logits_BL, masked.judged_N)
        losses_N = detection_losses(logits_N, replaced_N)
        loss = self.config.generator_weight * share(losses_P, totals.masked)
        loss = loss + self.discriminator_weight * share(losses_N, totals.judged)
        is_mask_P = pick(masked.masked_ids_BL, masked.positions_P) == self.masker.mask_id
        recovery: Sums = {}
        if self.config.correction == "proposed":
            losses_R, correct_R = self.name_tokens(hidden_BLD, masked.proposed_R, original_R)
            loss = loss + self.config.recovery_weight * share(losses_R, totals.proposed)
            recovery = {"recovery_loss": mean(losses_R), "recovery_accuracy": mean(correct_R)}
        return StepOutput(
            loss=loss,
            sums={
                "mlm_loss": mean(losses_P),
                "mlm_accuracy": mean(correct_P),
                "masked_loss": mean_where(losses_P, is_mask_P),
                "masked_accuracy": mean_where(correct_P, is_mask_P),
                "sampled_accuracy": mean(masked.proposals_R == original_R),
                **detection_sums(losses_N, logits_N, replaced_N),
                "replaced_fraction": mean(replaced_N),
                **recovery,
            },
            views={
                "masked_ids_BL": masked.masked_ids_BL,
                "corrupted_ids_BL": masked.seen_ids_BL,
                "replaced_BL": replaced.view_as(inputs.input_ids_BL),
                "logits_BL": logits_BL.detach(),
            },
        )

    def name_tokens(self, hidden_BLD: Tensor, positions_P: Tensor, original_P: Tensor) -> tuple[Tensor, ...]:
        """The loss of naming the original tokens at some positions, and whether the best guess is right."""
        return self.generator_head.reduce(
            pick(hidden_BLD, positions_P),
            self.discriminator.embeddings.word_embeddings.weight,
            predict_tokens,
            original_P,
        )

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The logits of the detecting head."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)
