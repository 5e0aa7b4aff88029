"""The loss and gradient of each step -> continue, skip the update, roll back, or give up.

All processes see the same numbers, so they come to the same verdict. `Health` is part of every checkpoint.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from electra.errors import InputError

Verdict = Literal["fine", "skip", "roll_back"]

_MEMORY = 0.98
"""Share of the average loss that is carried over from step to step."""


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """When a run counts as diverged."""

    max_bad_steps: int = 5
    """Steps in a row with a NaN or infinite loss or gradient before the run rolls back to a checkpoint."""
    spike_factor: float = 2.0
    """A loss above this many times its recent average is a spike; inf turns spike detection off."""
    spike_steps: int = 20
    """Steps in a row that a spike must last before the run rolls back."""
    max_rollbacks: int = 3
    """Rollbacks before the run gives up with advice."""

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
    """What the verdict on the next step depends on."""

    average_loss: float | None = None
    bad_steps: int = 0
    """Steps in a row without a finite loss and gradient, up to now."""
    spike_steps: int = 0
    """Steps in a row with a spike, up to now."""
    rollbacks: int = 0
    phase: str = ""
    """Losses of different phases are not compared."""

    def observe(self, config: HealthConfig, *, loss: float, finite: bool, phase: str = "") -> Verdict:
        """Decide what to do after a step."""
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
        """Whether the last steps were healthy; only then is a checkpoint worth returning to."""
        return not self.bad_steps and not self.spike_steps

    def require_hope(self, config: HealthConfig, *, step: int) -> None:
        """Give up on a run that has rolled back too often."""
        if self.rollbacks >= config.max_rollbacks:
            raise InputError(
                f"training diverged again at step {step}, after {self.rollbacks} rollbacks: lower "
                "--train.learning_rate (by half), lengthen --train.warmup_steps, or set --train.precision "
                "fp32; then resume with --resume.allow_changes naming the changed keys"
            )

    def facts(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return asdict(self)


def is_finite(*values: float) -> bool:
    """Whether all values are finite."""
    return all(map(math.isfinite, values))
