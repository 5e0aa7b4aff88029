"""Records -> curves to draw: against an axis, smoothed, and thin enough for a page.

Curves -> SVG that takes its colours from the page, so that one drawing serves light and dark.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import NDArray

from electra.report.health import healthy_ranges, noteworthy, severity
from electra.report.markup import short
from electra.report.runs import Event, Metric, Record, Run

Values = NDArray[np.float64]

SMOOTH_SHARE = 1 / 25
"""Width of the moving mean, as a share of all points of a curve."""
MOST_BINS = 240
"""A curve with more points keeps the lowest and highest of each of so many bins."""


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


def place(event: Event, run: Run, axis: Axis) -> float | None:
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


def axes_of(runs: Sequence[Run]) -> list[Axis]:
    """The axes that at least one run has measurements on; steps if there are none at all."""
    keys: set[Any] = {key for run in runs for record in (*run.train, *run.valid) for key in record}
    return [axis for axis in AXES if axis.key in keys] or [AXES[0]]


INCHES = (4.7, 2.5)
MOST_NUMBERED_EVENTS = 12
FIRST_SHARE = 0.02
"""First part of a curve that may leave the frame: losses fall steeply there and would flatten the rest."""
DASHES = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6))
"""Line styles by run, so that runs can be told apart without colour."""
NUM_COLOURS = 8
_LONG_NUMBER = re.compile(r"\d+\.\d{2,}")
_TIME_UNITS = ((86400.0, " d"), (3600.0, " h"), (60.0, " min"), (1.0, " s"))

# matplotlib wants colours, the page has variables: each variable is drawn in a colour that stands for it.
_VARIABLES = (
    *("ink", "card", "faint", "grid", "healthy", "bad", "watch", "note"),
    *(f"run{number}" for number in range(NUM_COLOURS)),
)
_STAND_IN = {name: f"#fd{index:02x}e7" for index, name in enumerate(_VARIABLES)}
_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": _STAND_IN["faint"],
    "xtick.color": _STAND_IN["faint"],
    "ytick.color": _STAND_IN["faint"],
    "xtick.labelcolor": _STAND_IN["ink"],
    "ytick.labelcolor": _STAND_IN["ink"],
    "ytick.major.size": 0,
    "xtick.major.size": 2.5,
    "ytick.minor.size": 0,
    "path.simplify": True,
}


def run_colour(index: int) -> str:
    """The page's variable for the colour of a run."""
    return f"run{index % NUM_COLOURS}"


def draw(metric: Metric, runs: Sequence[Run], axis: Axis, *, key: str) -> str:
    """One metric of all runs against one axis; `key` is unique on the page. Empty if nothing is measured."""
    with rc_context({**_STYLE, "svg.hashsalt": key}):
        figure = Figure(figsize=INCHES)
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.115, 0.125, 0.87, 0.83))
        drawn = list(chain.from_iterable(_draw_run(axes, run, i, metric, axis) for i, run in enumerate(runs)))
        if not drawn:
            return ""
        _limit(axes, metric, drawn)
        _decorate(axes, metric, axis, runs)
        _mark_events(axes, runs, axis)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_page(buffer.getvalue(), key)


def _draw_run(axes: Axes, run: Run, index: int, metric: Metric, axis: Axis) -> list[Values]:
    """Raw training curve faint, smoothed strong, held-out as circles -> the values that must be visible."""
    colour, seen = _STAND_IN[run_colour(index)], []
    train, valid = curve(run.train, metric.key, axis), curve(run.valid, metric.key, axis)
    if train:
        calm = smoothed(train) if metric.line == "smoothed" else train
        if calm is not train:
            raw = thinned(train)
            axes.plot(raw.x, raw.y, color=colour, linewidth=0.7, alpha=0.3, zorder=2)
        calm = even(calm)
        # One point makes no line.
        marker = "." if np.isfinite(calm.y).sum() == 1 else ""
        style = DASHES[index % len(DASHES)]
        axes.plot(calm.x, calm.y, color=colour, linewidth=1.7, dashes=style, marker=marker, zorder=3)
        seen += [calm.y[int(FIRST_SHARE * len(calm.y)) :], _bulk(train)]
    if valid:
        few = even(valid)
        axes.plot(
            few.x,
            few.y,
            "o",
            color=colour,
            markersize=4.2,
            markerfacecolor=_STAND_IN["card"],
            markeredgewidth=1.1,
            zorder=4,
        )
        seen.append(few.y)
    return seen


