"""Curves -> SVG that takes its colours from the page, so that one drawing serves light and dark."""

import io
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from electra.report.curves import (
    MOST_NUMBERED_EVENTS,
    NUM_COLOURS,
    Axis,
    Curve,
    Values,
    curve,
    even,
    place,
    run_colour,
    run_dashes,
    smoothed,
    thinned,
)
from electra.report.health import healthy_ranges, noteworthy, severity
from electra.report.runs import Metric, RunRecord
from electra.show import short

INCHES = (4.7, 2.5)
FIRST_SHARE = 0.02
"""First part of a curve that may leave the frame: losses fall steeply there and would flatten the rest."""
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


def draw(metric: Metric, runs: Sequence[RunRecord], axis: Axis, *, key: str) -> str:
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


def _draw_run(axes: Axes, run: RunRecord, index: int, metric: Metric, axis: Axis) -> list[Values]:
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
        axes.plot(
            calm.x, calm.y, color=colour, linewidth=1.7, dashes=run_dashes(index), marker=marker, zorder=3
        )
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


def _decorate(axes: Axes, metric: Metric, axis: Axis, runs: Sequence[RunRecord]) -> None:
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


def _mark_events(axes: Axes, runs: Sequence[RunRecord], axis: Axis) -> None:
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
