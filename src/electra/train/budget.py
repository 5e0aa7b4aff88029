"""Steps, time and tokens that may be used -> how far a run is, and whether it is over."""

import math
import re
from dataclasses import dataclass

from electra.errors import InputError

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
