import math

import pytest

from electra.errors import InputError
from electra.train.health import Health, HealthConfig

CONFIG = HealthConfig(max_bad_steps=3, spike_factor=2.0, spike_steps=4)


def observe(health, *losses, phase=""):
    return [health.observe(CONFIG, loss=loss, finite=math.isfinite(loss), phase=phase) for loss in losses]


def test_single_bad_steps_are_skipped_and_several_in_a_row_go_back():
    health = Health()
    assert observe(health, 5.0, math.nan, 5.0, math.inf, math.nan) == ["fine", "skip", "fine", "skip", "skip"]
    assert not health.good
    assert observe(health, math.nan) == ["roll_back"]


def test_a_spike_must_last_before_it_counts():
    health = Health()
    observe(health, *[5.0] * 50)
    assert observe(health, 30.0, 30.0, 30.0, 5.0) == ["fine"] * 4
    assert health.good
    assert observe(health, 30.0, 30.0, 30.0, 30.0)[-1] == "roll_back"


def test_a_falling_loss_and_noise_are_fine():
    losses = [40 * 0.97**step + (step % 3) for step in range(200)]
    assert set(observe(Health(), *losses)) == {"fine"}


def test_losses_of_different_phases_are_not_compared():
    health = Health()
    observe(health, *[5.0] * 20, phase="first")
    assert observe(health, *[35.0] * 20, phase="second") == ["fine"] * 20


def test_what_is_remembered_survives_a_checkpoint():
    health = Health()
    observe(health, 5.0, 4.0, math.nan)
    again = Health(**health.facts())
    assert again == health
    assert observe(again, math.nan, math.nan) == observe(health, math.nan, math.nan) == ["skip", "roll_back"]


def test_too_many_rollbacks_end_with_advice():
    Health(rollbacks=2).require_hope(CONFIG, step=7)
    with pytest.raises(InputError, match=r"step 7.*lower --train\.learning_rate"):
        Health(rollbacks=3).require_hope(CONFIG, step=7)


@pytest.mark.parametrize("wrong", [{"max_bad_steps": 0}, {"spike_factor": 1.0}, {"max_rollbacks": -1}])
def test_impossible_values_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        HealthConfig(**wrong)
