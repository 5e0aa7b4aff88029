"""An encoder and its tasks -> the values that the paper fine-tunes with."""

from collections.abc import Sequence
from typing import Literal

from electra.model.sizes import PRESETS, EncoderConfig
from electra.tasks.task import Task

Size = Literal["small", "base", "large"]

# Learning rate, and that of a layer relative to the layer above it.
_BY_SIZE: dict[Size, tuple[float, float]] = {
    "small": (3e-4, 0.8),
    "base": (1e-4, 0.8),
    "large": (5e-5, 0.9),
}

# As in the original: tasks that are learned together have what most of them have by themselves.
_EPOCHS_OF_SEVERAL = 3.0


def paper_size(encoder: EncoderConfig) -> Size:
    """The largest of the paper's sizes that an encoder is as wide as; `small` if it is smaller than that."""
    sizes: tuple[Size, ...] = ("large", "base")
    for size in sizes:
        if encoder.hidden_size >= PRESETS[size]["hidden_size"]:
            return size
    return "small"


def paper_values(encoder: EncoderConfig, tasks: Sequence[Task]) -> dict[str, float]:
    """Key -> value of what depends on the size of the encoder and on the tasks."""
    learning_rate, layer_decay = _BY_SIZE[paper_size(encoder)]
    return {
        "train.learning_rate": learning_rate,
        "train.layer_decay": layer_decay,
        "train.epochs": tasks[0].epochs if len(tasks) == 1 else _EPOCHS_OF_SEVERAL,
    }
