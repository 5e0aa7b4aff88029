"""A task file, or keys of the command line -> what the columns of somebody's own data mean."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from electra import config
from electra.errors import InputError
from electra.tasks.similarity import Pooling
from electra.tasks.table_files import Quoting

Kind = Literal[
    "classification", "multi_label", "regression", "similarity", "tagging", "answering", "multiple_choice"
]


@dataclass(frozen=True, kw_only=True)
class OwnTaskConfig:
    """What is in the columns of a table (CSV, TSV, line-JSON, parquet) and what is to be learned of it."""

    kind: Kind = "classification"
    """What is learned: one class of a text or pair, any number of classes, a number, vectors of texts that
    tell how similar they are, a tag for each word, the place of an answer in a text, or the right choice."""
    text: str = "text"
    """Column of the text, or of the first text of a pair."""
    text_pair: str | None = None
    """Column of the second text of a pair."""
    label: str = "label"
    """Column of the class, classes, value or similarity; of the right choice: its number from 0, its letter
    from A, its column or its text."""
    label_separator: str = "|"
    """What stands between the classes of a multi-label example where they are not a list."""
    id: str | None = None
    """Column of a name of its own for each example; the number of its line if there is none."""
    tokens: str = "tokens"
    """Tagging: column of the words, a list or separated by blanks."""
    tags: str = "tags"
    """Tagging: column of the tags, as many as words."""
    question: str = "question"
    """Answering: column of the question."""
    context: str = "context"
    """Answering: column of the text that holds the answer."""
    answers: str = "answers"
    """Answering: column of the answers: a text, a list of them, or lists "text" and "answer_start"; empty if
    the text holds no answer."""
    prompt: str = "prompt"
    """Multiple choice: column of the question, or of the beginning that is to be continued."""
    choices: str = "choices"
    """Multiple choice: column of a list, or the columns of the choices, separated by commas."""
    pooling: Pooling = "mean"
    """Similarity: how a text becomes a vector."""
    similarity_loss: Literal["sts", "cosent", "contrastive"] = "sts"
    """Similarity: learn the values, their order, or only that pairs belong together, which needs no label."""
    max_score: float | None = None
    """Similarity: the label of two texts that mean the same; the highest in the data if it is not given."""
    train: str | None = None
    """File to train on, within the data folder; by default that with "train" in its name."""
    dev: str | None = None
    """File to score on; by default that with "dev", "valid", "validation" or "eval" in its name. If there is
    none, a part of the training examples is held out."""
    test: str | None = None
    """File to predict, and to score if it has labels; by default that with "test" in its name."""
    dev_share: float = 0.1
    """Share of the training examples that is held out if there is no file for dev."""
    delimiter: str | None = None
    """What stands between values: one character, or "tab"; by default the header of the file tells."""
    quoting: Quoting | None = None
    """Whether double quotes around a value belong to the file's format (double) or to the value (none); by
    default they belong to the value where a tab is the delimiter."""
    empty: Literal["refuse", "skip"] = "refuse"
    """What to do about an example without text: stop, or leave it out and count it."""

    def __post_init__(self) -> None:
        if self.kind == "similarity" and self.text_pair is None:
            raise InputError("kind similarity compares two texts: name the column of the second in text_pair")
        if not 0 < self.dev_share < 1:
            raise InputError(f"dev_share is {self.dev_share}, expected a share between 0 and 1")
        if self.max_score is not None and not 0 < self.max_score < math.inf:
            raise InputError(f"max_score is {self.max_score}, expected a number above 0")
        if self.delimiter is not None and self.delimiter_character in ("", "\n", "\r", '"'):
            raise InputError(f"delimiter is {self.delimiter!r}, expected one character or the word tab")
        if not self.label_separator:
            raise InputError("label_separator is empty, expected what stands between two classes")
        if not self.choice_columns:
            raise InputError("choices is empty, expected a column or several, separated by commas")

    @property
    def delimiter_character(self) -> str | None:
        """The delimiter as it stands in the file; empty if it is not one character."""
        if self.delimiter in ("tab", "\\t"):
            return "\t"
        return self.delimiter if self.delimiter is None or len(self.delimiter) == 1 else ""

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
    """What a YAML file of these keys says, and the data that its key `data` names, relative to the file."""
    if not path.is_file():
        raise InputError(f"{path}: no such task file")
    content = config.parse(_TaskFile, ["--config", str(path)], prog="electra finetune")
    keys = [field.name for field in dataclasses.fields(OwnTaskConfig)]
    return OwnTaskConfig(**{key: getattr(content, key) for key in keys}), path.parent / content.data
