"""Records -> curves to draw: against an axis, smoothed, and with few enough points for a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electra.report.runs import Event, Record, RunRecord

Values = NDArray[np.float64]

SMOOTH_SHARE = 1 / 25
"""Width of the moving mean, as a share of all points of a curve."""
MOST_BINS = 240
"""A curve with more points keeps the lowest and highest of each of so many bins."""
MOST_NUMBERED_EVENTS = 12
"""With more events, lines on the curves get no numbers, and the list of events is folded."""
DASHES = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6))
"""Line styles by run, so that runs can be told apart without colour."""
NUM_COLOURS = 8
"""Colours of runs in page.css, from --run0 on."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What curves are drawn against."""

    key: str
    """Name in the records."""
    title: str


AXES = (
    Axis(key="step", title="steps"),
    Axis(key="tokens", title="tokens"),
    Axis(key="flops", title="FLOPs"),
    Axis(key="seconds", title="time"),
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points in the order they were measured; NaN where the line must break."""

    x: Values
    y: Values

    def __bool__(self) -> bool:
        """Whether there is anything to see."""
        return bool(np.isfinite(self.y).any())


def curve(records: Sequence[Record], metric: str, axis: Axis) -> Curve:
    """A metric against an axis, with a break where the run went back in time."""
    points = [(record[axis.key], record[metric]) for record in records if {axis.key, metric} <= record.keys()]
    if not points:
        return Curve(x=np.empty(0), y=np.empty(0))
    x, y = np.array(points, dtype=np.float64).T
    # After a roll-back the same steps come again: they are another line, not a line back.
    returns = np.flatnonzero(np.diff(x) < 0) + 1
    return Curve(x=np.insert(x, returns, np.nan), y=np.insert(y, returns, np.nan))


def smoothed(line: Curve) -> Curve:
    """Centred moving mean over a fixed share of the points: no lag; at the ends it sees what is there."""
    width = max(1, round(len(line.y) * SMOOTH_SHARE))
    if width < 3:
        return line
    known = np.isfinite(line.y)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, line.y, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    centre = np.arange(len(line.y))
    first = np.maximum(centre - width // 2, 0)
    last = np.minimum(centre + width // 2 + 1, len(line.y))
    total = np.maximum(counts[last] - counts[first], 1)
    mean = (sums[last] - sums[first]) / total
    return Curve(x=line.x, y=np.where(known, mean, np.nan))


def thinned(line: Curve) -> Curve:
    """Few enough points for a page; a spike of one step stays visible."""
    if len(line.y) <= 2 * MOST_BINS:
        return line
    kept: set[int] = set()
    for part in np.array_split(np.arange(len(line.y)), MOST_BINS):
        values = line.y[part]
        broken = np.flatnonzero(~np.isfinite(values))
        kept.update(int(part[index]) for index in broken[:1])
        if len(broken) < len(values):
            kept.update((int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])))
    chosen = sorted(kept)
    return Curve(x=line.x[chosen], y=line.y[chosen])


def even(line: Curve) -> Curve:
    """Few enough points of a smooth line."""
    if len(line.y) <= MOST_BINS:
        return line
    chosen = np.unique(np.linspace(0, len(line.y) - 1, MOST_BINS).round().astype(int))
    breaks = np.flatnonzero(~np.isfinite(line.y))
    chosen = np.union1d(chosen, breaks)
    return Curve(x=line.x[chosen], y=line.y[chosen])


def place(event: Event, run: RunRecord, axis: Axis) -> float | None:
    """Where an event stands on an axis: read off the training records around its step."""
    if axis.key == "step":
        return event.step
    if axis.key == "seconds" and event.seconds is not None:
        return event.seconds
    known = [(record["step"], record[axis.key]) for record in run.train if axis.key in record]
    if not known:
        return None
    steps, values = np.array(sorted(known), dtype=np.float64).T
    return float(np.interp(event.step, steps, values))


def axes_of(runs: Sequence[RunRecord]) -> list[Axis]:
    """The axes that at least one run has measurements on; steps if there are none at all."""
    keys: set[Any] = {key for run in runs for record in (*run.train, *run.valid) for key in record}
    return [axis for axis in AXES if axis.key in keys] or [AXES[0]]


def run_colour(index: int) -> str:
    """The page's variable for the colour of a run."""
    return f"run{index % NUM_COLOURS}"


def run_dashes(index: int) -> tuple[float, ...]:
    """Lengths of the dashes and gaps in the line of a run."""
    return DASHES[index % len(DASHES)]
