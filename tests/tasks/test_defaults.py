import dataclasses

import pytest

from electra.model.sizes import EncoderConfig
from electra.tasks.config import LIGHTLY_TRAINED, finetune_paper_values, fitted_values, paper_size
from electra.tasks.families.classification import Classification
from electra.tasks.task import Task


@pytest.fixture
def task():
    family = Classification(labels=("no", "yes"), metrics=("accuracy",))
    return Task(name="any", family=family, splits={}, main_score="accuracy", epochs=10.0)


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_the_papers_sizes_are_recognised(size):
    assert paper_size(EncoderConfig.preset(size)) == size


@pytest.mark.parametrize(
    ("hidden_size", "size"), [(128, "small"), (384, "small"), (512, "small"), (800, "base"), (2048, "large")]
)
def test_other_widths_have_the_size_below(hidden_size, size):
    assert paper_size(EncoderConfig(hidden_size=hidden_size)) == size


@pytest.mark.parametrize(
    ("size", "learning_rate", "layer_decay"),
    [("tiny", 3e-4, 0.8), ("small", 3e-4, 0.8), ("base", 1e-4, 0.8), ("large", 5e-5, 0.9)],
)
def test_values_of_the_paper(task, size, learning_rate, layer_decay):
    assert finetune_paper_values(EncoderConfig.preset(size), [task]) == {
        "train.learning_rate": learning_rate,
        "train.layer_decay": layer_decay,
        "train.epochs": 10.0,
    }


def test_tasks_learned_together_have_three_epochs(task):
    other = dataclasses.replace(task, name="other", epochs=2.0)
    assert finetune_paper_values(EncoderConfig.preset("small"), [task, other])["train.epochs"] == 3.0


@pytest.mark.parametrize(
    ("tokens_read", "pooling", "layer_decay"),
    [
        (0, "mean", 1.0),
        (2_000_000, "mean", 1.0),
        (int(LIGHTLY_TRAINED), "cls", 0.9),
        (16_000_000_000, "cls", 0.9),
        (None, "cls", 0.9),
    ],
)
def test_what_fits_an_encoder_depends_on_what_it_has_read(tokens_read, pooling, layer_decay):
    large = EncoderConfig.preset("large")
    assert fitted_values(large, tokens_read=tokens_read, head_pooling=None) == {
        "pooling": pooling,
        "train.layer_decay": layer_decay,
    }


def test_a_head_that_was_trained_before_keeps_its_pooling():
    small = EncoderConfig.preset("small")
    for tokens_read, layer_decay in ((1000, 1.0), (None, 0.8)):
        for before in ("cls", "mean"):
            assert fitted_values(small, tokens_read=tokens_read, head_pooling=before) == {
                "pooling": before,
                "train.layer_decay": layer_decay,
            }
