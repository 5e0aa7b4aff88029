import json
from types import SimpleNamespace

import pytest

from electra.bench import finetuning, preparing, pretraining, serving, turns
from electra.bench.turns import Contest, Ran, Turn
from electra.cli import FAILURE, main
from electra.run import bench

pytestmark = pytest.mark.usefixtures("elsewhere")

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
    content = json.loads(path.read_text())
    assert {"date", "version", "commit", "dirty"} == set(content["run"])
    (result,) = content["results"].values()
    assert {"cpu", "flags"} <= set(result["machine"])
    assert result["machine"]["cpu"] in said.out
    has_precision = all(precision in ("fp32", "bf16", "int8") for precision in result["precision"].values())
    assert has_precision == (what != "prepare")
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


@pytest.fixture
def seconds(monkeypatch):
    """What contestants take, which are none: contestant -> seconds of each of its turns, again and again."""
    taken = {"ours": [1.0], "plain": [2.0, 2.2]}
    counts = dict.fromkeys(taken, 0)

    def contest(settings, folder):
        return Contest(
            title="something",
            contestants=tuple(taken),
            unit="tokens",
            units_per_step=1000,
            repeats=settings.repeats,
            neighbours=tuple(getattr(settings, "neighbours", ())),
        )

    def run_command(words, *, name):
        counts[name] += 1
        turn = Turn([taken[name][counts[name] % len(taken[name])]], precision="fp32")
        return Ran(json.dumps(turn._asdict()), 1.0, None)

    for kind in bench.CONTESTS:
        monkeypatch.setitem(bench.CONTESTS, kind, SimpleNamespace(contest=contest))
    monkeypatch.setattr(bench, "import_extra", lambda module, *, extra: None)
    monkeypatch.setattr(turns, "run_command", run_command)
    monkeypatch.setattr(turns, "measure_peak", lambda products: {"fp32": 1e9, "bf16": 1e9, "copy": 1e9})
    return taken


def growth_of(options, folder, command):
    """What a look at one point gives."""
    point = {"size": "tiny", "batch_size": 8, "seq_length": 128, "vocab_size": 100, "processes": 1}
    figures = {"seconds": [1.0], "memory": None, "libraries": None, "precision": "fp32"}
    facts = {"tokens": 1024, "flops_per_step": 1e8, "needed": {"total": 1}}
    return {
        "title": "growth",
        "machine": turns.describe_machine(),
        "peak": {"fp32": 1e9, "bf16": 1e9, "copy": 1e9},
        "base": point,
        "axes": {"size": ["tiny"]},
        "points": [{**point, **figures, **facts}],
        "start_up": {"tiny": 1.0},
    }


def test_neighbours_are_asked_for_by_their_numbers(seconds, tmp_path, capsys):
    words = ["--pretrain.neighbours", "1", "2", "--pretrain.repeats", "2"]
    assert main(["bench", "pretrain", *words, "--json", "bench.json"]) == 0
    result = json.loads((tmp_path / "bench.json").read_text())["results"]["pretrain"]
    assert set(result["beside"]) == {"1", "2"}
    for found in result["beside"].values():
        assert set(found["left"]) == {"ours", "plain"}
        assert found["left"]["ours"]["rounds"] == 2
    said = capsys.readouterr()
    shown = said.out.splitlines()
    heading = "tokens/s alone beside 1 (min - max) ours is beside 2 (min - max) ours is"
    assert " ".join(shown[-3].split()) == heading
    assert [line.split()[0] for line in shown[-2:]] == ["ours", "plain"]
    assert "plain beside 2" in said.err
    # Shown again without being measured again.
    assert main(["bench", "--from_json", "bench.json"]) == 0
    assert capsys.readouterr().out.splitlines() == shown


@pytest.mark.parametrize("numbers", [["0"], ["two"], ["1", "1"], ["65"]])
def test_neighbours_that_cannot_be_are_refused(numbers, seconds, capsys):
    assert main(["bench", "pretrain", "--pretrain.neighbours", *numbers]) == 2
    assert "neighbours" in capsys.readouterr().err


