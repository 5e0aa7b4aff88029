import pytest

from electra.bench.turns import WARMUP_STEPS, table, time_steps


def result(**changes):
    return {
        "title": "something",
        "precision": "fp32",
        "peak": 100e9,
        "flops_per_step": 50e9,
        "unit": "tokens",
        "units_per_step": 4096,
        "seconds": {"ours": [1.0, 1.0, 9.0], "plain": [4.0, 3.0, 2.0]},
        **changes,
    }


def test_the_table_is_medians_ratios_and_shares_of_the_peak():
    ours, plain = (line.split() for line in table(result()).splitlines()[-2:])
    assert ours[:2] == ["ours", "1.000"]
    assert ours[-4:] == ["4,096", "50%", "1.00", "x"]
    assert plain[-2:] == ["3.00", "x"]


def test_work_that_is_not_counted_has_no_share_of_the_peak():
    ours = table(result(flops_per_step=None)).splitlines()[-2].split()
    assert ours[-3:] == ["–", "1.00", "x"]


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_steps_are_not_counted(count):
    calls = []
    assert len(time_steps(lambda: calls.append(None), count=count)) == count
    assert len(calls) == count + WARMUP_STEPS
