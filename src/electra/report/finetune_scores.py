"""Scores over seeds -> tables in which every seed is seen, as a number and as a dot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from electra.report.markup import Html, element, join, text
from electra.report.runs import number

NUM_COLOURS = 8
NOT_FRACTIONS = ("_thresh",)
"""How the names of values end that are not shares of anything."""

WIDTH, MARGIN = 300.0, 12.0
DOT, LANE = 4.2, 7.5
MOST_LANES = 3


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One score of all seeds."""

    values: Sequence[float | None]
    """In the order of the seeds; None where it is undefined."""
    median: float | None
    mean: float | None
    std: float | None
    undefined: Sequence[str]
    """Why, of those that are."""

    @property
    def numbers(self) -> list[float]:
        """The values that there are."""
        return [value for value in self.values if value is not None]


def read_summary(entry: Mapping[str, Any]) -> Summary:
    """A summary as scores.json has it."""
    return Summary(
        values=[number(value) for value in entry.get("values") or []],
        median=number(entry.get("median")),
        mean=number(entry.get("mean")),
        std=number(entry.get("std")),
        undefined=list(dict.fromkeys(map(str, entry.get("undefined") or []))),
    )


def read_summaries(split: Mapping[str, Any], *, main_score: str) -> dict[str, Summary]:
    """The scores of a split, the one that counts first."""
    scores = split.get("scores") or {}
    names = sorted(scores, key=lambda name: name != main_score)
    return {name: read_summary(scores[name]) for name in names}


def shown(name: str, value: float | None) -> str:
    """A score as a person reads it: a fraction in percent."""
    if value is None:
        return "–"
    return f"{value:.3g}" if name.endswith(NOT_FRACTIONS) else f"{100 * value:.2f}"


def score_table(
    ours: Mapping[str, Summary], others: Mapping[str, Summary], *, seeds: Sequence[object], main_score: str
) -> Html:
    """A row for each score; below it that of random initialisation, if it was measured, on the same scale."""
    rows = []
    for name, summary in ours.items():
        other = others.get(name)
        known = [*summary.numbers, *(other.numbers if other else [])]
        kind = "main" if name == main_score else ""
        rows.append(_row(name, name, summary, known, seeds=seeds, class_=kind))
        if other:
            rows.append(_row(name, "random initialisation", other, known, seeds=(), class_="other"))
    columns = ("score", "median", "mean ± standard deviation", "every seed")
    head = element("thead", element("tr", join(element("th", column, scope="col") for column in columns)))
    inside = element("table", join([head, element("tbody", join(rows))]), class_="scores")
    return element("div", inside, class_="scroll", tabindex="0")


def _row(
    name: str, title: str, summary: Summary, known: Sequence[float], *, seeds: Sequence[object], class_: str
) -> Html:
    spread = "" if summary.std is None else f" ± {shown(name, summary.std)}"
    reasons = f"undefined: {'; '.join(summary.undefined)}" if summary.undefined else ""
    last = join(
        [
            strip(name, summary, known, seeds=seeds),
            element("span", " · ".join(shown(name, value) for value in summary.values), class_="quiet"),
            element("div", reasons, class_="undefined") if reasons else "",
        ]
    )
    cells = {
        "median": shown(name, summary.median),
        "mean": f"{shown(name, summary.mean)}{spread}",
        "seeds": last,
    }
    tds = [element("td", cell, data_label=label) for label, cell in cells.items()]
    return element("tr", join([element("th", title, scope="row"), *tds]), class_=class_)


def strip(name: str, summary: Summary, known: Sequence[float], *, seeds: Sequence[object]) -> Html:
    """A dot for each seed on a scale over `known`, and a bar at the median; nothing if there is no number."""
    if not summary.numbers:
        return Html("")
    low, high = min(known), max(known)

    def place(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return MARGIN + share * (WIDTH - 2 * MARGIN)

    lanes = _lanes([place(value) for value in summary.numbers])
    bottom = 4 + MOST_LANES * LANE
    parts = [element("line", x1=MARGIN, x2=WIDTH - MARGIN, y1=bottom, y2=bottom, stroke="var(--faint)")]
    dots = iter(lanes)
    for index, value in enumerate(summary.values):
        if value is None:
            continue
        says = f"seed {seeds[index]}: {shown(name, value)}" if index < len(seeds) else shown(name, value)
        colour = f"var(--run{index % NUM_COLOURS})" if seeds else "var(--quiet)"
        centre = bottom - DOT - 1 - LANE * next(dots)
        parts.append(
            element(
                "circle",
                element("title", says),
                cx=f"{place(value):.1f}",
                cy=f"{centre:.1f}",
                r=DOT,
                fill=colour,
                fill_opacity=0.8,
            )
        )
    if summary.median is not None:
        x = f"{place(summary.median):.1f}"
        parts.append(element("line", x1=x, x2=x, y1=2, y2=bottom + 4, stroke="var(--ink)", stroke_width=1.6))
    ends = [(MARGIN, low, "start"), (WIDTH - MARGIN, high, "end")] if high > low else []
    parts += [
        element("text", shown(name, value), x=x, y=bottom + 13, text_anchor=at) for x, value, at in ends
    ]
    label = (
        f"{len(summary.numbers)} seeds from {shown(name, min(summary.numbers))} to "
        f"{shown(name, max(summary.numbers))}, median {shown(name, summary.median)}"
    )
    box = f"0 0 {WIDTH:g} {bottom + 16:g}"
    return element("svg", join(parts), viewBox=box, class_="strip", role="img", aria_label=text(label))


def _lanes(places: Sequence[float]) -> list[int]:
    """How high each dot stands, so that equal values do not hide one another."""
    taken: list[list[float]] = [[] for _ in range(MOST_LANES)]
    lanes = []
    for place in places:
        free = (lane for lane in range(MOST_LANES) if all(abs(place - x) >= 2 * DOT for x in taken[lane]))
        lane = next(free, MOST_LANES - 1)
        taken[lane].append(place)
        lanes.append(lane)
    return lanes
