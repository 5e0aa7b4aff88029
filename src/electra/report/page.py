"""Runs -> their state in one line each, for a page and for a terminal.

Runs -> one HTML page that needs nothing else: no network, no script.
"""

from collections.abc import Sequence
from importlib import resources

from electra.report.health import Verdict, judge, last, noteworthy, now, overall, severity
from electra.report.markup import Html, details, duration, element, join, section, short, table, text
from electra.report.plots import DASHES, MOST_NUMBERED_EVENTS, SMOOTH_SHARE, Axis, axes_of, draw, run_colour
from electra.report.runs import BY_KEY, Metric, Run, metrics_of, number
from electra.report.samples import samples_html

_SHOWN = {
    "loss": "loss",
    "mlm_loss": "generator loss",
    "mlm_accuracy": "generator accuracy",
    "discriminator_auc": "AUC",
    "fixed_auc": "AUC, fixed set",
    "discriminator_recall": "recall",
    "replaced_fraction": "replaced",
    "tokens_per_second": "tokens/s",
    "mfu": "of peak",
}


def facts(run: Run) -> dict[str, str]:
    """What a person asks first; a dash for what the run has not measured."""
    state = {
        "objective": str(run.config.get("objective", "–")),
        "size": str(run.config.get("model.size", "–")),
        "steps": _steps(run),
        "tokens": short(last(run, "tokens")),
        "FLOPs": short(last(run, "flops")),
        "time": duration(last(run, "seconds")),
    }
    for key, title in _SHOWN.items():
        state[title] = BY_KEY[key].format(now(run, key).value)
    return {**state, "health": overall(run)}


def _steps(run: Run) -> str:
    done, planned = last(run, "step"), number(run.config.get("train.steps"))
    if done is None:
        return "none yet"
    return f"{done:,.0f}" + (f" of {planned:,.0f}" if planned and planned != done else "")


