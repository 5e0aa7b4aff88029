"""Rows of somebody's own table -> questions: with a text that holds the answer, or with choices."""

import string
from typing import Any

from electra.errors import InputError
from electra.tasks.own_cells import MISSING, Cells, listed
from electra.tasks.own_readers import Classes, Reader
from electra.tasks.splits import content_key
from electra.tasks.squad_examples import Answer, AnswerExample
from electra.tasks.text_examples import ChoiceExample


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
