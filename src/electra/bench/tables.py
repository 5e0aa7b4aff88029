"""What was measured -> tables for a person.

What was measured -> a picture: how many times faster ours is, and how its time and memory grow.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from electra.bench import turns


def contest_table(result: Mapping[str, Any]) -> str:
    """Medians, spread, ratios and share of the peak."""
    seconds: Mapping[str, list[float]] = result["seconds"]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = [
        (
            "",
            f"s/{result['step']}",
            "(min - max)",
            f"{result['unit']}/s",
            "of peak",
            "memory",
            *(f"{name} is" for name in result["ours"]),
        )
    ]
    for name, median in medians.items():
        rows.append(
            (
                name,
                f"{median:.3f}",
                f"({min(seconds[name]):.3f} - {max(seconds[name]):.3f})",
                rate(result["units_per_step"] / median),
                share(result, median),
                gigabytes(result["memory"][name]),
                *(f"{median / medians[our]:.2f} x" for our in result["ours"]),
            )
        )
    left_out = [f"  {name} is left out: {reason}" for name, reason in result["left_out"].items()]
    head = [result["title"], turns.describe_peak(result["peak"]), ""]
    return "\n".join([*head, *aligned(rows), *left_out])


def growth_tables(result: Mapping[str, Any]) -> str:
    """A table for each axis, and the start-up of each size."""
    lines = [result["title"], turns.describe_peak(result["peak"])]
    for axis, values in result["axes"].items():
        rows: list[tuple[str, ...]] = [
            (axis, "s/step", "(min - max)", "tokens/s", "of peak", "memory", "libraries", "needed", "ratio")
        ]
        points = [point_on(result, axis, value) for value in values]
        rows += [(str(point[axis]), *point_cells(result, point)) for point in points]
        lines += ["", *aligned(rows)]
    starts = ", ".join(f"{size} {seconds:.1f} s" for size, seconds in result["start_up"].items())
    return "\n".join([*lines, "", f"  from `electra pretrain` to the end of its first step: {starts}"])


def point_on(result: Mapping[str, Any], axis: str, value: Any) -> Mapping[str, Any]:
    """The point of an axis: all else is as in the base."""
    wanted = {**result["base"], axis: value}
    return next(point for point in result["points"] if all(point[key] == wanted[key] for key in wanted))


def memory_ratio(point: Mapping[str, Any]) -> float | None:
    """What a process holds beyond its libraries, as a multiple of what it cannot do without."""
    if point["memory"] is None:
        return None
    return float(point["memory"] - point["libraries"]) / float(point["needed"]["total"])


def point_cells(result: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    """The figures of a point."""
    median, ratio = statistics.median(point["seconds"]), memory_ratio(point)
    return (
        f"{median:.3f}",
        f"({min(point['seconds']):.3f} - {max(point['seconds']):.3f})",
        rate(point["tokens"] / median),
        share({**point, "peak": result["peak"]}, median),
        gigabytes(point["memory"]),
        gigabytes(point["libraries"]),
        gigabytes(point["needed"]["total"]),
        "–" if ratio is None else f"{ratio:.2f}",
    )


def share(result: Mapping[str, Any], seconds: float) -> str:
    """Of the machine's peak, in work that cannot be avoided."""
    flops = result["flops_per_step"]
    return f"{flops / seconds / turns.best_flops(result['peak']):.0%}" if flops else "–"


def rate(value: float) -> str:
    """A number per second: small ones with a decimal."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def gigabytes(count: float | None) -> str:
    """Bytes, short."""
    return "–" if count is None else f"{count / 1e9:.2f} GB"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "   ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


OURS, NEEDED, FAINT = "#0072b2", "#d55e00", "#9a9a9a"
"""Blue and vermilion of Okabe and Ito, who chose them for all kinds of eyes."""
_BAR_INCHES, _GROWTH_INCHES, _WIDTH_INCHES = 0.3, 4.6, 10.0
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


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture; its suffix tells in which format."""
    bars = [bar for kind, result in results.items() if "seconds" in result for bar in ratios(kind, result)]
    growth = results.get("growth")
    heights = [
        *([0.8 + _BAR_INCHES * len(bars)] if bars else []),
        *([_GROWTH_INCHES] if growth else []),
    ]
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
        parts: list[SubFigure] = list(
            figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
        )
        if bars:
            draw_bars(parts[0].subplots(), bars)
        if growth:
            draw_growth(parts[-1], growth)
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


def tick(value: Any) -> str:
    """Thousands as k."""
    return f"{value / 1000:.0f}k" if isinstance(value, int) and value >= 1000 else str(value)
