"""A task file, or keys of the command line -> what the columns of a table mean, and its cells, checked.

Each family has a `RowReader` of its own, which makes examples of rows:

reader.names(cells)                         # the classes of a row, as they are written
reader.example(cells, id, classes=classes)  # with their numbers; without `classes` nothing is known of it
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from electra import config, show
from electra.errors import InputError
from electra.model.heads import Pooling
from electra.show import did_you_mean
from electra.tasks.families.family import Example
from electra.text.tables import Dialect, Quoting, Row
from electra.text.templates import DEFAULT_TEMPLATE, Template


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig:
    """What the columns of a table (CSV, TSV, JSON lines, parquet) contain, and what to learn from them."""

    kind: str = "classification"
    """What is learned: classification (one class of a text or pair), multi_label (any number of classes),
    regression (a number), similarity (vectors that tell how similar texts are), tagging (a tag for each
    word), answering (the place of an answer in a text), multiple_choice (the right one of several) or options
    (one class of a text, by which of their words looks least replaced in a sentence behind it)."""
    text: str = "text"
    """Column of the text, or of the first text of a pair."""
    text_pair: str | None = None
    """Column of the second text of a pair."""
    negative: str | None = None
    """Similarity, contrastive: column of a text that does not belong to the pair; it may be empty."""
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
    template: str = DEFAULT_TEMPLATE
    """Options: the sentence, with {} for the word; it follows the text, unless it has {text} as well."""
    words: list[str] = field(default_factory=list)
    """Options: a word for each label, such as negative=terrible positive=great. Default: the labels."""
    pooling: Pooling = "mean"
    """Similarity: how a text becomes a vector."""
    similarity_loss: Literal["sts", "cosent", "contrastive"] = "sts"
    """Similarity: learn the values (sts), their order (cosent), or that the texts of a pair belong together
    (contrastive), which needs no labels."""
    max_score: float | None = None
    """Similarity: the label of two texts with the same meaning. Default: the highest label in the data."""
    train: str | None = None
    """File in the data folder, or split of a dataset, to train on. Default: the one with "train" in its
    name."""
    dev: str | None = None
    """File or split to score on. Default: the one with "dev", "valid", "validation" or "eval" in its name, or
    else a part of the training examples."""
    test: str | None = None
    """File or split to predict, and to score if it has labels. Default: the one with "test" in its name."""
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
        _ = Template(self.template)  # checks it
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
    # Families have readers of columns, so this module cannot import them when it is loaded.
    from electra.tasks.families.table import family_of_kind

    content = config.parse(_TaskFile, ["--config", str(path)], prog="electra finetune")
    family_of_kind(content.kind, where=f"{path}: ")
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
                f"{self.where}: no column {column!r}, only {quoted(self.row)}{did_you_mean(column, self.row)}"
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


def quoted(names: Collection[str]) -> str:
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
"""Number of each class, by its name."""

ClassCount = Literal["none", "one", "several"]
"""How many named classes an example has."""


class RowReader(ABC):
    """What the columns mean for one kind of task; each family has its own."""

    classes: ClassVar[ClassCount] = "none"

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

    @property
    def needs_labels(self) -> bool:
        """Whether there is nothing to learn and to score without labels."""
        return True

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
