import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from electra.tasks.families import scores

classes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=30)


def reason(score):
    """Of a score that must not be defined."""
    assert math.isnan(score.value)
    assert not score.is_defined
    return score.undefined


# True positives 2, false positives 1, false negatives 1, true negatives 2.
GOLD, PREDICTED = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]


def test_by_hand():
    assert scores.accuracy(GOLD, PREDICTED).value == pytest.approx(4 / 6)
    assert scores.f1(GOLD, PREDICTED).value == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert scores.mcc(GOLD, PREDICTED).value == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3))
    assert scores.macro_f1([0, 0, 1], [0, 1, 1]).value == pytest.approx((2 / 3 + 2 / 3) / 2)
    # Of the four pairs of a 1 and a 0, the 1 is higher in three.
    assert scores.auc([1, 1, 0, 0], [0.9, 0.2, 0.1, 0.3]).value == pytest.approx(3 / 4)
    assert scores.pearson([1, 2, 3], [2, 4, 6]).value == pytest.approx(1)
    assert scores.pearson([0, 0, 3], [0, 3, 3]).value == pytest.approx(0.5)
    assert scores.spearman([1, 2, 3], [1, 4, 90]).value == pytest.approx(1)


@pytest.mark.slow
@given(classes)
def test_as_scikit_learn(pairs):
    gold, predicted = map(list, zip(*pairs, strict=True))
    assert scores.accuracy(gold, predicted).value == metrics.accuracy_score(gold, predicted)
    ours, theirs = scores.macro_f1(gold, predicted), metrics.f1_score(gold, predicted, average="macro")
    assert ours.value == theirs
    if len(set(gold)) > 1:
        assert scores.mcc(gold, predicted).value == metrics.matthews_corrcoef(gold, predicted)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_f1_as_scikit_learn(pairs):
    gold, predicted = map(list, zip(*pairs, strict=True))
    score = scores.f1(np.array(gold, int), np.array(predicted, int))
    if any(gold) or any(predicted):
        assert score.value == metrics.f1_score(gold, predicted)
    else:
        assert "class 1" in reason(score)


def test_correlations_as_scipy():
    gold, predicted = np.random.default_rng(0).normal(size=(2, 50))
    assert scores.pearson(gold, predicted).value == stats.pearsonr(gold, predicted).statistic
    assert scores.spearman(gold, predicted).value == stats.spearmanr(gold, predicted).statistic


@pytest.mark.parametrize(
    "score",
    [scores.accuracy, scores.f1, scores.macro_f1, scores.micro_f1, scores.mcc, scores.auc],
)
def test_nothing_is_scored_without_examples(score):
    assert reason(score([], [])) == scores.NO_EXAMPLES


@pytest.mark.parametrize("score", [scores.pearson, scores.spearman])
def test_correlations_that_do_not_exist(score):
    assert "two" in reason(score([1.0], [1.0]))
    assert "predictions" in reason(score([1, 2, 3], [0.1, 0.1, 0.1]))
    assert "predictions" in reason(score([1, 2, 3], [1, 1 + 1e-15, 1]))
    assert "true values" in reason(score([0, 0, 0], [1, 2, 3]))
    assert reason(score([1, 2, 3], [1, math.nan, 3])) == scores.NOT_FINITE


def test_one_class_only():
    assert reason(scores.mcc([1, 1], [1, 0])) == scores.ONE_CLASS
    assert reason(scores.auc([1, 1], [0.1, 0.3])) == scores.ONE_CLASS
    assert reason(scores.auc([1, 0], [0.1, math.inf])) == scores.NOT_FINITE
    # Nothing of class 1 was found, though there is some: that is 0, not unknown.
    assert scores.f1([1, 0], [0, 0]).value == 0
    assert scores.f1([0, 0], [1, 0]).value == 0
    # The scorer of GLUE gives a model that always says the same 0.
    assert scores.mcc([1, 0, 1], [1, 1, 1]).value == 0
    assert scores.macro_f1([1, 1], [1, 1]).value == 1


def test_several_labels_each():
    gold, predicted = np.array([[1, 1, 0], [0, 0, 0]]), np.array([[1, 0, 0], [0, 0, 0]])
    assert scores.accuracy(gold, predicted).value == 0.5
    assert scores.micro_f1(gold, predicted).value == pytest.approx(2 / 3)
    # The third label is nowhere, so its F1 is not in the mean of 1 and 0.
    assert scores.macro_f1(gold, predicted).value == 0.5
    assert "label" in reason(scores.micro_f1(gold * 0, predicted * 0))


def test_counts_of_confusions():
    assert scores.confusion(("a", "b", "c"), [0, 0, 1], [0, 1, 1]) == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    ours = scores.confusion(("0", "1"), GOLD, PREDICTED)
    assert ours == metrics.confusion_matrix(GOLD, PREDICTED).tolist()
    assert scores.confusion(("a", "b"), [], []) == [[0, 0], [0, 0]]
