"""The keys of a training that goes through its examples several times: epochs -> steps.

An encoder and its tasks -> the values that the paper fine-tunes with.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from electra.errors import InputError
from electra.model.sizes import PRESETS, EncoderConfig
from electra.tasks.task import Task
from electra.train.log import TrackerName
from electra.train.schedule import Budget, TrainConfig
from electra.train.session import LogConfig


@dataclass(frozen=True, kw_only=True)
class EpochTrainConfig(TrainConfig):
    """How examples are learned. What is not given is the paper's for the size of the model and the task."""

    epochs: float | None = None
    """Times to go through the training examples; by default the paper's, unless another budget is given."""
    learning_rate: float = 3e-4
    """The peak, at the head; layers below it have less, by layer_decay."""
    layer_decay: float = 0.8
    """Learning rate of a layer relative to the layer above it; 1 gives all layers the same."""
    warmup_steps: int = 0
    """Linear warm-up in steps; where both warm-ups are given the longer one holds."""
    warmup_fraction: float = 0.1
    """Linear warm-up as a fraction of the budget."""
    batch_size: int = 32
    """Examples of an update, of all processes together; a long text counts as several."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and not self.epochs > 0:
            raise InputError(f"train.epochs is {self.epochs}, expected above 0")
        if self.micro_batch == "auto":
            raise InputError("train.micro_batch auto is for pre-training: give a number of rows, or all")
        if self.parallel == "fsdp":
            raise InputError(
                "train.parallel fsdp is for pre-training: each process holds all weights, by ddp"
            )

    def budget_for(self, *, steps_per_epoch: int) -> Budget:
        """Epochs as steps, with whatever else may end the training sooner."""
        by_epochs = [] if self.epochs is None else [math.ceil(self.epochs * steps_per_epoch)]
        steps = [*by_epochs, *([] if self.steps is None else [self.steps])]
        return dataclasses.replace(self, epochs=None, steps=min(steps, default=None)).budget


@dataclass(frozen=True, kw_only=True)
class EpochLogConfig:
    """How often a training says how it is."""

    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    evaluate_epochs: float = 1.0
    """Epochs between two looks at held-out examples; the last step is always followed by one."""
    trackers: list[TrackerName] = field(default_factory=list)
    """Where else metrics go; with electra[tensorboard] installed, tensorboard is always among them."""

    def __post_init__(self) -> None:
        if not self.evaluate_epochs > 0:
            raise InputError(f"log.evaluate_epochs is {self.evaluate_epochs}, expected above 0")

    def in_steps(self, *, steps_per_epoch: int) -> LogConfig:
        """The same for a session, which counts in steps."""
        every = max(1, round(self.evaluate_epochs * steps_per_epoch))
        return LogConfig(log_every=self.log_every, evaluate_every=every, trackers=self.trackers)


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
