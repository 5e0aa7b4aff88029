import json

import pytest

from electra.bench import finetuning, preparing, pretraining, serving
from electra.cli import main

TINY = {
    "pretrain": ["size=tiny", "vocab_size=100", "steps=1", "batch_size=2", "seq_length=16"],
    "finetune": ["size=tiny", "vocab_size=100", "steps=1", "batch_size=2"],
    "serve": ["size=tiny", "texts=5", "batch_size=2", "clients=2", "passes=1"],
    "prepare": [],
}
CONTESTANTS = {
    "pretrain": pretraining.CONTESTANTS,
    "prepare": preparing.CONTESTANTS,
    "finetune": finetuning.CONTESTANTS,
    "serve": serving.CONTESTANTS,
}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(f"A text of number {number}." for number in range(50)), encoding="utf-8")
    return path


MANY_CONTESTANTS = pytest.mark.long(reason="a process for each of many contestants")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[MANY_CONTESTANTS] * (what in ("serve", "finetune"))) for what in TINY],
)
def test_the_command_runs_all_contestants_and_writes_what_it_measured(what, corpus, tmp_path, capsys):
    sizes = [f"--{what}.{value}" for value in [*TINY[what], "repeats=1"]]
    more = ["--prepare.corpus", str(corpus)] if what == "prepare" else []
    path = tmp_path / "bench.json"
    assert main(["bench", what, *sizes, *more, "--json", str(path)]) == 0
    said = capsys.readouterr()
    assert "peak" in said.out
    assert "round 1 of 1" in said.err
    (result,) = json.loads(path.read_text())["results"].values()
    taken = {name: len(times) for name, times in result["seconds"].items()}
    assert taken == {name: 1 for name in CONTESTANTS[what] if name not in result["left_out"]}


def test_a_turn_by_itself_is_refused(capsys):
    assert main(["bench", "serve", "--contestant", "server"]) == 2
    assert "--contestant" in capsys.readouterr().err


@pytest.mark.long(reason="four processes, two of them by torchrun")
def test_growth_is_measured_in_one_and_in_two_processes(tmp_path, capsys):
    values = ["size=tiny", "batch_size=2", "seq_length=16", "vocab_size=100", "steps=1"]
    axes = ["sizes=[tiny]", "batch_sizes=[2]", "seq_lengths=[16]", "vocab_sizes=[100]", "processes=[1,2]"]
    path, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    words = [f"--growth.{value}" for value in [*values, *axes]]
    assert main(["bench", "growth", *words, "--json", str(path), "--plot", str(picture)]) == 0
    result = json.loads(path.read_text())["results"]["growth"]
    assert [point["processes"] for point in result["points"]] == [1, 2]
    assert all(point["memory"] > point["libraries"] > 0 for point in result["points"])
    assert "first step: tiny" in capsys.readouterr().out
    assert picture.is_file()


FIGURES = {
    "title": "something",
    "ours": ["ours"],
    "left_out": {},
    "step": "step",
    "peak": {"fp32": 100e9, "bf16": 8e9, "copy": 10e9},
    "flops_per_step": None,
    "unit": "tokens",
    "units_per_step": 1,
    "seconds": {"ours": [1.0], "plain": [2.5]},
    "memory": {"ours": None, "plain": None},
}


def test_figures_of_another_day_are_shown_again(tmp_path, capsys):
    path, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    path.write_text(json.dumps({"results": {"pretrain": FIGURES}}))
    assert main(["bench", "--from_json", str(path), "--plot", str(picture)]) == 0
    assert "2.50 x" in capsys.readouterr().out
    assert "against plain" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["[]", '{"seconds": {}}'])
def test_what_holds_no_figures_is_refused(content, tmp_path, capsys):
    (tmp_path / "bench.json").write_text(content)
    assert main(["bench", "--from_json", str(tmp_path / "bench.json")]) == 2
    assert "'results'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["coffee"], "pretrain"), ([], "pretrain"), (["all", "--plot", "bench.doc"], ".svg")],
)
def test_what_it_cannot_do_is_refused(words, message, capsys):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
