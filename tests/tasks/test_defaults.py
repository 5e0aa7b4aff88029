import dataclasses

import pytest

from electra.model.sizes import EncoderConfig
from electra.tasks.config import finetune_paper_values, paper_size
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
