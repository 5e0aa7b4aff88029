import pytest

from electra.errors import InputError
from electra.tasks.config import EpochLogConfig, EpochTrainConfig
from electra.train.schedule import learning_rate


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"epochs": 3.0}, 30),
        ({"epochs": 0.25}, 3),
        ({"epochs": 0.01}, 1),
        ({"epochs": 3.0, "steps": 12}, 12),
        ({"epochs": 1.0, "steps": 12}, 10),
        ({"steps": 12}, 12),
    ],
)
def test_epochs_are_steps_rounded_up_and_the_first_budget_ends_it(keys, steps):
    assert EpochTrainConfig(**keys).budget_for(steps_per_epoch=10).steps == steps


def test_a_time_needs_no_epochs():
    budget = EpochTrainConfig(max_time="2m").budget_for(steps_per_epoch=10)
    assert (budget.steps, budget.seconds) == (None, 120)


def test_something_must_end_it():
    with pytest.raises(InputError, match=r"--train\.steps.*--train\.max_time.*--train\.max_tokens"):
        EpochTrainConfig().budget_for(steps_per_epoch=10)


def test_a_tenth_of_the_steps_is_warm_up():
    config = EpochTrainConfig(epochs=1.0, learning_rate=1.0)
    rates = [learning_rate(config, step=step, progress=step / 100) for step in (5, 10, 55, 100)]
    assert rates == pytest.approx([0.5 * 0.95, 0.9, 0.45, 0])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epochs": 0.0}, r"train\.epochs.*\b0"),
        ({"micro_batch": "auto"}, "micro_batch.*auto"),
        ({"parallel": "fsdp"}, "parallel.*fsdp.*ddp"),
    ],
)
def test_what_is_not_for_epochs_is_refused(keys, message):
    with pytest.raises(InputError, match=message):
        EpochTrainConfig(**keys)


def test_looks_at_held_out_examples_are_counted_in_epochs():
    assert EpochLogConfig().in_steps(steps_per_epoch=7).evaluate_every == 7
    assert EpochLogConfig(evaluate_epochs=0.5, log_every=3).in_steps(steps_per_epoch=7).evaluate_every == 4
    assert EpochLogConfig(evaluate_epochs=0.001).in_steps(steps_per_epoch=7).evaluate_every == 1
    with pytest.raises(InputError, match="evaluate_epochs"):
        EpochLogConfig(evaluate_epochs=0)
