"""True and predicted labels or values -> scores, as scikit-learn and scipy define them.

Classes are numbers from 0. Where an example may have several, both sides are arrays of examples x labels that
hold 0 and 1. A score that does not exist for its data says why; no number stands in for it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from electra.errors import import_extra
from electra.tasks.families.family import Score

POSITIVE = 1
"""The class that F1 and AUC look for, of two."""

NO_EXAMPLES = "there are no examples"
ONE_CLASS = "all examples have the same label"
NOT_FINITE = "a prediction is not a finite number"


def undefined(reason: str) -> Score:
    """A score that does not exist."""
    return Score(float("nan"), reason)


def metrics() -> ModuleType:
    """scikit-learn's, loaded when the first score is asked for."""
    return import_extra("sklearn.metrics", extra="tasks")


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Share of the examples that are right; with several labels each, of those that are right in all."""
    if len(np.asarray(gold)) == 0:
        return undefined(NO_EXAMPLES)
    return Score(float(metrics().accuracy_score(gold, predicted)))


def f1(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Of class 1 against class 0."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if len(gold) == 0:
        return undefined(NO_EXAMPLES)
    if POSITIVE not in gold and POSITIVE not in predicted:
        return undefined("class 1 is neither among the true labels nor among the predictions")
    score = metrics().f1_score(gold == POSITIVE, predicted == POSITIVE, zero_division=np.nan)
    return Score(float(score))


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Mean F1 of the classes that are among the true labels or the predictions, each counting the same."""
    return averaged_f1(gold, predicted, average="macro")


def micro_f1(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """F1 of all decisions together, of whatever label they are."""
    return averaged_f1(gold, predicted, average="micro")


def averaged_f1(gold: ArrayLike, predicted: ArrayLike, *, average: str) -> Score:
    """F1 of several labels in scikit-learn's averages."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    if len(gold) == 0:
        return undefined(NO_EXAMPLES)
    if gold.ndim == 2 and not gold.any() and not predicted.any():
        return undefined("no example has a label, and none is predicted")
    # NaN leaves a label that nobody has out of the mean.
    return Score(float(metrics().f1_score(gold, predicted, average=average, zero_division=np.nan)))


def mcc(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Matthews correlation; 0 if all predictions are equal, as in scikit-learn and in the scorer of GLUE."""
    if len(np.asarray(gold)) == 0:
        return undefined(NO_EXAMPLES)
    if len(np.unique(np.asarray(gold))) == 1:
        return undefined(ONE_CLASS)
    return Score(float(metrics().matthews_corrcoef(gold, predicted)))


def auc(gold: ArrayLike, probability: ArrayLike) -> Score:
    """How often a random example of class 1 gets a higher probability than a random one of class 0."""
    if len(np.asarray(gold)) == 0:
        return undefined(NO_EXAMPLES)
    if len(np.unique(np.asarray(gold))) == 1:
        return undefined(ONE_CLASS)
    if not np.isfinite(np.asarray(probability)).all():
        return undefined(NOT_FINITE)
    return Score(float(metrics().roc_auc_score(gold, probability)))


def pearson(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Linear correlation of values."""
    return correlation(gold, predicted, function="pearsonr")


def spearman(gold: ArrayLike, predicted: ArrayLike) -> Score:
    """Correlation of the ranks of values."""
    return correlation(gold, predicted, function="spearmanr")


def correlation(gold: ArrayLike, predicted: ArrayLike, *, function: str) -> Score:
    """A correlation by a function of scipy, or why there is none."""
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if len(gold) < 2:
        return undefined("fewer than two examples")
    if not np.isfinite(predicted).all():
        return undefined(NOT_FINITE)
    for values, name in ((gold, "true values"), (predicted, "predictions")):
        # scipy's own bound, below which it warns that its result is rounding.
        if np.linalg.norm(values - values.mean()) <= np.finfo(np.float64).eps ** 0.75 * abs(values.mean()):
            return undefined(f"all {name} are equal")
    stats = import_extra("scipy.stats", extra="tasks")
    return Score(float(getattr(stats, function)(gold, predicted).statistic))


def confusion(labels: Sequence[str], gold: ArrayLike, predicted: ArrayLike) -> list[list[int]]:
    """Counts of examples: a row for each true label, a column for each predicted one."""
    matrix = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(matrix, (np.asarray(gold, np.int64), np.asarray(predicted, np.int64)), 1)
    counts: list[list[int]] = matrix.tolist()
    return counts


CLASS_SCORES: Mapping[str, Callable[[ArrayLike, ArrayLike], Score]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "mcc": mcc,
}
"""Scores of one predicted class for each example."""

VALUE_SCORES: Mapping[str, Callable[[ArrayLike, ArrayLike], Score]] = {
    "pearson": pearson,
    "spearman": spearman,
}
"""Scores of a predicted value for each example."""
