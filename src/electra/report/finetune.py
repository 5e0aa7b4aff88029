"""A fine-tuning folder with its scores.json -> report.html in it: scores of every seed, curves, errors.

As for pre-training runs, the markup is in templates/ and the page works offline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import files, show
from electra.report.curves import Axis, run_colour
from electra.report.findings import counted
from electra.report.page import FINDINGS, Drawing, drawings, render
from electra.report.runs import Metric, Record, RunRecord, number
from electra.report.studies import Content, diagnose_task, read_scores

REPORT = "report.html"

EPOCHS = Axis(key="epoch", title="epochs")
LOSS = Metric(key="train_loss", title="Training loss", says="mean since the point before", line="exact")

NOT_FRACTIONS = ("_thresh",)
"""Endings of the names of scores that are not fractions."""
MOST_CHARACTERS = 700
MOST_PAIRS = 8
STRONGEST = 70
"""Percent of the full colour in a cell with all examples of its row: the text stays readable on it."""

_WIDTH, _MARGIN = 300.0, 12.0
_RADIUS, _LANE, _MOST_LANES = 4.2, 7.5, 3
_FLOOR = 4 + _MOST_LANES * _LANE
"""Height of the line that the dots of a strip stand on."""


def write_finetune_report(folder: str | Path) -> Path:
    """Write the page in one step, so that nobody ever sees half of it, and return where it is."""
    folder = Path(folder)
    html = finetune_page(read_scores(folder), folder=folder).encode()
    files.write_file(folder / REPORT, lambda file: file.write(html))
    return folder / REPORT


def finetune_page(content: Content, *, folder: Path) -> str:
    """The whole page; the same scores give the same page."""
    name, main_score = str(content.get("task", folder.name)), str(content.get("main_score"))
    kind = str(content.get("kind", "")).replace("_", " ")
    seeds = seed_curves(content.get("history") or [])
    has_curves = any(len(seed.valid) > 1 for seed in seeds)
    splits: Mapping[str, Content] = content["splits"]
    return render(
        "finetuning.html",
        title=name,
        heading=name,
        subtitle=f"electra finetune: {kind}, from {content.get('model', show.NOTHING)}, in {folder}",
        facts=_facts(content, main_score),
        findings=diagnose_task(folder, content),
        looks=FINDINGS,
        counted=counted,
        splits=list(_splits(content, main_score)),
        seeds=seeds,
        has_curves=has_curves,
        figures=_figures(seeds, main_score) if has_curves else [],
        confusions={
            split: read_confusion(entry["confusion"])
            for split, entry in splits.items()
            if entry.get("confusion")
        },
        median_seed=content.get("median_seed"),
        errors={split: list(map(_error, entry.get("errors") or [])) for split, entry in splits.items()},
        notes=content.get("notes") or [],
        settings=_settings(content),
    )


def _facts(content: Content, main_score: str) -> dict[str, str]:
    """What a person asks first."""
    train = content.get("train") or {}
    facts = {}
    for split, entry in content["splits"].items():
        if (summary := read_summaries(entry, main_score=main_score).get(main_score)) is not None:
            facts[f"{main_score}, {split}, median"] = score_text(main_score, summary.median)
    facts |= {
        "seeds": str(len(content.get("seeds") or [])),
        "training examples": _count(train.get("examples")),
        "epochs": show.short(number(train.get("epochs"))),
        "steps": _count(train.get("steps")),
        "time": show.duration(number(train.get("seconds"))),
        "learning rate": _value(train.get("learning_rate", show.NOTHING)),
    }
    return {name: value for name, value in facts.items() if value != show.NOTHING}


def _count(value: object) -> str:
    known = number(value)
    return show.NOTHING if known is None else f"{known:,.0f}"


def _settings(content: Content) -> list[tuple[str, str]]:
    values = {
        **{key: content.get(key) for key in ("task", "kind", "model", "main_score", "seeds", "labels")},
        **{f"train.{key}": value for key, value in (content.get("train") or {}).items()},
    }
    return [(key, _value(value)) for key, value in values.items() if value not in (None, [])]


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_value, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One score of all seeds."""

    values: Sequence[float | None]
    """In the order of the seeds; None where the score is undefined."""
    median: float | None
    mean: float | None
    std: float | None
    undefined: Sequence[str]
    """The reasons, where it is."""

    @property
    def numbers(self) -> list[float]:
        """The values that are defined."""
        return [value for value in self.values if value is not None]


