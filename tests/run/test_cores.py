"""`--train.cores`: the same run as with one core but for rounding, and the same bits every time."""

import json
import random

import pytest

from electra import cli
from electra.pretraining.config import ObjectiveName

pytestmark = [pytest.mark.numeric, pytest.mark.slow]

OBJECTIVES = ObjectiveName.__args__
NEEDED = {
    "electric": {"generator__kind": "two_tower"},
    "two_stage": {"generator__width": 1, "generator__sharing": "none", "two_stage__first_stage_steps": 2},
    "single_pass": {"generator__width": 1, "correction": "proposed"},
    "negative_sampling": {"model__embedding_size": 32, "model__intermediate_size": "null"},
}


def choices(folder):
    return json.loads((folder / "environment.json").read_text())["choices"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_cores_do_the_work_of_one(runs, tmp_path, objective):
    # Dropout belongs to a micro-batch, so that the same ones have the same masks.
    keys = {"objective": objective, **NEEDED.get(objective, {}), "train__steps": 4, "model__dropout": 0.1}
    runs.pretrain(tmp_path / "one", **keys, train__micro_batch=4)
    runs.pretrain(tmp_path / "two", **keys, train__cores=2)
    runs.assert_same_work(tmp_path / "two", tmp_path / "one", precision="fp32")
    assert (choices(tmp_path / "one")["cores"], choices(tmp_path / "two")["cores"]) == (1, 2)
    assert choices(tmp_path / "two")["micro_batch"] == 8


def test_a_run_with_cores_is_resumed_bit_for_bit(runs, tmp_path, interrupt):
    keys = {"model__dropout": 0.1, "train__cores": 3, "train__optimizer": "muon", "train__steps": 12}
    runs.pretrain(tmp_path / "whole", **keys)
    interrupt(5)
    runs.pretrain(tmp_path / "parts", **keys, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "parts", **keys)
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")


def test_what_a_run_measured_it_keeps(runs, tmp_path, monkeypatch, two_threads):
    monkeypatch.setattr("electra.train.engine.fastest_way", lambda seconds, *, cores: cores)
    runs.pretrain(tmp_path / "run", train__steps=8, train__max_time="1h")
    assert choices(tmp_path / "run")["cores"] == 2
    monkeypatch.setattr("electra.train.engine.fastest_way", lambda seconds, *, cores: 1)
    runs.pretrain(
        tmp_path / "run", train__steps=10, train__max_time="1h", resume__allow_changes="train.steps"
    )
    assert choices(tmp_path / "run")["cores"] == 2


def test_a_step_is_timed_both_ways(runs, tmp_path, monkeypatch, two_threads):
    asked = []

    def fastest_way(seconds, *, cores):
        asked.extend([seconds(1) > 0, seconds(cores) > 0])
        return cores

    monkeypatch.setattr("electra.train.engine.fastest_way", fastest_way)
    runs.pretrain(tmp_path / "measured", train__steps=3)
    monkeypatch.undo()
    runs.pretrain(tmp_path / "given", train__steps=3, train__cores=2)
    assert asked == [True, True]
    # To measure has changed nothing.
    losses = [
        [line["loss"] for line in runs.lines(tmp_path / name, "train")] for name in ("measured", "given")
    ]
    assert losses[0] == losses[1]


def test_cores_that_nothing_can_be_given_to_are_refused(runs, tmp_path, capsys):
    runs.pretrain(tmp_path / "run", train__cores=2, train__checkpoint_activations=True, code=cli.BAD_INPUT)
    assert "train.cores is 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    words = ["the", "old", "river", "was", "in", "a", "small", "city"]
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("table") / "mood.jsonl"
    rows = [
        {"text": " ".join([*rng.choices(words, k=rng.randint(3, 9)), word]), "label": word}
        for word in ["fast", "water"] * 20
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_fine_tuning_has_cores_too(runs, table, tmp_path):
    runs.pretrain(tmp_path / "run", train__steps=1, train__learning_rate=1e-6)

    def tune(name, *keys):
        words = ["--task=csv", f"--data={table}", "--seeds=1", "--train.epochs=2", "--train.batch_size=8"]
        more = ["--train.precision=fp32", "--log.log_every=1", *keys]
        out = tmp_path / name
        assert cli.main(["finetune", f"--model={tmp_path / 'run'}", f"--out={out}", *words, *more]) == cli.OK
        return [line["loss"] for line in runs.lines(out / "seed-0", "train")]

    one, two = tune("one", "--dropout=0"), tune("two", "--dropout=0", "--train.cores=2")
    assert two[0] == pytest.approx(one[0], rel=1e-6)
    # Later weights have been apart already.
    assert two == pytest.approx(one, rel=1e-3)
    assert choices(tmp_path / "two")["cores"] == 2
    dropped = [tune(name, "--dropout=0.1", "--train.cores=2") for name in ("dropped", "again")]
    assert dropped[0] == dropped[1]


def test_pairs_that_are_compared_with_one_another_stay_together(runs, tmp_path, capsys):
    runs.pretrain(tmp_path / "run", train__steps=1)
    path = tmp_path / "pairs.csv"
    path.write_text("text,text_pair\n" + "the river,a river\nthe city,a city\n" * 4, encoding="utf-8")
    words = [f"--model={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--task=csv", f"--data={path}"]
    given = [
        *words,
        "--own.kind=similarity",
        "--own.text_pair=text_pair",
        "--own.similarity_loss=contrastive",
    ]
    assert cli.main(["finetune", *given, "--train.cores=2"]) == cli.BAD_INPUT
    assert "train.cores is 2" in capsys.readouterr().err