def terminal_table(runs: Sequence[Run]) -> str:
    """The same, one run a column, so that it stays narrow."""
    columns = [facts(run) for run in runs]
    names = [name for name in columns[0] if any(column[name] != "–" for column in columns)]
    rows = [["", *(run.name for run in runs)]]
    rows += [[name, *(column[name] for column in columns)] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


_WORDS = {"healthy": "healthy", "low": "too low", "high": "too high", "early": "too early to say"}
_SOURCES = {"held out": "held out", "training": "mean of the last training steps"}


def page(runs: Sequence[Run]) -> str:
    """The whole page; the same folders give the same page."""
    title = f"electra: {', '.join(run.name for run in runs)}"
    style = resources.files("electra.report").joinpath("page.css").read_text(encoding="utf-8")
    body = [
        element(
            "header", join([element("h1", _heading(runs)), element("p", _subtitle(runs), class_="quiet")])
        ),
        _glance(runs),
        _health(runs),
        _curves(runs),
        _events(runs),
        _samples(runs),
        _values("config", "Config", runs, [run.config for run in runs]),
        _values("environment", "Environment", runs, [run.environment for run in runs]),
        _notes(runs),
    ]
    return "".join(
        [
            "<!DOCTYPE html>\n",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            element("title", title),
            f"<style>\n{style}</style></head>\n<body>",
            element("main", join(body, "\n")),
            "</body></html>\n",
        ]
    )


def _heading(runs: Sequence[Run]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"


def _subtitle(runs: Sequence[Run]) -> str:
    return "electra report of " + ", ".join(str(run.folder) for run in runs)


def _glance(runs: Sequence[Run]) -> Html:
    columns = [facts(run) for run in runs]
    names = [name for name in columns[0] if any(column[name] != "–" for column in columns)]
    if len(runs) == 1:
        cards = join(
            element("div", join([element("dt", name), element("dd", columns[0][name])]))
            for name in names
            if name != "health"
        )
        return section("glance", "At a glance", element("dl", cards, class_="cards"), _mood(runs[0]))
    head = ["", *(join([_swatch(index), " ", run.name]) for index, run in enumerate(runs))]
    rows = [[name, *(column[name] for column in columns)] for name in names]
    return section("glance", "At a glance", table(head, rows, class_="facts"))


def _mood(run: Run) -> Html:
    ill = [verdict for verdict in judge(run) if verdict.word in ("low", "high")]
    if ill:
        found = ", ".join(f"{BY_KEY[verdict.range.key].title} is {_WORDS[verdict.word]}" for verdict in ill)
        return element("p", f"▲ {found}: see the table below.", class_="mood watch")
    return element("p", f"Health: {facts(run)['health']}.", class_="mood")


def _health(runs: Sequence[Run]) -> Html:
    by_run = [{verdict.range.key: verdict for verdict in judge(run)} for run in runs]
    keys = list(dict.fromkeys(key for verdicts in by_run for key in verdicts))
    if not keys:
        return section("health", "Health", element("p", "Nothing is measured yet.", class_="quiet"))
    head = ["metric", *(run.name if len(runs) > 1 else "now" for run in runs), "healthy range", "why"]
    rows = []
    for key in keys:
        metric, given = BY_KEY[key], [verdicts.get(key) for verdicts in by_run]
        first = next(verdict for verdict in given if verdict)
        ranges = dict.fromkeys(_range(metric, verdict) for verdict in given if verdict)
        cells = [_verdict(metric, verdict) for verdict in given]
        reason = element("span", first.range.reason, class_="why")
        rows.append([metric.title, *cells, " / ".join(ranges), reason])
    return section("health", "Health", table(head, rows, class_="health"))


def _range(metric: Metric, verdict: Verdict) -> str:
    low, high = verdict.range.low, verdict.range.high
    if low is not None and high is not None:
        return f"{metric.format(low)} to {metric.format(high)}"
    if low is not None:
        return f"above {metric.format(low)}"
    return "–" if high is None else f"below {metric.format(high)}"


def _verdict(metric: Metric, verdict: Verdict | None) -> Html:
    if verdict is None:
        return text("–")
    sign = {"healthy": "●", "low": "▼", "high": "▲", "early": "○"}[verdict.word]
    class_ = {"healthy": "good", "early": "quiet"}.get(verdict.word, "watch")
    value = element(
        "span", metric.format(verdict.now.value), class_="value", title=_SOURCES[verdict.now.source]
    )
    return join([value, " ", element("span", f"{sign} {_WORDS[verdict.word]}", class_=f"verdict {class_}")])


def _curves(runs: Sequence[Run]) -> Html:
    metrics, axes = metrics_of(runs), axes_of(runs)
    if not metrics:
        return section("curves", "Curves", element("p", "No step is logged yet.", class_="quiet"))
    inputs, labels, grids = [], [], []
    for axis in axes:
        checked = " checked" if axis is axes[0] else ""
        inputs.append(Html(f'<input type="radio" name="axis" id="axis-{axis.key}"{checked}>'))
        labels.append(element("label", axis.title, for_=f"axis-{axis.key}"))
        grids.append(element("div", _grid(metrics, runs, axis), class_=f"plots against-{axis.key}"))
    against = element("p", join([element("span", "against"), *labels], " "), class_="axes")
    return section("curves", "Curves", _curve_legend(runs), *inputs, against, *grids)


def _grid(metrics: Sequence[Metric], runs: Sequence[Run], axis: Axis) -> Html:
    figures: list[Html] = []
    for metric in metrics:
        if svg := draw(metric, runs, axis, key=f"{axis.key}{len(figures)}"):
            says = element("span", metric.says, class_="quiet") if metric.says else ""
            caption = element("figcaption", join([element("b", metric.title), says]))
            figures.append(element("figure", join([caption, Html(svg)])))
    return join(figures, "\n")


def _swatch(index: int) -> Html:
    dashes = " ".join(map(str, DASHES[index % len(DASHES)]))
    line = element(
        "line", x1=0, y1=5, x2=26, y2=5, stroke=f"var(--{run_colour(index)})", stroke_dasharray=dashes
    )
    return element("svg", line, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")


def _curve_legend(runs: Sequence[Run]) -> Html:
    names = [join([_swatch(index), " ", run.name]) for index, run in enumerate(runs)] if len(runs) > 1 else []
    parts = [*names, "○ held out"]
    if len(runs) == 1:
        parts.append(join([element("span", "", class_="band"), " healthy range"]))
    if any(noteworthy(run) for run in runs):
        parts.append("┊ event, numbered as in the list below")
    words = (
        "Training curves are drawn twice: as logged (faint), and as a centred mean over "
        f"{SMOOTH_SHARE:.0%} of the points (strong). Single spikes and the first steps may leave the frame."
    )
    legend = element("p", join(element("span", part) for part in parts), class_="legend")
    return join([legend, element("p", words, class_="quiet")])


def _events(runs: Sequence[Run]) -> Html:
    marks = [(run, event) for run in runs for event in noteworthy(run)]
    if not marks:
        return section("events", "Events", element("p", "No event that needs a look.", class_="quiet"))
    several = len(runs) > 1
    head = ["", *(["run"] if several else []), "step", "time", "event", "message"]
    rows = []
    for count, (run, event) in enumerate(marks, 1):
        name = element("span", event.event.replace("_", " "), class_=f"event {severity(event)}")
        when = [f"{event.step:,.0f}", duration(event.seconds)]
        rows.append([count, *([run.name] if several else []), *when, name, event.message])
    shown = table(head, rows)
    if len(rows) <= MOST_NUMBERED_EVENTS:
        return section("events", "Events", shown)
    return section("events", "Events", details(f"{len(rows):,} events", shown))


def _samples(runs: Sequence[Run]) -> Html:
    if len(runs) == 1:
        return section("samples", "Samples", samples_html(runs[0]))
    return section("samples", "Samples", *(details(run.name, samples_html(run)) for run in runs))


def _values(identity: str, title: str, runs: Sequence[Run], columns: Sequence[dict[str, object]]) -> Html:
    keys = list(dict.fromkeys(key for column in columns for key in column))
    if not keys:
        return section(identity, title, element("p", "Not written.", class_="quiet"))
    head = ["key", *(run.name if len(runs) > 1 else "value" for run in runs)]
    rows = {key: [_value(column.get(key, "–")) for column in columns] for key in keys}
    differing = [[key, *cells] for key, cells in rows.items() if len(set(cells)) > 1]
    everything = details(
        f"All {len(keys):,} values",
        table(head, [[key, *cells] for key, cells in rows.items()], class_="values"),
    )
    if len(runs) == 1:
        return section(identity, title, everything)
    same = element("p", "The same in all runs.", class_="quiet")
    differences = table(head, differing, class_="values") if differing else same
    return section(identity, title, differences, everything)


def _value(value: object) -> str:
    if isinstance(value, float) and (abs(value) >= 1e6 or value != round(value, 6)):
        return short(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _notes(runs: Sequence[Run]) -> Html:
    notes = [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
    if not notes:
        return Html("")
    return section("notes", "Notes on reading", element("ul", join(element("li", note) for note in notes)))
