"""Examples -> rows -> losses and outputs -> predictions -> scores: what a kind of task says about itself.

A *family* is a kind of task (classification, tagging, question answering, ...); a *task* is a family with
data. Everything that depends on the kind is a method of its family, so that a new kind is one file here and
one line in `table.py`. What the rest of the package asks of a family, in this order:

    table       reader, learn_table, adapted          a table's row -> an example; all examples -> the family
    training    rows, head, losses, needs_whole_batch
    prediction  outputs, predictions, averaged        one output for each row, one prediction for each example
    results     scores, mistakes, confusion
    files       table_row, submission_value, write_official
    API         ability, answer, num_readings         a method of `electra.load`, a path of the server
    export      to_transformers, from_transformers, write_beside, onnx_outputs, card
    import      recognised                            a model that transformers fine-tuned -> the family
    going on    begun, first_head                     training from the head of pre-training
                continued, kept_head                  training from a model that was fine-tuned before

Only training, prediction and scores have to be written; the rest has defaults that leave the feature out and
say so. B rows, L positions, U units, D numbers in a hidden state.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.errors import InputError
from electra.model.encoder import Positions
from electra.model.heads import HeadLayers, Pooling
from electra.model.sizes import EncoderConfig
from electra.schema import short
from electra.text.spans import Ids
from electra.text.tokenizer import Tokenizer
from electra.text.windows import Window, windows

if TYPE_CHECKING:
    # `columns` reads examples, which are defined here.
    from electra.tasks.data.columns import OwnTaskConfig, RowReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Something to be judged, as a person gave it."""

    id: str
    """Unique within a split: the official id where the data has one, else the number of its line."""
    where: str
    """File and line, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample(Example):
    """One text, or two that are judged together."""

    text: str
    text_pair: str | None = None
    label: int | float | tuple[int, ...] | None = None
    """The number of its class, its value, or the numbers of all its classes; None if it is not known."""


ExampleT = TypeVar("ExampleT", bound=Example)

Prediction = dict[str, Any]
"""What the model says of one example: plain data that JSON can hold, without the example's text."""

Splits = dict[str, list[Any]]
"""Examples by split."""


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


class Learned(NamedTuple):
    """What a labelled table turned out to be."""

    family: "Family[Any]"
    main_score: str
    splits: Splits
    """The examples, with their labels as the family writes them."""
    notes: list[str]
    """What a person should know before training."""


class Mistake(NamedTuple):
    """A wrong prediction, for a person to look at."""

    badness: float
    """The worst are shown: how sure the model was, or how far off."""
    shown: dict[str, Any]
    """The text, `gold` and `predicted`; id and place are added."""


@dataclass(frozen=True, kw_only=True)
class Ability:
    """What fine-tuned models do for a caller: a method of `electra.load(DIR)` and a path of the server.

    Requests and answers are TypedDicts whose annotations carry a description: Annotated[str, "The text."].
    The lists of a request have one item for each thing to judge; everything else in it is an option.
    """

    name: str
    purpose: str
    """What a model must be fine-tuned for to have it."""
    request: type
    answer: Any
    """For each thing that is judged; a union if families that share the ability answer in different forms."""
    example: Mapping[str, Any]
    """A request, for the description of the API and to warm the model up."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A fine-tuned model, as its family sees it when it answers a request."""

    tokenizer: Tokenizer
    max_length: int
    outputs: Callable[[Sequence[TaskRow]], list[Any]]
    """What the head says of each row."""
    embed: Callable[[Sequence[str]], NDArray[np.float32]]
    """The vectors of texts of any length."""

    @cached_property
    def continues_word(self) -> NDArray[np.bool_]:
        """For each id whether the token continues a word."""
        return self.tokenizer.continues_word()

    def predict(self, family: "Family[Any]", examples: Sequence[Example]) -> list[Prediction]:
        """What the model says of each example."""
        rows = family.rows(examples, self.tokenizer, max_length=self.max_length)
        return family.predictions(examples, rows, self.outputs(rows))


