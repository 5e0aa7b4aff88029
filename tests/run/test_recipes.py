"""Every recipe is found by name from anywhere, says what it needs and gives, and trains a smaller model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from electra import cli, recipes
from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.objectives import OBJECTIVES
from pretrain_settings import read_settings

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

# A bag has no layers to make smaller, and vectors as wide as states.
NOT_IN_A_BAG = ("num_hidden_layers", "embedding_size", "intermediate_size", "num_attention_heads")
OTHERWISE = {"word_vectors": {f"model.{key}": "null" for key in NOT_IN_A_BAG}}


def of(name):
    return read_settings(["--config", name, "--data=DATA", "--out=RUN"])


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_recipe_trains_a_smaller_model(runs, tmp_path, name):
    keys = [f"--{key}={value}" for key, value in {**SHRUNK, **OTHERWISE.get(name, {})}.items()]
    command = ["pretrain", "--config", name, f"--data={runs.data}", f"--out={tmp_path / 'run'}", *keys]
    assert cli.main(command) == cli.OK
    losses = [record["loss"] for record in runs.lines(tmp_path / "run", "train")]
    assert len(losses) == 2
    assert None not in losses
    assert (tmp_path / "run" / "final" / "manifest.json").is_file()
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["objective"] == of(name).objective


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_header_is_complete_and_its_command_names_the_recipe(name):
    recipe = recipes.recipe(name)
    assert tuple(recipe.header) == recipes.FIELDS
    assert all(recipe.header.values())
    assert f"electra pretrain --config {name} --data DATA --out RUN" in recipe.header["command"]
    comments = [line for line in recipe.path.read_text(encoding="utf-8").splitlines() if line[0] == "#"]
    # Nothing of the header is lost on the way.
    words = re.sub(r"# (\w+:)?", "", "\n".join(comments)).split()
    assert " ".join(recipe.header.values()).split() == words


def test_the_table_of_names_is_the_folder():
    folder = Path(recipes.__file__).parent
    assert sorted(recipes.NAMES) == sorted(path.stem for path in folder.glob("*.yaml"))


def test_there_is_a_recipe_for_every_objective_and_size():
    sizes = {"tiny", "small", "base", "large", "small_plus_plus", "minutes"}
    assert {*recipes.NAMES} >= {*OBJECTIVES} - {"electra", "negative_sampling"} | sizes
    assert {of(name).objective for name in recipes.NAMES} == {*OBJECTIVES}


def test_the_list_says_what_each_needs_and_gives(capsys):
    assert cli.main(["recipes"]) == cli.OK
    shown = " ".join(capsys.readouterr().out.split())
    for name in recipes.NAMES:
        header = recipes.recipe(name).header
        assert f"{name} for {header['for']} needs {header['needs']} gives {header['gives']}" in shown


def test_one_recipe_is_printed_as_it_is(capsys):
    assert cli.main(["recipes", "small"]) == cli.OK
    assert capsys.readouterr().out == recipes.recipe("small").path.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["recipes", "smal"], ["pretrain", "--config", "smal"]])
def test_a_wrong_name_gets_the_nearest_and_the_list(command, capsys):
    assert cli.main(command) == cli.BAD_INPUT
    shown = capsys.readouterr().err
    assert "'small'" in shown
    assert ", ".join(recipes.NAMES) in shown


def test_listing_recipes_does_not_import_torch():
    code = "import sys; from electra.cli import main; main(['recipes']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("False\n")


def test_a_file_is_preferred_to_a_recipe_and_a_folder_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    assert recipes.config_path("small") == recipes.recipe("small").path
    Path("tiny").write_text("seed: 3\n")
    assert of("tiny").seed == 3
    assert of("./tiny").seed == 3


def test_a_recipe_that_went_warns_and_means_its_successor():
    with pytest.warns(FutureWarning, match="demo.*--config minutes"):
        assert of("demo") == of("minutes")


def test_the_path_of_an_old_checkout_warns_and_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(FutureWarning, match="--config small "):
        settings = of("recipes/small.yaml")
    assert settings == of("small")
    # Other paths that do not exist are mistakes, also where a recipe has the name of the file.
    for path in ("small.yaml", "other/small.yaml", "recipes/smal.yaml"):
        with pytest.raises(InputError, match=rf"{path}.*'small'"):
            of(path)


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
