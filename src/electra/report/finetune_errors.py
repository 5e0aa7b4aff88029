"""Confusion counts and wrong predictions -> what a person learns from."""

from collections.abc import Mapping, Sequence
from typing import Any

from electra.report.markup import Html, element, join
from electra.report.runs import number
from electra.report.words import percent

MOST_CHARACTERS = 700
MOST_PAIRS = 8
STRONGEST = 70
"""Percent of the full colour in a cell with all examples of its row: the text stays readable on it."""


def confusion_html(confusion: Mapping[str, Any]) -> Html:
    """True labels down, predicted ones across; colour by share of the row, beside the numbers."""
    labels = [str(label) for label in confusion.get("labels") or []]
    counts = [[int(number(count) or 0) for count in row] for row in confusion.get("counts") or []]
    if not labels or any(len(row) != len(labels) for row in counts) or len(counts) != len(labels):
        return element("p", "The confusion counts cannot be read: not a square table.", class_="quiet")
    head = element("tr", join(element("th", name, scope="col") for name in ("true ↓ predicted →", *labels)))
    body = [
        element("tr", join([element("th", labels[true], scope="row"), *_cells(labels, true, row)]))
        for true, row in enumerate(counts)
    ]
    inside = join([element("thead", head), element("tbody", join(body))])
    grid = element("div", element("table", inside, class_="confusion"), class_="scroll", tabindex="0")
    return join([grid, _frequent(labels, counts)])


def _cells(labels: Sequence[str], true: int, row: Sequence[int]) -> list[Html]:
    total = sum(row)
    cells = []
    for predicted, count in enumerate(row):
        share = count / total if total else 0.0
        kind = "none" if count == 0 else "right" if predicted == true else ""
        shares = element("small", percent(share)) if count else ""
        says = f"{count:,} of {total:,} that are {labels[true]} were called {labels[predicted]}"
        colour = f"--share: {STRONGEST * share:.0f}%"
        cells.append(element("td", join([f"{count:,}", shares]), class_=kind, style=colour, title=says))
    return cells


def _frequent(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Html:
    """The pairs that are mixed up most, where a table is too large to see them."""
    pairs = [
        (count, labels[true], labels[predicted])
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    if len(labels) < 4 or not pairs:
        return Html("")
    pairs.sort(key=lambda pair: -pair[0])
    words = ", ".join(
        f"{true} taken for {predicted} ({count:,})" for count, true, predicted in pairs[:MOST_PAIRS]
    )
    return element("p", f"Most often: {words}.", class_="quiet")


def errors_html(errors: Sequence[Mapping[str, Any]]) -> Html:
    """A card for each wrong prediction."""
    if not errors:
        return element("p", "No wrong prediction was kept.", class_="quiet")
    return join((_card(error) for error in errors), "\n")


def _card(error: Mapping[str, Any]) -> Html:
    confidence = number(error.get("confidence"))
    sure = "" if confidence is None else element("span", f" at {percent(confidence)}", class_="quiet")
    place = " · ".join(str(error[key]) for key in ("id", "where") if error.get(key))
    lines = [
        ("text", _cut(error.get("text"))),
        *([("second text", _cut(error["text_pair"]))] if error.get("text_pair") else []),
        ("true", element("span", _cut(error.get("gold")), class_="gold")),
        ("predicted", join([element("span", _cut(error.get("predicted")), class_="wrong"), sure])),
        ("", place),
    ]
    cells = [join([element("dt", name), element("dd", value)]) for name, value in lines if value]
    return element("dl", join(cells), class_="sample")


def _cut(value: object) -> str:
    words = " ".join(map(str, value)) if isinstance(value, list) else str("–" if value is None else value)
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}…"
