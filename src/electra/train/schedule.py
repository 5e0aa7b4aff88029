"""The keys of `--train`: budget -> progress of a run -> learning rate of a step.

A learning rate is a pure function: nothing is carried from step to step, so a resumed run needs only its
step. *Progress* is the share of the budget that is used up, from 0 to 1: `step / total_steps` where the
budget is a number of steps, `seconds / budget` where it is a time. The shape of the decay is the same.

As in the original, warm-up and decay both begin at step 0 and are multiplied.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from electra.errors import InputError
from electra.train.devices import DeviceName, PrecisionName
from electra.train.distributed import Parallel
from electra.train.optim import OptimizerConfig

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may use; it ends when the first of them is used up."""

    steps: int | None = None
    seconds: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None and self.tokens is None:
            raise InputError("a run needs an end: give --train.steps, --train.max_time or --train.max_tokens")

    def progress(self, *, steps: int, seconds: float, tokens: float) -> float:
        """The share that is used up, 0 to 1, of whichever runs out first."""
        pairs = ((steps, self.steps), (seconds, self.seconds), (tokens, self.tokens))
        return min(1.0, max(used / whole for used, whole in pairs if whole is not None))

    def seconds_left(self, *, steps: int, seconds: float, tokens: float) -> float:
        """Time to the end at the speed so far; infinite before anything is known."""
        progress = self.progress(steps=steps, seconds=seconds, tokens=tokens)
        return seconds * (1 - progress) / progress if progress else math.inf


def parse_duration(text: str, *, key: str) -> float:
    """Seconds of "90s", "30m", "1.5h", "1h30m" or "2d"."""
    pieces = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text.strip().lower():
        raise InputError(f"{key} is {text!r}, expected a time such as 90s, 30m, 1h30m or 2d")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    if not seconds:
        raise InputError(f"{key} is {text!r}, expected more than zero")
    return seconds


Shape = Literal["linear", "cosine", "trapezoid", "constant"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate rises and falls over a run."""

    learning_rate: float = 5e-4
    """Peak learning rate, after warm-up and before decay."""
    schedule: Shape = "linear"
    """Shape of the decay; trapezoid stays at the peak until the last decay_fraction of the budget."""
    warmup_steps: int = 0
    """Length of the linear warm-up, in steps; of two warm-ups the longer one counts."""
    warmup_fraction: float = 0.0
    """Length of the linear warm-up, as a fraction of the budget."""
    decay_fraction: float = 0.2
    """Last fraction of the budget, in which trapezoid decays."""
    final_fraction: float = 0.0
    """Learning rate at the end of the decay, as a fraction of the peak."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(
                f"learning_rate is {self.learning_rate}, expected a number above 0 (such as 5e-4)"
            )
        if self.warmup_steps < 0:
            raise InputError(f"warmup_steps is {self.warmup_steps}, expected 0 (no warm-up) or more steps")
        if not 0 <= self.warmup_fraction <= 1:
            raise InputError(
                f"warmup_fraction is {self.warmup_fraction}, expected a fraction of the run, 0 to 1"
            )
        if not 0 < self.decay_fraction <= 1:
            raise InputError(
                f"decay_fraction is {self.decay_fraction}, expected above 0 and at most 1; "
                "for no decay at all set schedule to constant"
            )
        if not 0 <= self.final_fraction <= 1:
            raise InputError(
                f"final_fraction is {self.final_fraction}, expected a fraction of the peak, 0 to 1"
            )


def learning_rate(config: ScheduleConfig, *, step: int, progress: float) -> float:
    """The learning rate of one step; progress past the end of the budget counts as its end.

    Which number the first step has is the caller's choice. With 0 the first update does nothing. The
    original leaves the order of reading and counting open; in its recorded runs the first update reads 1.
    """
    assert step >= 0, f"step is {step}"
    progress = min(1.0, max(0.0, progress))
    decay = config.final_fraction + (1 - config.final_fraction) * _decay(config, progress)
    return config.learning_rate * decay * _warmup(config, step, progress)


