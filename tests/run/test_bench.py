import json

import pytest

from electra.bench import finetuning, pretraining
from electra.cli import main

TINY = {
    "pretrain": ["--pretrain.batch_size=2", "--pretrain.seq_length=16"],
    "finetune": ["--finetune.batch_size=2"],
}
CONTESTANTS = {"pretrain": pretraining.CONTESTANTS, "finetune": finetuning.CONTESTANTS}


@pytest.mark.slow
@pytest.mark.parametrize("what", TINY)
def test_the_command_runs_all_contestants_and_writes_what_it_measured(what, tmp_path, capsys):
    sizes = [f"--{what}.{key}" for key in ("size=tiny", "vocab_size=100", "repeats=1", "steps=1")]
    path = tmp_path / "bench.json"
    assert main(["bench", what, *sizes, *TINY[what], "--json", str(path)]) == 0
    assert "of peak" in capsys.readouterr().out
    seconds = json.loads(path.read_text())["seconds"]
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys(CONTESTANTS[what], 1)


@pytest.mark.parametrize("words", [["coffee"], []])
def test_what_it_cannot_measure_is_refused(words, capsys):
    assert main(["bench", *words]) == 2
    assert "pretrain" in capsys.readouterr().err
