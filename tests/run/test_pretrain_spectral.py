"""`electra pretrain --model.embedding_start spectral`: what is kept beside the data, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from electra import cli, files
from electra.pretraining import build

SPECTRAL = {"model__embedding_start": "spectral", "train__steps": 4, "checkpoint__keep_last": 20}
WORD_TABLE = "generator.embeddings.word_embeddings.weight"


@pytest.fixture
def data(runs, tmp_path):
    """A dataset of this test's own."""
    shutil.copytree(runs.data, tmp_path / "data", ignore=shutil.ignore_patterns("cache"))
    return tmp_path / "data"


def first_table(run):
    return load_file(sorted((run / "checkpoints").iterdir())[0] / "model.safetensors")[WORD_TABLE]


def cached(data):
    (folder,) = (data / "cache").iterdir()
    return folder


@pytest.mark.slow
def test_the_vectors_are_kept_beside_the_data_and_made_again_if_damaged(runs, data, tmp_path, capsys):
    runs.pretrain(tmp_path / "first", data=data, **SPECTRAL)
    manifest = files.read_manifest(cached(data), kind="spectral")
    assert manifest["dataset_sha256"] == files.sha256(data / "manifest.json")
    vectors = np.load(cached(data) / "vectors.npy")
    table = first_table(tmp_path / "first")
    seen = ~np.isnan(vectors[:, 0])
    assert seen.sum() > 15
    assert torch.equal(table[seen], 0.02 * torch.from_numpy(vectors[seen]))
    assert table[seen].std().item() == pytest.approx(0.02, rel=0.01)
    special = json.loads((data / "manifest.json").read_text())["tokenizer"]["special_ids"]
    assert not seen[[special[name] for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")]].any()

    before = cached(data).stat().st_ino
    runs.pretrain(tmp_path / "second", data=data, **SPECTRAL)
    assert cached(data).stat().st_ino == before
    damaged = bytearray((cached(data) / "vectors.npy").read_bytes())
    damaged[-3] ^= 1
    (cached(data) / "vectors.npy").write_bytes(damaged)
    runs.pretrain(tmp_path / "third", data=data, **SPECTRAL)
    assert not list(files.damaged_files(cached(data), files.read_manifest(cached(data), kind="spectral")))
    for run in ("second", "third"):
        runs.assert_same(tmp_path / "first", tmp_path / run)

    assert cli.main(["prepare", "--verify", str(data)]) == cli.OK

    # Without a place to keep them they are the same.
    shutil.rmtree(data / "cache")
    (data / "cache").write_text("in the way")
    capsys.readouterr()
    runs.pretrain(tmp_path / "fourth", data=data, **SPECTRAL)
    assert "cannot be written" in capsys.readouterr().err
    assert torch.equal(first_table(tmp_path / "fourth"), table)


@pytest.mark.slow
def test_a_dry_run_writes_nothing(data, runs):
    words = runs.words("", data=data, **SPECTRAL, dry_run=True)
    assert cli.main([word for word in words if not word.startswith("--out")]) == cli.OK
    assert not (data / "cache").exists()


@pytest.mark.slow
def test_a_resumed_run_does_not_count_again(runs, tmp_path, interrupt, monkeypatch):
    keys = {**SPECTRAL, "train__steps": 8}
    runs.pretrain(tmp_path / "whole", **keys)
    interrupt(3)
    runs.pretrain(tmp_path / "parts", **keys, code=cli.INTERRUPTED)
    monkeypatch.setattr(build, "open_vectors", None)
    runs.pretrain(tmp_path / "parts", **keys)
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_a_start_has_its_own_embeddings(runs, tmp_path, capsys):
    runs.pretrain(tmp_path / "first", **SPECTRAL)
    start = {"start": tmp_path / "first", "train__steps": 4, "checkpoint__keep_last": 20}
    runs.pretrain(tmp_path / "second", **start)
    last = load_file(tmp_path / "first" / "checkpoints" / "step-00000004" / "model.safetensors")
    assert torch.equal(first_table(tmp_path / "second"), last[WORD_TABLE])
    runs.pretrain(tmp_path / "third", **{**SPECTRAL, **start}, code=cli.BAD_INPUT)
    assert "model.embedding_start" in capsys.readouterr().err


def test_a_dataset_smaller_than_its_vocabulary_is_refused(runs, data, tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("the old river was in a small city. " * 6, encoding="utf-8")
    out = tmp_path / "little"
    keys = {"corpus": tmp_path / "corpus.txt", "out": out, "tokenizer": data / "tokenizer", "seq_length": 32}
    assert (
        cli.main(["prepare", *(f"--{key}={value}" for key, value in keys.items()), "--workers=1"]) == cli.OK
    )
    runs.pretrain(tmp_path / "run", data=out, **SPECTRAL, valid_rows=0, code=cli.BAD_INPUT)
    assert "model.embedding_start" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