def read_summary(entry: Content) -> Summary:
    """A summary as scores.json has it."""
    return Summary(
        values=[number(value) for value in entry.get("values") or []],
        median=number(entry.get("median")),
        mean=number(entry.get("mean")),
        std=number(entry.get("std")),
        undefined=list(dict.fromkeys(map(str, entry.get("undefined") or []))),
    )


def read_summaries(split: Content, *, main_score: str) -> dict[str, Summary]:
    """The scores of a split, the main one first."""
    scores = split.get("scores") or {}
    names = sorted(scores, key=lambda name: name != main_score)
    return {name: read_summary(scores[name]) for name in names}


def score_text(name: str, value: float | None) -> str:
    """A score as a person reads it: a fraction in percent."""
    if value is None:
        return show.NOTHING
    return f"{value:.3g}" if name.endswith(NOT_FRACTIONS) else f"{100 * value:.2f}"


@dataclass(frozen=True, kw_only=True)
class Split:
    """The scores of a split."""

    name: str
    examples: str
    partial: bool
    scores: "Sequence[ScoreRow]"
    ensemble: str


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One score, as its row of the table shows it."""

    title: str
    class_: str
    median: str
    mean: str
    values: Sequence[str]
    undefined: Sequence[str]
    strip: "Strip | None"


def _splits(content: Content, main_score: str) -> Iterable[Split]:
    given: Content = content.get("baseline") or {}
    others: dict[str, Content] = {
        "before training": content.get("before") or {},
        "random initialisation": given.get("splits", given),
    }
    for name, entry in content["splits"].items():
        together = entry.get("ensemble") or {}
        yield Split(
            name=name,
            examples=f"{entry['examples']:,}" if "examples" in entry else "",
            partial=bool(entry.get("limit")),
            scores=list(
                score_rows(
                    read_summaries(entry, main_score=main_score),
                    {
                        title: read_summaries(other.get(name) or {}, main_score=main_score)
                        for title, other in others.items()
                    },
                    seeds=content.get("seeds") or [],
                    main_score=main_score,
                )
            ),
            ensemble=", ".join(
                f"{score} {score_text(score, number(value))}" for score, value in together.items()
            ),
        )


def score_rows(
    ours: Mapping[str, Summary],
    others: Mapping[str, Mapping[str, Summary]],
    *,
    seeds: Sequence[object],
    main_score: str,
) -> Iterable[ScoreRow]:
    """A row for each score; below it those of others by their titles, if they have it, on the same scale."""
    for name, summary in ours.items():
        measured = {title: other[name] for title, other in others.items() if name in other}
        scale = [*summary.numbers, *(value for other in measured.values() for value in other.numbers)]
        kind = "main" if name == main_score else ""
        yield _score_row(name, summary, strip(name, summary, scale, seeds=seeds), title=name, class_=kind)
        for title, other in measured.items():
            drawn = strip(name, other, scale, seeds=())
            yield _score_row(name, other, drawn, title=title, class_="other")


def _score_row(name: str, summary: Summary, drawn: "Strip | None", *, title: str, class_: str) -> ScoreRow:
    spread = "" if summary.std is None else f" ± {score_text(name, summary.std)}"
    return ScoreRow(
        title=title,
        class_=class_,
        median=score_text(name, summary.median),
        mean=f"{score_text(name, summary.mean)}{spread}",
        values=[score_text(name, value) for value in summary.values],
        undefined=summary.undefined,
        strip=drawn,
    )


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A seed on a strip."""

    x: float
    y: float
    colour: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A small drawing of the values of a score, in units of its own viewBox."""

    dots: Sequence[Dot]
    median: float | None
    ends: tuple[str, str] | None
    """The values at both ends of the scale; None if they are the same."""
    label: str
    width: float = _WIDTH
    height: float = _FLOOR + 16
    left: float = _MARGIN
    right: float = _WIDTH - _MARGIN
    floor: float = _FLOOR
    radius: float = _RADIUS


def strip(name: str, summary: Summary, scale: Sequence[float], *, seeds: Sequence[object]) -> Strip | None:
    """A dot for each seed on a scale over all of `scale`; None if no value is defined."""
    if not summary.numbers:
        return None
    low, high = min(scale), max(scale)

    def place(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return _MARGIN + share * (_WIDTH - 2 * _MARGIN)

    dots: list[Dot] = []
    for index, value in enumerate(summary.values):
        if value is None:
            continue
        x, seed = place(value), f"seed {seeds[index]}: " if index < len(seeds) else ""
        dots.append(
            Dot(
                x=x,
                y=_FLOOR - _RADIUS - 1 - _LANE * _free_lane(x, dots),
                colour=run_colour(index) if seeds else "quiet",
                says=f"{seed}{score_text(name, value)}",
            )
        )
    return Strip(
        dots=dots,
        median=None if summary.median is None else place(summary.median),
        ends=(score_text(name, low), score_text(name, high)) if high > low else None,
        label=f"{len(summary.numbers)} seeds from {score_text(name, min(summary.numbers))} to "
        f"{score_text(name, max(summary.numbers))}, median {score_text(name, summary.median)}",
    )


def _free_lane(x: float, dots: Sequence[Dot]) -> int:
    """How high a dot stands, so that equal values do not hide one another."""
    near = {dot.y for dot in dots if abs(dot.x - x) < 2 * _RADIUS}
    lanes = (lane for lane in range(_MOST_LANES) if _FLOOR - _RADIUS - 1 - _LANE * lane not in near)
    return next(lanes, _MOST_LANES - 1)


def seed_curves(history: Sequence[Content]) -> list[RunRecord]:
    """What was measured during training, as a run for each seed."""
    by_seed: dict[str, list[Record]] = {}
    for point in history:
        values = {
            **(point.get("dev") or {}),
            "train_loss": point.get("train_loss"),
            "epoch": point.get("epoch"),
        }
        record = {name: known for name, value in values.items() if (known := number(value)) is not None}
        by_seed.setdefault(f"seed {point.get('seed', show.NOTHING)}", []).append(record)
    return [
        RunRecord(
            name=name,
            folder=Path(),
            config={},
            environment={},
            # As a line, and the points on it as circles: there are few.
            train=records,
            valid=records,
            events=[],
            samples=[],
            notes=[],
        )
        for name, records in by_seed.items()
    ]


def _figures(seeds: Sequence[RunRecord], main_score: str) -> list[Drawing]:
    names = dict.fromkeys(name for seed in seeds for record in seed.train for name in record)
    scores = [name for name in names if name not in (LOSS.key, EPOCHS.key)]
    metrics = [
        *(_score_metric(name) for name in sorted(scores, key=lambda name: name != main_score)),
        *([LOSS] if LOSS.key in names else []),
    ]
    return drawings(metrics, seeds, EPOCHS)


def _score_metric(name: str) -> Metric:
    is_number = name.endswith((*NOT_FRACTIONS, "loss"))
    return Metric(
        key=name, title=name, says="held out", form="number" if is_number else "percent", line="exact"
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Examples of one label that were given one label."""

    count: int
    share: float
    """Of the examples of the true label."""
    class_: str
    colour: float
    """Percent of the full colour."""
    says: str


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two labels that were mixed up."""

    count: int
    true: str
    predicted: str


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """True labels by predicted ones."""

    labels: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    frequent: Sequence[Pair]
    """The pairs mixed up most often, where the table is too large to see them."""


def read_confusion(confusion: Content) -> Confusion | None:
    """The confusion counts of scores.json; None if they are not a square table."""
    labels = [str(label) for label in confusion.get("labels") or []]
    counts = [[int(number(count) or 0) for count in row] for row in confusion.get("counts") or []]
    if not labels or any(len(row) != len(labels) for row in counts) or len(counts) != len(labels):
        return None
    pairs = [
        Pair(count=count, true=labels[true], predicted=labels[predicted])
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    pairs.sort(key=lambda pair: -pair.count)
    return Confusion(
        labels=labels,
        rows=[(labels[true], _cells(labels, true, row)) for true, row in enumerate(counts)],
        frequent=pairs[:MOST_PAIRS] if len(labels) >= 4 else [],
    )


def _cells(labels: Sequence[str], true: int, row: Sequence[int]) -> list[Cell]:
    total = sum(row)
    return [
        Cell(
            count=count,
            share=count / total if total else 0.0,
            class_="none" if count == 0 else "right" if predicted == true else "",
            colour=STRONGEST * count / total if total else 0.0,
            says=f"{count:,} of {total:,} that are {labels[true]} were called {labels[predicted]}",
        )
        for predicted, count in enumerate(row)
    ]


def _error(error: Content) -> dict[str, Any]:
    """A wrong prediction as its card shows it."""
    return {
        **{key: _cut(error.get(key)) for key in ("text", "gold", "predicted")},
        "text_pair": _cut(error["text_pair"]) if error.get("text_pair") else "",
        "confidence": number(error.get("confidence")),
        "place": " · ".join(str(error[key]) for key in ("id", "where") if error.get(key)),
    }


def _cut(value: object) -> str:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    words = show.NOTHING if value is None else str(value)
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}…"