class TransformersHead(NamedTuple):
    """A head as transformers has it."""

    architecture: str
    config: dict[str, Any]
    """Keys of config.json that belong to it."""
    tensors: dict[str, Tensor]


LEAVE_HEAD = "`electra import --from transformers DIR --part encoder --out OUT` reads the encoder alone"
"""The way out where a head cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A model that was fine-tuned with transformers, as a family sees it."""

    where: str
    """Its config.json, for error messages."""
    architecture: str
    """Its class there."""
    values: Mapping[str, Any]
    """The content of its config.json."""
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """A weight of the head."""
        if name not in self.tensors:
            raise InputError(
                f"{self.where}: it is an {self.architecture}, but its weights lack {name}. {LEAVE_HEAD}"
            )
        if self.tensors[name].dim() == 0:
            raise InputError(f"{self.where}: {name} of its weights is one number. {LEAVE_HEAD}")
        return self.tensors[name]

    def labels(self, count: int) -> tuple[str, ...]:
        """The names of as many labels as the head has, in the order of its logits."""
        given = self.values.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
        named = given if isinstance(given, dict) else {}
        labels = tuple(str(named[str(number)]) for number in range(count) if str(number) in named)
        if not len(named) == len(labels) == count:
            raise InputError(
                f"{self.where}: id2label is {short(given)}, but the head has {count} outputs: expected a "
                f"name for each, by its number from 0 on. {LEAVE_HEAD}"
            )
        if len(set(labels)) < count:
            raise InputError(f"{self.where}: id2label is {short(given)}: give each label a name of its own")
        return labels


