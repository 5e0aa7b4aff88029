"""Masked rows -> the loss of telling data from noise by an energy; rows -> their pseudo-log-likelihood.

Electric (Clark et al., EMNLP 2020): the discriminator's output is the energy E of a token in its context,
with p(token | context) proportional to exp(-E). It is learned by noise-contrastive estimation: tokens are
replaced by samples of a generator q that knows the probability of each, and the probability that a token is
noise follows from E and q. Since the energies come out normalised, one pass scores a whole text.

N positions that are not padding, M of them without special tokens, P masked positions, B rows.
"""

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.heads import DETECTION_HEADS, token_loss
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, TokenFacts, pick
from electra.pretraining.metrics import detection_sums, mean
from electra.pretraining.networks import TwoTowers, build_networks
from electra.pretraining.objectives.electra import (
    detection_losses,
    detection_views,
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
from electra.pretraining.sampling import Corrupted, corrupt


class Electric(Objective):
    """An energy for every token, learned by contrast with a two-tower generator's noise."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        require_true_samples(config)
        generator, head, self.discriminator = build_networks(config.generator, encoder, tokens)
        if not isinstance(generator, TwoTowers) or head is None:
            raise InputError(
                f"generator.kind is {config.generator.kind}, but electric needs the noise's probability of "
                f"every token given all others: set it to two_tower"
            )
        self.generator, self.generator_head = generator, head
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        mask_prob = config.masking.mask_prob
        self.log_noise_ratio = math.log(mask_prob / (1 - mask_prob))

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """The generator's loss at all ordinary tokens, and the contrastive loss at all tokens."""
        text_N = inputs.text_N
        table_VE = self.generator.embeddings.word_embeddings.weight
        hidden_BLD = self.generator(inputs.input_ids_BL, **inputs.context)
        (cloze_losses_N,) = self.generator_head.reduce(
            pick(hidden_BLD, text_N), table_VE, token_loss, pick(inputs.input_ids_BL, text_N)
        )
        cloze_losses = cloze_losses_N.new_zeros(inputs.input_ids_BL.numel()).index_copy(
            0, text_N, cloze_losses_N
        )
        with torch.no_grad():
            at_masked_PD = pick(hidden_BLD, masked.positions_P)
            reduce = partial(self.generator_head.reduce, at_masked_PD, table_VE)
            proposal = propose(reduce, masked, self.generating)
            (noise_losses_P,) = reduce(token_loss, proposal.sampled_P)
            log_noise_BL = -cloze_losses.index_copy(0, masked.positions_P, noise_losses_P).view_as(
                inputs.input_ids_BL
            )
        corrupted = self.noise(inputs, masked, proposal.sampled_P)
        logits_BL = self.energy(inputs, corrupted.corrupted_ids_BL) + log_noise_BL + self.log_noise_ratio
        losses_BL = detection_losses(logits_BL, corrupted.replaced_BL)
        cloze_losses_M = cloze_losses.index_select(0, masked.ordinary_M)
        losses_N, replaced_N = (pick(values, text_N) for values in (losses_BL, corrupted.replaced_BL))
        return StepOutput(
            loss=self.config.generator_weight * share(cloze_losses_M, totals.ordinary)
            + self.discriminator_weight * share(losses_N, totals.tokens),
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                **detection_sums(losses_N, pick(logits_BL, text_N), replaced_N),
                "replaced_fraction": mean(replaced_N),
                "cloze_loss": mean(cloze_losses_M),
            },
            views=detection_views(masked, corrupted, logits_BL),
        )

    def noise(self, inputs: Inputs, masked: Masked, sampled_P: Tensor) -> Corrupted:
        """Rows with noise in place of the masked tokens; all of it counts as noise, even what is the same."""
        corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, sampled_P)
        is_noise_BL = torch.zeros_like(corrupted.replaced_BL)
        is_noise_BL.view(-1).index_fill_(0, masked.positions_P, True)
        return Corrupted(corrupted_ids_BL=corrupted.corrupted_ids_BL, replaced_BL=is_noise_BL)

    def energy(self, inputs: Inputs, ids_BL: Tensor) -> Tensor:
        """The energy (B, L) of each token, in float32."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The energy: the higher, the less a token fits."""
        return self.energy(inputs, ids_BL)

    @torch.no_grad()
    def pseudo_log_likelihood(self, inputs: Inputs) -> Tensor:
        """The sum over a row's ordinary tokens of log p(token | all others), for each row (B)."""
        return -(self.energy(inputs, inputs.input_ids_BL) * self.ordinary_mask(inputs)).sum(1)
