import json

import pytest

from electra.cli import main
from electra.run.bench import CONTESTANTS, BenchConfig, table, take_turn

TINY = BenchConfig(size="tiny", batch_size=2, seq_length=16, vocab_size=100, repeats=1, steps=2)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_takes_its_steps(contestant):
    seconds = take_turn(TINY, contestant)
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_the_table_is_medians_ratios_and_shares_of_the_peak():
    result = {
        "precision": "fp32",
        "peak": 100e9,
        "flops_per_step": 50e9,
        "seconds": {"ours": [1.0, 1.0, 9.0], "plain": [4.0, 3.0, 2.0], "tuned": [2.0, 2.0, 2.0]},
    }
    lines = table(TINY, result).splitlines()
    ours, plain, tuned = (line.split() for line in lines[-3:])
    assert ours[:2] == ["ours", "1.00"]
    assert ours[-3:] == ["50%", "1.00", "x"]
    assert plain[-2:] == ["3.00", "x"]
    assert tuned[-2:] == ["2.00", "x"]


@pytest.mark.slow
def test_the_command_runs_all_of_them_and_writes_what_it_measured(tmp_path, capsys):
    sizes = ["--size", "tiny", "--batch_size", "2", "--seq_length", "16", "--vocab_size", "100"]
    path = tmp_path / "bench.json"
    code = main(["bench", "pretrain", *sizes, "--repeats", "1", "--steps", "1", "--json", str(path)])
    assert code == 0
    assert "of peak" in capsys.readouterr().out
    seconds = json.loads(path.read_text())["seconds"]
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(CONTESTANTS, 1)


@pytest.mark.parametrize("words", [["coffee"], []])
def test_what_it_cannot_measure_is_refused(words, capsys):
    assert main(["bench", *words]) == 2
    assert "pretrain" in capsys.readouterr().err
