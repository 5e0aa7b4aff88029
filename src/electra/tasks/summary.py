"""Scores of several seeds -> what scores.json says of them, and tables for a person.

A score of several fine-tunings is its median, with mean, standard deviation and every single value beside it;
the best of them is never shown as the score. Where a score is undefined it counts as worse than any number:
the median stays right while fewer than half are so, and a mean is not given.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from electra.tasks import published
from electra.tasks.defaults import Size
from electra.tasks.family import Score

AVERAGE = "average"

NOT_FRACTIONS = ("_thresh",)
"""How the names of values end that are not shares of anything, such as the best threshold of SQuAD 2.0."""

# As in the paper: WNLI, whose training and development sets contradict each other, is left out.
NOT_AVERAGED = ("wnli",)


def over_seeds(scores: Sequence[Score]) -> dict[str, Any]:
    """One score of every seed -> its summary, as JSON can hold it: what is undefined is null."""
    values = [score.value if score.is_defined else None for score in scores]
    numbers = [value for value in values if value is not None]
    complete = len(numbers) == len(values)
    return {
        "values": values,
        "median": median(values),
        "mean": statistics.fmean(numbers) if complete and numbers else None,
        "std": statistics.stdev(numbers) if complete and len(numbers) > 1 else None,
        "undefined": [score.undefined for score in scores if not score.is_defined],
    }


def median(values: Sequence[float | None]) -> float | None:
    """The median, with what is undefined below every number; None if it falls there."""
    if not values:
        return None
    middle = statistics.median(-math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def median_seed(values: Sequence[float | None]) -> int:
    """The position of the value in the middle; of two, the lower. Its model stands for all of them."""
    order = sorted(range(len(values)), key=lambda position: (_or_lowest(values[position]), position))
    return order[(len(order) - 1) // 2]


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value


def scores_over_seeds(by_seed: Sequence[Mapping[str, Score]]) -> dict[str, dict[str, Any]]:
    """The scores of one split, of every seed -> name -> summary, in the family's order."""
    return {name: over_seeds([scores[name] for scores in by_seed]) for name in by_seed[0]}


def score_table(splits: Mapping[str, Any], *, main_score: str) -> str:
    """A line for each split and score: median, mean ± standard deviation, and all values."""
    rows = [("split", "score", "median", "mean ± std", "every seed")]
    for split, entry in splits.items():
        part = f" ({entry['limit']} examples only)" if entry.get("limit") else ""
        for name, summary in entry["scores"].items():
            mark = " *" if name == main_score else ""
            rows.append((split + part, name + mark, *_cells(name, summary)))
        for name, value in entry.get("ensemble", {}).items():
            rows.append((split + part, name, shown(name, value), "", "all seeds' models as one"))
    return aligned(rows)


def _cells(name: str, summary: Mapping[str, Any]) -> tuple[str, str, str]:
    values = [shown(name, value) for value in summary["values"]]
    mean = "" if summary["mean"] is None or len(values) == 1 else shown(name, summary["mean"])
    spread = "" if summary["std"] is None else f" ± {shown(name, summary['std'])}"
    reasons = sorted(set(summary["undefined"]))
    return (
        shown(name, summary["median"]),
        mean + spread,
        "  ".join(values) + (f"  (undefined: {'; '.join(reasons)})" if reasons else ""),
    )


def shown(name: str, value: float | None) -> str:
    """A score as a person reads it: a fraction in percent."""
    if value is None:
        return "-"
    return f"{value:.3g}" if name.endswith(NOT_FRACTIONS) else f"{100 * value:.2f}"


def glue_table(ours: Mapping[str, float | None], *, size: Size, names: Sequence[str]) -> str:
    """Medians of the GLUE tasks that were run, with their average, above those of the released model."""
    theirs = {task: value / 100 for task, value in published.released(size).items()}
    counted = [name for name in names if name in ours and name not in NOT_AVERAGED]
    rows = [("", *names, AVERAGE)]
    for label, values in (("this model", ours), (f"released {size} (++)", theirs)):
        cells = [shown(name, values.get(name)) for name in names]
        # Of the same tasks in both rows, or the two averages could not be compared.
        rows.append((label, *cells, shown(AVERAGE, _average([values.get(name) for name in counted]))))
    missing = [name for name in names if name not in ours and name not in NOT_AVERAGED]
    lines = [aligned(rows), f"  average over {', '.join(counted) or 'no task'}"]
    if missing:
        lines.append(f"  missing, so this is not the GLUE average: {', '.join(missing)}")
    lines.append(f"  released {size} (++): {published.RELEASED.format(size=size)}")
    return "\n".join(lines)


def _average(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(values) else None


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines of columns; the first column is flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
