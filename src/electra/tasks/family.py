"""Examples -> rows -> losses and outputs of a head -> predictions -> scores: what a kind of task answers to.

A *family* is a kind of task (classification, tagging, question answering, ...). A *task* is a family with
data: which files, which labels, which scores. Families know no files, readers know no tensors.

    rows        = family.rows(examples, tokenizer, max_length=128)       # an example may need several rows
    head        = family.head(encoder.config)
    losses_U    = family.losses(head, hidden_BLD, batch)                 # training: one loss for each unit
    outputs     = family.outputs(head, hidden_BLD, batch)                # prediction: one output for each row
    predictions = family.predictions(examples, rows, outputs)            # one for each example
    scores      = family.scores(examples, predictions)

B rows, L positions, U units, D numbers in a hidden state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.model.sizes import EncoderConfig
from electra.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Something to be judged, as a person gave it."""

    id: str
    """Of its own within a split: the official id where the data has one, else the number of its line."""
    where: str
    """File and line, for error messages."""


ExampleT = TypeVar("ExampleT", bound=Example)

Prediction = dict[str, Any]
"""What the model says of one example: plain data that JSON can hold, without the example's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One sequence for the encoder."""

    input_ids: NDArray[np.uint32]
    """With [CLS] and [SEP], without padding."""
    token_type_ids: NDArray[np.uint8]
    example: int
    """Position, in the list of examples, of the one that it belongs to."""
    unit: int
    """Rows of one unit stand side by side in one batch: all choices of a question, both sentences of a pair
    that are compared. Where a row is judged by itself it is a unit of its own."""
    targets: Mapping[str, Any] = field(default_factory=dict)
    """What is to be learned, a number or an array by name; empty if it is unknown."""
    origin: Any = None
    """What `predictions` needs to lead an output back to the example's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBatch:
    """Rows of the same task, padded to the longest of them."""

    rows: Sequence[TaskRow]
    input_ids_BL: Tensor
    token_type_ids_BL: Tensor
    attention_mask_BL: Tensor
    """1 at text, 0 at padding."""

    def target(self, name: str, *, dtype: torch.dtype = torch.long) -> Tensor:
        """One number for each row: (B)."""
        values = [row.targets[name] for row in self.rows]
        return torch.tensor(values, dtype=dtype, device=self.input_ids_BL.device)

    def padded_target(self, name: str, *, padding: float, dtype: torch.dtype = torch.long) -> Tensor:
        """An array for each row, padded to the longest: (B, P)."""
        arrays = [torch.as_tensor(row.targets[name], dtype=dtype) for row in self.rows]
        padded = nn.utils.rnn.pad_sequence(arrays, batch_first=True, padding_value=padding)
        return padded.to(self.input_ids_BL.device)


class Score(NamedTuple):
    """A measured number, or why there is none."""

    value: float
    """NaN if it is undefined."""
    undefined: str = ""
    """Why, such as "all predictions are equal"."""

    @property
    def is_defined(self) -> bool:
        """Whether it may be shown as a number."""
        return math.isfinite(self.value)


class Family(ABC, Generic[ExampleT]):
    """A kind of task, told what is the same for all its examples, such as the names of the labels."""

    name: ClassVar[str]

    @abstractmethod
    def rows(self, examples: Sequence[ExampleT], tokenizer: Tokenizer, *, max_length: int) -> list[TaskRow]:
        """All examples as rows, in order; units are numbered from 0."""

    @abstractmethod
    def head(self, config: EncoderConfig) -> nn.Module:
        """What reads the hidden states; its weights are still to be initialised."""

    @abstractmethod
    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """The loss of each unit (U), in float32; a batch's loss is their mean."""

    @abstractmethod
    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """For each row what `predictions` needs of it, on the CPU and small."""

    @abstractmethod
    def predictions(
        self, examples: Sequence[ExampleT], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """What the model says of each example; `outputs` in the order of `rows`."""

    @abstractmethod
    def scores(self, examples: Sequence[ExampleT], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """How right it is, by name, the one that counts first; fractions are from 0 to 1."""

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags in the order of the head's logits; empty if it has none."""
