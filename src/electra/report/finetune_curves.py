"""What was measured while the seeds were trained -> a drawing for each loss and score."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from electra.report.curves import Axis
from electra.report.finetune_scores import NOT_FRACTIONS
from electra.report.markup import Html, element, join
from electra.report.metrics import Metric
from electra.report.runs import Record, Run, number

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
