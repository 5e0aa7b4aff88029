import math

import numpy as np
import pytest

from electra.tasks.data.squad import Answer, AnswerExample
from electra.tasks.families.answers import best_threshold, normalise, overlap_f1, scores_v1, scores_v2


def question(*answers, id="q"):
    return AnswerExample(
        id=id,
        where=id,
        question="?",
        context="text",
        answers=tuple(Answer(text, None) for text in answers),
        is_impossible=not answers,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Denver\tBroncos!", "denver broncos"),
        ("a man, an axe and the Theatre", "man axe and theatre"),
        ("co-op's", "coops"),
        # Only ASCII punctuation goes, and an article goes where other marks part it from its word.
        ("24–10", "24–10"),
        ("l’a", "l’"),
        ("the", ""),
        ("", ""),
    ],
)
def test_normalised(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("right", "given", "expected"),
    [
        ("denver broncos", "broncos", 2 * 1 * 0.5 / 1.5),
        ("x x y", "x x x", 2 / 3),  # repeated words count as often as both have them
        ("x", "y", 0),
        ("", "", 0),
        ("x", "", 0),
    ],
)
def test_overlap(right, given, expected):
    assert overlap_f1(right, given) == pytest.approx(expected)


def test_the_nearest_answer_counts():
    examples = [question("in Oslo", "Oslo, Norway"), question("1918")]
    scores = scores_v1(examples, ["Oslo", "in 1918"])
    assert list(scores) == ["f1", "exact_match"]
    assert scores["exact_match"].value == 0
    assert scores["f1"].value == pytest.approx(2 / 3)
    assert scores_v1(examples, ["oslo norway", "the 1918."])["exact_match"].value == 1


def test_an_answer_of_articles_only_as_in_both_official_scripts():
    # 1.1 finds it exact, with no word in common. 2.0 takes it for no answer, but counts the question as one
    # that has an answer.
    of_v1 = scores_v1([question("A")], ["a"])
    assert (of_v1["exact_match"].value, of_v1["f1"].value) == (1, 0)
    of_v2 = scores_v2([question("A")], ["a"], [0.0], null_threshold=1.0)
    assert (of_v2["exact"].value, of_v2["f1"].value, of_v2["HasAns_f1"].value) == (1, 1, 1)


def test_no_answer_is_right_only_where_there_is_none():
    examples = [question("Oslo", id="1"), question(id="2"), question("Rome", id="3"), question(id="4")]
    scores = scores_v2(examples, ["Oslo", "Oslo", "Rome", "Rome"], [-5.0, -4.0, 3.0, 4.0], null_threshold=0.0)
    # Answered: the first, right, and the second, wrong. Not answered: the third, wrong, the fourth, right.
    assert scores["exact"].value == 0.5
    assert scores["HasAns_exact"].value == 0.5
    assert scores["NoAns_exact"].value == 0.5
    # Answering the first only: three of four. Answering up to the third as well is one wrong, one right more.
    assert scores["best_exact"].value == 0.75
    assert scores["best_exact_thresh"].value == -5.0
    assert next(iter(scores)) == "best_f1"


def test_odds_at_the_threshold_are_answered():
    scores = scores_v2([question("Oslo")], ["Oslo"], [1.0], null_threshold=1.0)
    assert scores["exact"].value == 1


def test_groups_without_questions_have_no_score():
    answerable = scores_v2([question("Oslo")], ["Oslo"], [0.0], null_threshold=1.0)
    assert answerable["NoAns_f1"].undefined
    assert math.isnan(answerable["NoAns_f1"].value)
    unanswerable = scores_v2([question()], ["Oslo"], [0.0], null_threshold=1.0)
    assert unanswerable["HasAns_exact"].undefined
    assert unanswerable["NoAns_exact"].value == 0


def official_search(scores, has_answer, given, odds):
    """The search as the official script puts it: one question after the other."""
    current = best = sum(not has for has in has_answer)
    threshold = 0.0
    for at in sorted(range(len(odds)), key=lambda at: odds[at]):
        current += scores[at] if has_answer[at] else -1 if given[at] else 0
        if current > best:
            best, threshold = current, odds[at]
    return best / len(scores), threshold


@pytest.mark.parametrize("seed", range(20))
def test_best_threshold_beside_a_plain_search(seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 40))
    has_answer, given = random.random(size) < 0.6, random.random(size) < 0.9
    scores = np.where(has_answer, random.random(size).round(1), ~given)
    odds = random.normal(size=size).round(1)  # some are equal
    ours = best_threshold(scores, has_answer, given, odds)
    assert ours == pytest.approx(official_search(scores, has_answer, given, odds))


def test_without_any_right_answer_nothing_is_answered():
    scores = scores_v2([question(), question("Oslo")], ["x", "y"], [-1.0, 2.0], null_threshold=5.0)
    assert (scores["best_f1"].value, scores["best_f1_thresh"].value) == (0.5, 0.0)
    assert scores["f1"].value == 0
