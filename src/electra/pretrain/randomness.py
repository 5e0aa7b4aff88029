"""(seed, step, rows) -> all that is random in one step of pre-training.

Masking and sampling take uniform numbers that belong to a row of the *global* batch, so a row is masked and
corrupted in the same way however many processes and micro-batches share it. Dropout is drawn for a
micro-batch as a whole and belongs to its first row: the same micro-batches give the same masks, whichever
process works on them. Nothing is carried from step to step, so a resumed run repeats a step exactly.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from electra.pretrain.masking import Masker
from electra.seeds import derive, torch_generator


@dataclass(frozen=True, kw_only=True)
class StepRandom:
    """The randomness of the rows from `first_row` on, in the global batch of a step."""

    seed: int
    step: int
    num_rows: int
    """Rows in the global batch."""
    first_row: int = 0
    """Number, in the global batch, of the first row that is worked on."""
    purpose: str = "train"
    """Streams of other purposes are independent: held-out rows are masked alike in each evaluation."""

    def noise(self, masker: Masker, num_rows: int) -> Tensor:
        """The numbers that mask and corrupt the next `num_rows` rows: noise_BLK, on the CPU."""
        last_row = self.first_row + num_rows
        assert last_row <= self.num_rows, f"rows {self.first_row} to {last_row} of {self.num_rows}"
        noise_BLK = _global_noise(masker, self.num_rows, self.seed, self.purpose, self.step)
        return noise_BLK[self.first_row : last_row]

    def seed_dropout(self) -> None:
        """Seed torch's default generators, from which the encoders draw their dropout masks."""
        torch.manual_seed(derive(self.seed, self.purpose, "dropout", self.step, self.first_row) >> 1)


# The micro-batches of a step all take their slices of the same numbers.
@lru_cache(maxsize=1)
def _global_noise(masker: Masker, num_rows: int, seed: int, purpose: str, step: int) -> Tensor:
    # From the CPU's generator on any device: the same run on other hardware masks the same tokens.
    return masker.draw_noise(num_rows, generator=torch_generator(seed, purpose, "mask", step))
