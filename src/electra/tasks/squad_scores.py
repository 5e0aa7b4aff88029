"""Answers that people gave, and those of a model -> the official scores of SQuAD 1.1 and 2.0.

The names are those of the official scripts, and so are all rules, but for the unit: fractions from 0 to 1 in
place of percentages. A question's score is that of the right answer it is nearest to. N questions.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra.tasks.family import Score
from electra.tasks.squad_examples import AnswerExample

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
