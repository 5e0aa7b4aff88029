"""Predictions and labels -> sums that can be added up -> metrics.

What a step measures is kept as named sums: over micro-batches, batches and processes they are added, and only
the total is turned into numbers for people. A fraction is a pair (numerator, denominator); the area under the
ROC curve is a histogram of logits for each class.

N positions that are judged, K bins.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Sums = dict[str, Tensor]

_AUC_LOGIT = 16.0
"""Logits beyond it count as equal: the probability is then within 2e-7 of 0 or 1."""
_AUC_BINS = 2**14
"""Of 0.002 each, so that the area is exact to about 1e-3 even while all logits lie close together."""


def fraction(numerator: Tensor, denominator: Tensor | int) -> Tensor:
    """A pair that `summarise` divides."""
    part = numerator.detach().double()
    # A number is filled in by the device itself: for one that is copied there the host would wait.
    if not isinstance(denominator, Tensor):
        return torch.stack([part, torch.full_like(part, denominator)])
    return torch.stack([part, denominator.detach().double()])


def mean(values: Tensor) -> Tensor:
    """The fraction that is the mean of some values."""
    return fraction(values.detach().double().sum(), values.numel())


def mean_counted(values_N: Tensor, counted_N: Tensor | None) -> Tensor:
    """The mean of all values, or of those that count."""
    return mean(values_N) if counted_N is None else mean_where(values_N, counted_N)


def mean_where(values_N: Tensor, counted_N: Tensor) -> Tensor:
    """The fraction that is the mean of the values that count."""
    # By zeros, not by picking: how many there are only a look at the data tells.
    return fraction(torch.where(counted_N, values_N.detach().double(), 0.0).sum(), counted_N.sum())


def detection_sums(
    losses_N: Tensor, logits_N: Tensor, replaced_N: Tensor, counted_N: Tensor | None = None
) -> Sums:
    """How well replaced tokens are told from original ones, at all positions or at those that count."""
    said_N = logits_N > 0
    if counted_N is not None:
        said_N = said_N & counted_N
    hits = (said_N & replaced_N).sum()
    return {
        "discriminator_loss": mean_counted(losses_N, counted_N),
        "discriminator_accuracy": mean_counted(said_N == replaced_N, counted_N),
        "discriminator_precision": fraction(hits, said_N.sum()),
        "discriminator_recall": fraction(hits, replaced_N.sum()),
        "discriminator_auc": area_sums(logits_N, replaced_N, counted_N),
    }


def area_sums(logits_N: Tensor, replaced_N: Tensor, counted_N: Tensor | None = None) -> Tensor:
    """What `summarise` makes an area under the ROC curve of: histograms of original and replaced (2, K)."""
    # A NaN counts as low: that the loss is none is for the training loop to see.
    logits_N = logits_N.detach().float().nan_to_num(-_AUC_LOGIT).clamp(-_AUC_LOGIT, _AUC_LOGIT)
    bin_N = ((logits_N / (2 * _AUC_LOGIT) + 0.5) * _AUC_BINS).long().clamp(max=_AUC_BINS - 1)
    # Added up in place of `bincount`, which looks at the data to know how long its result is.
    counts = torch.zeros(2 * _AUC_BINS, dtype=torch.float64, device=logits_N.device)
    times_N = torch.ones_like(replaced_N) if counted_N is None else counted_N
    counts.scatter_add_(0, bin_N + _AUC_BINS * replaced_N, times_N.double())
    return counts.view(2, _AUC_BINS)


def add(parts: Iterable[Mapping[str, Tensor]]) -> Sums:
    """The sums of several micro-batches or batches together."""
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def summarise(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """The metrics; NaN where nothing was counted, such as the precision of never saying `replaced`.

    What begins with an underscore an objective has told itself (`Objective.end_step`): it is no metric.
    """
    return {
        name: _auc(value) if value.dim() == 2 else _ratio(value)
        for name, value in sums.items()
        if not name.startswith("_")
    }


def _ratio(pair: Tensor) -> float:
    numerator, denominator = pair.tolist()
    return numerator / denominator if denominator else math.nan


def _auc(histograms_2K: Tensor) -> float:
    """Probability that a replaced token has the higher logit than an original one; a tie counts half."""
    original_K, replaced_K = histograms_2K
    below_K = original_K.cumsum(0) - original_K
    wins = (replaced_K * (below_K + original_K / 2)).sum()
    return _ratio(torch.stack([wins, original_K.sum() * replaced_K.sum()]))
