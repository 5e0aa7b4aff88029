"""Style of the page on a fine-tuning -> added to the style sheet of all pages.

Scores over seeds -> tables in which every seed is seen, as a number and as a dot.

Confusion counts and wrong predictions -> what a person learns from.

What was measured while the seeds were trained -> a drawing for each loss and score.

A folder of a fine-tuning with its scores.json -> report.html in it, which needs nothing else.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from electra.report.markup import Html, details, duration, element, join, percent, section, short, table, text
from electra.report.plots import Axis
from electra.report.runs import Metric, Record, ReportError, Run, number

STYLE = """
h3 { font-size: 1rem; margin: 1.3rem 0 .4rem; }
.plots.always { display: grid; }
.cards dt { overflow-wrap: anywhere; }
.scores th, .scores td { vertical-align: middle; }
.scores .main > th, .scores .main > td { font-weight: 600; }
.scores .main .quiet { font-weight: 400; }
.scores td:last-child { white-space: normal; min-width: 260px; }
.scores .other > th { font-weight: 400; color: var(--quiet); }
.strip { width: 100%; max-width: 340px; height: auto; display: block; }
.strip text { font-size: 9px; fill: var(--quiet); font-weight: 400; }
.undefined { color: var(--watch); }
.confusion { width: auto; }
.confusion th, .confusion td { text-align: right; padding: 5px 9px; }
.confusion tbody th, .confusion thead th:first-child { text-align: left; }
.confusion td { background: color-mix(in srgb, var(--bad) var(--share), transparent); min-width: 4.2em; }
.confusion td.right { background: color-mix(in srgb, var(--healthy) var(--share), transparent); }
.confusion td.none { color: var(--quiet); }
.confusion small { display: block; color: inherit; opacity: .8; font-size: .74rem; }
.sample .gold { color: var(--good); font-weight: 600; }
.sample .wrong { color: var(--bad); font-weight: 600; }
@media (max-width: 560px) {
  .scores thead { display: none; }
  .scores tr, .scores th, .scores td { display: block; border: 0; }
  .scores tr { padding: 7px 0; }
  .scores tr + tr { border-top: 1px solid var(--line); }
  .scores thead + tbody tr:first-child > * { border: 0; }
  .scores tbody th, .scores td { padding-block: 1px; border: 0; }
  .scores td:not(:last-child)::before {
    content: attr(data-label) ": "; color: var(--quiet); font-weight: 400;
  }
  .scores td:last-child { min-width: 0; }
}
"""


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


EPOCHS = Axis(key="epoch", title="epochs")
LOSS = Metric(key="train_loss", title="Training loss", says="mean since the point before", line="exact")


def curves_html(history: Sequence[Mapping[str, Any]], *, main_score: str) -> Html:
    """A line for each seed; a sentence if there is nothing to draw, or nothing to draw with."""
    runs = _runs(history)
    if not runs:
        return element("p", "Nothing was measured during training.", class_="quiet")
    if find_spec("matplotlib") is None:
        missing = "The curves are left out, since matplotlib is not installed: pip install 'electra[report]'."
        return element("p", missing, class_="quiet")
    # It imports matplotlib, so only now.
    from electra.report.plots import draw

    figures = []
    for index, metric in enumerate(_metrics(runs, main_score)):
        if svg := draw(metric, runs, EPOCHS, key=f"curve{index}"):
            caption = element("figcaption", join([element("b", metric.title), _quiet(metric.says)]))
            figures.append(element("figure", join([caption, Html(svg)])))
    return join([_legend(runs), element("div", join(figures, "\n"), class_="plots always")])


def _runs(history: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The points of each seed, as a run that was looked at so often."""
    by_seed: dict[str, list[Record]] = {}
    for point in history:
        values = {
            **(point.get("dev") or {}),
            "train_loss": point.get("train_loss"),
            "epoch": point.get("epoch"),
        }
        record = {name: known for name, value in values.items() if (known := number(value)) is not None}
        by_seed.setdefault(f"seed {point.get('seed', '–')}", []).append(record)
    return [
        Run(
            name=name,
            folder=Path(),
            config={},
            environment={},
            # As a line, and the points in it as circles: there are few.
            train=records,
            valid=records,
            events=[],
            samples=[],
            notes=[],
        )
        for name, records in by_seed.items()
    ]


def _metrics(runs: Sequence[Run], main_score: str) -> list[Metric]:
    names = dict.fromkeys(name for run in runs for record in run.train for name in record)
    scores = [name for name in names if name not in (LOSS.key, EPOCHS.key)]
    return [
        *(_score(name) for name in sorted(scores, key=lambda name: name != main_score)),
        *([LOSS] if LOSS.key in names else []),
    ]


def _score(name: str) -> Metric:
    is_number = name.endswith((*NOT_FRACTIONS, "loss"))
    return Metric(
        key=name, title=name, says="held out", form="number" if is_number else "percent", line="exact"
    )


def _quiet(words: str) -> Html:
    return element("span", words, class_="quiet")


