"""What was measured -> tables for a terminal."""

import statistics
from collections.abc import Mapping
from typing import Any

from electra import show
from electra.bench import turns


def contest_table(result: Mapping[str, Any]) -> str:
    """Median, spread and rate of every contestant, its share of the peak, and its ratio to ours."""
    seconds: Mapping[str, list[float]] = result["seconds"]
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    precisions: Mapping[str, str | None] = result.get("precision", {})
    has_precisions = any(precisions.values())
    rows: list[tuple[str, ...]] = [
        (
            "",
            *(["precision"] if has_precisions else []),
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
                *([precisions[name] or show.NOTHING] if has_precisions else []),
                f"{median:.3f}",
                f"({min(seconds[name]):.3f} - {max(seconds[name]):.3f})",
                rate(result["units_per_step"] / median),
                peak_share(result, median),
                show.gigabytes(result["memory"][name]),
                *(f"{median / medians[our]:.2f} x" for our in result["ours"]),
            )
        )
    left_out = [f"  {name} is left out: {reason}" for name, reason in result["left_out"].items()]
    beside = ["", neighbours_table(result, medians)] if result.get("beside") else []
    return "\n".join([*head(result), "", show.table(rows, numbers=True, gap=3), *left_out, *beside])


def head(result: Mapping[str, Any], *more: str) -> list[str]:
    """What was measured, on which processor and in which precision if it is the same for all; the peak."""
    # Results of old files may lack the machine.
    machine = [turns.machine_line(result["machine"], *more)] if "machine" in result else []
    return [result["title"], *machine, turns.describe_peak(result["peak"])]


def neighbours_table(result: Mapping[str, Any], medians: Mapping[str, float]) -> str:
    """Speed alone; then for each number of neighbours the share of it that is left, and the ratio to ours."""
    rows = [["", f"{result['unit']}/s alone"], *([name] for name in medians)]
    for row, median in zip(rows[1:], medians.values(), strict=True):
        row.append(rate(result["units_per_step"] / median))
    for number, found in result["beside"].items():
        rows[0] += [f"beside {number}", "(min - max)", *(f"{our} is" for our in result["ours"])]
        for row, name in zip(rows[1:], medians, strict=True):
            left = found["left"][name]
            against = [turns.ratio(found, name, found, our)["value"] for our in result["ours"]]
            row += [f"{left['value']:.0%}", f"({left['min']:.0%} - {left['max']:.0%})"]
            row += [f"{value:.2f} x" for value in against]
    title = "  what is left of the speed beside busy processes of one thread each:"
    return "\n".join([title, show.table(rows, numbers=True, gap=3)])


def growth_tables(result: Mapping[str, Any]) -> str:
    """A table for each axis, and the start-up of each size."""
    lines = head(
        result, *sorted({point["precision"] for point in result["points"] if point.get("precision")})
    )
    for axis, values in result["axes"].items():
        rows: list[tuple[str, ...]] = [
            (axis, "s/step", "(min - max)", "tokens/s", "of peak", "memory", "libraries", "needed", "ratio")
        ]
        points = [point_on(result, axis, value) for value in values]
        rows += [(str(point[axis]), *point_cells(result, point)) for point in points]
        lines += ["", show.table(rows, numbers=True, gap=3)]
    starts = ", ".join(f"{size} {seconds:.1f} s" for size, seconds in result["start_up"].items())
    return "\n".join([*lines, "", f"  from `electra pretrain` to the end of its first step: {starts}"])


def quality_tables(result: Mapping[str, Any]) -> str:
    """A table for each budget: a line for each row, a column for each score, tokens and their speed."""
    machine, precisions = result["machine"], sorted({run["precision"] for run in result["runs"]})
    lines = [
        result["title"],
        turns.machine_line(machine, *precisions),
        f"medians in percent (lowest - highest) of {result['seeds']} pre-trainings",
        *(f"  {heading}: {about}" for heading, about in result["columns"].items()),
        *processor_lines(result),
    ]
    for budget, by_row in result["summary"].items():
        rows: list[tuple[str, ...]] = [(budget, *result["columns"], "tokens", "tokens/s")]
        for row, by_column in by_row.items():
            cells = [quality_cell(by_column.get(heading)) for heading in result["columns"]]
            runs = [run for run in result["runs"] if (run["row"], run["budget"]) == (row, budget)]
            rows.append(
                (
                    row,
                    *cells,
                    show.short(statistics.median(run["tokens"] for run in runs)) if runs else "",
                    rate(statistics.median(run["tokens_per_second"] for run in runs)) if runs else "",
                )
            )
        lines += ["", show.table(rows, numbers=True, gap=3)]
    return "\n".join(lines)


def processor_lines(result: Mapping[str, Any]) -> list[str]:
    """The processors that runs were made on, if they are not all the same."""
    processors = result.get("processors", {})
    if len(processors) < 2:
        return []
    counts = show.listed([f"{count} runs on {name}" for name, count in sorted(processors.items())])
    unfair = ": equal times are not equal budgets" if result["unit"] == "seconds" else ""
    return [f"  {counts}{unfair}"]


def quality_cell(found: Mapping[str, Any] | None) -> str:
    """The median, and how far the seeds lie apart."""
    if found is None:
        return show.NOTHING
    median, low, high = (f"{100 * found[key]:.1f}" for key in ("median", "min", "max"))
    return f"{median} ({low} - {high})" if len(found["values"]) > 1 else median


def point_on(result: Mapping[str, Any], axis: str, value: Any) -> Mapping[str, Any]:
    """The measured point with this value of an axis, and the base's values otherwise."""
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
        peak_share({**point, "peak": result["peak"]}, median),
        show.gigabytes(point["memory"]),
        show.gigabytes(point["libraries"]),
        show.gigabytes(point["needed"]["total"]),
        "–" if ratio is None else f"{ratio:.2f}",
    )


def peak_share(result: Mapping[str, Any], seconds: float) -> str:
    """Share of the machine's peak, counting only the work that cannot be avoided."""
    flops = result["flops_per_step"]
    return f"{flops / seconds / turns.best_flops(result['peak']):.0%}" if flops else "–"


def rate(value: float) -> str:
    """A number per second; small ones have a decimal."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