class Recognised(NamedTuple):
    """What a model of transformers was fine-tuned for."""

    family: "Family[Any]"
    main_score: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the model card of an export says of a family."""

    what: str
    """A sentence that says what the model does."""
    hub_task: str = ""
    """What the Hugging Face hub calls the task."""
    use: str = ""
    """A line of Python with `model`, loaded by electra."""
    pipeline: str = ""
    """A line with a pipeline of transformers for the model in `folder`."""
    class_lines: Sequence[str] = ()
    """Lines with `model` and `tokenizer`, loaded by their classes of transformers."""
    tokenizer_arguments: str = '"The chef ate the meal."'
    """What the tokenizer is given in the example for onnxruntime."""
    gives_vectors: bool = False
    """Whether it is a model for sentence-transformers."""


class Family(ABC, Generic[ExampleT]):
    """A kind of task, told what is the same for all its examples, such as the names of the labels."""

    name: ClassVar[str]
    """In the folder of a fine-tuned model."""
    kind: ClassVar[str]
    """In --own.kind."""
    reader: ClassVar["type[RowReader]"]
    """Row of a table -> example."""
    ability: ClassVar[Ability | None] = None
    """None: models of this family are used with `electra predict` only."""
    card: ClassVar[Card] = Card(what="An ELECTRA that was fine-tuned for a task.")
    epochs: ClassVar[float] = 3.0
    """Default length of a fine-tuning."""
    max_length: ClassVar[int] = 128
    """Default tokens of a row."""
    official_files: ClassVar[str] = ""
    """Whose official form `write_official` writes; empty if there is none."""
    pooling: Pooling = "mean"
    """How `embed` makes a vector of a text, unless it is told otherwise."""

    @property
    def positions(self) -> Positions:
        """Whose hidden states the head reads: "first" is cheaper, if [CLS] is enough."""
        return "all"

    @property
    def head_lines(self) -> Sequence[str]:
        """Lines for the card with `model` and `tokenizer`, where transformers loads the encoder alone.

        None if using the head takes more than some lines.
        """
        return ()

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags in the order of the head's logits; empty if it has none."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that make the same family again, as JSON can hold them."""

    def can_judge(self, other: "Family[Any]") -> bool:
        """Whether a model of this family can be scored on examples of another one."""
        return (self.name, self.labels()) == (other.name, other.labels())

    # Tables.

    @classmethod
    def learn_table(cls, config: "OwnTaskConfig", labels: Sequence[str], splits: Splits) -> Learned:
        """The family for the examples of a table; `labels`: the classes that `reader.names` found in it."""
        raise InputError(f"kind {cls.kind} cannot be learned from a table")

    def adapted(self, examples: Sequence[ExampleT]) -> list[ExampleT]:
        """Examples of another table with their labels as this family writes them, checked."""
        return list(examples)

    def input_columns(self, examples: Sequence[ExampleT]) -> dict[str, Any]:
        """The keys of --own that differ from their defaults in a table with examples such as these."""
        return {}

    def line_example(self, line: str, *, id: str, where: str) -> ExampleT | None:
        """A line of plain text as an example; None if it takes more than one text."""
        return None

    # Training.

    @abstractmethod
    def rows(self, examples: Sequence[ExampleT], tokenizer: Tokenizer, *, max_length: int) -> list[TaskRow]:
        """All examples as rows, in order; units are numbered from 0."""

    @abstractmethod
    def head(self, config: EncoderConfig) -> nn.Module:
        """The module that reads the hidden states; the caller initialises its weights."""

    @abstractmethod
    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """The loss of each unit (U), in float32; a batch's loss is their mean."""

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the losses of a batch depend on each other, so that it cannot be cut into micro-batches."""
        return False

    def label_counts(self, examples: Sequence[ExampleT]) -> Counter[str]:
        """How many examples have each label, in the order of `labels`; empty if they have no classes."""
        return Counter()

    # Prediction.

    @abstractmethod
    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """For each row what `predictions` needs of it, on the CPU and small."""

    @abstractmethod
    def predictions(
        self, examples: Sequence[ExampleT], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """What the model says of each example; `outputs` in the order of `rows`."""

    @property
    def ensemble_obstacle(self) -> str | None:
        """Why the predictions of several models cannot be averaged, or None if they can."""
        return None

    def averaged(
        self,
        examples: Sequence[ExampleT],
        rows: Sequence[TaskRow],
        outputs_by_model: Sequence[Sequence[Any]],
    ) -> list[Prediction]:
        """What several models say together: by default from the mean of their outputs, which are arrays."""
        means = [np.mean(outputs, axis=0) for outputs in zip(*outputs_by_model, strict=True)]
        return self.predictions(examples, rows, means)

    # Results.

    @abstractmethod
    def scores(self, examples: Sequence[ExampleT], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """How right it is, by name, the one that counts first; fractions are from 0 to 1."""

    def mistakes(self, example: ExampleT, prediction: Prediction) -> Iterator[Mistake]:
        """What is wrong in the prediction of a labelled example."""
        return iter(())

    def confusion(
        self, examples: Sequence[ExampleT], predictions: Sequence[Prediction]
    ) -> list[list[int]] | None:
        """Counts with a row for each true label and a column for each predicted one; None without classes."""
        return None

    # Files of predictions.

    def table_row(self, example: ExampleT, prediction: Prediction) -> dict[str, str]:
        """The columns of a CSV file: the texts that were given, and the answer."""
        given = {
            column.name: getattr(example, column.name)
            for column in fields(example)
            if column.name not in ("id", "where")
        }
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        numbers = {name: f"{value:.6g}" for name, value in prediction.items() if isinstance(value, float)}
        names = {name: str(value) for name, value in prediction.items() if isinstance(value, str | int)}
        return {**texts, **names, **numbers}

    def submission_value(self, prediction: Prediction, written: Sequence[str]) -> str:
        """A prediction in a submission to GLUE; `written`: the labels as the task's files write them."""
        raise InputError(f"GLUE has no task of {self.kind}")

    def write_official(self, folder: Path, predictions: Mapping[str, Prediction]) -> None:
        """Write predictions, by id, in the form that `official_files` names."""
        raise NotImplementedError

    # API.

    @property
    def num_readings(self) -> int:
        """How often a text is read for an answer, but for its windows."""
        return 1

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Any]:
        """The answers to a request of `ability`, one for each item of its lists; long texts are not cut."""
        raise NotImplementedError

    # Export.

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """Why transformers has no class that computes the same, or None if it has one."""
        return f"transformers has no class for {self.kind}"

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """The same head in transformers; asked for only if there is no obstacle."""
        raise NotImplementedError

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of our head, out of the tensors that `to_transformers` made of it."""
        raise NotImplementedError

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """The family of a model of transformers if it is one of this, else None.

        Its weights are then those that `from_transformers` reads. A head that is of this family and cannot be
        read is an error that names `LEAVE_HEAD`.
        """
        return None

    # What a head begins with.

    def begun(self, head: nn.Module | None, *, where: str) -> Self:
        """The same family for an encoder with this head of pre-training, None if it has none.

        An InputError, which names the model by `where`, if it cannot do without.
        """
        return self

    def first_head(self, head: nn.Module) -> Mapping[str, Tensor] | None:
        """The weights to begin with, out of the head of pre-training; None: random ones."""
        return None

    # Training of a model that was fine-tuned before.

    def continued(self, before: "Family[Any]") -> Self:
        """The same family with a head of the form that a model of another one has, if that can be kept."""
        return self

    def kept_head(self, state: Mapping[str, Tensor], before: "Family[Any]") -> Mapping[str, Tensor] | None:
        """The weights of a head of another family, as this one has them; None if they mean something else."""
        return state if (self.name, self.labels()) == (before.name, before.labels()) else None

    def write_beside(self, folder: Path, *, max_length: int) -> None:
        """Add what other libraries want to find in a folder of transformers."""

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """What a graph of ONNX gives beside the hidden states; empty if the head is no plain function."""
        return {}


HeadPooling = Literal["cls", "mean"]
"""The one vector that a head judges a whole row by: the hidden state of [CLS], or the mean of all."""


class PooledFamily(Family[ExampleT]):
    """What is common to those whose head judges a whole row by one vector."""

    def __init__(self, head_pooling: HeadPooling = "cls", head_layers: HeadLayers = "one") -> None:
        # The paper's, which are also those of every model whose settings do not name any.
        if head_pooling not in get_args(HeadPooling):
            known = " or ".join(get_args(HeadPooling))
            raise InputError(f"head_pooling is {head_pooling!r}, expected {known}")
        if head_layers not in get_args(HeadLayers):
            known = " or ".join(get_args(HeadLayers))
            raise InputError(f"head_layers is {head_layers!r}, expected {known}")
        self.head_pooling = head_pooling
        self.head_layers = head_layers

    def pooled_by(self, pooling: HeadPooling) -> Self:
        """The same family with a head that judges a row by another vector."""
        return type(self)(**{**self.settings(), "head_pooling": pooling})

    def continued(self, before: Family[Any]) -> Self:
        """With as many layers in the head, if it judges by the same vector and knows the same labels."""
        if not self._is_like(before):
            return self
        assert isinstance(before, PooledFamily)
        return type(self)(**{**self.settings(), "head_layers": before.head_layers})

    def kept_head(self, state: Mapping[str, Tensor], before: Family[Any]) -> Mapping[str, Tensor] | None:
        """The same weights, with the labels in the order of this family."""
        if not self._is_like(before):
            return None
        known = before.labels()
        order = [known.index(label) for label in self.labels()]
        if not order:
            return state
        return {name: one[order] if name.startswith("output.") else one for name, one in state.items()}

    def _is_like(self, before: Family[Any]) -> bool:
        """Whether a head of the other one says the same, in whatever order."""
        return (
            isinstance(before, PooledFamily)
            and (self.name, self.head_pooling) == (before.name, before.head_pooling)
            and sorted(self.labels()) == sorted(before.labels())
        )

    @property
    def positions(self) -> Positions:
        """[CLS] alone, unless the mean of all is wanted."""
        return "first" if self.head_pooling == "cls" else "all"

    def pooling_obstacle(self, config: EncoderConfig, architecture: str) -> str | None:
        """Why a class of transformers cannot judge by the same vector, or None if it can."""
        # The classes that lie beside a modern encoder in its export take the mean, too.
        if self.head_pooling == "cls" or config.is_modern:
            return None
        return f"{architecture} judges a text by its [CLS], and this head by the mean of all hidden states"


def known_labels(examples: Sequence[Any]) -> list[Any]:
    """The labels of examples that are to be scored, or an error that says which one has none."""
    for example in examples:
        if example.label is None:
            raise InputError(f"{example.where}: it has no label, so it can be predicted but not scored")
    return [example.label for example in examples]


def value_notes(values: Sequence[float]) -> list[str]:
    """The range of numbers that are to be learned."""
    if not values:
        return []
    mean = math.fsum(values) / len(values)
    return [f"values from {min(values):g} to {max(values):g}, {mean:g} on average"]


def label_names(labels: Sequence[str]) -> dict[str, Any]:
    """Labels in the config of transformers."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


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


