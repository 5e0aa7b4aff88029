"""What was measured -> a picture: how much faster ours is, how time and memory grow, what minutes give."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from electra.bench.tables import point_on

OURS, NEEDED, FAINT = "#0072b2", "#d55e00", "#9a9a9a"
"""Blue and vermilion of Okabe and Ito, who chose them for all kinds of eyes."""
_BAR_INCHES, _GROWTH_INCHES, _QUALITY_INCHES, _WIDTH_INCHES = 0.3, 4.6, 3.0, 10.0
_LINES = (OURS, NEEDED, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito, too."""
_MOST_PANELS = 3
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "electra bench",
    "figure.facecolor": "white",
}
_AXIS_NAMES = {
    "seq_length": "tokens of a row",
    "batch_size": "rows of a step",
    "vocab_size": "vocabulary",
    "size": "model",
    "processes": "processes",
}


class Bar(NamedTuple):
    """One of ours beside one of the others."""

    kind: str
    label: str
    ratio: float


def draw_picture(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture; its suffix tells in which format."""
    bars = [bar for kind, result in results.items() if "seconds" in result for bar in ratios(kind, result)]
    growth, quality = results.get("growth"), results.get("quality")
    heights = [
        *([0.8 + _BAR_INCHES * len(bars)] if bars else []),
        *([_GROWTH_INCHES] if growth else []),
        *([_QUALITY_INCHES * math.ceil(len(quality["columns"]) / _MOST_PANELS)] if quality else []),
    ]
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
        parts: list[SubFigure] = list(
            figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
        )
        if bars:
            draw_bars(parts.pop(0).subplots(), bars)
        if growth:
            draw_growth(parts.pop(0), growth)
        if quality:
            draw_quality(parts.pop(0), quality)
        # Without a date, so that the same figures give the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)


def ratios(kind: str, result: Mapping[str, Any]) -> list[Bar]:
    """How many times faster each of ours is than each of the others."""
    medians = {name: statistics.median(times) for name, times in result["seconds"].items()}
    return [
        Bar(kind, f"{our} against {other}" if our != "ours" else f"against {other}", median / medians[our])
        for our in result["ours"]
        for other, median in medians.items()
        if other not in result["ours"]
    ]


def draw_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    """Horizontal bars; the line at 1 is where both are equally fast."""
    places = range(len(bars))
    # On a scale of ratios, a contestant that takes 90 times as long hides no other.
    drawn = axes.barh(places, [bar.ratio - 1 for bar in bars], left=1, color=OURS, height=0.62)
    axes.set_xscale("log")
    axes.bar_label(drawn, [f"{bar.ratio:.2f} x" for bar in bars], padding=4)
    axes.set_yticks(places, [f"{bar.kind}: {bar.label}" for bar in bars])
    axes.invert_yaxis()
    axes.axvline(1, color=FAINT, linewidth=1)
    ratios = [bar.ratio for bar in bars]
    axes.set_xlim(0.5 * min(1.0, *ratios), 2 * max(1.0, *ratios))
    axes.tick_params(axis="y", length=0)
    axes.set_title("how many times faster ours is", loc="left")


def draw_growth(figure: SubFigure, result: Mapping[str, Any]) -> None:
    """Time above, memory below, a column for each value that was changed."""
    grid = figure.subplots(2, len(result["axes"]), squeeze=False)
    figure.suptitle(result["title"], x=0.01, ha="left", fontsize="medium")
    for column, (axis, values) in enumerate(result["axes"].items()):
        points = [point_on(result, axis, value) for value in values]
        # Numbers stand where they belong, so that what grows evenly is a straight line.
        places = values if all(isinstance(value, int) for value in values) else range(len(values))
        draw_time(grid[0][column], places, points)
        draw_memory(grid[1][column], places, points)
        for axes in grid[:, column]:
            axes.set_xticks(places, [tick(value) for value in values])
            axes.set_ylim(0, 1.1 * axes.dataLim.y1)
            axes.grid(axis="y", color=FAINT, alpha=0.3)
            axes.margins(x=0.12)
        grid[1][column].set_xlabel(_AXIS_NAMES[axis])
    grid[0][0].set_ylabel("seconds a step")
    grid[1][0].set_ylabel("GB of a process")
    grid[1][0].legend(fontsize="small", frameon=False)


def draw_time(axes: Axes, places: Sequence[int], points: Sequence[Mapping[str, Any]]) -> None:
    """Medians, with the fastest and the slowest step."""
    medians = [statistics.median(point["seconds"]) for point in points]
    below = [median - min(point["seconds"]) for median, point in zip(medians, points, strict=True)]
    above = [max(point["seconds"]) - median for median, point in zip(medians, points, strict=True)]
    axes.errorbar(places, medians, yerr=(below, above), color=OURS, marker="o", capsize=3)


def draw_memory(axes: Axes, places: Sequence[int], points: Sequence[Mapping[str, Any]]) -> None:
    """What a process holds beyond its libraries, and what it cannot do without."""
    if all(point["memory"] for point in points):
        held = [(point["memory"] - point["libraries"]) / 1e9 for point in points]
        axes.plot(places, held, color=OURS, marker="o", label="held")
    needed = [point["needed"]["total"] / 1e9 for point in points]
    axes.plot(places, needed, color=NEEDED, marker="s", linestyle="--", label="needed")


def draw_quality(figure: SubFigure, result: Mapping[str, Any]) -> None:
    """A panel for each column: the recipes' medians over the budget, with the lowest and the highest seed.

    What needs no pre-training is a level line.
    """
    headings, across = list(result["columns"]), min(_MOST_PANELS, len(result["columns"]))
    grid = figure.subplots(math.ceil(len(headings) / across), across, squeeze=False)
    figure.suptitle(result["title"], x=0.01, ha="left", fontsize="medium")
    for panel, heading in zip(grid.flat, headings, strict=False):
        draw_column(panel, result, heading)
    for panel in list(grid.flat)[len(headings) :]:
        panel.set_axis_off()
    handles = {
        label: handle
        for panel in grid.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize="small"
    )


def draw_column(axes: Axes, result: Mapping[str, Any], heading: str) -> None:
    """One score of every row."""
    per_unit = 60 if result["unit"] == "seconds" else 1e6
    budgets = {name: size / per_unit for name, size in result["budgets"].items()}
    places = list(budgets.values())
    styles = iter(zip(_LINES * len(result["rows"]), "osD^v<>" * len(result["rows"]), strict=False))
    for row in result["rows"]:
        known = [name for name in budgets if heading in result["summary"].get(name, {}).get(row, {})]
        found = [result["summary"][name][row][heading] for name in known]
        if row not in result["recipes"]:
            style = "--" if row == result["rows"][0] else ":"
            if found:
                level = found[0]
                axes.axhline(100 * level["median"], color=FAINT, linestyle=style, label=row)
                axes.axhspan(100 * level["min"], 100 * level["max"], color=FAINT, alpha=0.2, linewidth=0)
            continue
        color, marker = next(styles)
        if not found:
            continue
        medians = [100 * one["median"] for one in found]
        below = [100 * (one["median"] - one["min"]) for one in found]
        above = [100 * (one["max"] - one["median"]) for one in found]
        axes.errorbar(
            [budgets[name] for name in known],
            medians,
            yerr=(below, above),
            color=color,
            marker=marker,
            capsize=3,
            label=row,
        )
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:.3g}" for place in places])
    axes.minorticks_off()
    # The same in all panels, also where a row has not come so far.
    axes.set_xlim(places[0] / 1.4, places[-1] * 1.4)
    axes.set_title(heading, loc="left", fontsize="medium")
    axes.set_xlabel("minutes of pre-training" if result["unit"] == "seconds" else "million tokens")
    axes.set_ylabel("percent")
    axes.grid(axis="y", color=FAINT, alpha=0.3)


def tick(value: Any) -> str:
    """Thousands as k."""
    return f"{value / 1000:.0f}k" if isinstance(value, int) and value >= 1000 else str(value)
