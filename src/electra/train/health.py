"""Losses and gradients, step by step -> continue, skip an update, roll back to a checkpoint, or give up.

All processes see the same numbers, so they decide alike. What is remembered is part of a checkpoint.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from electra.errors import InputError

Verdict = Literal["fine", "skip", "roll_back"]

_MEMORY = 0.98
"""Share of the average loss that is kept from step to step."""


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """Divergence thresholds: when updates are skipped and the run rolls back to a checkpoint."""

    max_bad_steps: int = 5
    """Consecutive steps with a NaN or infinite loss or gradient before the run rolls back."""
    spike_factor: float = 2.0
    """A loss this many times above its recent average is a spike; inf never rolls back."""
    spike_steps: int = 20
    """Consecutive steps of a spike before the run rolls back."""
    max_rollbacks: int = 3
    """Rollbacks before the run gives up, with advice."""

    def __post_init__(self) -> None:
        for key in ("max_bad_steps", "spike_steps"):
            if getattr(self, key) < 1:
                raise InputError(f"health.{key} is {getattr(self, key)}, expected 1 or more steps")
        if not self.spike_factor > 1:
            raise InputError(
                f"health.spike_factor is {self.spike_factor}, expected above 1; inf never rolls back"
            )
        if self.max_rollbacks < 0:
            raise InputError(f"health.max_rollbacks is {self.max_rollbacks}, expected 0 or more")


@dataclass(kw_only=True)
class Health:
    """What is remembered of the last steps."""

    average_loss: float | None = None
    bad_steps: int = 0
    """Consecutive, up to now."""
    spike_steps: int = 0
    """Consecutive, up to now."""
    rollbacks: int = 0
    phase: str = ""
    """Losses of different phases are not compared."""

    def observe(self, config: HealthConfig, *, loss: float, finite: bool, phase: str = "") -> Verdict:
        """What to do about a step."""
        if phase != self.phase:
            self.phase, self.average_loss, self.spike_steps = phase, None, 0
        if not finite:
            self.bad_steps += 1
            return "roll_back" if self.bad_steps >= config.max_bad_steps else "skip"
        self.bad_steps = 0
        if self.average_loss is not None and abs(loss) > config.spike_factor * abs(self.average_loss):
            self.spike_steps += 1
            return "roll_back" if self.spike_steps >= config.spike_steps else "fine"
        self.spike_steps = 0
        known = loss if self.average_loss is None else self.average_loss
        self.average_loss = _MEMORY * known + (1 - _MEMORY) * loss
        return "fine"

    @property
    def good(self) -> bool:
        """Whether the last steps look normal: only then is a checkpoint worth rolling back to."""
        return not self.bad_steps and not self.spike_steps

    def require_hope(self, config: HealthConfig, *, step: int) -> None:
        """Give up on a run that rolled back too often."""
        if self.rollbacks >= config.max_rollbacks:
            raise InputError(
                f"training diverged again at step {step}, after {self.rollbacks} rollbacks: lower "
                "--train.learning_rate (by half), lengthen --train.warmup_steps, or set --train.precision "
                "fp32; then continue with --resume.allow_changes naming the changed keys"
            )

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


def is_finite(*values: float) -> bool:
    """Whether none is NaN or infinite."""
    return all(map(math.isfinite, values))
