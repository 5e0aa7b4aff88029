"""Rows -> the global batch of any step, the same for any number of processes and workers.

The order is not state but a function: an epoch is a permutation computed from (seed, epoch), and the rows of
a step are the next `batch_size` positions in the endless sequence of epochs. Nothing is stored and nothing is
replayed: step 1,000,000 costs as much as step 0.
"""

import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from electra import seeds
from electra.errors import InputError
from electra.text.rows import Rows

AHEAD = 4
"""Number of batches made in advance."""

Item = TypeVar("Item")

_FEISTEL_ROUNDS = 6
_LENGTH_MULTIPLE = 8


class Permutation:
    """A pseudo-random permutation of 0..size-1 that computes any of its values without a table.

    A Feistel network permutes the numbers below the next power of four. Values of `size` or more go through
    it again until they fall below (cycle walking), which leaves a permutation of 0..size-1.
    """

    def __init__(self, size: int, *, seed: int) -> None:
        self._size = size
        self._half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
        self._half_mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._keys = seeds.numpy_generator(seed).integers(0, 1 << 63, _FEISTEL_ROUNDS, dtype=np.uint64)

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The permuted values at these positions."""
        values = self._encrypt(positions.astype(np.uint64))
        while (beyond := values >= self._size).any():
            values[beyond] = self._encrypt(values[beyond])
        return values.astype(np.int64)

    def _encrypt(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._half_mask)
        return (left << self._half_bits) | right


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64: every input bit affects every output bit. Overflow is intended."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded rows. B rows, L the longest of them, rounded up to a multiple of eight for the matrix units."""

    row_ids_B: npt.NDArray[np.int64]
    input_ids_BL: npt.NDArray[np.int64]
    token_type_ids_BL: npt.NDArray[np.int64]
    lengths_B: npt.NDArray[np.int64]


class Batches:
    """`batches[step]` is the global batch of a step; `part` is the slice of one process."""

    def __init__(self, rows: Rows, *, seed: int, batch_size: int) -> None:
        if not len(rows):
            raise InputError(f"{rows.folder} has no rows to make batches of")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}, expected at least 1")
        self._rows = rows
        self._seed = seed
        self.batch_size = batch_size

    def row_ids(self, step: int) -> npt.NDArray[np.int64]:
        """The rows of the global batch of a step, in order."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, places = np.divmod(positions, len(self._rows))
        ids = np.empty_like(places)
        for epoch in np.unique(epochs):
            permutation = Permutation(len(self._rows), seed=seeds.derive(self._seed, "epoch", int(epoch)))
            ids[epochs == epoch] = permutation(places[epochs == epoch])
        return ids

    def __getitem__(self, step: int) -> Batch:
        return self.part(step, rank=0, world_size=1)

    def part(self, step: int, *, rank: int, world_size: int) -> Batch:
        """The part of the global batch that process `rank` of `world_size` works on."""
        if self.batch_size % world_size:
            raise InputError(
                f"batch_size {self.batch_size} cannot be shared by {world_size} processes: "
                f"choose a multiple of {world_size}"
            )
        share = self.batch_size // world_size
        return self._collate(self.row_ids(step)[rank * share : (rank + 1) * share])

    def _collate(self, row_ids: npt.NDArray[np.int64]) -> Batch:
        rows = [self._rows[int(index)] for index in row_ids]
        lengths = np.array([len(row.ids) for row in rows], np.int64)
        longest = -(-int(lengths.max()) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        input_ids = np.full((len(rows), longest), self._rows.pad_id, np.int64)
        token_type_ids = np.zeros_like(input_ids)
        for number, row in enumerate(rows):
            input_ids[number, : len(row.ids)] = row.ids
            token_type_ids[number, row.first_segment : len(row.ids)] = 1
        return Batch(
            row_ids_B=row_ids, input_ids_BL=input_ids, token_type_ids_BL=token_type_ids, lengths_B=lengths
        )

    def prefetch(
        self, start: int = 0, *, rank: int = 0, world_size: int = 1, ahead: int = AHEAD
    ) -> Iterator[tuple[int, Batch]]:
        """Endless (step, batch) from `start` on, made by a thread `ahead` steps in advance."""
        parts = ((step, self.part(step, rank=rank, world_size=world_size)) for step in itertools.count(start))
        return made_ahead(parts, ahead=ahead)


def made_ahead(items: Iterator[Item], *, ahead: int = AHEAD) -> Iterator[Item]:
    """The items of an endless iterator, made by a thread `ahead` items in advance."""
    ready: queue.Queue[Item | _Failure] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()

    def put(item: Item | _Failure) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def make() -> None:
        try:
            while not stopped.is_set():
                put(next(items))
        except BaseException as error:
            put(_Failure(error))

    thread = threading.Thread(target=make, name="electra-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        stopped.set()
        thread.join()


class _Failure(NamedTuple):
    """An error in the thread, to be raised where the item is awaited."""

    error: BaseException
