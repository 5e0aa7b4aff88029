import dataclasses
import sys

import pytest

from electra.bench import growth
from electra.bench.growth import GrowthBenchConfig, Point, base_of, needed_memory, points_of, take_turn
from electra.bench.turns import ELECTRA, Ran, Turn
from electra.errors import InputError

TINY = GrowthBenchConfig(
    size="tiny",
    batch_size=2,
    seq_length=16,
    vocab_size=100,
    sizes=["tiny"],
    batch_sizes=[2, 4],
    seq_lengths=[16, 32],
    vocab_sizes=[100, 200],
    processes=[1, 2],
    steps=1,
)


def test_each_point_differs_from_the_base_in_one_value_and_comes_once():
    base, points = base_of(TINY), points_of(TINY)
    assert points.count(base) == 1
    different = [
        sum(getattr(point, key.name) != getattr(base, key.name) for key in dataclasses.fields(Point))
        for point in points
    ]
    assert sorted(different) == [0, 1, 1, 1, 1]


@pytest.mark.slow
def test_all_points_are_measured_and_held_against_what_they_need(monkeypatch, tmp_path, capsys):
    asked = []

    def take(words, *, name, launcher):
        asked.append((words, launcher))
        return Turn([1.0], memory=500, libraries=100)

    monkeypatch.setattr(growth, "take", take)
    monkeypatch.setattr(growth, "measure_peak", lambda products: {"fp32": 1.0, "bf16": 1.0, "copy": 1.0})
    monkeypatch.setattr(growth, "run_command", lambda words, *, name: Ran("", 2.5, None))
    result = growth.measure_growth(TINY, tmp_path, lambda data: ["bench", str(data)])
    assert len(result["points"]) == len(asked) == 5
    assert result["start_up"] == {"tiny": 2.5}
    longer = next(point for point in result["points"] if point["seq_length"] == 32)
    assert longer["tokens"] == 64
    assert longer["memory"] - longer["libraries"] == 400
    assert longer["needed"]["total"] > sum(longer["needed"][key] for key in ("weights", "gradients"))
    assert [launcher == ELECTRA for _, launcher in asked] == [True] * 4 + [False]
    assert "--nproc-per-node=2" in asked[-1][1]
    assert "--growth.seq_length=32" in next(words for words, _ in asked if "32-100" in words[1])
    assert "5 of 5" in capsys.readouterr().err


def test_processes_share_the_rows_but_not_the_weights():
    base = base_of(TINY)
    alone, shared = (needed_memory(dataclasses.replace(base, processes=count)) for count in (1, 2))
    assert shared.weights == alone.weights
    assert shared.activations < alone.activations


@pytest.mark.slow
def test_the_base_takes_its_steps(tmp_path):
    data = growth.write_data(tmp_path, base_of(TINY), steps=1)
    turn = take_turn(TINY, "step", data)
    assert len(turn.seconds) == 1
    assert 0 < turn.libraries <= turn.memory


@pytest.mark.slow
def test_the_command_starts_on_the_data(tmp_path):
    ((size, seconds),) = growth.start_ups(TINY, tmp_path)
    assert size == "tiny"
    assert seconds > 0
    assert not list(tmp_path.glob("**/metrics.jsonl"))


def test_one_process_needs_no_launcher():
    assert growth.launcher(1) == ELECTRA
    assert growth.launcher(2)[:3] == (sys.executable, "-m", "torch.distributed.run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"growth\.steps.*\b0\b"),
        ({"seq_lengths": [128, 0]}, r"growth\.seq_lengths.*\b0\b"),
        ({"batch_size": 9}, r"growth\.batch_size.*\b9\b.*\b2 processes"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        GrowthBenchConfig(**changes)
