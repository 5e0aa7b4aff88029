"""Classification by words, as a person types it: without training, trained, and what is refused."""

import csv
import json
import random

import pytest

import electra
from electra import cli
from electra.train import devices
from running import ask, serving

GOOD, BAD = ("music", "new"), ("river", "old")


def write_table(path, count):
    """Texts whose class is in their words."""
    rng = random.Random(path.name)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(count):
            words = [*rng.choices((BAD, GOOD)[number % 2], k=2), *rng.choices(("the", "was", "and"), k=2)]
            rng.shuffle(words)
            writer.writerow((" ".join(words), ("bad", "good")[number % 2]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_table(folder / "train.csv", 48)
    write_table(folder / "dev.csv", 24)
    return folder


def run(command, *words):
    return cli.main([command, *map(str, words)])


def accuracy_in(folder):
    return json.loads((folder / "scores.json").read_text())["splits"]["dev"]["scores"]["accuracy"]["median"]


WORDS = ("bad=small city", "good=fast")
TEMPLATE = ("--own.template", "it is {} to read .")


@pytest.mark.slow
def test_from_no_examples_to_a_server(make_run, data, tmp_path, monkeypatch):
    # In bf16, another batch rounds by more than what is compared here.
    monkeypatch.setenv(devices.AUTO_PRECISION, "fp32")
    model = make_run()
    zero = ("--model", model, "--options", *WORDS, *TEMPLATE)
    assert run("evaluate", *zero, "--data", data / "dev.csv", "--out", tmp_path / "zero") == cli.OK
    (tmp_path / "new.txt").write_text("the old river was\n\nnew music and the\n", encoding="utf-8")
    assert run("predict", *zero, "--input", tmp_path / "new.txt", "--out", tmp_path / "said.jsonl") == cli.OK
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    # The same as from Python, but for the rounding of another batch.
    chosen = electra.load(model).choose(
        ["the old river was", "new music and the"], options=["small city", "fast"], template=TEMPLATE[1]
    )
    for one, choice in zip(said, chosen, strict=True):
        assert one["label"] == ("bad", "good")[choice["choice"]]
        assert list(one["probabilities"].values()) == pytest.approx(choice["probabilities"], abs=1e-5)

    tuned = tmp_path / "tuned"
    training = (
        "--train.epochs",
        5,
        "--log.evaluate_epochs",
        9,
        "--train.learning_rate",
        0.003,
        "--train.layer_decay",
        1.0,
    )
    more = ("--train.batch_size", 8, "--dropout", 0.0, "--seeds", 1, "--train.precision", "fp32")
    own = ("--own.words", *WORDS, *TEMPLATE)
    assert (
        run(
            "finetune",
            "--model",
            model,
            "--task",
            "options",
            "--data",
            data,
            "--out",
            tuned,
            *own,
            *training,
            *more,
        )
        == cli.OK
    )
    assert accuracy_in(tuned) > 0.9
    assert accuracy_in(tuned) > accuracy_in(tmp_path / "zero")
    assert (
        run("evaluate", "--model", tuned, "--data", data / "dev.csv", "--out", tmp_path / "again") == cli.OK
    )
    assert accuracy_in(tmp_path / "again") == accuracy_in(tuned)
    assert (
        run("predict", "--model", tuned, "--input", tmp_path / "new.txt", "--out", tmp_path / "said.csv")
        == cli.OK
    )
    with (tmp_path / "said.csv").open(encoding="utf-8", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["bad", "good"]
    answers = electra.load(tuned).classify(["the old river was", "new music and the"])
    assert [answer["label"] for answer in answers] == ["bad", "good"]

    # What it has learned is where another training begins.
    again = tmp_path / "further"
    assert (
        run("finetune", "--model", tuned, "--task", "options", "--data", data, "--out", again, *own, *more,
            "--train.steps", 1, "--train.learning_rate", 1e-9)
        == cli.OK
    )  # fmt: skip
    assert accuracy_in(again) == accuracy_in(tuned)


@pytest.mark.slow
def test_the_server_chooses(make_run):
    from electra.serve.app import build_app
    from electra.serve.limits import Limits

    model = electra.load(make_run(), precision="fp32")
    body = {"texts": ["the old river", ""], "options": ["small city", "fast"], "template": "it is {}"}
    with serving(build_app(model, limits=Limits())) as url:
        assert ask(url, "/choose", body).content == {"results": model.choose(**body)}
        for changes, field in (
            ({"template": "it is"}, "template"),
            ({"options": ["fast", "ΩΩ"]}, "options[1]"),
            ({"options": ["fast", "Fast"]}, "options[1]"),
        ):
            answer = ask(url, "/choose", {**body, **changes})
            assert (answer.status, answer.error["field"]) == (422, field)


def refused(capsys, *words):
    assert run(*words) != cli.OK
    return capsys.readouterr().err


@pytest.mark.slow
def test_what_is_wrong_is_said_before_anything_is_done(make_run, data, tmp_path, capsys):
    model, out = make_run(), tmp_path / "out"
    finetune = ("finetune", "--model", model, "--data", data, "--out", out)
    options = (*finetune, "--task", "options")
    assert "expected {} once" in refused(capsys, *options, "--own.template", "it was")
    assert "'worse'" in refused(capsys, *options, "--own.words", "worse=old")
    assert "the word for 'good' is 'ΩΩ'" in refused(capsys, *options, "--own.words", "good=ΩΩ", "bad=old")
    assert "to the tokenizer the same" in refused(capsys, *options, "--own.words", "good=old", "bad=Old")
    assert "--own.kind is tagging" in refused(capsys, *options, "--own.kind", "tagging")
    assert "kind is classification" in refused(capsys, *finetune, "--task", "csv", "--own.words", "good=old")
    assert "no discriminator" in refused(
        capsys, "finetune", "--model", make_run("mlm"), "--data", data, "--out", out, "--task", "options"
    )
    predict = ("predict", "--model", model, "--input", data / "dev.csv", "--out", tmp_path / "said.csv")
    assert "1 given" in refused(capsys, *predict, "--options", "old")
    assert "--own.words" in refused(capsys, *predict, "--options", "old", "new", "--own.words", "old=new")
    assert "--options" in refused(capsys, *predict)
    evaluate = ("evaluate", "--model", model, "--data", data / "dev.csv", "--options")
    assert "'label' is 'bad'" in refused(capsys, *evaluate, "old", "new")
    assert not out.exists()
    assert not (tmp_path / "said.csv").exists()
