"""Rows -> the loss of telling the token of a position from drawn ones, by its context alone: CBOW's.

The paper calls ELECTRA a massively scaled-up version of CBOW with negative sampling (Mikolov et al. 2013).
This is what was scaled up: the encoder is a bag of vectors (backbone bag), a position's state does not see
its own token, and proposals come from the frequencies of tokens. At every chosen position the true token and
some drawn ones are judged by the product of the state with a vector of the token from a second table. What is
kept of it are the vectors of the encoder, as in word2vec.

    word2vec's cbow_mean, negative, ns_exponent, window    here
    the mean of the vectors around                         backbone bag, which always takes the mean
    negative: 5                                            negative_sampling.negatives: 5
    ns_exponent: 0.75 of frequencies                       generator.temperature: 4/3, which is 1 / 0.75
    a draw that hits the true token is left out            generator.correct_token: forbidden
    window: 5 on each side                                 model.local_attention_window: 10

P chosen positions, N drawn tokens of each, C = 1 + N candidates, D numbers in a vector.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import detection_sums
from electra.pretraining.networks import FixedGenerator, build_networks
from electra.pretraining.objectives.electra import detection_losses, detection_views
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretraining.sampling import corrupt


@dataclass(frozen=True, kw_only=True)
class Contrasted(Masked):
    """Rows with the numbers that decide which tokens are drawn for the chosen positions."""

    uniform_PN: Tensor


class NegativeSampling(Objective):
    """The true token or a drawn one? The state of the position knows only what is around it."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        drawing = config.generator
        if drawing.kind not in ("unigram", "uniform") or drawing.sampling != "categorical":
            raise InputError(
                f"generator.kind is {drawing.kind} and generator.sampling {drawing.sampling}, but "
                "negative_sampling draws several tokens for each position from one distribution: set them to "
                "unigram (or uniform) and categorical"
            )
        generator, _, self.discriminator = build_networks(drawing, encoder, tokens)
        assert isinstance(generator, FixedGenerator)
        self.generator = generator
        self.output_vectors = nn.Embedding(encoder.vocab_size, encoder.hidden_size)

    def mask(self, inputs: Inputs, random: StepRandom) -> Masked:
        """Choose positions, and draw the numbers for their candidates."""
        masked = super().mask(inputs, random)
        num_rows, width = inputs.input_ids_BL.shape
        negatives = self.config.negative_sampling.negatives
        uniform_BLN = random.uniform("negatives", num_rows, self.masker.seq_length, negatives)
        rows_P, columns_P = masked.positions_P // width, masked.positions_P % width
        return Contrasted(**vars(masked), uniform_PN=uniform_BLN[rows_P, columns_P])

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """The losses of all candidates of a position, added up; their mean over positions."""
        assert isinstance(masked, Contrasted)
        drawn_PN = self.generator.draw(masked.uniform_PN, masked.original_P, self.generating)
        candidates_PC = torch.cat([masked.original_P[:, None], drawn_PN], dim=1)
        # As everywhere else, a draw that hits the true token counts as original.
        replaced_PC = candidates_PC != masked.original_P[:, None]
        hidden_BLD = self.discriminator(inputs.input_ids_BL, **inputs.context)
        logits_PC = self.judge(pick(hidden_BLD, masked.positions_P), candidates_PC)
        losses_PC = detection_losses(logits_PC, replaced_PC)
        views: dict[str, Tensor] = {}
        if not self.training:
            # Nobody looks at them in training, where they would take a tenth of the time.
            corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, drawn_PN[:, 0])
            logits_BL = self.judge(hidden_BLD, corrupted.corrupted_ids_BL[..., None]).squeeze(-1)
            views = detection_views(masked, corrupted, logits_BL)
        return StepOutput(
            loss=self.discriminator_weight * share(losses_PC, totals.masked),
            sums=detection_sums(losses_PC.flatten(), logits_PC.flatten(), replaced_PC.flatten()),
            views=views,
        )

    def judge(self, hidden_XD: Tensor, candidates_XC: Tensor) -> Tensor:
        """Logits of each candidate in its context: above 0 it looks drawn; in float32."""
        vectors_XCD: Tensor = self.output_vectors(candidates_XC)
        return -(vectors_XCD @ hidden_XD.to(vectors_XCD.dtype)[..., None]).squeeze(-1).float()

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """How little each token fits to those around it."""
        hidden_BLD = self.discriminator(ids_BL, **inputs.context)
        return self.judge(hidden_BLD, ids_BL[..., None]).squeeze(-1)
