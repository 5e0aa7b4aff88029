"""A folder of a fine-tuning with its scores.json -> report.html in it, which needs nothing else."""

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from electra.report.finetune_curves import curves_html
from electra.report.finetune_errors import confusion_html, errors_html
from electra.report.finetune_scores import read_summaries, score_table, shown
from electra.report.finetune_style import STYLE
from electra.report.markup import Html, details, element, join, section, table
from electra.report.runs import ReportError, number
from electra.report.words import duration, short

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
