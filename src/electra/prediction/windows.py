"""Sequences of token ids of any length -> hidden states, window by window, in batches of like length.

B rows, L positions, D numbers in a hidden state, T tokens of a sequence.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from electra.errors import InputError
from electra.tasks import inference
from electra.tasks.batches import PREDICTION_TOKENS, collate
from electra.tasks.families.family import TaskBatch, TaskRow, sequence
from electra.tasks.precision import FLOAT32, Precision, computing
from electra.text.spans import Ids
from electra.text.tokenizer import Tokenizer
from electra.text.windows import Window, windows

Batch = TypeVar("Batch")
_is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)


class AbandonedError(Exception):
    """Nobody waits for the answer any more."""


@contextmanager
def computing_while(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """End what this thread computes with `AbandonedError`, after the batch at hand, once it is not wanted.

    A call may take long, and threads cannot be stopped from outside.
    """
    before = _is_wanted.set(is_wanted)
    try:
        yield
    finally:
        _is_wanted.reset(before)


def wanted(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches, as long as somebody waits for them."""
    for batch in batches:
        if not _is_wanted.get()():
            raise AbandonedError
        yield batch


class WindowRow(NamedTuple):
    """A row of a batch: which part of which sequence it is."""

    number: int
    """Of the sequence."""
    window: Window

    @property
    def judged(self) -> slice:
        """The positions in the row, behind [CLS], of the tokens that are judged here."""
        first = 1 + self.window.judged - self.window.start
        return slice(first, first + self.window.num_judged)


class ReadBatch(NamedTuple):
    """Hidden states of some windows."""

    rows: list[WindowRow]
    hidden_BLD: Tensor
    attention_mask_BL: Tensor


@dataclass(frozen=True, kw_only=True)
class Reader:
    """An encoder with its tokenizer."""

    encoder: Callable[..., Tensor]
    tokenizer: Tokenizer
    max_length: int
    """Tokens that it reads at once, [CLS] and [SEP] included."""
    device: torch.device
    max_tokens: int = PREDICTION_TOKENS
    """Of a batch, padding included."""
    precision: Precision = FLOAT32
    """Of matrix products."""

    def computing(self) -> AbstractContextManager[Any]:
        """Compute in its precision: for what reads the hidden states."""
        return computing(self.device, self.precision)

    def read(
        self, sequences: Sequence[Ids], *, is_wanted: Callable[[WindowRow], bool] = lambda _: True
    ) -> Iterator[ReadBatch]:
        """All windows of all sequences that are wanted, between [CLS] and [SEP]."""
        places = [
            row
            for number, ids_T in enumerate(sequences)
            for window in windows(len(ids_T), room=self.max_length - 2)
            if is_wanted(row := WindowRow(number, window))
        ]
        rows = [self._task_row(sequences, place, unit=unit) for unit, place in enumerate(places)]

        def states(batch_places: list[int]) -> ReadBatch:
            batch = collate(
                [rows[place] for place in batch_places], pad_id=self.tokenizer.pad_id, device=self.device
            )
            return ReadBatch(
                [places[place] for place in batch_places], self._states(batch), batch.attention_mask_BL
            )

        yield from wanted(inference.spread_rows(states, rows, device=self.device, max_tokens=self.max_tokens))

    def _task_row(self, sequences: Sequence[Ids], place: WindowRow, *, unit: int) -> TaskRow:
        ids_T = sequences[place.number][place.window.start : place.window.stop]
        ids, types = sequence(ids_T, ids_T[:0], self.tokenizer, max_length=self.max_length)
        return TaskRow(input_ids=ids, token_type_ids=types, example=place.number, unit=unit)

    @torch.no_grad()
    def _states(self, batch: TaskBatch) -> Tensor:
        with self.computing():
            hidden_BLD = self.encoder(
                batch.input_ids_BL,
                token_type_ids_BL=batch.token_type_ids_BL,
                attention_mask_BL=batch.attention_mask_BL,
            )
        # The highest of several NaN would be an invented answer, and JSON has no word for them.
        if not torch.isfinite(hidden_BLD).all():
            raise InputError("the model computes NaN: its weights are damaged, or its training diverged")
        return hidden_BLD
