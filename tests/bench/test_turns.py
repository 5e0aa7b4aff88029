import json

import pytest

from electra.bench import turns
from electra.bench.turns import WARMUP_STEPS, Contest, Ran, Turn, chosen, measure, take, time_steps
from electra.errors import InputError


@pytest.fixture
def stage(monkeypatch):
    """Contestants that say what they are told to, and a machine that gets faster from round to round."""
    calls = []

    def run(words, *, name):
        calls.append(name)
        turn = Turn([float(len(calls))], memory=100 * len(calls) if name == "ours" else None)
        return Ran(f"a library's remark\n{json.dumps(turn._asdict())}\n", 1.0, None)

    monkeypatch.setattr(turns, "run", run)
    peaks = iter([{"fp32": 1.0, "copy": 7.0}, {"fp32": 2.0, "copy": 6.0}])
    monkeypatch.setattr(turns, "measure_peak", lambda products: next(peaks))
    return calls


def test_contestants_take_turns_and_the_best_peak_counts(stage, capsys):
    contest = Contest(
        title="something", contestants=("ours", "plain"), unit="tokens", units_per_step=3.0, repeats=2
    )
    result = measure(contest, lambda name: ["bench", name])
    assert stage == ["ours", "plain", "ours", "plain"]
    assert result["seconds"] == {"ours": [1.0, 3.0], "plain": [2.0, 4.0]}
    assert result["memory"] == {"ours": 300, "plain": None}
    assert result["peak"] == {"fp32": 2.0, "copy": 7.0}
    assert result["units_per_step"] == 3.0
    said = capsys.readouterr()
    assert [line.split(", ")[1] for line in said.err.splitlines()] == stage
    assert not said.out


def test_a_contestant_that_fails_ends_the_contest(capfd):
    with pytest.raises(InputError, match="plain ended with exit code 2"):
        take(["coffee"], name="plain")
    assert "coffee" in capfd.readouterr().err


def test_who_is_not_known_is_refused():
    assert chosen({"ours": 1}, "ours") == 1
    with pytest.raises(InputError, match="somebody, expected one of ours, plain"):
        chosen({"ours": 1, "plain": 2}, "somebody")


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_steps_are_not_counted(count):
    calls = []
    turn = time_steps(lambda: calls.append(None), count=count)
    assert len(turn.seconds) == count
    assert len(calls) == count + WARMUP_STEPS
    assert turn.memory > 10**6


def test_a_slow_contestant_takes_fewer_steps(monkeypatch):
    clock = iter(range(0, 10_000, 15))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    assert time_steps(lambda: None, count=40).seconds == [15.0] * 3