def test_every_bench_of_a_command_leaves_a_line(seconds, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench.growth, "measure_growth", growth_of)
    assert main(["bench", "all", "--history", "mine.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert [line["bench"] for line in lines] == ["pretrain", "prepare", "finetune", "serve", "growth"]
    assert len({line["date"] for line in lines}) == 1
    for line in lines:
        assert {"format", "date", "commit", "dirty", "version"} < set(line)
        assert {"cpu", "flags", "cores", "threads"} <= set(line["machine"])
        assert line["precision"]["ours"] == "fp32"
        assert line["ratios"]
    assert lines[0]["settings"]["size"] == "small"
    assert lines[0]["ratios"]["ours against plain"]["rounds"] == 3
    out = capsys.readouterr().out
    assert out.count(lines[0]["machine"]["cpu"]) == len(lines)
    # A second command, of which all benches are compared with those of the first.
    assert main(["bench", "all", "--history", "mine.jsonl"]) == 0
    assert main(["bench", "compare", "--history", "mine.jsonl", "--after", "6", "--before", "1"]) == 0


def test_a_line_is_left_in_a_checkout_and_nowhere_else(seconds, tmp_path, monkeypatch):
    assert main(["bench", "pretrain"]) == 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "history.jsonl").touch()
    for words, lines in ([], 1), (["--history", "none"], 1), ([], 2):
        assert main(["bench", "pretrain", *words]) == 0
        assert len((tmp_path / "benchmarks" / "history.jsonl").read_text().splitlines()) == lines
    assert main(["bench", "compare"]) == 0


def test_nothing_is_measured_for_a_history_that_cannot_be_written(seconds, monkeypatch, capsys):
    monkeypatch.setattr(turns, "run_command", None)
    assert main(["bench", "pretrain", "--history", "nowhere/history.jsonl"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_slower_program_is_told_and_fails_if_asked(seconds, tmp_path, capsys):
    words = ["--history", "mine.jsonl"]
    assert main(["bench", "pretrain", *words]) == 0
    seconds["ours"] = [1.5]
    assert main(["bench", "pretrain", *words]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", *words, "--json", "changes.json"]) == 0
    (ratio,) = [line for line in capsys.readouterr().out.splitlines() if "against plain" in line]
    assert ratio.split()[-1] == "worse"
    (found,) = json.loads((tmp_path / "changes.json").read_text())["comparisons"]
    assert [change["verdict"] for change in found["changes"]] == ["worse"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", *words, "--fail_on_regression", "true"])
    assert ended.value.code == FAILURE
    assert "ours against plain" in capsys.readouterr().err
    # The other way round it got faster.
    later = ["--before", "2", "--after", "1", "--fail_on_regression", "true"]
    assert main(["bench", "compare", *words, *later]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "better"


def test_runs_of_different_processors_are_not_compared(seconds, tmp_path, monkeypatch, capsys):
    for flags in ["avx2"], ["avx2", "avx512f"]:
        monkeypatch.setattr(turns, "processor_flags", lambda flags=flags: flags)
        assert main(["bench", "pretrain", "--history", "mine.jsonl"]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", "--history", "mine.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "different processors" in said
    assert "(avx2 avx512f)" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--history"),
        (["--history", "none"], "--history"),
        (["--history", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--history", "mine.jsonl"], "no other run"),
        (["--history", "mine.jsonl", "--bench", "serve"], "no run"),
        (["--history", "mine.jsonl", "--bench", "coffee"], "bench"),
        (["--history", "mine.jsonl", "--before", "coffee"], "coffee"),
        (["--history", "mine.jsonl", "--plot", "it.svg"], "plot"),
        (["--history", "mine.jsonl", "--from_json", "it.json"], "from_json"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, message, seconds, capsys):
    assert main(["bench", "pretrain", "--history", "mine.jsonl"]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--before", "1"], ["--after", "1"], ["--bench", "serve"], ["--fail_on_regression", "true"]]
)
def test_what_is_for_comparisons_is_refused_elsewhere(words, seconds, capsys):
    assert main(["bench", "pretrain", *words]) == 2
    assert "compare" in capsys.readouterr().err


def test_help_names_it_all(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    for key in (
        "--history",
        "--before",
        "--after",
        "--fail_on_regression",
        "--pretrain.neighbours",
        "compare",
    ):
        assert key in shown
