"""Masked rows -> the loss of naming the masked tokens: BERT's masked language modelling.

The encoder is as large as the discriminator of other objectives, and is the generator by name: its head and
its place in other formats are the generator's.
"""

from typing import ClassVar

from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.pretrain.config import PretrainConfig
from electra.pretrain.inputs import Inputs, TokenFacts
from electra.pretrain.masking import Masked, Masker
from electra.pretrain.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretrain.proposal import proposal_sums, propose, vocabulary_reduce


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
        proposal = propose(reduce, masked, self.config.generator)
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked),
            sums=proposal_sums(proposal, masked),
            views={"masked_ids_BL": masked.masked_ids_BL},
        )
