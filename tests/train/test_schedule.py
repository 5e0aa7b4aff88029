import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.train.schedule import Budget, ScheduleConfig, TrainConfig, learning_rate, parse_duration


def at(config: ScheduleConfig, step: int, total_steps: int) -> float:
    return learning_rate(config, step=step, progress=step / total_steps)


def test_linear_multiplies_warmup_and_decay_both_from_step_0() -> None:
    config = ScheduleConfig(learning_rate=1.0, warmup_steps=10)
    expected = [min(1, step / 10) * (1 - step / 100) for step in range(101)]
    assert [at(config, step, 100) for step in range(101)] == pytest.approx(expected, abs=1e-12)
    # The peak is not reached: at the end of the warm-up a tenth is decayed already.
    assert max(expected) == pytest.approx(0.9)


def test_linear_equals_the_recorded_steps_of_the_original(shared: Path) -> None:
    folder = shared / "oracles" / "google-electra"
    original = json.loads((folder / "pretrain_mini.json").read_text())["pretraining_config"]
    config = ScheduleConfig(
        learning_rate=original["learning_rate"], warmup_steps=original["num_warmup_steps"]
    )
    with np.load(folder / "pretrain_mini.npz") as dump:
        for step in range(5):
            ours = at(config, step + 1, original["num_train_steps"])
            assert ours == pytest.approx(float(dump[f"step{step}/lr"]), rel=1e-6)


def test_the_longer_warmup_holds() -> None:
    by_steps = ScheduleConfig(learning_rate=1.0, warmup_steps=50, warmup_fraction=0.1, schedule="constant")
    by_fraction = ScheduleConfig(learning_rate=1.0, warmup_steps=5, warmup_fraction=0.1, schedule="constant")
    assert at(by_steps, 10, 100) == pytest.approx(10 / 50)
    assert at(by_fraction, 5, 100) == pytest.approx(5 / 10)


def test_no_warmup_starts_at_the_peak() -> None:
    assert at(ScheduleConfig(learning_rate=0.5, warmup_steps=0), 0, 100) == 0.5


def test_shapes_at_known_points() -> None:
    def shape(schedule: str, progress: float, final_fraction: float = 0.0) -> float:
        config = ScheduleConfig(
            learning_rate=2.0,
            warmup_steps=0,
            schedule=schedule,
            decay_fraction=0.5,
            final_fraction=final_fraction,
        )
        return learning_rate(config, step=7, progress=progress)

    assert [shape("cosine", p) for p in (0, 1 / 3, 0.5, 1)] == pytest.approx([2, 1.5, 1, 0])
    assert [shape("trapezoid", p) for p in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx([2, 2, 2, 1, 0])
    assert [shape("constant", p) for p in (0, 0.5, 1)] == [2, 2, 2]
    assert [shape("linear", p, 0.1) for p in (0, 0.5, 1)] == pytest.approx([2, 1.1, 0.2])


def test_a_time_budget_ends_at_its_end_however_many_steps_were_made() -> None:
    config = ScheduleConfig(learning_rate=1.0, warmup_steps=0, warmup_fraction=0.1)
    seconds = [0, 30, 60, 300, 600, 660]
    rates = [learning_rate(config, step=index, progress=s / 600) for index, s in enumerate(seconds)]
    assert rates == pytest.approx([0, 0.5 * 0.95, 0.9, 0.5, 0, 0])


@given(
    schedule=st.sampled_from(["linear", "cosine", "trapezoid", "constant"]),
    step=st.integers(0, 10**7),
    progress=st.floats(0, 2),
    warmup_steps=st.integers(0, 10**5),
    warmup_fraction=st.floats(0, 1),
    final_fraction=st.floats(0, 1),
)
def test_a_rate_lies_between_0_and_the_peak(
    schedule: str,
    step: int,
    progress: float,
    warmup_steps: int,
    warmup_fraction: float,
    final_fraction: float,
) -> None:
    config = ScheduleConfig(
        learning_rate=1e-3,
        schedule=schedule,
        warmup_steps=warmup_steps,
        warmup_fraction=warmup_fraction,
        final_fraction=final_fraction,
    )
    assert 0 <= learning_rate(config, step=step, progress=progress) <= 1e-3 * (1 + 1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"warmup_steps": -1},
        {"warmup_fraction": 1.5},
        {"decay_fraction": 0.0},
        {"final_fraction": -0.1},
    ],
)
def test_a_wrong_value_is_refused_by_its_key(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ScheduleConfig(**wrong)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800)]
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text, key="train.max_time") == seconds


@pytest.mark.parametrize("text", ["30", "m", "30 minutes", "", "-5m", "0s", "1h 30m"])
def test_what_is_no_duration_is_refused_with_its_key(text):
    with pytest.raises(InputError, match=r"train\.max_time"):
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
    with pytest.raises(InputError, match=r"--train\.steps.*--train\.max_time.*--train\.max_tokens"):
        Budget()


def test_a_warmup_longer_than_the_run_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"train\.warmup_steps.*10,000.*\b200\b") as caught:
        TrainConfig(steps=200, warmup_steps=10_000)
    assert "--train.warmup_steps 20" in str(caught.value)
    assert "--train.warmup_fraction 0.1" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 2},
        {"steps": 10_000, "warmup_steps": 10_000},
        {"max_time": "1s", "warmup_steps": 10_000},
        {"max_tokens": 10.0, "warmup_steps": 10_000},
    ],
)
def test_a_warmup_that_fits_or_may_fit_is_taken(values):
    assert TrainConfig(**values).budget.progress(steps=0, seconds=0, tokens=0) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps", 0), ("max_tokens", 0.0), ("batch_size", 0), ("micro_batch", 0), ("max_time", "soon")],
)
def test_a_value_without_meaning_is_refused_by_its_key(key, value):
    with pytest.raises(InputError, match=rf"train\.{key}.*{value}"):
        TrainConfig(**{key: value})
