"""`electra pretrain --model.backbone modern`, and what is done with it: finetune, export, predict, serve."""

import csv
import json
import re

import pytest
import torch
from safetensors.torch import load_file

from electra import cli, files
from electra.prediction.load import load
from electra.serve.app import build_app
from electra.serve.limits import Limits
from running import ask, serving

TEXTS = [f"the {word} river is {number}" for number, word in enumerate(["old", "new", "small"] * 8)]
MODERN = {
    "model__backbone": "modern",
    "model__global_attention_every": 2,
    "model__local_attention_window": 8,
}


@pytest.fixture(scope="module")
def modern(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("modern") / "run"
    runs.pretrain(out, **MODERN)
    return out


@pytest.mark.slow
def test_it_learns_and_its_networks_are_written(runs, modern):
    train = runs.lines(modern, "train")
    assert train[-1]["metrics"]["mlm_loss"] < train[0]["metrics"]["mlm_loss"]
    for part in ("discriminator", "generator"):
        values = json.loads((modern / "final" / part / "config.json").read_text())
        assert (values["backbone"], values["query_key_norm"]) == ("modern", "rms")
        assert (values["global_attention_every"], values["local_attention_window"]) == (2, 8)
        weights = load_file(modern / "final" / part / "model.safetensors")
        assert f"{part}.norm.weight" in weights
        biases = [name for name in weights if name.endswith("bias")]
        assert biases == {"discriminator": ["discriminator_head.output.bias"]}.get(
            part, ["generator_head.bias"]
        )


@pytest.mark.slow
def test_stopped_and_continued_is_bit_for_bit_the_same(runs, modern, tmp_path, interrupt):
    interrupt(7)
    runs.pretrain(tmp_path / "run", **MODERN, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "run", **MODERN)
    runs.assert_same(tmp_path / "run", modern)


@pytest.mark.slow
def test_another_backbone_is_no_way_to_resume(runs, modern, capsys):
    runs.pretrain(modern, code=cli.BAD_INPUT, train__steps=30)
    assert "model.backbone" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "final"])
def test_a_start_keeps_its_backbone(runs, modern, place, tmp_path):
    kept = ("--data", "--out", "--train", "--valid", "--log", "--checkpoint")
    words = [word for word in runs.words(tmp_path / "run") if word.startswith((*kept, "pretrain"))]
    start = [f"--start={modern / place}", "--checkpoint.keep_last=20"]
    assert cli.main([*words, *start]) == cli.OK
    first, last = (
        load_file(sorted((run / "checkpoints").iterdir())[number] / "model.safetensors")
        for run, number in ((tmp_path / "run", 0), (modern, -1))
    )
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in last)


@pytest.mark.parametrize("place", ["", "final"])
@pytest.mark.parametrize("there", ["electra", "modern"])
def test_a_start_with_another_backbone_is_refused(runs, whole, modern, place, there, tmp_path, capsys):
    start = {"electra": whole, "modern": modern}[there] / place
    here = {"electra": "modern", "modern": "electra"}[there]
    changes = {
        "model__backbone": here,
        "model__position_embedding_type": "rotary",
        "model__query_key_norm": "none",
        "model__global_attention_every": 1,
    }
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, start=start, **changes)
    error = capsys.readouterr().err
    assert f"backbone {there}" in error
    assert f"model.backbone {here}" in error
    assert not (tmp_path / "run" / "checkpoints").exists()


def say(verb, **keys):
    """Type a command."""
    words = [f"--{key.replace('__', '.')}={value}" for key, value in keys.items()]
    assert cli.main([verb, *words]) == cli.OK


@pytest.fixture(scope="module")
def tuned(modern, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    rows = [f"{text},{'young' if 'new' in text else 'aged'}" for text in TEXTS]
    (folder / "mine.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    keys = {"task": "csv", "data": folder / "mine.csv", "train__epochs": 1, "train__precision": "fp32"}
    say("finetune", model=modern, out=folder / "classifier", **keys)
    return folder / "classifier"


def run_card(folder, monkeypatch):
    """What the card says of how to load it, as it stands."""
    monkeypatch.chdir(folder)
    for program in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL):
        exec(compile(program, "README.md", "exec"), {})


@pytest.mark.slow
def test_a_fine_tuned_model_predicts(tuned, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:3]), encoding="utf-8")
    say("predict", model=tuned, input=tmp_path / "texts.txt", out=tmp_path / "said.csv")
    with (tmp_path / "said.csv").open(encoding="utf-8") as file:
        assert [row["label"] in ("young", "aged") for row in csv.DictReader(file)] == [True] * 3
    say("evaluate", model=tuned, task="csv", data=tuned.parent / "mine.csv", out=tmp_path / "scores")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "onnx-int8", "transformers"])
def test_a_fine_tuned_model_is_exported(tuned, form, tmp_path, monkeypatch, assert_alike):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    out = tmp_path / "out"
    say("export", model=tuned, to=form, out=out)
    engine = "torch" if form == "transformers" else "onnx"
    found, expected = load(out, engine=engine).classify(TEXTS), load(tuned).classify(TEXTS)
    if form == "onnx-int8":
        # Weights of seven bits: shares of two labels move by some hundredths.
        shares = [[one["probabilities"]["young"] for one in said] for said in (found, expected)]
        assert shares[0] == pytest.approx(shares[1], abs=0.1)
    else:
        assert_alike(found, expected)
    assert not list(files.damaged_files(out, files.read_manifest(out, kind="fine-tuned model")))
    run_card(out, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("transformers", "discriminator"),
        ("transformers", "generator"),
        ("transformers", "encoder"),
        ("onnx", "generator"),
    ],
)
def test_networks_are_exported(modern, form, part, tmp_path, monkeypatch, assert_alike):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    say("export", model=modern, to=form, out=tmp_path / "out", part=part)
    run_card(tmp_path / "out", monkeypatch)
    ours, model = load(modern), load(tmp_path / "out", engine="onnx" if form == "onnx" else "torch")
    texts = ["the old [MASK] was in a city"]
    match part:
        case "discriminator":
            assert_alike(model.detect(texts), ours.detect(texts))
        case "generator":
            assert_alike(model.fill(texts), ours.fill(texts))
        case "encoder":
            assert_alike(model.embed(texts), ours.embed(texts))


@pytest.mark.slow
def test_the_server_answers_as_the_model_does(modern, tuned):
    for folder, ability in ((modern, "detect"), (modern, "fill"), (modern, "corrupt"), (tuned, "classify")):
        model, texts = load(folder), ["the old [MASK] was in a city", TEXTS[0]]
        with serving(build_app(model, limits=Limits())) as url:
            answer = ask(url, f"/{ability}", {"texts": texts})
        assert answer.status == 200
        assert answer.content == {"results": getattr(model, ability)(texts)}


@pytest.mark.slow
def test_its_cost_is_planned(capsys):
    say("plan", model__size="tiny", model__backbone="modern", model__global_attention_every=2)
    assert "parameters" in capsys.readouterr().out


def test_keys_that_do_not_fit_are_named_before_anything_runs(runs, tmp_path, capsys):
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, model__query_key_norm="rms")
    assert "query_key_norm" in capsys.readouterr().err
    alibi = {"model__backbone": "modern", "model__position_embedding_type": "alibi"}
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, **alibi)
    assert "position_embedding_type" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
