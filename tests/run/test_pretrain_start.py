"""`electra pretrain --start`, also with another vocabulary; and `--train.optimizers separate`."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra import cli, files
from electra.text import tokenizer as tokenizers

WORD_TABLE = "generator.embeddings.word_embeddings.weight"
STRUCTURE = tuple(f"model.{key}" for key in ("size", "hidden_size", "embedding_size", "intermediate_size"))


def first_weights(run):
    return load_file(sorted((run / "checkpoints").iterdir())[0] / "model.safetensors")


def last_weights(run):
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / "model.safetensors")


def tokens_read(run):
    return files.read_manifest(run / "final", kind="model")["tokens_read"]


def started(runs, whole, out, *, data=None, code=cli.OK, **changes):
    """Start from a run; the keys of its networks are left to it."""
    words = runs.words(out, data=data, checkpoint__keep_last=20, start=whole, **changes)
    given = [word for word in words if not word.startswith(tuple(f"--{key}=" for key in STRUCTURE))]
    assert cli.main(given) == code


@pytest.mark.slow
def test_a_run_starts_from_another_runs_weights(runs, whole, tmp_path):
    started(runs, whole, tmp_path / "run")
    expected, found = last_weights(whole), first_weights(tmp_path / "run")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["started_from"] == {
        "path": str(whole),
        "step": 20,
        "tokens": (before := runs.lines(whole, "train")[-1]["tokens"]),
        "tokens_read": before,
        "random": [],
    }
    own = runs.lines(tmp_path / "run", "train")[-1]["tokens"]
    assert tokens_read(whole) == before
    assert tokens_read(tmp_path / "run") == before + own
    losses = [[line["loss"] for line in runs.lines(run, "train")] for run in (whole, tmp_path / "run")]
    assert losses[1][0] < losses[0][0]


@pytest.mark.slow
def test_a_run_starts_from_a_folder_of_networks(runs, whole, tmp_path):
    started(runs, whole / "final", tmp_path / "run")
    expected, found = last_weights(whole), first_weights(tmp_path / "run")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    own = runs.lines(tmp_path / "run", "train")[-1]["tokens"]
    assert tokens_read(tmp_path / "run") == tokens_read(whole) + own


@pytest.mark.slow
def test_a_generator_that_the_start_lacks_is_random(runs, whole, tmp_path):
    shutil.copytree(whole / "final" / "discriminator", tmp_path / "alone")
    started(runs, tmp_path / "alone", tmp_path / "run", generator__width=0.5)
    expected, found = last_weights(whole), first_weights(tmp_path / "run")
    name = "layers.0.attention.query.weight"
    assert torch.equal(found[f"discriminator.{name}"], expected[f"discriminator.{name}"])
    assert torch.equal(found[WORD_TABLE], expected[WORD_TABLE])
    assert not torch.equal(found[f"generator.{name}"], expected[f"generator.{name}"])
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["started_from"]["random"] == ["generator", "generator_head"]
    # Without the manifest of its run, nobody knows what it had read.
    assert tokens_read(tmp_path / "run") is None


@pytest.mark.slow
def test_another_vocabulary_keeps_what_both_know(runs, whole, other_vocabulary, tmp_path):
    out = tmp_path / "run"
    started(runs, whole, out, data=other_vocabulary)
    old, new = (tokenizers.load_tokenizer(data / "tokenizer") for data in (runs.data, other_vocabulary))
    before, after = last_weights(whole)[WORD_TABLE], first_weights(out)[WORD_TABLE]
    old_ids = {token: number for number, token in enumerate(old.tokens(range(old.vocab_size)))}
    common = [
        (old_ids[token], number)
        for number, token in enumerate(new.tokens(range(new.vocab_size)))
        if token in old_ids
    ]
    assert len(common) > 20
    assert all(torch.equal(after[number], before[old]) for old, number in common)
    assert "kept" in json.loads((out / "environment.json").read_text())["started_from"]["vocabulary"]
    # All else is as it was.
    name = "discriminator.layers.0.attention.query.weight"
    assert torch.equal(first_weights(out)[name], last_weights(whole)[name])


@pytest.mark.slow
def test_a_started_run_is_resumed_exactly_and_needs_its_start_no_more(
    runs, whole, other_vocabulary, tmp_path, interrupt
):
    start = tmp_path / "start"
    shutil.copytree(whole, start)
    started(runs, start, tmp_path / "whole", data=other_vocabulary)
    interrupt(7)
    started(runs, start, tmp_path / "parts", data=other_vocabulary, code=cli.INTERRUPTED)
    began = json.loads((tmp_path / "parts" / "environment.json").read_text())["started_from"]
    for folder in (start / "checkpoints", start / "final"):
        shutil.rmtree(folder)
    started(runs, start, tmp_path / "parts", data=other_vocabulary)
    runs.assert_same(tmp_path / "parts", tmp_path / "whole")
    assert tokens_read(tmp_path / "parts") == tokens_read(tmp_path / "whole") > tokens_read(whole)
    assert json.loads((tmp_path / "parts" / "environment.json").read_text())["started_from"] == began


def test_a_start_that_is_none_is_refused(runs, whole, tmp_path, capsys):
    started(runs, tmp_path / "nowhere", tmp_path / "run", code=cli.BAD_INPUT)
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    runs.pretrain(tmp_path / "run", start=whole, model__hidden_size=64, code=cli.BAD_INPUT)
    assert "generator." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "intermediate_size"])
def test_a_strangers_run_cannot_ask_for_all_memory(whole, runs, tmp_path, capsys, key):
    start = shutil.copytree(whole, tmp_path / "start")
    values = yaml.safe_load((start / "config.yaml").read_text())
    values["model"][key] = 2**30
    (start / "config.yaml").write_text(yaml.safe_dump(values))
    started(runs, start, tmp_path / "run", code=cli.BAD_INPUT)
    assert "they do not belong together" in capsys.readouterr().err


SEPARATE = {"train__optimizers": "separate", "train__generator_learning_rate": 0.001}


@pytest.mark.slow
def test_separate_optimizers_are_resumed_exactly(runs, tmp_path, interrupt):
    runs.pretrain(tmp_path / "whole", **SEPARATE)
    interrupt(7)
    runs.pretrain(tmp_path / "parts", **SEPARATE, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "parts", **SEPARATE)
    runs.assert_same(tmp_path / "parts", tmp_path / "whole")
    last = sorted((tmp_path / "whole" / "checkpoints").iterdir())[-1]
    groups = json.loads((last / "state.json").read_text())["optimizer"]["groups"]
    assert {(group["network"], group["lr_scale"]) for group in groups} == {
        ("generator", 0.001 / 0.01),
        ("discriminator", 1.0),
    }
    names = {group["network"]: group["param_names"] for group in groups}
    assert all(name.startswith("generator") for name in names["generator"])
    assert all(name.startswith("discriminator") for name in names["discriminator"])
    # From the same first weights, a generator that learns ten times as slowly has moved less.
    runs.pretrain(tmp_path / "joint", checkpoint__keep_last=20)
    first, name = first_weights(tmp_path / "joint"), "generator.layers.0.attention.query.weight"
    joint, separate = (
        (last_weights(tmp_path / run)[name] - first[name]).norm() for run in ("joint", "whole")
    )
    assert separate < joint / 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train__generator_learning_rate": 0.001}, "train.optimizers"),
        ({"train__optimizers": "separate", "objective": "mlm"}, "mlm"),
        ({**SEPARATE, "train__generator_learning_rate": -1}, "train.generator_learning_rate"),
        (
            {"train__optimizers": "separate", "generator__sharing": "all", "generator__width": 1},
            "generator.sharing",
        ),
    ],
)
def test_optimizers_that_make_no_sense_are_refused(runs, tmp_path, capsys, changes, named):
    runs.pretrain(tmp_path / "run", **changes, code=cli.BAD_INPUT)
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
