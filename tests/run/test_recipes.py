"""Every recipe is read whole, and takes steps with a smaller model."""

from pathlib import Path

import pytest
import yaml

from electra import cli
from electra.model.sizes import EncoderConfig
from electra.pretraining.objectives import OBJECTIVES
from electra.run.pretrain import read_settings

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
# What makes it small; all else stays the recipe's.
SHRUNK = {
    "model.num_hidden_layers": 2,
    "model.embedding_size": 16,
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.num_attention_heads": 2,
    "train.batch_size": 8,
    "train.max_time": "null",
    "train.steps": 2,
    "train.warmup_steps": 0,
    "two_stage.first_stage_steps": 1,
    "valid_rows": 8,
    "log.log_every": 1,
}


def of(name):
    path = next(path for path in RECIPES if path.stem == name)
    return read_settings(["--config", str(path), "--data=DATA", "--out=RUN"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_read_whole_and_takes_steps(runs, tmp_path, path):
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    for word in ("command:", "machine:", "time:", "expected:"):
        assert any(word in line for line in head), f"{path.name} does not say its {word}"
    assert f"recipes/{path.name}" in "\n".join(head)
    keys = [f"--{key}={value}" for key, value in SHRUNK.items()]
    command = ["pretrain", "--config", str(path), f"--data={runs.data}", f"--out={tmp_path / 'run'}", *keys]
    assert cli.main(command) == cli.OK
    losses = [record["loss"] for record in runs.lines(tmp_path / "run", "train")]
    assert len(losses) == 2
    assert None not in losses
    assert (tmp_path / "run" / "final" / "manifest.json").is_file()
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["objective"] == of(path.stem).objective


def test_there_is_a_recipe_for_every_objective_and_size():
    names = {path.stem for path in RECIPES}
    assert names >= {*OBJECTIVES} - {"electra"} | {
        "tiny",
        "small",
        "base",
        "large",
        "small_plus_plus",
        "demo",
    }
    assert {of(name).objective for name in names} == {*OBJECTIVES}


# learning rate, batch, steps, mask %, generator's width; layers, hidden, feed-forward, heads, embedding
PAPER = {
    "small": ((5e-4, 128, 1_000_000, 0.15, 1 / 4), (12, 256, 1024, 4, 128)),
    "base": ((2e-4, 256, 766_000, 0.15, 1 / 3), (12, 768, 3072, 12, 768)),
    "large": ((2e-4, 2048, 400_000, 0.25, 1 / 4), (24, 1024, 4096, 16, 1024)),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_sizes_are_the_papers(name):
    settings, (values, sizes) = of(name), PAPER[name]
    train = settings.train
    found = (train.learning_rate, train.batch_size, train.steps, settings.masking.mask_prob)
    assert (*found, settings.generator.width) == pytest.approx(values)
    encoder = settings.model.encoder(vocab_size=30522)
    assert sizes == (
        encoder.num_hidden_layers,
        encoder.hidden_size,
        encoder.intermediate_size,
        encoder.num_attention_heads,
        encoder.embedding_size,
    )
    assert encoder == EncoderConfig.preset(name, vocab_size=30522)
    assert (train.warmup_steps, train.warmup_fraction, train.schedule) == (10_000, 0, "linear")
    assert (train.beta1, train.beta2, train.eps, train.weight_decay, train.clip_norm) == (
        0.9,
        0.999,
        1e-6,
        0.01,
        1,
    )
    assert settings.discriminator_weight == 50
    assert encoder.hidden_dropout_prob == encoder.attention_probs_dropout_prob == 0.1
