import pytest

from electra.errors import InputError
from electra.train.schedule import TrainConfig


def test_a_warmup_longer_than_the_run_is_refused_with_the_way_out():
    with pytest.raises(InputError) as caught:
        TrainConfig(steps=200, warmup_steps=10_000)
    assert str(caught.value).startswith("train.warmup_steps is 10,000, but the run has about 200 steps")
    assert "set --train.warmup_steps 20, or 0 and --train.warmup_fraction 0.1" in str(caught.value)


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
    with pytest.raises(InputError, match=rf"train\.{key} is '?{value}'?, expected"):
        TrainConfig(**{key: value})
