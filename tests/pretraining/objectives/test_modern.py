"""Every objective learns with the modern backbone, but the one that needs a bag."""

import pytest

from electra.pretraining.config import TwoStageConfig
from electra.pretraining.masking import StepRandom
from electra.pretraining.objectives import OBJECTIVES

pytestmark = pytest.mark.numeric


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - {"negative_sampling"}))
def test_it_learns(modern_toy, name):
    changes = {"two_stage": TwoStageConfig(first_stage_steps=1)} if name == "two_stage" else {}
    objective = modern_toy.objective(name, **changes)
    losses = [step["loss"] for step in modern_toy.train(objective, 25, learning_rate=4e-3)][1:]
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    # What lies before a projection that starts at zero has a gradient as soon as that has moved.
    objective.zero_grad()
    objective(modern_toy.inputs(), StepRandom(seed=4, step=7, num_rows=32)).loss.backward()
    assert all(parameter.grad.any() for parameter in objective.encoder.parameters())


@pytest.mark.slow
def test_the_context_is_seen(modern_toy):
    objective = modern_toy.objective("mlm")
    list(modern_toy.train(objective, 60, learning_rate=4e-3))
    assert modern_toy.evaluate(objective)["mlm_loss"] < 0.6 * modern_toy.unigram_entropy
