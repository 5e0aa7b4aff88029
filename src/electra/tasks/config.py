"""Keys of `electra finetune` -> what is fine-tuned, on what, for how long, checked.

Keys that nobody gave have the paper's values for the size of the encoder and the task (`finetune_defaults`).
Two of them depend on how much the encoder has read in pre-training, which its manifest says: what a head
judges a text by, and how much slower lower layers learn. The paper's values for these suit encoders that have
read for days. After minutes, [CLS] has gathered nothing yet, and lower layers have to change for the task as
much as upper ones: such an encoder is judged by the mean of its states and trained without layer decay.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from electra import config
from electra.config import Given
from electra.errors import InputError
from electra.model.sizes import PRESETS, EncoderConfig
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.families.family import HeadPooling, PooledFamily
from electra.tasks.families.tagging import Decoding
from electra.tasks.sweep import SweepConfig
from electra.tasks.task import Task
from electra.tasks.workers import check_workers
from electra.train.checkpoint import CheckpointConfig
from electra.train.engine import ResumeConfig
from electra.train.health import HealthConfig
from electra.train.log import TrackerName
from electra.train.schedule import Budget, TrainConfig
from electra.train.session import LogConfig


@dataclass(frozen=True, kw_only=True)
class EpochTrainConfig(TrainConfig):
    """Budget, batches, learning rate, optimizer and machine of a fine-tuning."""

    epochs: float | None = None
    """Passes over the training examples. Default: the paper's, unless another budget is given."""
    learning_rate: float = 3e-4
    """Peak learning rate of the head; layer_decay lowers it for the layers below."""
    matrix_learning_rate: float = 0.003
    """Peak learning rate of muon's matrices, while learning_rate is that of all other weights; layer_decay
    lowers both. The schedule is the same for both."""
    layer_decay: float | Literal["auto"] = "auto"
    """Learning rate of a layer relative to the layer above; with 1 it is the same for all layers. auto: 1 for
    an encoder that is known to have read fewer than 1e9 tokens, else the paper's (0.8; large: 0.9)."""
    warmup_steps: int = 0
    """Length of the linear warm-up, in steps; of two warm-ups the longer one counts."""
    warmup_fraction: float = 0.1
    """Length of the linear warm-up, as a fraction of the budget."""
    batch_size: int = 32
    """Examples per update, over all processes; a long text counts as several."""

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
        """Epochs as steps, with any other budget that may end the training sooner."""
        by_epochs = [] if self.epochs is None else [math.ceil(self.epochs * steps_per_epoch)]
        steps = [*by_epochs, *([] if self.steps is None else [self.steps])]
        return dataclasses.replace(self, epochs=None, steps=min(steps, default=None)).budget


