"""`electra pretrain --model.backbone modern`: stopped and continued, started from, and refused elsewhere."""

import json

import pytest
import torch
from safetensors.torch import load_file

from electra import cli

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


def test_stopped_and_continued_is_bit_for_bit_the_same(runs, modern, tmp_path, interrupt):
    interrupt(7)
    runs.pretrain(tmp_path / "run", **MODERN, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "run", **MODERN)
    runs.assert_same(tmp_path / "run", modern)


def test_another_backbone_is_no_way_to_resume(runs, modern, capsys):
    runs.pretrain(modern, code=cli.BAD_INPUT, train__steps=30)
    assert "model.backbone" in capsys.readouterr().err


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
