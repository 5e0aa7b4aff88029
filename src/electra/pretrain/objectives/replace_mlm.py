"""Masked rows -> the generator's loss, and the loss of naming what it replaced: the paper's Replace MLM.

As masked language modelling, but where the encoder would see [MASK], which fine-tuning never shows, it sees
the generator's samples.
"""

from typing import ClassVar

from electra.model.heads import GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.pretrain.config import PretrainConfig
from electra.pretrain.inputs import Inputs, TokenFacts, pick
from electra.pretrain.masking import Masked, Masker
from electra.pretrain.metrics import mean
from electra.pretrain.networks import build_networks
from electra.pretrain.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretrain.proposal import predict_tokens, proposal_sums, run_generator
from electra.pretrain.sampling import corrupt


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
        proposal = run_generator(self.generator, self.generator_head, inputs, masked, self.config.generator)
        corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, proposal.sampled_P)
        hidden_BLD = self.discriminator(corrupted.corrupted_ids_BL, **inputs.context)
        losses_P, correct_P = self.recovery_head.reduce(
            pick(hidden_BLD, masked.positions_P),
            self.discriminator.embeddings.word_embeddings.weight,
            predict_tokens,
            masked.original_P,
        )
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked)
            + self.config.recovery_weight * share(losses_P, totals.masked),
            sums={
                **proposal_sums(proposal, masked),
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
