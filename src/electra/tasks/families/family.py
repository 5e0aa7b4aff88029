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

A text, a pair or a question with choices, as read from a file -> the example that the families judge.

Token ids of one text or two -> the sequence that the encoder reads; and its answers, checked.
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

from electra.errors import InputError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample(Example):
    """One text, or two that are judged together."""

    text: str
    text_pair: str | None = None
    label: int | float | tuple[int, ...] | None = None
    """The number of its class, its value, or the numbers of all its classes; None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample(Example):
    """A question, or the beginning of a text, and the answers to choose from."""

    prompt: str
    choices: tuple[str, ...]
    label: int | None = None
    """Position of the right choice; None if it is not known."""


def known_labels(examples: Sequence[TextExample] | Sequence[ChoiceExample]) -> list[Any]:
    """The labels of examples that are to be scored, or which one has none."""
    for example in examples:
        if example.label is None:
            raise InputError(f"{example.where}: it has no label, so it can be predicted but not scored")
    return [example.label for example in examples]


def kept_tokens(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of a pair cut to fit: the longer one loses, of equal ones the second, as in the original."""
    kept_first = min(first, max(room - second, room - room // 2))
    return kept_first, min(second, room - kept_first)


def sequence(
    first: NDArray[np.uint32], second: NDArray[np.uint32], tokenizer: Tokenizer, *, max_length: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Ids and types of [CLS] first [SEP] second [SEP], or of [CLS] first [SEP] if there is no second."""
    cls, sep = (np.array([token], np.uint32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    if len(second) == 0:
        ids = np.concatenate([cls, first[: max_length - 2], sep])
        return ids, np.zeros(len(ids), np.uint8)
    kept_first, kept_second = kept_tokens(len(first), len(second), max_length - 3)
    ids = np.concatenate([cls, first[:kept_first], sep, second[:kept_second], sep])
    types = np.zeros(len(ids), np.uint8)
    types[kept_first + 2 :] = 1
    return ids, types


def check_finite(examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]) -> None:
    """Refuse a damaged model: the highest of several NaN would be an invented prediction."""
    for example, output in zip(examples, outputs, strict=True):
        if not np.isfinite(output).all():
            raise InputError(
                f"{example.where}: the model's answer is {output.tolist()}. Its weights are damaged, or its "
                "training diverged: train again with a lower learning rate"
            )
