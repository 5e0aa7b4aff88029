import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from electra import cli, files
from electra.errors import InputError
from electra.model import names
from electra.model.store import open_model
from electra.run.importing import as_options, main
from electra.tensors import read_tensors
from foreign_models import write_bundle

HEADS = ["--num_attention_heads", "2"]
# Those of the values of the runs here that are not read off the shapes.
KEYS = ["train.steps=20", "train.batch_size=8", "train.learning_rate=0.01", "checkpoint.save_every=4"]
MORE_KEYS = ["log.log_every=1", "log.evaluate_every=10", "valid_rows=16", "train.precision=fp32"]


def write_checkpoint(step_folder: Path, prefix: Path) -> None:
    """A checkpoint of ours as the original code would have saved it."""
    weights = read_tensors(step_folder / "model.safetensors")
    moments = read_tensors(step_folder / "optimizer.safetensors")
    variables = names.to_tensorflow(weights)
    for ours, theirs in (("exp_avg", "adam_m"), ("exp_avg_sq", "adam_v")):
        own = {name.removesuffix(f".{ours}"): moments[name] for name in moments if name.endswith(f".{ours}")}
        variables |= {f"{name}/{theirs}": array for name, array in names.to_tensorflow(own).items()}
    variables["global_step"] = np.array(int(step_folder.name.removeprefix("step-")), np.int64)
    write_bundle(prefix, variables)


@pytest.fixture(scope="module")
def checkpoint(whole, runs, tmp_path_factory):
    """Step 16 of a run, with moments, as a TensorFlow checkpoint with its vocabulary."""
    folder = tmp_path_factory.mktemp("tensorflow")
    write_checkpoint(whole / "checkpoints" / "step-00000016", folder / "model.ckpt-16")
    (folder / "vocab.txt").write_bytes((runs.data / "tokenizer" / "vocab.txt").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--from", "tensorflow", "P", "--out", "D"],
            ["--source", "tensorflow", "--path", "P", "--out", "D"],
        ),
        (["--from=transformers", "P", "Q"], ["--source=transformers", "--path", "P", "Q"]),
        (["P", "--from", "tensorflow"], ["--path", "P", "--source", "tensorflow"]),
        (["--out", "D", "--from", "tensorflow"], ["--out", "D", "--source", "tensorflow"]),
        (["--from"], ["--source"]),
        ([], []),
    ],
)
def test_from_is_a_word_of_the_command(words, expected):
    assert as_options(words) == expected


