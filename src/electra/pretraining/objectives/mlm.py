"""Masked rows -> the loss of naming tokens: masked language modelling, and two of the paper's ablations.

`MaskedLanguageModelling` is BERT's. Its encoder is as large as the discriminator of other objectives, and is
the generator by name: its head and its place in other formats are the generator's.

`ReplaceMlm` shows the encoder the generator's samples where it would see [MASK], which fine-tuning never
shows, and has it name the tokens that stood there.

`AllTokensMlm` has it name every token of the corrupted rows. A copy gate D says how probably the input token
is the original one, else the token comes from a softmax over the vocabulary:
p(x) = D · [x = input] + (1 - D) · softmax(x).

N positions that are not padding.
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead, is_best, token_loss
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, TokenFacts, pick
from electra.pretraining.metrics import detection_sums, mean
from electra.pretraining.networks import build_networks
from electra.pretraining.objectives.electra import (
    detection_losses,
    detection_views,
    proposal_sums,
    propose,
    run_generator,
    vocabulary_reduce,
)
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretraining.sampling import corrupt


class MaskedLanguageModelling(Objective):
    """Name the masked tokens."""

    encoder_name: ClassVar[Owner] = "generator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        self.generator = Encoder(encoder)
        self.generator_head = GeneratorHead(encoder)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Cross-entropy of the masked tokens."""
        reduce = vocabulary_reduce(self.generator, self.generator_head, inputs, masked)
        proposal = propose(reduce, masked, self.generating)
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked),
            sums=proposal_sums(proposal, masked, self.masker.mask_id),
            views={"masked_ids_BL": masked.masked_ids_BL},
        )


class ReplaceMlm(Objective):
    """Name the original tokens at the masked positions, from rows that hold samples there."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        self.generator, self.generator_head, self.discriminator = build_networks(
            config.generator, encoder, tokens
        )
        self.recovery_head = GeneratorHead(encoder)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's loss and the loss of recovering the tokens, weighted."""
        proposal = run_generator(self.generator, self.generator_head, inputs, masked, self.generating)
        corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, proposal.sampled_P)
        hidden_BLD = self.discriminator(corrupted.corrupted_ids_BL, **inputs.context)
        losses_P, correct_P = self.recovery_head.reduce(
            pick(hidden_BLD, masked.positions_P),
            self.discriminator.embeddings.word_embeddings.weight,
            partial(token_loss, look=is_best),
            masked.original_P,
        )
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked)
            + self.config.recovery_weight * share(losses_P, totals.masked),
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                "replaced_fraction": mean(pick(corrupted.replaced_BL, inputs.text_N)),
                "recovery_loss": mean(losses_P),
                "recovery_accuracy": mean(correct_P),
            },
            views={
                "masked_ids_BL": masked.masked_ids_BL,
                "corrupted_ids_BL": corrupted.corrupted_ids_BL,
                "replaced_BL": corrupted.replaced_BL,
            },
        )


class AllTokensMlm(Objective):
    """Name the original token at every position, by copying it or from the vocabulary."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        self.generator, self.generator_head, self.discriminator = build_networks(
            config.generator, encoder, tokens
        )
        self.recovery_head = GeneratorHead(encoder)
        self.copy_gate = DiscriminatorHead(encoder)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's loss and the loss of recovering all tokens, weighted."""
        proposal = run_generator(self.generator, self.generator_head, inputs, masked, self.generating)
        corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, proposal.sampled_P)
        hidden_BLD = self.discriminator(corrupted.corrupted_ids_BL, **inputs.context)
        text_N = inputs.text_N
        (vocabulary_losses_N,) = self.recovery_head.reduce(
            pick(hidden_BLD, text_N),
            self.discriminator.embeddings.word_embeddings.weight,
            token_loss,
            pick(inputs.input_ids_BL, text_N),
        )
        # The gate reads like a discriminator: above 0 the input looks replaced and is not copied.
        gate_BL = self.copy_gate(hidden_BLD).float()
        gate_N, replaced_N = pick(gate_BL, text_N), pick(corrupted.replaced_BL, text_N)
        losses_N = copy_losses(gate_N, vocabulary_losses_N, replaced_N)
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked)
            + self.config.recovery_weight * share(losses_N, totals.tokens),
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                **detection_sums(detection_losses(gate_N, replaced_N), gate_N, replaced_N),
                "replaced_fraction": mean(replaced_N),
                "recovery_loss": mean(losses_N),
            },
            views=detection_views(masked, corrupted, gate_BL),
        )


def copy_losses(gate_N: Tensor, vocabulary_losses_N: Tensor, replaced_N: Tensor) -> Tensor:
    """-log p(original) where 1 - D = sigmoid(gate), without leaving log space."""
    log_generate_N = functional.logsigmoid(gate_N) - vocabulary_losses_N
    log_copy_or_generate_N = torch.logaddexp(functional.logsigmoid(-gate_N), log_generate_N)
    return -torch.where(replaced_N, log_generate_N, log_copy_or_generate_N)
