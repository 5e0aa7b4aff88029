"""`electra pretrain --train.optimizer muon`: stopped and continued, with two networks, what it keeps."""

import json
import math

import pytest
from safetensors.torch import load_file

from electra import cli
from electra.pretraining.step import PretrainPart

MUON = {"train__optimizer": "muon", "train__matrix_learning_rate": 0.02}
TWO_STAGES = {
    "objective": "two_stage",
    "two_stage__first_stage_steps": 8,
    "generator__sharing": "none",
    "generator__width": 1,
    "train__optimizers": "separate",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"train__precision": "bf16", "train__micro_batch": 3}, TWO_STAGES],
    ids=["fp32", "bf16", "two stages"],
)
def test_stopped_and_continued_is_bit_for_bit_the_same(runs, tmp_path, interrupt, changes):
    runs.pretrain(tmp_path / "whole", **MUON, **changes)
    interrupt(9)
    runs.pretrain(tmp_path / "parts", **MUON, **changes, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "parts", **MUON, **changes)
    assert runs.events(tmp_path / "parts", "resumed") == [10]
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")
    losses = [line["metrics"]["mlm_loss"] for line in runs.lines(tmp_path / "whole", "train")[:8]]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_matrices_of_layers_have_one_moment_and_all_else_two(runs, tmp_path):
    runs.pretrain(tmp_path / "run", **MUON, train__steps=2, train__learning_rate=0.004)
    last = tmp_path / "run" / "checkpoints" / "step-00000002"
    groups = json.loads((last / "state.json").read_text())["optimizer"]["groups"]
    by_muon = {name for group in groups if group["update"] == "muon" for name in group["param_names"]}
    others = {name for group in groups if group["update"] == "adamw" for name in group["param_names"]}
    parts = ("query", "key", "value", "output")
    assert by_muon == {
        f"{network}.layers.{layer}.{part}.weight"
        for network in ("generator", "discriminator")
        for layer in range(2)
        for part in (
            *(f"attention.{part}" for part in parts),
            "feed_forward.inner",
            "feed_forward.output",
        )
    }
    assert {group["lr_scale"] for group in groups if group["update"] == "muon"} == {0.02 / 0.004}
    assert {group["lr_scale"] for group in groups if group["update"] == "adamw"} == {1.0}
    moments = set(load_file(last / "optimizer.safetensors"))
    assert moments == {f"{name}.momentum_buffer" for name in by_muon} | {
        f"{name}.{moment}" for name in others for moment in ("exp_avg", "exp_avg_sq", "step")
    }


@pytest.mark.slow
def test_a_step_that_is_no_number_is_skipped(runs, tmp_path, monkeypatch):
    call = PretrainPart.__call__

    def call_or_spoil(self, module):
        loss, sums = call(self, module)
        return (loss * math.nan if self.random.step == 2 else loss), sums

    monkeypatch.setattr(PretrainPart, "__call__", call_or_spoil)
    runs.pretrain(tmp_path / "run", **MUON, train__steps=5)
    assert runs.events(tmp_path / "run", "skipped_update") == [3]
    assert [line["loss"] is None for line in runs.lines(tmp_path / "run", "train")] == [
        step == 2 for step in range(5)
    ]
