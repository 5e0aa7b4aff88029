"""Rows of tasks -> batches: those that each step trains on, and those of prediction.

The order of training is not state but a function: an epoch is computed from (seed, epoch), and batch k of a
task is batch k % n of its epoch k // n. Rows of like length come together, so there is little padding.

B rows, L positions. A *unit* is what has one loss: a row, or several that belong together.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from electra.errors import InputError
from electra.seeds import numpy_generator
from electra.tasks.families.family import TaskBatch, TaskRow
from electra.text.tokenizer import Tokenizer

WINDOW_BATCHES = 50
"""Batches whose units are sorted by length together: more of them leave less padding and less randomness."""
LEAST_WINDOWS = 4
"""Windows of an epoch: sorted as one, a small set would give nearly the same batches in every epoch."""
PREDICTION_TOKENS = 4096
"""Tokens of a batch in prediction, padding included: no faster with more on a CPU, and it fits any GPU."""

Unit = Sequence[TaskRow]


def units_of(rows: Sequence[TaskRow]) -> list[list[int]]:
    """The places, in `rows`, of each unit's rows."""
    units: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        units.setdefault(row.unit, []).append(place)
    return list(units.values())


def unit_lengths(rows: Sequence[TaskRow], units: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The tokens of each unit's longest row."""
    return np.array([max(len(rows[place].input_ids) for place in unit) for unit in units], np.int64)


class TrainBatches:
    """The training batches of one task, endless: `batches[number]` is a list of units."""

    def __init__(self, rows: Sequence[TaskRow], *, task: str, seed: int, batch_size: int) -> None:
        if not rows:
            raise InputError(f"task {task} has nothing to train on: its split `train` gives no rows")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}, expected at least 1")
        self.rows = rows
        self.batch_size = batch_size
        self._task, self._seed = task, seed
        self._units = units_of(rows)
        self._lengths_U = unit_lengths(rows, self._units)
        self._order: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    @property
    def num_batches(self) -> int:
        """Batches of an epoch; the last one it is cut into may be smaller."""
        return -(-len(self._units) // self.batch_size)

    def __getitem__(self, number: int) -> list[Unit]:
        epoch, place = divmod(number, self.num_batches)
        if self._order[0] != epoch:
            self._order = (epoch, self._arrange(epoch))
        return [[self.rows[row] for row in self._units[unit]] for unit in self._order[1][place]]

    def _arrange(self, epoch: int) -> list[NDArray[np.int64]]:
        """The units of each batch of an epoch: shuffled, sorted by length in windows, batches shuffled."""
        random = numpy_generator(self._seed, "order of units", self._task, epoch)
        units_U = random.permutation(len(self._units))
        window = self.batch_size * max(1, min(WINDOW_BATCHES, self.num_batches // LEAST_WINDOWS))
        batches: list[NDArray[np.int64]] = []
        for first in range(0, len(units_U), window):
            near = units_U[first : first + window]
            # Stable, so that units of one length stay shuffled.
            near = near[np.argsort(self._lengths_U[near], kind="stable")]
            batches += [
                near[start : start + self.batch_size] for start in range(0, len(near), self.batch_size)
            ]
        return [batches[index] for index in random.permutation(len(batches))]


class MixedBatch(NamedTuple):
    """A batch of several tasks' training, named by its task."""

    task: str
    number: int
    """Its place among the batches of that task."""


class TaskMixture:
    """Several tasks -> one sequence of batches of one task each, in proportion to the tasks' sizes."""

    def __init__(self, tasks: Mapping[str, TrainBatches], *, seed: int) -> None:
        assert tasks, "no task to train on"
        self.tasks = dict(tasks)
        self._seed = seed
        self._order: tuple[int, list[MixedBatch]] = (-1, [])

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, in which each task goes through its own epoch once."""
        return sum(batches.num_batches for batches in self.tasks.values())

    def batch(self, number: int) -> MixedBatch:
        """Which batch comes as number `number`."""
        epoch, place = divmod(number, self.num_batches)
        if self._order[0] != epoch:
            self._order = (epoch, self._arrange(epoch))
        return self._order[1][place]

    def _arrange(self, epoch: int) -> list[MixedBatch]:
        batches = [
            MixedBatch(name, epoch * of_task.num_batches + place)
            for name, of_task in self.tasks.items()
            for place in range(of_task.num_batches)
        ]
        # One task keeps its batches in order, which is shuffled already.
        if len(self.tasks) == 1:
            return batches
        random = numpy_generator(self._seed, "order of tasks", epoch)
        return [batches[index] for index in random.permutation(len(batches))]


def hide_tokens(
    units: Sequence[Unit], *, prob: float, tokenizer: Tokenizer, random: np.random.Generator
) -> list[Unit]:
    """The same units with some tokens as [MASK]; [CLS] and [SEP] stay."""
    kept = (tokenizer.cls_id, tokenizer.sep_id)

    def hidden(row: TaskRow) -> TaskRow:
        is_hidden = (random.random(len(row.input_ids)) < prob) & ~np.isin(row.input_ids, kept)
        ids = np.where(is_hidden, np.uint32(tokenizer.mask_id), row.input_ids)
        return dataclasses.replace(row, input_ids=ids)

    return [[hidden(row) for row in unit] for unit in units]


def share_bounds(size: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """First and end of the units that process `rank` of `world_size` works on, evenly; there may be none."""
    return size * rank // world_size, size * (rank + 1) // world_size


def prediction_batches(
    rows: Sequence[TaskRow], *, max_tokens: int = PREDICTION_TOKENS
) -> Iterator[list[int]]:
    """The places, in `rows`, of one batch after the other; the longest first, so memory runs out at once."""
    units = units_of(rows)
    lengths_U = unit_lengths(rows, units)
    batch: list[int] = []
    longest = 0
    for index in np.argsort(-lengths_U, kind="stable"):
        unit = units[index]
        if batch and (len(batch) + len(unit)) * longest > max_tokens:
            yield batch
            batch = []
        longest = longest if batch else int(lengths_U[index])
        batch = [*batch, *unit]
    if batch:
        yield batch


def collate(rows: Sequence[TaskRow], *, pad_id: int, device: torch.device) -> TaskBatch:
    """Rows, padded to the longest of them, on a device."""
    longest = max(len(row.input_ids) for row in rows)
    input_ids_BL = np.full((len(rows), longest), pad_id, np.int64)
    token_type_ids_BL = np.zeros_like(input_ids_BL)
    attention_mask_BL = np.zeros_like(input_ids_BL)
    for number, row in enumerate(rows):
        length = len(row.input_ids)
        input_ids_BL[number, :length] = row.input_ids
        token_type_ids_BL[number, :length] = row.token_type_ids
        attention_mask_BL[number, :length] = 1
    return TaskBatch(
        rows=rows,
        input_ids_BL=torch.from_numpy(input_ids_BL).to(device),
        token_type_ids_BL=torch.from_numpy(token_type_ids_BL).to(device),
        attention_mask_BL=torch.from_numpy(attention_mask_BL).to(device),
    )
