"""Masked rows -> losses as ELECTRA, but the discriminator learns from the masked positions only.

The paper's ELECTRA 15 %: how much of ELECTRA's gain comes from learning at all positions.
"""

from torch import Tensor

from electra.pretrain.inputs import Inputs
from electra.pretrain.masking import Masked
from electra.pretrain.objectives.electra import Electra
from electra.pretrain.objectives.protocol import Counts


class Electra15(Electra):
    """Replaced token detection at the masked positions."""

    def judged(self, inputs: Inputs, masked: Masked, totals: Counts) -> tuple[Tensor, int]:
        """The masked positions."""
        return masked.chosen_U, totals.masked
