"""A task file, or keys of the command line -> what the columns of somebody's own data mean.

A row of a table -> texts, numbers, names and lists, each checked where it stands.

Rows of somebody's own table -> texts, pairs and sentences with their labels.

reader.names(cells)                         # the classes of a row, as they are written
reader.example(cells, id, classes=classes)  # with their numbers; without `classes` nothing is known of it

Rows of somebody's own table -> questions: with a text that holds the answer, or with choices.
"""

import dataclasses
import math
import string
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra import config, show
from electra.errors import InputError
from electra.show import did_you_mean
from electra.tasks.families.answering import Answer, AnswerExample
from electra.tasks.families.family import ChoiceExample, Example, TextExample
from electra.tasks.families.similarity import Pooling
from electra.tasks.families.tagging import TaggingExample
from electra.tasks.task import content_key
from electra.text.tables import Dialect, Quoting, Row

Kind = Literal[
    "classification", "multi_label", "regression", "similarity", "tagging", "answering", "multiple_choice"
]


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig:
    """What the columns of a table (CSV, TSV, JSON lines, parquet) contain, and what to learn from them."""

    kind: Kind = "classification"
    """What is learned: one class of a text or pair, any number of classes, a number, vectors of texts that
    tell how similar they are, a tag for each word, the place of an answer in a text, or the right choice."""
    text: str = "text"
    """Column of the text, or of the first text of a pair."""
    text_pair: str | None = None
    """Column of the second text of a pair."""
    label: str = "label"
    """Column of the class, classes, value or similarity. For multiple choice: the number of the right choice
    from 0, its letter from A, its column or its text."""
    label_separator: str = "|"
    """Separator between the classes of a multi-label example, if they are not a list."""
    id: str | None = None
    """Column of a unique id for each example. Default: its line number."""
    tokens: str = "tokens"
    """Tagging: column of the words, as a list or separated by spaces."""
    tags: str = "tags"
    """Tagging: column of the tags, one for each word."""
    question: str = "question"
    """Answering: column of the question."""
    context: str = "context"
    """Answering: column of the text that contains the answer."""
    answers: str = "answers"
    """Answering: column of the answers: a text, a list of texts, or lists "text" and "answer_start". Empty if
    the context contains no answer."""
    prompt: str = "prompt"
    """Multiple choice: column of the question, or of the beginning to be continued."""
    choices: str = "choices"
    """Multiple choice: column with a list of choices, or one column per choice, separated by commas."""
    pooling: Pooling = "mean"
    """Similarity: how a text becomes a vector."""
    similarity_loss: Literal["sts", "cosent", "contrastive"] = "sts"
    """Similarity: learn the values (sts), their order (cosent), or that the texts of a pair belong together
    (contrastive), which needs no labels."""
    max_score: float | None = None
    """Similarity: the label of two texts with the same meaning. Default: the highest label in the data."""
    train: str | None = None
    """File in the data folder to train on. Default: the one with "train" in its name."""
    dev: str | None = None
    """File to score on. Default: the one with "dev", "valid", "validation" or "eval" in its name, or else a
    part of the training examples."""
    test: str | None = None
    """File to predict, and to score if it has labels. Default: the one with "test" in its name."""
    dev_share: float = 0.1
    """Fraction of the training examples to hold out if there is no file for dev."""
    encoding: str | None = None
    """Encoding of the files. Default: detected for each file."""
    delimiter: str | None = None
    """Character between the values of CSV and TSV files, or 'tab'. Default: taken from the file's header."""
    quoting: Quoting | None = None
    """Whether double quotes enclose values (double) or are part of them (none). Default: double, but none
    between tabs."""
    empty: Literal["refuse", "skip"] = "refuse"
    """What to do with an example that has no text: stop with an error, or skip and count it."""

    def __post_init__(self) -> None:
        if self.kind == "similarity" and self.text_pair is None:
            raise InputError("kind similarity compares two texts: name the column of the second in text_pair")
        if not 0 < self.dev_share < 1:
            raise InputError(f"dev_share is {self.dev_share}, expected a share between 0 and 1")
        if self.max_score is not None and not 0 < self.max_score < math.inf:
            raise InputError(f"max_score is {self.max_score}, expected a number above 0")
        _ = self.dialect  # checks its keys
        if not self.label_separator:
            raise InputError("label_separator is empty, expected what stands between two classes")
        if not self.choice_columns:
            raise InputError("choices is empty, expected a column or several, separated by commas")

    @property
    def dialect(self) -> Dialect:
        """How the files are read."""
        return Dialect(encoding=self.encoding, delimiter=self.delimiter, quoting=self.quoting)

    @property
    def choice_columns(self) -> tuple[str, ...]:
        """One column that holds a list, or one for each choice."""
        return tuple(name.strip() for name in self.choices.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class _TaskFile(OwnTaskConfig):
    """The keys of a task file: what the columns mean, and where the data is."""

    data: str = "."
    """File or folder, relative to the task file."""


def read_task_file(path: Path) -> tuple[OwnTaskConfig, Path]:
    """The keys in a YAML file, and the data that its key `data` names, relative to the file."""
    if not path.is_file():
        raise InputError(f"{path}: no such task file")
    content = config.parse(_TaskFile, ["--config", str(path)], prog="electra finetune")
    keys = [field.name for field in dataclasses.fields(OwnTaskConfig)]
    return OwnTaskConfig(**{key: getattr(content, key) for key in keys}), path.parent / content.data


MISSING: tuple[object, ...] = (None, "", [])
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of one row. Strings from CSV and typed values from JSON and parquet are read alike."""

    where: str
    """File and line."""
    row: Row

    def value(self, column: str) -> Any:
        """The value in a column; a missing column is an error."""
        if column not in self.row:
            raise InputError(
                f"{self.where}: no column {column!r}, only {listed(self.row)}{did_you_mean(column, self.row)}"
            )
        value = self.row[column]
        # pandas stores what is missing as NaN.
        return None if isinstance(value, float) and math.isnan(value) else value

    def values(self, column: str) -> list[Any]:
        """A list, or the only value as one; nothing if the column is empty."""
        value = self.value(column)
        return value if isinstance(value, list) else [] if self.is_missing(column) else [value]

    def is_missing(self, column: str) -> bool:
        """Whether a column is empty or does not exist."""
        return column not in self.row or _bare(self.value(column)) in MISSING

    def has_no_text(self, column: str) -> bool:
        """Whether a column of one or more texts is empty, or one of the texts is blank."""
        values = self.values(column)
        return not values or any(_bare(value) in MISSING for value in values)

    def text(self, column: str) -> str:
        """A text as it is."""
        return self.text_of(column, self.value(column))

    def text_of(self, column: str, value: Any) -> str:
        """A single value of a column as text."""
        if isinstance(value, list | dict | bytes):
            raise InputError(f"{self.where}: {column!r} holds {str(value)[:60]}, expected a single text")
        return "" if value is None else str(value)

    def words(self, column: str, *, separator: str | None = None) -> tuple[str, ...]:
        """The names in a list, or in a text that a separator or white space divides."""
        value = self.value(column)
        if isinstance(value, str):
            bare = value.strip()
            if bare.startswith(("['", '["')):
                raise InputError(
                    f"{self.where}: {column!r} is a list written as text, {bare[:40]}...: store it as JSON "
                    f"lines or parquet, or put {separator or 'blanks'} between the values"
                )
            value = bare.split(separator) if bare else []
        values = value if isinstance(value, list) else self.values(column)
        return tuple(self.name_of(column, part) for part in values)

    def name(self, column: str) -> str:
        """The name of a class, or an id."""
        return self.name_of(column, self.value(column))

    def name_of(self, column: str, value: Any) -> str:
        """A single value as a name: true as in JSON; 1.0, which pandas may have made of 1, is 1."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        name = self.text_of(column, value).strip()
        if not name:
            raise InputError(f"{self.where}: a value of {column!r} is empty: fill it in or remove the line")
        return name

    def number(self, column: str) -> float:
        """A finite number."""
        self.value(column)
        value = self.row[column]
        try:
            number = float(value) if isinstance(value, int | float | str) else math.nan
        except ValueError:
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            raise InputError(
                f"{self.where}: {column!r} is {value!r}, expected a number such as 3.5 (if the labels are "
                "classes, set kind to classification)"
            )
        return number


def _bare(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def listed(names: Collection[str]) -> str:
    """Names for a message, not more than a person reads."""
    return show.listed([repr(name) for name in names], most=_SHOWN)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, sorted; as numbers if all of them are."""
    unique = sorted(set(names))
    return tuple(sorted(unique, key=float) if all(map(_is_number, unique)) else unique)


def are_decimal(names: Collection[str]) -> bool:
    """Whether all names are numbers, and not all of them whole ones."""
    return all(map(_is_number, names)) and not all(float(name).is_integer() for name in names)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


Classes = Mapping[str, int]


class Reader(ABC):
    """What the columns mean for one kind of task."""

    def __init__(self, config: OwnTaskConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def text_columns(self) -> tuple[str, ...]:
        """Columns of which none may be empty."""

    @property
    def label_column(self) -> str:
        """The column of what is to be learned."""
        return self.config.label

    def has_label(self, cells: Cells) -> bool:
        """Whether a row says anything of what is to be learned."""
        return not cells.is_missing(self.label_column)

    def names(self, cells: Cells) -> tuple[str, ...]:
        """The classes of a row; none where something else is learned than classes."""
        return ()

    @abstractmethod
    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> Example:
        """What a row says. `classes` are the known ones by name; None if the file has no labels."""

    @abstractmethod
    def content(self, example: Any) -> str:
        """What two examples must share to stay on the same side of a split."""


class TextReader(Reader):
    """One text or a pair, and its class."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The text, and the second one if there is one."""
        return (self.config.text, *([self.config.text_pair] if self.config.text_pair is not None else []))

    def names(self, cells: Cells) -> tuple[str, ...]:
        """The class."""
        return (cells.name(self.label_column),)

    def label(self, cells: Cells, classes: Classes) -> int | float | tuple[int, ...]:
        """The number of the class."""
        return self.number(cells, cells.name(self.label_column), classes)

    def number(self, cells: Cells, name: str, classes: Classes) -> int:
        """The number of a class, or which classes there are."""
        if name not in classes:
            raise InputError(
                f"{cells.where}: {self.label_column!r} is {name!r}, which is not among the labels to learn: "
                f"{listed(classes)}{did_you_mean(name, classes)}"
            )
        return classes[name]

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> TextExample:
        """The text or pair."""
        pair = self.config.text_pair
        return TextExample(
            id=id,
            where=cells.where,
            text=cells.text(self.config.text),
            text_pair=None if pair is None else cells.text(pair),
            label=None if classes is None else self.label(cells, classes),
        )

    def content(self, example: TextExample) -> str:
        """The text or pair."""
        return content_key(example.text, *([example.text_pair] if example.text_pair is not None else []))


class MultiLabelReader(TextReader):
    """A text and any number of classes, none of them too."""

    def names(self, cells: Cells) -> tuple[str, ...]:
        """The classes, each once."""
        return tuple(dict.fromkeys(cells.words(self.label_column, separator=self.config.label_separator)))

    def label(self, cells: Cells, classes: Classes) -> tuple[int, ...]:
        """The numbers of the classes."""
        return tuple(sorted(self.number(cells, name, classes) for name in self.names(cells)))


class ValueReader(TextReader):
    """A text or pair and a number."""

    def names(self, cells: Cells) -> tuple[str, ...]:
        """None."""
        return ()

    def label(self, cells: Cells, classes: Classes) -> float:
        """The number."""
        return cells.number(self.label_column)


class SimilarityReader(ValueReader):
    """Two texts, and how near they are in meaning: not below 0."""

    def label(self, cells: Cells, classes: Classes) -> float:
        """The similarity."""
        value, highest = super().label(cells, classes), self.config.max_score
        if value < 0 or (highest is not None and value > highest):
            expected = "0 or more" if highest is None else f"0 to {highest:g} (max_score)"
            raise InputError(f"{cells.where}: {self.label_column!r} is {value:g}, expected {expected}")
        return value

    def content(self, example: TextExample) -> str:
        """The pair, whichever text is first."""
        return content_key(*sorted((example.text, example.text_pair or "")))


class TagReader(Reader):
    """Words, and a tag for each. What the tags mean is found out from all of them together."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The words."""
        return (self.config.tokens,)

    @property
    def label_column(self) -> str:
        """The tags."""
        return self.config.tags

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> TaggingExample:
        """The sentence."""
        words = cells.words(self.config.tokens)
        tags = None if classes is None else cells.words(self.config.tags)
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{cells.where}: {len(words)} words in {self.config.tokens!r} but {len(tags)} tags in "
                f"{self.config.tags!r}, expected one for each word"
            )
        return TaggingExample(id=id, where=cells.where, words=words, tags=tags)

    def content(self, example: TaggingExample) -> str:
        """The sentence."""
        return content_key(" ".join(example.words))


class AnswerReader(Reader):
    """A question, a text, and the answers that stand in the text."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Question and text."""
        return self.config.question, self.config.context

    @property
    def label_column(self) -> str:
        """The answers."""
        return self.config.answers

    def has_label(self, cells: Cells) -> bool:
        """Whether there is an answer."""
        return self.label_column in cells.row and bool(self.given_answers(cells))

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> AnswerExample:
        """The question with its answers; if they are known and there are none, it has no answer."""
        context = cells.text(self.config.context)
        given = [] if classes is None else self.given_answers(cells)
        return AnswerExample(
            id=id,
            where=cells.where,
            question=cells.text(self.config.question),
            context=context,
            answers=tuple(located(cells, context, text, start) for text, start in given),
            is_impossible=classes is not None and not given,
        )

    def given_answers(self, cells: Cells) -> list[tuple[str, Any]]:
        """Text and place, if it is given, of each answer: as plain texts or in either way of SQuAD."""
        column = self.config.answers
        answers = [
            answer if isinstance(answer, dict) else {"text": [answer]} for answer in cells.values(column)
        ]
        found: list[tuple[str, Any]] = []
        for answer in answers:
            inner = Cells(f"{cells.where}: {column!r}", answer)
            texts = [inner.text_of("text", text) for text in inner.values("text")]
            no_places = inner.is_missing("answer_start")
            starts = [None] * len(texts) if no_places else inner.values("answer_start")
            if len(texts) != len(starts):
                raise InputError(
                    f"{inner.where}: {len(texts)} texts, but 'answer_start' has {len(starts)} places"
                )
            found += zip(texts, starts, strict=True)
        return found

    def content(self, example: AnswerExample) -> str:
        """The text: all questions about it stay together."""
        return content_key(example.context)


def located(cells: Cells, context: str, text: str, start: Any) -> Answer:
    """An answer where it is said to begin, or else at the first place where the text has it."""
    if text.strip() in MISSING:
        raise InputError(f"{cells.where}: an answer is blank; without any answer, the question has none")
    if start is None:
        text = text.strip()
        if text not in context:
            raise InputError(
                f"{cells.where}: the answer {text[:60]!r} is not in its text, expected it word for word"
            )
        return Answer(text, context.find(text))
    if not isinstance(start, int) or start < 0 or not context.startswith(text, start):
        hint = f"it is at {context.find(text)}" if text in context else "it is nowhere in the text"
        raise InputError(
            f"{cells.where}: the answer {text[:60]!r} is not at answer_start {start!r}, {hint}; without "
            "answer_start the first place counts"
        )
    return Answer(text, start)


class ChoiceReader(Reader):
    """A prompt, choices, and which of them is right."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The prompt and all choices."""
        return self.config.prompt, *self.config.choice_columns

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> ChoiceExample:
        """The prompt with its choices."""
        columns = self.config.choice_columns
        choices = tuple(cells.text_of(column, text) for column in columns for text in cells.values(column))
        if len(choices) < 2:
            raise InputError(
                f"{cells.where}: one choice in {self.config.choices!r}, expected a list of two or more, or "
                "several columns"
            )
        label = None if classes is None else self.right_choice(cells, choices)
        return ChoiceExample(
            id=id, where=cells.where, prompt=cells.text(self.config.prompt), choices=choices, label=label
        )

    def right_choice(self, cells: Cells, choices: tuple[str, ...]) -> int:
        """Position of the choice that is named by number, letter, column or text."""
        name, columns = cells.name(self.label_column), self.config.choice_columns
        ways = [
            [str(number) for number in range(len(choices))],
            list(string.ascii_uppercase[: len(choices)]),
            [text.strip() for text in choices],
            list(columns) if len(columns) == len(choices) else [],
        ]
        # Where choices are "2" and "1", a label can be read in two ways: better an error than the wrong one.
        found = {number for way in ways for number, known in enumerate(way) if known == name}
        if len(found) != 1:
            problem = "could mean several choices" if found else "names no choice"
            raise InputError(
                f"{cells.where}: {self.label_column!r} is {name!r}, which {problem}; expected a number from "
                f"0 to {len(choices) - 1}, a letter from A, a column or the text of one of {listed(choices)}"
            )
        return found.pop()

    def content(self, example: ChoiceExample) -> str:
        """The prompt and its choices, in whatever order."""
        return content_key(example.prompt, *sorted(example.choices))
