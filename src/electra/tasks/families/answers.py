"""Questions with their texts -> examples; the answers that were given -> SQuAD's scores.

Scores are those of the official scripts of SQuAD 1.1 and 2.0, by their names and rules, but as fractions from
0 to 1 in place of percentages. A question's score is that of the right answer it is nearest to.

N questions.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.tasks.data.columns import MISSING, Cells, Classes, RowReader
from electra.tasks.families.family import Example, Score
from electra.tasks.task import content_key


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


class AnswerReader(RowReader):
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


_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap_f1(right: str, given: str) -> float:
    """Of the words of two normalised texts; 0 if they share none, also if both are empty."""
    right_words, given_words = right.split(), given.split()
    num_shared = (Counter(right_words) & Counter(given_words)).total()
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(given_words), num_shared / len(right_words)
    return 2 * precision * recall / (precision + recall)


def scores_v1(examples: Sequence[AnswerExample], texts: Sequence[str]) -> dict[str, Score]:
    """Every question has an answer."""
    assert examples
    exact, f1 = [], []
    for example, text in zip(examples, texts, strict=True):
        given = normalise(text)
        right = {normalise(answer.text) for answer in example.answers}
        exact.append(given in right)
        f1.append(max((overlap_f1(answer, given) for answer in right), default=0.0))
    return {"f1": _mean(f1), "exact_match": _mean(exact)}


def scores_v2(
    examples: Sequence[AnswerExample],
    texts: Sequence[str],
    null_odds: Sequence[float],
    *,
    null_threshold: float,
) -> dict[str, Score]:
    """Some questions have no answer: `texts` are the best answers, which count where the null odds are low.

    `best_f1` and `best_exact` are those of the best threshold for these very questions, as the paper and the
    official script report them; `f1` and `exact` those of the threshold that was given.
    """
    assert examples
    exact_N, f1_N = np.array([_question_scores(*pair) for pair in zip(examples, texts, strict=True)]).T
    has_answer_N = np.array([bool(example.answers) for example in examples])
    odds_N = np.array(null_odds, np.float64)
    is_given_N = np.array([bool(text) for text in texts])
    scores: dict[str, Score] = {}
    for name, score_N in (("f1", f1_N), ("exact", exact_N)):
        best, threshold = best_threshold(score_N, has_answer_N, is_given_N, odds_N)
        scores |= {f"best_{name}": Score(best), f"best_{name}_thresh": Score(threshold)}
    at_threshold = {
        name: np.where(odds_N > null_threshold, ~has_answer_N, score_N)
        for name, score_N in (("f1", f1_N), ("exact", exact_N))
    }
    groups = (
        ("", np.ones_like(has_answer_N), ""),
        ("HasAns_", has_answer_N, "no question has an answer"),
        ("NoAns_", ~has_answer_N, "every question has an answer"),
    )
    for prefix, is_in_group_N, undefined in groups:
        for name, score_N in at_threshold.items():
            scores[f"{prefix}{name}"] = _mean(score_N[is_in_group_N], undefined)
    return scores


def best_threshold(
    score_N: NDArray[np.float64],
    has_answer_N: NDArray[np.bool_],
    is_given_N: NDArray[np.bool_],
    null_odds_N: NDArray[np.float64],
) -> tuple[float, float]:
    """The highest mean score that any threshold gives, and the lowest such threshold.

    As in the official script: without any answer the threshold is 0, and of questions with equal odds
    some may be answered and others not.
    """
    order_N = np.argsort(null_odds_N, kind="stable")
    gain_N = np.where(has_answer_N, score_N, -1.0 * is_given_N)[order_N]
    # The first total is that of answering nothing, each further one that of answering one question more.
    totals = np.cumsum([float((~has_answer_N).sum()), *gain_N])
    best = int(totals.argmax())
    return float(totals[best]) / len(score_N), float(null_odds_N[order_N[best - 1]]) if best else 0.0


def _question_scores(example: AnswerExample, text: str) -> tuple[float, float]:
    """Exact match and F1 of one question that may have no answer."""
    given = normalise(text)
    # Of a question without an answer only the empty text is right.
    right = {normalise(answer.text) for answer in example.answers} - {""} or {""}
    f1 = max(overlap_f1(answer, given) if answer and given else float(answer == given) for answer in right)
    return float(given in right), f1


def _mean(values: Sequence[float] | NDArray[np.float64], undefined: str = "") -> Score:
    return Score(math.fsum(values) / len(values)) if len(values) else Score(math.nan, undefined)
