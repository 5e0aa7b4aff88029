"""`electra export` on small models, as a person runs it."""

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

from electra import cli, files
from electra.errors import InputError
from electra.prediction.load import load
from electra.run import export, finetune

SENTENCES = [
    f"the {word} river is {number}" for number, word in enumerate(["old", "new", "small", "large"] * 8)
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Labelled texts of one's own."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    rows = [f"{text},{'young' if 'new' in text else 'aged'}" for text in SENTENCES]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(whole, table, tmp_path_factory):
    """A run, fine-tuned with two seeds."""
    out = tmp_path_factory.mktemp("tuned") / "classifier"
    keys = {"model": whole, "task": "csv", "data": table, "out": out, "seeds": 2, "train.epochs": 1}
    # Of what transformers can express.
    keys["pooling"] = "cls"
    finetune.main([f"--{key}={value}" for key, value in keys.items()])
    return out


def facts_of(card, title):
    found = re.search(rf"## {title}\n\n\| \| \|\n\|---\|---\|\n(.*?)\n\n", card, flags=re.DOTALL)
    assert found, f"{title} is missing in\n{card}"
    return dict(line.strip("| ").split(" | ") for line in found[1].splitlines())


def test_what_is_there_already_is_not_written_over(whole, tmp_path):
    words = ["--model", str(whole), "--to", "transformers", "--out"]
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    (full / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=r"full\b.*empty"):
        export.main([*words, str(full)])
    assert [path.name for path in full.iterdir()] == ["note.txt"]
    empty.mkdir()
    export.main([*words, str(empty)])
    assert (empty / "manifest.json").is_file()


def test_the_card_of_a_run_tells_its_facts(whole, runs, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--name", "River", "--license", "mit", "--language", "en", "de"]
    export.main(["--model", str(whole), "--to", "transformers", "--out", str(out), *words])
    printed = capsys.readouterr().out
    assert "ElectraForPreTraining" in printed
    assert str(out / "README.md") in printed
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\nlanguage:\n- en\n- de\n")
    last = runs.lines(whole, "valid")[-1]
    trained = facts_of(card, "Pre-training")
    assert trained["Objective"] == "electra"
    assert trained["Steps"] == "20"
    assert trained["Tokens seen"] == f"{last['tokens']:,}"
    assert float(trained["FLOPs"]) == pytest.approx(last["flops"], rel=1e-2)
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["cpu"] in trained["Hardware"]
    assert environment["torch"] in trained["Software"]
    manifest = json.loads((runs.data / "manifest.json").read_text())
    data = facts_of(card, "Data")
    assert data["Corpus"] == "corpus.txt"
    assert data["Corpus hash"] == manifest["corpus"]
    assert data["Data set hash"] == files.sha256(runs.data / "manifest.json")
    assert data["Documents"] == f"{manifest['counts']['documents']:,}"
    assert data["Tokens"] == f"{manifest['splits']['train']['tokens']:,}"
    held_out = facts_of(card, "Held out in pre-training")
    assert float(held_out["mlm_loss"]) == pytest.approx(last["metrics"]["mlm_loss"], rel=1e-3)
    assert str(whole.parent) not in card
    assert str(runs.data.parent) not in card
    manifest = files.read_manifest(out, kind="exported model")
    assert not list(files.damaged_files(out, manifest))


def test_data_that_is_gone_or_another_leaves_its_hash(whole, runs, tmp_path):
    copied = shutil.copytree(whole, tmp_path / "run")
    manifest = files.read_manifest(copied / "final", kind="model")
    manifest["config"]["data"] = str(tmp_path / "gone")
    del manifest["files"]
    files.write_manifest(copied / "final", manifest)
    export.main(["--model", str(copied), "--to", "transformers", "--out", str(tmp_path / "out")])
    data = facts_of((tmp_path / "out" / "README.md").read_text(), "Data")
    assert data == {"Data set hash": files.sha256(runs.data / "manifest.json")}


@pytest.mark.slow
def test_the_card_of_a_fine_tuned_model_has_scores_with_their_spread(tuned, whole, table, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--task", "csv", "--data", str(table)]
    export.main(["--model", str(tuned), "--to", "transformers", "--out", str(out), *words])
    card = (out / "README.md").read_text()
    content = json.loads((tuned / "scores.json").read_text())
    split = content["main_split"]
    (accuracy,) = [content["splits"][split]["scores"][name] for name in ("accuracy",)]
    scored = facts_of(card, "Scores")[f"accuracy on {split}, in %"]
    assert f"median {100 * accuracy['median']:.2f} of 2 seeds" in scored
    assert f"mean {100 * accuracy['mean']:.2f} ± {100 * accuracy['std']:.2f}" in scored
    trained = facts_of(card, "Fine-tuning")
    assert trained["Kind"] == "classification"
    assert trained["Pooling"] == "cls"
    assert trained["Examples"] == f"{content['train']['examples']:,}"
    assert trained["Started from"] == "run"
    read = files.read_manifest(whole / "final", kind="model")["tokens_read"]
    assert facts_of(card, "Model")["Tokens read"] == f"{read:,} in pre-training"
    assert files.read_manifest(out, kind="fine-tuned model")["tokens_read"] == read
    # What it began with is still there, so its facts are known too.
    assert facts_of(card, "Pre-training")["Steps"] == "20"
    assert facts_of(card, "Data")["Corpus"] == "corpus.txt"
    same = facts_of(card, "Scores of this export")
    for value in same.values():
        after, before = re.fullmatch(r"(\S+), before the export (\S+)", value).groups()
        assert after == before
    printed = capsys.readouterr().out
    assert re.search(r"dev +accuracy +\S+ +\S+ +0\.00", printed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert set(model.config.id2label.values()) == {"aged", "young"}
    assert load(out).classify(SENTENCES[:3]) == load(tuned).classify(SENTENCES[:3])


def test_a_start_that_is_another_one_by_now_is_not_told(tuned, whole, tmp_path):
    copied = shutil.copytree(tuned, tmp_path / "classifier")
    for path in copied.glob("seed-*/scores.json"):
        content = json.loads(path.read_text())
        content["facts"]["config"]["model_sha256"] = "0" * 64
        path.write_text(json.dumps(content))
    export.main(["--model", str(copied), "--to", "transformers", "--out", str(tmp_path / "out")])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Pre-training" not in card
    assert "## Scores" in card


def test_a_model_far_from_its_scores_tells_its_own(tuned, tmp_path):
    copied = shutil.copytree(tuned / "final", tmp_path / "model")
    export.main(["--model", str(copied), "--to", "transformers", "--out", str(tmp_path / "out")])
    card = (tmp_path / "out" / "README.md").read_text()
    ((_, value),) = facts_of(card, "Scores").items()
    about = json.loads((copied / "config.json").read_text())["electra_task"]
    assert value.startswith(f"{100 * about['score']:.2f},")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "onnx-int8"])
def test_a_graph_with_its_score_before_and_after(tuned, table, tmp_path, capsys, monkeypatch, form):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    words = ["--task", "csv", "--data", str(table)]
    export.main(["--model", str(tuned), "--to", form, "--out", str(out), *words])
    printed = capsys.readouterr().out
    assert re.search(r"dev +accuracy +\d+\.\d\d +\d+\.\d\d +-?\d+\.\d\d", printed)
    card = (out / "README.md").read_text()
    assert facts_of(card, "Export")["Form"] == form
    assert "difference" in facts_of(card, "Export")["Check"]
    assert facts_of(card, "Scores of this export")
    assert not list(files.damaged_files(out, files.read_manifest(out, kind="fine-tuned model")))
    if form == "onnx":
        found, expected = (model.classify(SENTENCES) for model in (load(out, engine="onnx"), load(tuned)))
        assert [one["label"] for one in found] == [one["label"] for one in expected]
    monkeypatch.chdir(out)
    for program in re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL):
        exec(compile(program, "README.md", "exec"), {})
    with pytest.raises(InputError, match="ONNX"):
        export.main(["--model", str(out), "--to", "onnx", "--out", str(tmp_path / "again")])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["discriminator", "generator", "encoder"])
