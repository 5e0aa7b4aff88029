"""`electra evaluate` as a person runs it, on a small model with random weights."""

import json
import re

import pytest

from electra import cli
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import torch_generator
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, TaskModel, load_model, save_model
from electra.text import tokenizer as tokenizers

FAMILY = Classification(("unacceptable", "acceptable"), ("mcc", "accuracy"))
SENTENCES = [
    f"the {word} river is {number}" for number, word in enumerate(["old", "new", "small", "large"] * 5)
]


@pytest.fixture(scope="module")
def model(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "final"
    tokenizer = tokenizers.load_tokenizer(runs.data / "tokenizer")
    encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    initialise(encoder, std=0.2, generator=torch_generator(0, "test"))
    tuned = FineTuned(
        model=TaskModel(encoder, {"cola": FAMILY}),
        task="cola",
        tokenizer=tokenizer,
        max_length=32,
        facts={"seed": 7, "main_score": "mcc"},
    )
    save_model(tuned, folder)
    return folder.parent


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue") / "CoLA"
    folder.mkdir()
    lines = [f"x\t{number % 2}\t*\t{sentence}" for number, sentence in enumerate(SENTENCES)]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tests = [f"{number}\t{sentence}" for number, sentence in enumerate(SENTENCES)]
    (folder / "test.tsv").write_text("\n".join(["index\tsentence", *tests]) + "\n", encoding="utf-8")
    return folder


def evaluate(model, *words, code=cli.OK):
    assert cli.main(["evaluate", "--model", str(model), "--precision", "fp32", *map(str, words)]) == code


def own_scores(model, labels):
    """What the model's own prediction gives, counted here."""
    tuned = load_model(model)
    examples = [
        TextExample(id=str(number), where="here", text=text, label=None)
        for number, text in enumerate(SENTENCES)
    ]
    said = predict_examples(tuned.model, "cola", examples, tuned.tokenizer, max_length=32)
    right = [prediction["label"] == label for prediction, label in zip(said, labels, strict=True)]
    return sum(right) / len(right)


def test_scores_are_those_of_the_model(model, data, tmp_path, capsys):
    evaluate(model, "--data", data, "--out", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    accuracy = own_scores(model, [FAMILY.labels()[number % 2] for number in range(20)])
    assert content["splits"]["dev"]["scores"]["accuracy"]["values"] == [pytest.approx(accuracy)]
    assert content["task"] == "cola"
    assert f"{100 * accuracy:.2f}" in capsys.readouterr().out
    lines = (tmp_path / "out" / "predictions" / "dev.jsonl").read_text().splitlines()
    assert len(lines) == 20


def test_your_own_file_by_the_labels_of_the_model(model, tmp_path, capsys):
    rows = [
        f"{sentence},{'acceptable' if number else 'unacceptable'}"
        for number, sentence in enumerate(SENTENCES)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    evaluate(model, "--task", "csv", "--data", tmp_path / "mine.csv", "--out", tmp_path / "out")
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    accuracy = own_scores(model, ["unacceptable", *["acceptable"] * 19])
    assert content["splits"]["dev"]["scores"]["accuracy"]["values"] == [pytest.approx(accuracy)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_is_shown_before_the_scores(model, data, capsys, precision):
    words = ["--model", str(model), "--data", str(data), "--precision", precision]
    assert cli.main(["evaluate", *words]) == cli.OK
    assert re.search(rf"precision +{precision} \(as asked for\)", capsys.readouterr().out)


def test_a_precision_that_the_device_lacks_is_refused(model, data, capsys):
    words = ["--model", str(model), "--data", str(data), "--precision", "fp16", "--device", "cpu"]
    assert cli.main(["evaluate", *words]) == cli.BAD_INPUT
    assert "precision is fp16" in capsys.readouterr().err


def test_a_quick_look_is_marked(model, data, capsys):
    evaluate(model, "--data", data, "--limit_eval", 6)
    assert re.search(r"dev .*\b6 examples", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "test"], "test.*labels"),
        (["--split", "valid"], "'valid'.*dev, test"),
        (["--task", "rte"], r"dev\.tsv.*RTE"),
        (["--task", "cola,sst2"], "--task"),
    ],
)
def test_bad_input_is_refused_by_name(model, data, capsys, words, message):
    evaluate(model, "--data", data, *words, code=cli.BAD_INPUT)
    assert re.search(message, capsys.readouterr().err)


def test_a_model_of_other_labels_is_refused(model, tmp_path, capsys):
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "dev.tsv").write_text("sentence\tlabel\na\t1\nb\t0\n", encoding="utf-8")
    evaluate(model, "--task", "sst2", "--data", tmp_path, code=cli.BAD_INPUT)
    assert "unacceptable, acceptable" in capsys.readouterr().err


def test_an_unknown_label_is_named_with_its_line(model, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("text,label\na,acceptable\nb,acceptible\n", encoding="utf-8")
    evaluate(model, "--task", "csv", "--data", tmp_path / "mine.csv", code=cli.BAD_INPUT)
    error = capsys.readouterr().err
    assert "mine.csv:3" in error
    assert "acceptible" in error


@pytest.mark.slow
def test_an_encoder_is_no_fine_tuned_model(whole, data, capsys):
    evaluate(whole, "--data", data, code=cli.BAD_INPUT)
    assert "electra finetune" in capsys.readouterr().err


def test_without_arguments_it_says_what_it_needs(capsys):
    assert cli.main(["evaluate"]) == cli.BAD_INPUT
    assert "--model DIR" in capsys.readouterr().err