def unfinished_warmup(config: ScheduleConfig, *, step: int, progress: float) -> str | None:
    """What is wrong and what helps, if at this pace the run ends before its warm-up does; None if not."""
    total = step / progress if progress else math.inf
    if config.warmup_steps <= total:
        return None
    return (
        f"warmup_steps is {config.warmup_steps:,}, but the run has about {total:,.0f} steps: its learning "
        f"rate never comes near {config.learning_rate:g}; set --train.warmup_steps "
        f"{max(1, round(total / 10))}, or 0 and --train.warmup_fraction 0.1"
    )


def _warmup(config: ScheduleConfig, step: int, progress: float) -> float:
    by_step = step / config.warmup_steps if config.warmup_steps else 1.0
    by_progress = progress / config.warmup_fraction if config.warmup_fraction else 1.0
    return min(1.0, by_step, by_progress)


def _decay(config: ScheduleConfig, progress: float) -> float:
    match config.schedule:
        case "linear":
            return 1 - progress
        case "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        case "trapezoid":
            return min(1.0, (1 - progress) / config.decay_fraction)
        case "constant":
            return 1.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ScheduleConfig, OptimizerConfig):
    """Budget, batches, learning rate, optimizer and machine."""

    steps: int | None = None
    """Number of updates; the run ends when the first of several budgets is used up."""
    max_time: str | None = None
    """Wall-clock time, such as 30m or 1h30m; the learning rate schedule ends with it."""
    max_tokens: float | None = None
    """Number of tokens to train on, without padding."""
    batch_size: int = 128
    """Rows per update, over all processes."""
    micro_batch: int | Literal["all", "auto"] = "all"
    """Rows that a process works on at once: a number, all of its share, or as many as fit into memory (auto).
    Gradients are accumulated over the batch."""
    device: DeviceName = "auto"
    """Device to compute on; auto chooses cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses bf16 where the device is fast at it, fp16 on older GPUs, and
    fp32 otherwise. The environment variable ELECTRA_AUTO_PRECISION=fp32|bf16 overrides that choice."""
    threads: int | None = None
    """Threads that a process computes with on a CPU. Default: torch's choice, one for each core."""
    cores: int | Literal["auto"] = "auto"
    """Cores of a CPU that each compute rows of their own, which pays for small models and beside busy
    neighbours: the same losses but for rounding. With 1, all cores share every operation. auto: measured when
    a run begins, and kept by it; the environment variable ELECTRA_AUTO_CORES=N overrides that choice."""
    parallel: Parallel = "ddp"
    """With several processes: each holds all weights (ddp), or a shard of weights and optimizer (fsdp)."""
    checkpoint_activations: bool = False
    """Recompute the activations of each layer for the gradient instead of keeping them: the same numbers,
    less memory, about a third more time."""
    compile: Literal["off", "default", "max-autotune"] = "off"
    """Compile the encoders with torch.compile, in this mode; pays off on GPUs in long runs."""

    def __post_init__(self) -> None:
        ScheduleConfig.__post_init__(self)
        OptimizerConfig.__post_init__(self)
        for key in ("steps", "max_tokens", "batch_size", "threads"):
            value = getattr(self, key)
            if value is not None and not value >= 1:
                raise InputError(f"train.{key} is {value}, expected 1 or more")
        if isinstance(self.micro_batch, int) and self.micro_batch < 1:
            raise InputError(f"train.micro_batch is {self.micro_batch}, expected 1 or more rows, all or auto")
        if isinstance(self.cores, int) and self.cores < 1:
            raise InputError(f"train.cores is {self.cores}, expected 1 or more cores, or auto")
        if self.max_time is not None:
            parse_duration(self.max_time, key="train.max_time")
        if self.steps and (problem := unfinished_warmup(self, step=self.steps, progress=1.0)):
            raise InputError(f"train.{problem}")

    @property
    def budget(self) -> Budget:
        """When the run is over."""
        seconds = None if self.max_time is None else parse_duration(self.max_time, key="train.max_time")
        return Budget(steps=self.steps, seconds=seconds, tokens=self.max_tokens)
