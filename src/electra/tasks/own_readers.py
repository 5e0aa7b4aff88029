"""Rows of somebody's own table -> texts, pairs and sentences with their labels.

reader.names(cells)                         # the classes of a row, as they are written
reader.example(cells, id, classes=classes)  # with their numbers; without `classes` nothing is known of it
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from electra.errors import InputError
from electra.tasks.family import Example
from electra.tasks.own_cells import Cells, listed, nearest
from electra.tasks.own_config import OwnTaskConfig
from electra.tasks.splits import content_key
from electra.tasks.tagging import TaggingExample
from electra.tasks.text_examples import TextExample

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
                f"{listed(classes)}{nearest(name, classes)}"
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
