import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score

from electra.pretraining import metrics
from electra.pretraining.objectives.electra import detection_losses

pytestmark = pytest.mark.numeric


def verdicts(count: int, *, seed: int, spread: float, bias: float, signal: float):
    random = torch.Generator().manual_seed(seed)
    replaced_BL = torch.rand(4, count // 4, generator=random) < 0.13
    logits_BL = torch.randn(replaced_BL.shape, generator=random) + signal * replaced_BL
    return bias + spread * logits_BL, replaced_BL


def detection(logits_BL, replaced_BL, judged_BL):
    logits_N, replaced_N = logits_BL[judged_BL], replaced_BL[judged_BL]
    return metrics.detection_sums(detection_losses(logits_N, replaced_N), logits_N, replaced_N)


@pytest.mark.parametrize("spread", [0.02, 1.0, 6.0])
@pytest.mark.parametrize("signal", [0.0, 1.0, 3.0])
def test_detection_metrics_are_those_of_scikit_learn(spread, signal):
    logits_BL, replaced_BL = verdicts(8000, seed=1, spread=spread, bias=-spread, signal=signal)
    judged_BL = torch.arange(logits_BL.shape[1]) < torch.tensor([[2000], [1500], [300], [1]])
    found = metrics.summarise(detection(logits_BL, replaced_BL, judged_BL))
    logits, replaced = logits_BL[judged_BL].numpy(), replaced_BL[judged_BL].numpy()
    assert found["discriminator_auc"] == pytest.approx(roc_auc_score(replaced, logits), abs=1e-3)
    assert found["discriminator_accuracy"] == pytest.approx(accuracy_score(replaced, logits > 0))
    assert found["discriminator_precision"] == pytest.approx(precision_score(replaced, logits > 0))
    assert found["discriminator_recall"] == pytest.approx(recall_score(replaced, logits > 0))
    entropy = np.logaddexp(0, -np.where(replaced, logits, -logits)).mean()
    assert found["discriminator_loss"] == pytest.approx(entropy, rel=1e-5)


def test_sums_of_parts_are_the_sums_of_the_whole():
    logits_BL, replaced_BL = verdicts(800, seed=2, spread=1.0, bias=0.0, signal=1.0)
    everywhere_BL = torch.ones_like(replaced_BL)
    whole = metrics.summarise(detection(logits_BL, replaced_BL, everywhere_BL))
    rows = [
        detection(logits_BL[[row]], replaced_BL[[row]], everywhere_BL[[row]]) for row in range(len(logits_BL))
    ]
    assert metrics.summarise(metrics.add(rows)) == pytest.approx(whole, rel=1e-12)


def test_adding_does_not_change_what_is_added():
    part = {"a": torch.tensor([1.0, 2.0])}
    assert metrics.summarise(metrics.add([part, part]))["a"] == 0.5
    assert part["a"].tolist() == [1.0, 2.0]


def test_what_was_not_counted_is_not_a_number():
    never_replaced_BL = torch.zeros(1, 4, dtype=torch.bool)
    found = metrics.summarise(detection(torch.full((1, 4), -1.0), never_replaced_BL, ~never_replaced_BL))
    assert found["discriminator_accuracy"] == 1
    assert all(math.isnan(found[f"discriminator_{name}"]) for name in ("precision", "recall", "auc"))


def test_logits_beyond_the_histogram_are_counted():
    logits_BL = torch.tensor([[-1e4, -math.inf, 20.0, math.inf]])
    replaced_BL = torch.tensor([[False, False, True, True]])
    assert (
        metrics.summarise(detection(logits_BL, replaced_BL, torch.ones(1, 4, dtype=torch.bool)))[
            "discriminator_auc"
        ]
        == 1
    )