@pytest.mark.slow
def test_a_run_goes_on_from_a_tensorflow_checkpoint_bit_for_bit(checkpoint, whole, runs, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS]
    main([*words, "--run", str(run), "--data", str(runs.data), "--pretrain", *KEYS, *MORE_KEYS])
    printed = capsys.readouterr().out
    assert re.search("step 16.*Adam", printed)
    assert f"electra pretrain --config {run / 'config.yaml'}" in printed
    assert cli.main(["pretrain", "--config", str(run / "config.yaml")]) == cli.OK
    assert runs.events(run, "resumed") == [16]
    # What it had read before it was imported, nobody knows.
    assert files.read_manifest(run / "final", kind="model")["tokens_read"] is None
    steps = [record["step"] for record in runs.lines(run, "train")]
    assert steps == [17, 18, 19, 20]
    for name in ("model", "optimizer"):
        ours, theirs = (
            load_file(folder / "checkpoints" / "step-00000020" / f"{name}.safetensors")
            for folder in (run, whole)
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    final = [load_file(folder / "final" / "discriminator" / "model.safetensors") for folder in (run, whole)]
    assert all(torch.equal(final[0][key], tensor) for key, tensor in final[1].items())


def test_without_a_run_the_model_alone_is_written(checkpoint, whole, tmp_path):
    out = tmp_path / "model"
    main(["--from", "tensorflow", str(checkpoint / "model.ckpt-16"), "--out", str(out), *HEADS])
    weights = read_tensors(whole / "checkpoints" / "step-00000016" / "model.safetensors")
    encoder = open_model(out).encoder()
    name = "layers.1.attention.query.weight"
    assert torch.equal(encoder.state_dict()[name], weights[f"discriminator.{name}"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_the_parts_of_a_run_come_back_from_transformers_and_can_be_trained(whole, runs, tmp_path, capsys):
    parts = [str(whole / "final" / part) for part in ("discriminator", "generator")]
    run, out = tmp_path / "run", tmp_path / "model"
    goal = ["--run", str(run), "--data", str(runs.data), "--pretrain", *KEYS, "train.steps=2"]
    main(["--from", "transformers", *parts, "--out", str(out), *goal])
    for part in ("discriminator", "generator"):
        pair = [load_file(folder / part / "model.safetensors") for folder in (whole / "final", out)]
        assert pair[0].keys() == pair[1].keys()
        assert all(torch.equal(pair[1][name], tensor) for name, tensor in pair[0].items())
    assert cli.main(["pretrain", "--config", str(run / "config.yaml")]) == cli.OK
    assert runs.events(run, "resumed") == [0]
    trained = runs.lines(run, "train")[0]["loss"], runs.lines(whole, "train")[0]["loss"]
    # It has learned 20 steps before its first one.
    assert trained[0] < trained[1]
    assert "Adam" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_can_be_counted_anew(checkpoint, runs, tmp_path):
    run = tmp_path / "run"
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS, "--step", "0"]
    main([*words, "--run", str(run), "--data", str(runs.data)])
    state = json.loads((run / "checkpoints" / "step-00000000" / "state.json").read_text())
    assert state["step"] == 0
    assert state["config"]["train"]["batch_size"] == 64, "the values of the nearest size"
    moments = load_file(run / "checkpoints" / "step-00000000" / "optimizer.safetensors")
    assert any(moment.any() for moment in moments.values())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--from"),
        (["--from", "tensorflow", "P"], "--out DIR"),
        (["--from", "caffe", "P", "--out", "D"], "source"),
        (["--from", "transformers", "P", "--out", "D", "--vocab", "V"], "--vocab.*TensorFlow"),
        (["--from", "tensorflow", "P", "Q", "--out", "D"], r"\b2 checkpoints"),
        (["--from", "tensorflow", "P", "--out", "D", "--run", "R"], "--run.*--data"),
        (["--from", "tensorflow", "P", "--out", "D", "--step", "1"], "--run RUN"),
        (["--from", "tensorflow", "P", "--out", "D", "--step", "-1"], "step.*-1"),
    ],
)
def test_words_that_do_not_fit(words, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=reason):
        main(words)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["train.steps=16"], r"step 16.*train\.steps"),
        (["train.steps=20", "train.optimizer=adamw"], r"train\.optimizer.*adamw.*adam_as_google"),
        (["train.steps=20", "train.optimizer=muon"], r"train\.optimizer.*muon.*adam_as_google"),
        (["train.steps=20", "model.embedding_start=spectral"], r"model\.embedding_start"),
        (["train.steps=20", "model.num_hidden_layers=3"], "--pretrain.*networks"),
        (["train.stepps=20"], r"train\.stepps.*'train\.steps'"),
    ],
)
def test_runs_that_cannot_go_on(keys, reason, checkpoint, runs, tmp_path):
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS]
    with pytest.raises(InputError, match=reason):
        main([*words, "--run", str(tmp_path / "run"), "--data", str(runs.data), "--pretrain", *keys])
    assert not list(tmp_path.iterdir())


def test_data_of_another_tokenizer_or_a_part_alone(checkpoint, whole, runs, other_data, tmp_path):
    goal = ["--out", str(tmp_path / "model"), "--run", str(tmp_path / "run"), "--data"]
    with pytest.raises(InputError, match=r"electra prepare --tokenizer"):
        main(["--from", "tensorflow", str(checkpoint), *HEADS, *goal, str(other_data)])
    alone = str(whole / "final" / "discriminator")
    with pytest.raises(InputError, match=r"--run.*generator.*discriminator"):
        main(["--from", "transformers", alone, *goal, str(runs.data)])
    assert not list(tmp_path.iterdir())


def test_folders_that_are_full_are_refused_before_anything_is_read(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="empty"):
        main(["--from", "tensorflow", "nowhere", "--out", str(tmp_path)])
