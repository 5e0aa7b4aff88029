"""Runs -> their state in one line each, for a page and for a terminal."""

from collections.abc import Sequence

from electra.report.health import last, now, overall
from electra.report.metrics import BY_KEY
from electra.report.runs import Run, number
from electra.report.words import duration, short

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
