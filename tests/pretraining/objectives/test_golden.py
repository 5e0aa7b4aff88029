"""Ten steps of each objective, as they were: a refactoring must not change them.

Without dropout, so that an encoder may draw its masks in another order.

After a change that is meant: ELECTRA_WRITE_GOLDEN=1 pytest tests/pretrain/objectives/test_golden.py
"""

import os
from pathlib import Path

import pytest

from electra.pretraining.config import TwoStageConfig
from electra.pretraining.objectives import OBJECTIVES

pytestmark = pytest.mark.numeric

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ten_steps(toy, name):
    changes = {"two_stage": TwoStageConfig(first_stage_steps=5)}
    losses = [step["loss"] for step in toy.train(toy.objective(name, **changes), 10)]
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("ELECTRA_WRITE_GOLDEN"):
        file.write_text("".join(f"{loss:.6f}\n" for loss in losses))
    golden = [float(line) for line in file.read_text().splitlines()]
    # Other processors add in another order.
    assert losses == pytest.approx(golden, rel=1e-4)