@dataclass(frozen=True, kw_only=True)
class EpochLogConfig:
    """How often metrics are logged and the model is evaluated."""

    log_every: int = 10
    """Steps between log lines in metrics.jsonl."""
    evaluate_epochs: float = 1.0
    """Epochs between evaluations on held-out examples; the last step is always followed by one."""
    trackers: list[TrackerName] = field(default_factory=list)
    """Where else metrics go; with electra[tensorboard] installed, tensorboard is always among them."""

    def __post_init__(self) -> None:
        if not self.evaluate_epochs > 0:
            raise InputError(f"log.evaluate_epochs is {self.evaluate_epochs}, expected above 0")

    def in_steps(self, *, steps_per_epoch: int) -> LogConfig:
        """The same for a session, which counts in steps."""
        every = max(1, round(self.evaluate_epochs * steps_per_epoch))
        return LogConfig(log_every=self.log_every, evaluate_every=every, trackers=self.trackers)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TaskSource):
    """Several fine-tunings of a model, one per seed. Keys that are not given have the paper's values."""

    model: str = ""
    """Run of `electra pretrain`, model folder (fine-tuned before or not), or `none` for random weights."""
    like: str = ""
    """With --model none: run or folder whose shape and tokenizer to use."""
    out: str = ""
    """Folder for scores, predictions, report and model. Run the same command again to resume."""
    seeds: int = 5
    """Number of fine-tunings; they differ in the weights of new heads, order of examples and dropout."""
    seed: int = 0
    """Seed of the first fine-tuning; the others use the numbers that follow."""
    limit_train: int | None = None
    """Most training examples to use, with classes in proportion; the same ones for all seeds."""
    limit_eval: int | None = None
    """Most held-out examples to score, for a quick look; scores are then marked as partial."""
    max_length: int | None = None
    """Tokens of a row, special tokens included. Default: the task's."""
    dropout: float | None = None
    """Dropout of the encoder. Default: the encoder's own."""
    mask_prob: float = 0.0
    """Share of the tokens that are [MASK] while training, others in every epoch: with few examples and an
    encoder that knows [MASK], the words are then learned less by heart."""
    decoding: Decoding | None = None
    """How tags that mark chunks are chosen: scheme takes the most probable ones of a sentence that keep to
    their scheme, words the most probable one of each word, as in the paper. Default: scheme."""
    pooling: Literal["auto", "cls", "mean"] = "auto"
    """What classes, values and choices are judged by: the hidden state of [CLS], or the mean of all. auto:
    mean for an encoder that is known to have read fewer than 1e9 tokens, else cls, as in the paper; a model
    that was fine-tuned before keeps its own. For vectors: --own.pooling, --contrastive.pooling."""
    baseline: str = ""
    """Folder of another fine-tuning of the task, such as one with --model none, to compare with in the
    report."""
    ensemble: Literal["off", "on"] = "off"
    """Whether to score the average of all seeds' probabilities as well."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of finished seeds; their models are always kept."""
    train: EpochTrainConfig = field(default_factory=EpochTrainConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    log: EpochLogConfig = field(default_factory=EpochLogConfig)
    checkpoint: CheckpointConfig = field(
        default_factory=lambda: CheckpointConfig(save_every=500, keep_last=1)
    )
    # Once examples are memorised, their losses are near zero and any other loss looks like a spike.
    health: HealthConfig = field(default_factory=lambda: HealthConfig(spike_factor=math.inf))
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    dry_run: bool = False
    """Check everything and print what would be done, without writing anything."""
    cluster: str | None = None
    """Train seeds, trials and the tasks of glue at the same time on a Ray cluster: ray://HOST:PORT, auto (the
    cluster that this machine is a node of) or local (one on this machine's cores). Model and data are sent to
    the nodes, results come back. A worker has --train.threads cores, or else --train.cores, or one."""
    cluster_gpus: float = 0.0
    """Share of a GPU for each worker there, such as 0.25. Default: none."""

    def __post_init__(self) -> None:
        check_workers(self.cluster, self.cluster_gpus)
        for key in ("seeds", "limit_train", "limit_eval"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise InputError(f"{key} is {value}, expected 1 or more")
        if not 0 <= self.mask_prob < 1:
            raise InputError(f"mask_prob is {self.mask_prob}, expected at least 0 and below 1")


FREE_KEYS = (
    *("model", "like", "data", "out", "seeds", "ensemble", "keep_checkpoints", "sweep", "dry_run"),
    *("checkpoint", "resume", "log.log_every", "log.trackers", "baseline", "cluster", "cluster_gpus"),
)
"""Keys that may change between two sittings. Whether model and data are the same is told by their hashes."""


Size = Literal["small", "base", "large"]

# Learning rate and layer decay.
_BY_SIZE: dict[Size, tuple[float, float]] = {
    "small": (3e-4, 0.8),
    "base": (1e-4, 0.8),
    "large": (5e-5, 0.9),
}

# As in the original: tasks that are trained together use what most of them use by themselves.
_EPOCHS_OF_SEVERAL = 3.0


def paper_size(encoder: EncoderConfig) -> Size:
    """The largest of the paper's sizes that an encoder is at least as wide as, or `small`."""
    sizes: tuple[Size, ...] = ("large", "base")
    for size in sizes:
        if encoder.hidden_size >= PRESETS[size]["hidden_size"]:
            return size
    return "small"


def finetune_paper_values(encoder: EncoderConfig, tasks: Sequence[Task]) -> dict[str, float]:
    """Dotted key -> the paper's value for an encoder of this size and these tasks."""
    learning_rate, layer_decay = _BY_SIZE[paper_size(encoder)]
    return {
        "train.learning_rate": learning_rate,
        "train.layer_decay": layer_decay,
        "train.epochs": tasks[0].epochs if len(tasks) == 1 else _EPOCHS_OF_SEVERAL,
    }


LIGHTLY_TRAINED = 1e9
"""Tokens below which an encoder counts as lightly trained.

After 2 to 8 million tokens, mean pooling without layer decay is far ahead of the paper's values, with which a
task is hardly learned. Those were found with 1.6e10 tokens (small) and more. Nothing was measured in between:
this is where one is nearer to the paper's.
"""
FITTED = ("pooling", "train.layer_decay")
"""Keys whose `auto` depends on how much the encoder has read."""


def is_lightly_trained(tokens_read: int | None) -> bool:
    """Whether an encoder has read little; of one that is not known to have, the paper's values are used."""
    return tokens_read is not None and tokens_read < LIGHTLY_TRAINED


def fitted_values(
    encoder: EncoderConfig, *, tokens_read: int | None, head_pooling: HeadPooling | None
) -> dict[str, Any]:
    """What `auto` is for an encoder; `head_pooling`: that of a head it was fine-tuned with before."""
    if is_lightly_trained(tokens_read):
        return {"pooling": head_pooling or "mean", "train.layer_decay": 1.0}
    _, layer_decay = _BY_SIZE[paper_size(encoder)]
    return {"pooling": head_pooling or "cls", "train.layer_decay": layer_decay}


def finetune_defaults(
    given: Given[FinetuneConfig],
    encoder: EncoderConfig,
    tasks: Sequence[Task],
    fitted: Mapping[str, Any],
) -> dict[str, Any]:
    """The paper's values and those that fit the encoder, without what another key makes needless.

    That is the number of epochs where another budget was given, and the pooling where no head has one.
    """
    values = {**finetune_paper_values(encoder, tasks), **fitted}
    if any(given.values.get(f"train.{key}") for key in ("steps", "max_time", "max_tokens")):
        del values["train.epochs"]
    if not any(isinstance(task.family, PooledFamily) for task in tasks):
        del values["pooling"]
    return values


def values_before(settings: FinetuneConfig) -> dict[str, Any]:
    """What runs did that were begun before some of the keys were there: the defaults, and by [CLS]."""
    pooling = {} if settings.pooling == "auto" else {"pooling": "cls"}
    return {**config.to_dict(FinetuneConfig()), **pooling}
