"""A text, a pair or a question with choices, as read from a file -> the example that the families judge."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from electra.errors import InputError
from electra.tasks.family import Example


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
