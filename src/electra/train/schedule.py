"""Step and progress -> learning rate.

A learning rate is a pure function: nothing is carried from step to step, so a resumed run needs only its
step. *Progress* is the part of the budget that is used up, from 0 to 1: `step / total_steps` where the
budget is a number of steps, `seconds / budget` where it is a time. The shape of the decay is the same.

As in the original, warm-up and decay both begin at step 0 and are multiplied.
"""

import math
from dataclasses import dataclass
from typing import Literal

from electra.errors import InputError

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