def _bulk(line: Curve) -> Values:
    """The range of nearly all points: a single spike must not flatten the rest of the curve."""
    known = line.y[np.isfinite(line.y)]
    return np.percentile(known, [2, 98])


def _limit(axes: Axes, metric: Metric, drawn: Sequence[Values]) -> None:
    """Show where the curve spends its time; rates and shares are seen against zero, losses are not."""
    values = np.concatenate(drawn)
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    if metric.scale == "log" and low > 0:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        return
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    from_zero = metric.form != "number" and 0 <= low < 0.35 * high
    axes.set_ylim(0.0 if from_zero else low - margin, high + margin)


def _decorate(axes: Axes, metric: Metric, axis: Axis, runs: Sequence[Run]) -> None:
    axes.grid(axis="y", color=_STAND_IN["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.015)
    is_log = axes.get_yscale() == "log"
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if is_log else MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(metric, value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    _label_x(axes, axis)
    for healthy in healthy_ranges(runs[0])[: 0 if len(runs) > 1 else None]:
        if healthy.key == metric.key:
            bottom, top = axes.get_ylim()
            low = bottom if healthy.low is None else max(healthy.low, bottom)
            high = top if healthy.high is None else min(healthy.high, top)
            if low < high:
                axes.axhspan(low, high, color=_STAND_IN["healthy"], alpha=0.09, linewidth=0, zorder=0)


def _tick(metric: Metric, value: float) -> str:
    if metric.form == "percent":
        return f"{100 * value:.3g}%"
    return short(value) if abs(value) >= 1 else f"{value:.3g}".replace("e-0", "e-")


def _label_x(axes: Axes, axis: Axis) -> None:
    size, unit = 1.0, ""
    if axis.key == "seconds":
        left, right = axes.get_xlim()
        size, unit = next(((s, u) for s, u in _TIME_UNITS if right >= 2 * s), _TIME_UNITS[-1])
        # Round numbers of the unit, which are not round in seconds.
        ticks = MaxNLocator(6, steps=[1, 2, 3, 5, 10]).tick_values(left / size, right / size)
        axes.set_xticks([tick * size for tick in ticks if left <= tick * size <= right])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{short(value / size)}{unit}"))


def _mark_events(axes: Axes, runs: Sequence[Run], axis: Axis) -> None:
    marks = [(run, event) for run in runs for event in noteworthy(run)]
    places = [place(event, run, axis) for run, event in marks]
    labels: list[float] = []
    for count, ((_, event), x) in enumerate(zip(marks, places, strict=True), 1):
        if x is None:
            continue
        colour = _STAND_IN[severity(event)]
        axes.axvline(x, color=colour, linewidth=0.9, linestyle=(0, (1.5, 1.5)), alpha=0.9, zorder=1)
        if len(marks) <= MOST_NUMBERED_EVENTS:
            # Numbers that would cover one another stand below one another.
            width = 0.03 * float(np.ptp(axes.get_xlim()))
            level = sum(abs(x - other) < width for other in labels)
            labels.append(x)
            axes.annotate(
                str(count),
                (x, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, -7 - 8 * level),
                textcoords="offset points",
                fontsize=7.5,
                color=colour,
                zorder=5,
            )


def _tenths(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}"


def _for_page(svg: str, key: str) -> str:
    """The drawing as part of a page: scaled by it, coloured by it, its ids unlike those of any other."""
    for name, colour in _STAND_IN.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # Without a size of its own the drawing is as wide as the page allows.
    svg = re.sub(r"<svg[^>]*>", f'<svg viewBox="0 0 {INCHES[0] * 72:g} {INCHES[1] * 72:g}" role="img">', svg)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    names = {first or second for first, second in used}
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{key}-{found[1]}"' if found[1] in names else "", svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{key}-", svg).replace("xlink:href", "href")
    # A tenth of a point is finer than a screen; what stands between tags is for people and stays.
    svg = re.sub(r'"[^"<>]*"', lambda quoted: _LONG_NUMBER.sub(_tenths, quoted[0]), svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    return re.sub(r"\s*\n\s*", " ", svg[svg.index("<svg") :])