MAX_PAIR_WINDOWS = 64
"""Rows in which the windows of two texts meet, unless one of the texts alone has more windows."""


class PairWindow(NamedTuple):
    """A window of a text and, of a pair, one of the other."""

    first: Window
    second: Window

    @property
    def weight(self) -> int:
        """How much of the whole it judges."""
        return max(1, self.first.num_judged) * max(1, self.second.num_judged)


def pair_windows(num_first: int, num_second: int, *, max_length: int) -> list[PairWindow]:
    """Windows of a text; of a pair, each window of one with each of the other, if these are not too many.

    Only the longer text of a pair is read in several, unless both are longer than half of a row. Above
    `MAX_PAIR_WINDOWS` rows, a window of one meets only some of the other's, at even distances, and the next
    window those behind them: all of both texts is read, and the time grows with their length, not with the
    product of their lengths.
    """
    num_special = 3 if num_second else 2
    room = kept_tokens(num_first, num_second, max_length - num_special)
    nothing = (Window(0, 0, 0, 0),)
    first, second = (
        windows(length, room=max(1, kept)) or nothing
        for length, kept in zip((num_first, num_second), room, strict=True)
    )
    more, fewer = max(len(first), len(second)), min(len(first), len(second))
    num_met = max(1, min(fewer, MAX_PAIR_WINDOWS // more))
    places = [
        (place, (place * fewer // more + number * fewer // num_met) % fewer)
        for place in range(more)
        for number in range(num_met)
    ]
    if len(first) < len(second):
        places = [(b, a) for a, b in places]
    return [PairWindow(first[a], second[b]) for a, b in sorted(places)]


def pair_outputs(pairs: Sequence[tuple[Ids, Ids]], predictor: Predictor) -> list[NDArray[np.float64]]:
    """What the head says of each text or pair of any length: the mean over its windows, by their tokens."""
    rows: list[TaskRow] = []
    weights: list[int] = []
    for number, (first, second) in enumerate(pairs):
        for part in pair_windows(len(first), len(second), max_length=predictor.max_length):
            ids, types = sequence(
                first[part.first.start : part.first.stop],
                second[part.second.start : part.second.stop],
                predictor.tokenizer,
                max_length=predictor.max_length,
            )
            rows.append(TaskRow(input_ids=ids, token_type_ids=types, example=number, unit=len(rows)))
            weights.append(part.weight)
    judged = zip(rows, predictor.outputs(rows), weights, strict=True)
    means = []
    for _, group in itertools.groupby(judged, key=lambda triple: triple[0].example):
        _, outputs, shares = zip(*group, strict=True)
        means.append(np.average(np.stack(outputs), axis=0, weights=shares))
    return means
