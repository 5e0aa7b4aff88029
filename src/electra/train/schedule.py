"""Steps, time and tokens that may be used -> how far a run is, and whether it is over.

Step and progress -> learning rate.

A learning rate is a pure function: nothing is carried from step to step, so a resumed run needs only its
step. *Progress* is the part of the budget that is used up, from 0 to 1: `step / total_steps` where the
budget is a number of steps, `seconds / budget` where it is a time. The shape of the decay is the same.

As in the original, warm-up and decay both begin at step 0 and are multiplied.

The keys of `--train.…`: how any loss is minimised, for how long, and with what.
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
    """What a run may use; the first of them that is used up ends it."""

    steps: int | None = None
    seconds: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None and self.tokens is None:
            raise InputError("a run needs an end: give --train.steps, --train.max_time or --train.max_tokens")

    def progress(self, *, steps: int, seconds: float, tokens: float) -> float:
        """The part that is used up, 0 to 1, of whichever runs out first."""
        pairs = ((steps, self.steps), (seconds, self.seconds), (tokens, self.tokens))
        return min(1.0, max(used / whole for used, whole in pairs if whole is not None))

    def seconds_left(self, *, steps: int, seconds: float, tokens: float) -> float:
        """How long it will take at the speed so far; infinite before anything is known."""
        progress = self.progress(steps=steps, seconds=seconds, tokens=tokens)
        return seconds * (1 - progress) / progress if progress else math.inf


def parse_duration(text: str, *, key: str) -> float:
    """Seconds of "90s", "30m", "1.5h", "1h30m" or "2d"."""
    pieces = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text.strip().lower():
        raise InputError(f"{key} is {text!r}, expected a time such as 90s, 30m, 1h30m or 2d")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    if not seconds:
        raise InputError(f"{key} is {text!r}, expected more than no time")
    return seconds


Shape = Literal["linear", "cosine", "trapezoid", "constant"]


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate rises and falls over a run."""

    learning_rate: float = 5e-4
    """The peak that warm-up and decay are fractions of."""
    schedule: Shape = "linear"
    """Decay over the budget; trapezoid stays at the peak until the last part (warm-up, stable, decay)."""
    warmup_steps: int = 0
    """Linear warm-up in steps; where both warm-ups are given the longer one holds."""
    warmup_fraction: float = 0.0
    """Linear warm-up as a fraction of the budget, which fits every budget."""
    decay_fraction: float = 0.2
    """Last fraction of the budget in which trapezoid falls."""
    final_fraction: float = 0.0
    """Fraction of the peak that the decay ends at."""

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
    """What is wrong and what helps if a run goes on as it has begun and ends before its warm-up does."""
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
    """Updates to make; of several budgets the one that is used up first ends the run."""
    max_time: str | None = None
    """Wall-clock time to use, such as 30m or 1h30m; the schedule ends with it."""
    max_tokens: float | None = None
    """Tokens to see, padding not counted."""
    batch_size: int = 128
    """Rows of an update, of all processes together."""
    micro_batch: int | Literal["all", "auto"] = "all"
    """Rows worked on at once by a process: a number, its whole share, or as many as fit into memory."""
    device: DeviceName = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Of matrix products; auto takes bf16 where the device is fast at it, fp16 on older GPUs, else fp32,
    unless ELECTRA_AUTO_PRECISION=fp32|bf16 says which."""
    parallel: Parallel = "ddp"
    """With several processes: each holds all weights (ddp), or a part of weights and optimizer (fsdp)."""
    checkpoint_activations: bool = False
    """Compute what happens in each layer a second time for the gradient, instead of keeping it: the same
    numbers, less memory, about a third more time."""
    compile: Literal["off", "default", "max-autotune"] = "off"
    """Whether torch compiles the encoders, and how hard it tries; pays on GPUs in long runs."""

    def __post_init__(self) -> None:
        ScheduleConfig.__post_init__(self)
        OptimizerConfig.__post_init__(self)
        for key in ("steps", "max_tokens", "batch_size"):
            value = getattr(self, key)
            if value is not None and not value >= 1:
                raise InputError(f"train.{key} is {value}, expected 1 or more")
        if isinstance(self.micro_batch, int) and self.micro_batch < 1:
            raise InputError(f"train.micro_batch is {self.micro_batch}, expected 1 or more rows, all or auto")
        if self.max_time is not None:
            parse_duration(self.max_time, key="train.max_time")
        if self.steps and (problem := unfinished_warmup(self, step=self.steps, progress=1.0)):
            raise InputError(f"train.{problem}")

    @property
    def budget(self) -> Budget:
        """When the run is over."""
        seconds = None if self.max_time is None else parse_duration(self.max_time, key="train.max_time")
        return Budget(steps=self.steps, seconds=seconds, tokens=self.max_tokens)
