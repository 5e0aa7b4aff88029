"""Runs -> one HTML page that works offline and without scripts, and the same facts as a table for a terminal.

The markup is in templates/; what this module hands to a template is plain values, which Jinja2 escapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jinja2
from markupsafe import Markup

from electra import show
from electra.report import samples
from electra.report.curves import (
    MOST_NUMBERED_EVENTS,
    SMOOTH_SHARE,
    Axis,
    axes_of,
    run_colour,
    run_dashes,
)
from electra.report.diagnosis import diagnose_run
from electra.report.findings import Severity, counted, in_short
from electra.report.health import (
    Verdict,
    Word,
    judge_metrics,
    last,
    layer_table,
    noteworthy,
    now,
    severity,
)
from electra.report.minimal_pairs import pair_facts, pair_table
from electra.report.runs import BY_KEY, Metric, RunRecord, metrics_of, number
from electra.store.cache import with_urls

_WITHOUT_MATPLOTLIB = (
    "The curves are left out, since matplotlib is not installed: pip install 'electra[report]'."
)
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("electra.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.globals |= {
    "duration": show.duration,
    "percent": show.percent,
    "run_colour": run_colour,
    "run_dashes": run_dashes,
    "without_matplotlib": _WITHOUT_MATPLOTLIB,
}


def render(template: str, **values: Any) -> str:
    """A page: a file of templates/ filled with values."""
    return with_urls(_TEMPLATES.get_template(template).render(**values))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One metric drawn against one axis."""

    metric: Metric
    svg: Markup


def drawings(metrics: Sequence[Metric], runs: Sequence[RunRecord], axis: Axis) -> list[Drawing]:
    """The metrics that can be drawn; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    # It imports matplotlib, so only now.
    from electra.report.plots import draw

    drawn = (
        Drawing(metric=metric, svg=Markup(draw(metric, runs, axis, key=f"{axis.key}{place}")))
        for place, metric in enumerate(metrics)
    )
    return [drawing for drawing in drawn if drawing.svg]


_FACTS = {
    "loss": "loss",
    "mlm_loss": "generator loss",
    "mlm_accuracy": "generator accuracy",
    "masked_accuracy": "accuracy at masks",
    "discriminator_auc": "AUC",
    "fixed_auc": "AUC, fixed set",
    "discriminator_recall": "recall",
    "replaced_fraction": "replaced",
    "tokens_per_second": "tokens/s",
    "mfu": "of peak",
}


def run_facts(run: RunRecord) -> dict[str, str]:
    """What a person asks first; a dash for what the run has not measured."""
    state = {
        "objective": str(run.config.get("objective", show.NOTHING)),
        "size": str(run.config.get("model.size", show.NOTHING)),
        "steps": _steps(run),
        "tokens": show.short(last(run, "tokens")),
        "FLOPs": show.short(last(run, "flops")),
        "time": show.duration(last(run, "seconds")),
    }
    for key, title in _FACTS.items():
        state[title] = BY_KEY[key].format(now(run, key).value)
    return {**state, **pair_facts(run.minimal_pairs), "health": in_short(diagnose_run(run))}


def _steps(run: RunRecord) -> str:
    done, planned = last(run, "step"), number(run.config.get("train.steps"))
    if done is None:
        return "none yet"
    return f"{done:,.0f}" + (f" of {planned:,.0f}" if planned and planned != done else "")


def comparison(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The facts that at least one run has, side by side."""
    columns = [run_facts(run) for run in runs]
    # Some facts are of some runs only; health is the last of all.
    names = dict.fromkeys(name for column in columns for name in column if name != "health")
    rows = {name: [column.get(name, show.NOTHING) for column in columns] for name in (*names, "health")}
    return {name: cells for name, cells in rows.items() if set(cells) != {show.NOTHING}}


def terminal_table(runs: Sequence[RunRecord]) -> str:
    """The facts with a column for each run, so that the table stays narrow."""
    rows = [[name, *cells] for name, cells in comparison(runs).items()]
    return show.table([["", *(run.name for run in runs)], *rows])


@dataclass(frozen=True, kw_only=True)
class Look:
    """How something is told: by a colour's class, a sign and words."""

    class_: str
    sign: str = ""
    says: str