def test_a_graph_of_each_part(whole, tmp_path, monkeypatch, part):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    export.main(["--model", str(whole), "--to", "onnx", "--out", str(out), "--part", part])
    monkeypatch.chdir(out)
    for program in re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), flags=re.DOTALL):
        exec(compile(program, "README.md", "exec"), {})


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_export_and_import_are_each_others_inverse(whole, tmp_path, part):
    export.main(["--model", str(whole), "--to", "transformers", "--out", str(tmp_path / "a"), "--part", part])
    words = ["--from", "transformers", str(tmp_path / "a"), "--out", str(tmp_path / "b")]
    assert cli.main(["import", *words]) == cli.OK
    export.main(["--model", str(tmp_path / "b"), "--to", "transformers", "--out", str(tmp_path / "c")])
    tensors, others = (load_file(tmp_path / name / "model.safetensors") for name in "ac")
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    card = (tmp_path / "c" / "README.md").read_text()
    assert facts_of(card, "Pre-training")["Imported from"] == "transformers: a"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--model.*--to.*--out"),
        (["--model", "M", "--out", "O"], "--model.*--to.*--out"),
        (["--model", "M", "--to", "caffe", "--out", "O"], "transformers"),
        (["--model", "M", "--to", "onnx", "--out", "O"], r"\bM\b"),
        (["--model", "M", "--to", "onnx", "--out", "O", "--part", "half"], "discriminator"),
    ],
)
def test_words_that_do_not_fit(words, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=reason):
        export.main(words)
    assert not list(tmp_path.iterdir())


def test_examples_are_for_models_that_know_a_task(whole, table, tmp_path):
    words = ["--to", "onnx", "--out", str(tmp_path / "out"), "--data", str(table)]
    with pytest.raises(InputError, match=r"--data.*--task.*discriminator"):
        export.main(["--model", str(whole), *words])
    assert not list(tmp_path.iterdir())
