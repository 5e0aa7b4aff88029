"""The number of a batch -> the rows in it that this process works on, as micro-batches, masked.

All of it happens on the host and depends on nothing but the number: a thread does it ahead of the steps.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from electra.pretrain.inputs import Inputs
from electra.pretrain.masking import Masked
from electra.pretrain.randomness import StepRandom
from electra.text.batches import Batch, Batches, made_ahead


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of each batch that this process works on."""

    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    """Rows at once; None: all of them."""


class Piece(NamedTuple):
    """The rows of a micro-batch."""

    inputs: Inputs
    masked: Masked
    random: StepRandom


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The micro-batches of any batch."""

    batches: Batches
    mask: Callable[[Inputs, StepRandom], Masked]
    seed: int
    share: Share
    purpose: str = "train"

    def __getitem__(self, number: int) -> list[Piece]:
        batch = self.batches.part(number, rank=self.share.rank, world_size=self.share.world_size)
        num_rows = len(batch.lengths_B)
        size = self.share.micro_batch or num_rows
        pieces = []
        for first in range(0, num_rows, size):
            rows = slice(first, first + size)
            inputs = Inputs.from_batch(
                Batch(
                    row_ids_B=batch.row_ids_B[rows],
                    input_ids_BL=batch.input_ids_BL[rows],
                    token_type_ids_BL=batch.token_type_ids_BL[rows],
                    lengths_B=batch.lengths_B[rows],
                )
            )
            random = StepRandom(
                seed=self.seed,
                step=number,
                num_rows=self.batches.batch_size,
                first_row=self.share.rank * num_rows + first,
                purpose=self.purpose,
            )
            pieces.append(Piece(inputs, self.mask(inputs, random), random))
        return pieces

    def ahead(self, start: int) -> Iterator[tuple[int, list[Piece]]]:
        """Endless (number, micro-batches) from `start` on, made by a thread before they are asked for."""
        return made_ahead((number, self[number]) for number in itertools.count(start))
