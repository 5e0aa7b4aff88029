import math

import pytest

from electra.errors import InputError
from electra.train.schedule import Budget, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800)]
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text, key="train.max_time") == seconds


@pytest.mark.parametrize("text", ["30", "m", "30 minutes", "", "-5m", "0s", "1h 30m"])
def test_what_is_no_duration_is_refused_with_its_key(text):
    with pytest.raises(InputError, match=r"train\.max_time is"):
        parse_duration(text, key="train.max_time")


def test_progress_is_that_of_the_budget_which_ends_first():
    budget = Budget(steps=100, seconds=60.0, tokens=1e6)
    assert budget.progress(steps=50, seconds=6.0, tokens=1e5) == 0.5
    assert budget.progress(steps=50, seconds=6.0, tokens=9e5) == 0.9
    assert budget.progress(steps=50, seconds=99.0, tokens=9e5) == 1


def test_the_time_left_follows_from_the_speed_so_far():
    assert Budget(steps=100).seconds_left(steps=25, seconds=10.0, tokens=0) == 30
    assert Budget(steps=100).seconds_left(steps=0, seconds=0.0, tokens=0) == math.inf


def test_a_run_without_an_end_is_refused():
    with pytest.raises(InputError, match="needs an end"):
        Budget()
