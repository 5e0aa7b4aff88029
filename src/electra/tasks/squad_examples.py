"""A question about a text, with the answers that people found in it."""

from dataclasses import dataclass
from typing import NamedTuple

from electra.tasks.family import Example


class Answer(NamedTuple):
    """What counts as right."""

    text: str
    start: int | None
    """Its first character in the context; None if the context does not hold it word for word, which is good
    enough to score by and not to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExample(Example):
    """A question, the text to look for an answer in, and what is known of it."""

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    """All that people gave, the one to learn from first; none if it is unknown or if there is none."""
    is_impossible: bool = False
    """Whether it is known that the context holds no answer."""

    @property
    def is_labelled(self) -> bool:
        """Whether anything is known of the answer, if only that there is none."""
        return self.is_impossible or bool(self.answers)

    @property
    def located_answer(self) -> Answer | None:
        """The answer to learn from."""
        return next((answer for answer in self.answers if answer.start is not None), None)
