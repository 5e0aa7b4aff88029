"""`electra bench quality`, typed: every number once, in one file, continued where it was stopped."""

import json
from pathlib import Path

import pytest

from electra import cli
from electra.bench import quality, tables
from electra.errors import InputError
from local_cluster import TEST_SECONDS, typed_on_cluster

pytestmark = pytest.mark.usefixtures("elsewhere")

KEYS = (
    *("model.size=tiny", "model.hidden_size=32", "model.embedding_size=16", "model.intermediate_size=64"),
    *("generator.width=0.5", "train.batch_size=8", "train.precision=fp32", "checkpoint.save_every=4"),
    *("log.evaluate_every=10", "valid_rows=16"),
)
NOUNS, VERBS = ("river", "city", "model", "mountain"), ("is", "was")
HEADINGS = ("conll", "pairs by detection", "pairs by pseudo_likelihood")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A tagging task, a table and minimal pairs, all of words that the runs know."""
    folder = tmp_path_factory.mktemp("tasks")
    tagged = [
        f"the\tO\n{noun}\tB-NP\n{verb}\tO\nfast\tO\n" for noun in NOUNS for verb in VERBS for _ in range(3)
    ]
    (folder / "conll").mkdir()
    for split in ("train", "test"):
        (folder / "conll" / f"{split}.txt").write_text("\n".join(tagged))
    lines = [{"text": f"the {noun} {verb} old", "label": verb} for noun in NOUNS * 5 for verb in VERBS]
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "own.yaml").write_text("data: own.jsonl\n")
    (folder / "pairs").mkdir()
    pairs = [f"river the {verb} {noun}\nthe {noun} {verb} fast\n" for noun in NOUNS for verb in VERBS]
    (folder / "pairs" / "order.txt").write_text("".join(pairs))
    return folder


@pytest.fixture
def words(runs, tasks, tmp_path):
    """The command, and its folder."""
    out = tmp_path / "quality"
    return [
        *("bench", "quality", "--quality.data", str(runs.data), "--quality.out", str(out)),
        *("--quality.recipes", "mlm", "paper: tiny train.batch_size=4"),
        *("--quality.tokens", "1e3", "--quality.seeds", "2", "--quality.pretrain", *KEYS),
        *("--quality.tasks", f"conll={tasks / 'conll'}"),
        *(f"minimal_pairs={tasks / 'pairs'}", "--quality.finetune", "train.epochs=1", "limit_train=16"),
    ], out


@pytest.mark.slow
def test_every_cell_is_measured_once_and_shown_with_its_spread(words, capsys, monkeypatch, tmp_path):
    command, out = words
    assert cli.main(command) == cli.OK
    shown = capsys.readouterr().out
    result = json.loads((out / quality.RESULT).read_text())
    assert set(result) == {
        *("title", "machine", "data", "unit", "budgets", "rows", "recipes", "columns", "finetune"),
        *("seeds", "finetune_seeds", "processors", "runs", "cells", "summary"),
    }
    assert {"cpu", "cores", "threads", "flags"} <= set(result["machine"])
    assert result["unit"] == "tokens"
    assert result["budgets"] == {"1k tokens": 1000}
    assert result["rows"] == [quality.RANDOM_WEIGHTS, quality.LINEAR, "mlm", "paper"]
    assert tuple(result["columns"]) == HEADINGS
    # Two recipes and two seeds with two columns each; one of them without pre-training as well.
    assert len(result["runs"]) == 4
    assert len(result["cells"]) == 4 * 2 + 2 + 1
    for run in result["runs"]:
        assert run["tokens"] >= result["budgets"][run["budget"]]
        assert run["precision"] == "fp32"
        assert run["tokens_per_second"] == pytest.approx(run["tokens"] / run["seconds"])
        assert not (out / run["folder"] / "checkpoints").exists()
    # A masked language model has no discriminator to detect with.
    assert set(result["summary"]["1k tokens"]["mlm"]) == {*HEADINGS} - {"pairs by detection"}
    assert set(result["summary"]["1k tokens"]["paper"]) == {*HEADINGS}
    assert set(result["summary"]["1k tokens"][quality.LINEAR]) == {"conll"}
    for by_row in result["summary"].values():
        for by_column in by_row.values():
            for found in by_column.values():
                assert 0 <= found["min"] <= found["median"] <= found["max"] <= 1
    assert len(result["summary"]["1k tokens"]["paper"]["conll"]["values"]) == 2
    # The tagging task is the same in training and test: the linear model knows all of it.
    assert result["summary"]["1k tokens"][quality.LINEAR]["conll"]["values"] == [1.0]
    assert all(heading in shown for heading in HEADINGS)
    assert (out / "quality.svg").read_text(encoding="utf-8").count("<svg") == 1

    # Again: nothing is measured, and the same is shown.
    def refuse(*_, **__):
        raise AssertionError("measured again")

    for name in ("run_pretraining", "score_minimal_pairs"):
        monkeypatch.setattr(quality, name, refuse)
    monkeypatch.setattr(quality.finetuning, "run_job", refuse)
    monkeypatch.setattr(quality.baselines, "baseline_scores", refuse)
    copy, picture = tmp_path / "copy.json", tmp_path / "quality.png"
    assert cli.main([*command, "--json", str(copy), "--plot", str(picture)]) == cli.OK
    assert capsys.readouterr().out.splitlines()[:-1] == shown.splitlines()[:-1]
    assert json.loads(copy.read_text())["results"]["quality"] == result
    assert picture.stat().st_size > 10_000
    # Another setting is another cell.
    with pytest.raises(AssertionError, match="measured again"):
        cli.main([*command[:-1], "limit_train=15"])


@pytest.mark.slow
def test_a_pretraining_that_was_stopped_goes_on(words, interrupt, runs, capsys):
    command, out = words
    command = [*command, "--quality.tokens", "2e3", "--quality.seeds", "1", "--quality.recipes", "mlm"]
    interrupt(6)
    assert cli.main(command) == cli.INTERRUPTED
    (run,) = (out / "runs").iterdir()
    assert not (run / "final").exists()
    assert cli.main(command) == cli.OK
    assert len(runs.events(run, "resumed")) == 1
    (record,) = json.loads((out / quality.RESULT).read_text())["runs"]
    assert record["other_seconds"] is None


def test_a_row_is_a_recipe_with_a_name_and_keys():
    row = quality.Row.read("no muon: minutes train.optimizer=adamw train.beta2=0.98")
    assert (row.name, row.recipe) == ("no muon", "minutes")
    assert row.keys == ("train.optimizer=adamw", "train.beta2=0.98")
    assert quality.Row.read("some/wide.yaml").name == "wide"
    assert quality.Row.read("tiny model.size=small").name == "tiny model.size=small"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--quality.data", ""], "--quality.data"),
        (["--quality.data", "nowhere"], "nowhere"),
        (["--quality.tasks", "conll2000=nowhere"], "nowhere"),
        (["--quality.tasks", "minimal_pairs=nowhere"], "nowhere"),
        (["--quality.tasks", "coffee=nowhere"], "coffee"),
        (["--quality.tasks", "coffee"], "coffee"),
        (["--quality.tasks", "[]"], "quality.tasks"),
        (["--quality.recipes", "minute"], "minutes"),
        (["--quality.recipes", "tiny", "tiny"], "quality.recipes"),
        (["--quality.recipes", "random weights: tiny"], "random weights"),
        (["--quality.recipes", "tiny model.sise=small"], "model.size"),
        (["--quality.recipes", "tiny model.max_position_embeddings=16"], "max_position_embeddings=32"),
        (["--quality.pretrain", "train.precision"], "KEY=VALUE"),
        (["--quality.finetune", "train.epoch=1"], "train.epochs"),
        (["--quality.budgets", "3m"], "quality.tokens"),
        (["--quality.seeds", "0"], "quality.seeds"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_trained(changes, message, words, capsys, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("too late")

    monkeypatch.setattr(quality, "kept", refuse)
    command, out = words
    assert cli.main([*command, *changes]) == cli.BAD_INPUT
    assert message in capsys.readouterr().err
    assert not Path(out).exists()


def test_times_are_sorted_and_turned_into_seconds():
    found = quality.budgets_of(quality.QualityBenchConfig(budgets=["10m", "90s"]))
    assert [(budget.name, budget.size) for budget in found] == [("90s", 90), ("10m", 600)]
    default = quality.budgets_of(quality.QualityBenchConfig())
    assert [budget.name for budget in default] == ["3m", "10m", "30m"]


@pytest.mark.long(reason="Ray nodes, each of which is several Python processes")
@pytest.mark.timeout(TEST_SECONDS)
def test_a_cluster_measures_the_same_cells(words, tmp_path):
    command, out = words
    shown = typed_on_cluster(*command).stderr
    assert shown.count("measured on node") == 4
    there = json.loads((out / quality.RESULT).read_text())
    assert there["processors"] == {there["machine"]["cpu"]: 4}
    here_out = tmp_path / "here"
    assert cli.main([str(here_out) if word == str(out) else word for word in command]) == cli.OK
    here = json.loads((here_out / quality.RESULT).read_text())
    assert there["summary"] == here["summary"]
    assert {path.name for path in (out / "cells").iterdir()} == {
        path.name for path in (here_out / "cells").iterdir()
    }
    for run in there["runs"]:
        mine, its = (folder / run["folder"] / "final" for folder in (here_out, out))
        assert (mine / "discriminator").exists() == (its / "discriminator").exists()
    # A cell that is gone is measured again, with the pre-training that is there.
    gone = next((out / "cells").glob("paper-*seed-1-conll-*"))
    gone.unlink()
    assert typed_on_cluster(*command).stderr.count("measured on node") == 1
    again = json.loads((out / quality.RESULT).read_text())
    assert again["summary"] == there["summary"]
    assert [run["seconds"] for run in again["runs"]] == [run["seconds"] for run in there["runs"]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--cluster", "here"], "cluster is 'here'"),
        (["--cluster_cores", "2"], "--cluster"),
        (["--cluster_cores", "0"], "cluster_cores is 0"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(words, capsys, more, message):
    command, out = words
    assert cli.main([*command, *more]) == cli.BAD_INPUT
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_node_that_does_not_see_the_data_says_so(runs, tmp_path):
    settings = quality.QualityBenchConfig(data="nothing-here")
    plan = quality.Plan(settings=settings, dataset={"sha256": "x"}, rows=(), budgets=(), columns=())
    piece = quality.RunPiece(plan=plan, run=None, folder=str(tmp_path), kept={}, cores=1)
    with pytest.raises(InputError, match=r"nothing-here.*shared folder"):
        quality.measure_on_node(piece)


def test_processors_that_differ_are_named():
    result = {"processors": {"EPYC": 3, "Xeon": 1}, "unit": "seconds"}
    (line,) = tables.processor_lines(result)
    assert "3 runs on EPYC, 1 runs on Xeon" in line
    assert "equal times" in line
    assert tables.processor_lines({"processors": {"EPYC": 4}, "unit": "seconds"}) == []