def _legend(runs: Sequence[Run]) -> Html:
    from electra.report.plots import DASHES, run_colour

    def swatch(index: int) -> Html:
        dashes = " ".join(map(str, DASHES[index % len(DASHES)]))
        stroke = f"var(--{run_colour(index)})"
        line = element("line", x1=0, y1=5, x2=26, y2=5, stroke=stroke, stroke_dasharray=dashes)
        return element("svg", line, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")

    names = [element("span", join([swatch(index), " ", run.name])) for index, run in enumerate(runs)]
    return element("p", join([*names, element("span", "against epochs")]), class_="legend")


SCORES, REPORT = "scores.json", "report.html"

Content = Mapping[str, Any]


def write_finetune_report(folder: str | Path) -> Path:
    """Write the page and say where it is."""
    folder = Path(folder)
    path = folder / REPORT
    page = finetune_page(read_scores(folder), folder=folder)
    # In one step: who has the page open never sees half of it.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
    return path


def read_scores(folder: Path) -> Content:
    """What scores.json says."""
    path = folder / SCORES
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("splits"), dict):
        raise ReportError(f"{path} holds no scores: it has no `splits`")
    return content


def finetune_page(content: Content, *, folder: Path) -> str:
    """The whole page; the same scores give the same page."""
    name = str(content.get("task", folder.name))
    style = resources.files("electra.report").joinpath("page.css").read_text(encoding="utf-8")
    heading = [element("h1", name), element("p", _subtitle(content, folder), class_="quiet")]
    body = [
        element("header", join(heading)),
        _glance(content),
        _scores(content),
        section(
            "curves",
            "Curves",
            curves_html(content.get("history") or [], main_score=str(content.get("main_score"))),
        ),
        _confusion(content),
        _errors(content),
        _notes(content),
        _settings(content),
    ]
    return "".join(
        [
            "<!DOCTYPE html>\n",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            element("title", f"electra: {name}"),
            f"<style>\n{style}{STYLE}</style></head>\n<body>",
            element("main", join(body, "\n")),
            "</body></html>\n",
        ]
    )


def _subtitle(content: Content, folder: Path) -> str:
    kind = str(content.get("kind", "")).replace("_", " ")
    return f"electra finetune: {kind}, from {content.get('model', '–')}, in {folder}"


def _glance(content: Content) -> Html:
    """What a person asks first."""
    main, train = str(content.get("main_score")), content.get("train") or {}
    facts = {}
    for split, entry in content["splits"].items():
        if (summary := read_summaries(entry, main_score=main).get(main)) is not None:
            facts[f"{main}, {split}, median"] = shown(main, summary.median)
    facts |= {
        "seeds": str(len(content.get("seeds") or [])),
        "training examples": _count(train.get("examples")),
        "epochs": short(number(train.get("epochs"))),
        "steps": _count(train.get("steps")),
        "time": duration(number(train.get("seconds"))),
        "learning rate": _value(train.get("learning_rate", "–")),
    }
    cards = [
        element("div", join([element("dt", name), element("dd", value)]))
        for name, value in facts.items()
        if value != "–"
    ]
    return section("glance", "At a glance", element("dl", join(cards), class_="cards"))


def _count(value: object) -> str:
    known = number(value)
    return "–" if known is None else f"{known:,.0f}"


def _scores(content: Content) -> Html:
    given: Content = content.get("baseline") or {}
    baseline: Content = given.get("splits", given)
    main, seeds = str(content.get("main_score")), content.get("seeds") or []
    parts: list[Html] = []
    for split, entry in content["splits"].items():
        ours = read_summaries(entry, main_score=main)
        others = read_summaries(baseline.get(split) or {}, main_score=main)
        examples = f", {entry['examples']:,} examples" if "examples" in entry else ""
        partial = " (not all of them: the scores are for orientation)" if entry.get("limit") else ""
        parts.append(element("h3", f"{split}{examples}{partial}"))
        parts.append(score_table(ours, others, seeds=seeds, main_score=main))
        if together := entry.get("ensemble"):
            words = ", ".join(f"{name} {shown(name, number(value))}" for name, value in together.items())
            parts.append(element("p", f"The models of all seeds as one: {words}.", class_="quiet"))
    legend = (
        "Fractions are in percent. A dot is a seed; the bar is the median, which is the score, not the best. "
        "Each strip has a scale of its own, from its lowest to its highest value."
    )
    return section("scores", "Scores", element("p", legend, class_="quiet"), *parts)


def _confusion(content: Content) -> Html:
    found = {
        split: entry["confusion"] for split, entry in content["splits"].items() if entry.get("confusion")
    }
    if not found:
        return Html("")
    of_seed = f"Of seed {content['median_seed']}, the median. " if "median_seed" in content else ""
    legend = f"{of_seed}A cell is coloured by its share of the row: green where right, red where wrong."
    parts = [join([element("h3", split), confusion_html(confusion)]) for split, confusion in found.items()]
    return section("confusion", "Confusion", element("p", legend, class_="quiet"), *parts)


def _errors(content: Content) -> Html:
    found = {split: entry.get("errors") or [] for split, entry in content["splits"].items()}
    parts = [
        details(f"{split}: {len(errors):,} wrong predictions", errors_html(errors))
        for split, errors in found.items()
    ]
    if parts:
        parts[0] = Html(parts[0].replace("<details>", "<details open>", 1))
    return section("errors", "Errors", *parts)


def _notes(content: Content) -> Html:
    notes = content.get("notes") or []
    if not notes:
        return Html("")
    return section("notes", "Notes", element("ul", join(element("li", note) for note in notes)))


def _settings(content: Content) -> Html:
    values = {
        **{key: content.get(key) for key in ("task", "kind", "model", "main_score", "seeds", "labels")},
        **{f"train.{key}": value for key, value in (content.get("train") or {}).items()},
    }
    rows = [[key, _value(value)] for key, value in values.items() if value not in (None, [])]
    return section("settings", "Settings", table(["key", "value"], rows, class_="values"))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_value, value)) if isinstance(value, list) else str(value)