_VERDICTS: Mapping[Word, Look] = {
    "healthy": Look(class_="good", sign="●", says="healthy"),
    "low": Look(class_="watch", sign="▼", says="too low"),
    "high": Look(class_="watch", sign="▲", says="too high"),
    "early": Look(class_="quiet", sign="○", says="too early to say"),
}
FINDINGS: Mapping[Severity, Look] = {
    "wrong": Look(class_="bad", sign="✖", says="wrong"),
    "watch": Look(class_="watch", sign="▲", says="watch"),
    "note": Look(class_="quiet", sign="○", says="note"),
    "fine": Look(class_="good", sign="●", says="fine"),
}
"""How findings are told, on both pages."""
_SOURCES = {"held out": "held out", "training": "mean of the last training steps"}


def page(runs: Sequence[RunRecord]) -> str:
    """The whole page; the same folders give the same page."""
    metrics, shown = metrics_of(runs), comparison(runs)
    grids = {axis: drawings(metrics, runs, axis) for axis in axes_of(runs)}
    names = ", ".join(run.name for run in runs)
    return render(
        "pretraining.html",
        title=names,
        heading=names if len(runs) == 1 else f"{len(runs)} runs compared",
        subtitle=f"electra report of {', '.join(str(run.folder) for run in runs)}",
        runs=runs,
        comparison=shown,
        facts={name: cells[0] for name, cells in shown.items() if name != "health"},
        diagnoses=[(run.name, diagnose_run(run)) for run in runs],
        looks=FINDINGS,
        counted=counted,
        health=_health(runs),
        layers=[(run, _layers(run)) for run in runs if layer_table(run)],
        pairs=pair_table({run.name: run.minimal_pairs for run in runs}),
        verdicts=_VERDICTS,
        sources=_SOURCES,
        metrics=metrics,
        grids=grids if any(grids.values()) else {},
        smooth_share=f"{SMOOTH_SHARE:.0%}",
        events=[(run, event) for run in runs for event in noteworthy(run)],
        most_numbered_events=MOST_NUMBERED_EVENTS,
        severity=severity,
        shown_samples=samples.shown_samples,
        outcomes=(samples.CAUGHT, samples.MISSED, samples.ALARM),
        config=_values(runs, [run.config for run in runs]),
        environment=_values(runs, [run.environment for run in runs]),
        notes=[f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes],
    )


@dataclass(frozen=True, kw_only=True)
class HealthRow:
    """One metric of the health table: the verdict on each run, where it is measured."""

    metric: Metric
    verdicts: Sequence[Verdict | None]
    ranges: Sequence[str]
    reason: str


def _health(runs: Sequence[RunRecord]) -> list[HealthRow]:
    by_run = [{verdict.range.key: verdict for verdict in judge_metrics(run)} for run in runs]
    keys = dict.fromkeys(key for verdicts in by_run for key in verdicts)
    rows = []
    for key in keys:
        metric, verdicts = BY_KEY[key], [of_run.get(key) for of_run in by_run]
        given = [verdict for verdict in verdicts if verdict]
        rows.append(
            HealthRow(
                metric=metric,
                verdicts=verdicts,
                ranges=list(dict.fromkeys(_range(metric, verdict) for verdict in given)),
                reason=given[0].range.reason,
            )
        )
    return rows


def _layers(run: RunRecord) -> list[tuple[str, str, str]]:
    """The hidden states of each layer, as cells of a table."""
    return [(layer, show.short(rank), f"{cosine:.3f}") for layer, rank, cosine in layer_table(run)]


def _range(metric: Metric, verdict: Verdict) -> str:
    low, high = verdict.range.low, verdict.range.high
    if low is not None and high is not None:
        return f"{metric.format(low)} to {metric.format(high)}"
    if low is not None:
        return f"above {metric.format(low)}"
    return show.NOTHING if high is None else f"below {metric.format(high)}"


@dataclass(frozen=True, kw_only=True)
class Values:
    """Keys and their values in each run."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    differing: Sequence[Sequence[str]]
    """The rows that are not the same in all runs."""


def _values(runs: Sequence[RunRecord], columns: Sequence[Mapping[str, object]]) -> Values:
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(_value(column.get(key, show.NOTHING)) for column in columns)] for key in keys]
    return Values(
        head=["key", *(run.name if len(runs) > 1 else "value" for run in runs)],
        rows=rows,
        differing=[row for row in rows if len(set(row[1:])) > 1],
    )


def _value(value: object) -> str:
    if isinstance(value, float) and (abs(value) >= 1e6 or value != round(value, 6)):
        return show.short(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
