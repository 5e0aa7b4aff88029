"""`electra pretrain --objective replaced_span`: spans that are rewritten from left to right."""

import json
import socket
import subprocess
import sys

import pytest
import yaml

from electra import cli
from electra.prediction.load import load

pytestmark = pytest.mark.numeric

SPANS = {"objective": "replaced_span", "masking__mask_prob": 0.3, "replaced_span__max_tokens": 4}
BOUNDARIES = {**SPANS, "replaced_span__boundaries": "on"}
OWN = {**BOUNDARIES, "replaced_span__length": "own"}
MODERN = {**SPANS, "model__backbone": "modern", "train__precision": "bf16"}


@pytest.fixture(scope="module")
def spans(runs, tmp_path_factory):
    run = tmp_path_factory.mktemp("spans") / "run"
    runs.pretrain(run, **BOUNDARIES)
    return run


def test_a_run_has_all_losses_and_is_loaded_as_any_other(spans, runs):
    written = yaml.safe_load((spans / "config.yaml").read_text())
    assert (written["masking"]["strategy"], written["masking"]["mask_token_prob"]) == ("span", 1.0)
    for line in runs.lines(spans, "train"):
        found = line["metrics"]
        discriminator = found["discriminator_loss"] + found["boundary_loss"]
        # Sums of some hundred terms in fp32.
        assert line["loss"] == pytest.approx(found["mlm_loss"] + 50 * discriminator, rel=1e-5)
    valid = runs.lines(spans, "valid")[-1]["metrics"]
    assert {
        "mlm_accuracy",
        "sampled_accuracy",
        "discriminator_auc",
        "boundary_auc",
        "fixed_auc",
    } <= valid.keys()
    assert 0 < valid["replaced_fraction"] < 0.35
    assert load(spans).abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")


def test_samples_show_rewritten_spans(spans):
    rows = json.loads((spans / "samples.jsonl").read_text().splitlines()[-1])["rows"]
    several = 0
    for row in rows:
        before = 0
        for original, masked, corrupted, replaced in zip(
            row["original"], row["masked"], row["corrupted"], row["replaced"], strict=True
        ):
            # Only masked tokens are rewritten; of a rewritten span one may have stayed as it was.
            assert not replaced or masked == "[MASK]"
            assert corrupted == original or replaced
            several += before and replaced
            before = replaced
    assert several


@pytest.mark.slow
def test_a_length_of_its_own(runs, tmp_path):
    run = tmp_path / "run"
    runs.pretrain(run, **OWN)
    first, *_, last = (line["metrics"]["length_ratio"] for line in runs.lines(run, "train"))
    # Ends are learned before anything else.
    assert 1 < last < first
    rows = json.loads((run / "samples.jsonl").read_text().splitlines()[-1])["rows"]
    for row in rows:
        assert (
            len({len(row[name]) for name in ("original", "masked", "corrupted", "replaced", "suspicion")})
            == 1
        )
        for original, corrupted, replaced in zip(
            row["original"], row["corrupted"], row["replaced"], strict=True
        ):
            assert original or corrupted
            # Of a shorter span the rest is gone.
            assert corrupted in (original, "") or replaced
    # Spans that are written longer than they were.
    assert any("" in row["original"] for row in rows)
    turns = load(run).corrupt(["the old river was in a small city"] * 20, mask_prob=0.5)
    assert {len(token["corrupted"].split()) for turn in turns for token in turn["tokens"]} > {1}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [BOUNDARIES, OWN, MODERN])
def test_stopped_and_continued_is_the_same(runs, tmp_path, interrupt, changes):
    keys = {**changes, "model__dropout": 0.1, "train__steps": 8, "log__evaluate_every": 4}
    runs.assert_continues_exactly(tmp_path, interrupt, **keys)


@pytest.mark.slow
def test_micro_batches_do_the_same_work(runs, tmp_path):
    keys = {**OWN, "model__dropout": 0.0, "train__steps": 4}
    for name, rows in (("whole", 8), ("parts", 3)):
        runs.pretrain(tmp_path / name, train__micro_batch=rows, **keys)
    runs.assert_same_work(tmp_path / "whole", tmp_path / "parts", precision="fp32")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_do_the_work_of_one(runs, tmp_path, parallel):
    """With fsdp they gather layers together, so that both must take as many passes."""
    keys = {**BOUNDARIES, "model__dropout": 0.0, "train__steps": 4, "train__batch_size": 4}
    runs.pretrain(tmp_path / "one", **keys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}", "-m", "electra"]
    command = runs.words(tmp_path / "two", **keys, train__parallel=parallel)
    done = subprocess.run([sys.executable, *torchrun, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == cli.OK, done.stderr
    runs.assert_same_work(tmp_path / "two", tmp_path / "one", precision="fp32")


@pytest.mark.slow
def test_layers_that_are_computed_twice_give_the_same(runs, tmp_path):
    keys = {**SPANS, "model__dropout": 0.1, "train__steps": 3}
    for name, recomputed in (("kept", False), ("twice", True)):
        runs.pretrain(tmp_path / name, train__checkpoint_activations=recomputed, **keys)
    kept, twice = (
        [line["loss"] for line in runs.lines(tmp_path / name, "train")] for name in ("kept", "twice")
    )
    assert kept == twice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replaced_span__max_tokens": 0}, "replaced_span.max_tokens is 0"),
        ({"replaced_span__max_tokens": 33}, "replaced_span.max_tokens is 33, but rows have 32 tokens"),
        ({"masking__mask_prob": 0}, "mask_prob is 0"),
        ({"replaced_span__length": "own", "masking__mask_token_prob": 0.8}, "mask_token_prob is 0.8"),
        ({"generator__kind": "unigram"}, "generator.kind is unigram"),
    ],
)
def test_what_makes_no_sense_is_refused(runs, tmp_path, capsys, changes, words):
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, **{**SPANS, **changes})
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_is_needed(runs, capsys):
    words = [word for word in runs.words("unused", **SPANS) if not word.startswith("--out")]
    assert cli.main([*words, "--dry_run=true"]) == cli.OK
    assert "[MASK]" in capsys.readouterr().out
