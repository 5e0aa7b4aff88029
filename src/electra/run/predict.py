"""`electra predict`: a fine-tuned model and examples -> predictions, for a person, a program or a server."""

from collections.abc import Sequence
from pathlib import Path

from electra import config
from electra.errors import InputError
from electra.tasks.evaluation import PredictConfig, predict_splits
from electra.tasks.precision import ChosenPrecision
from electra.tasks.predictions import write_form


def main(arguments: Sequence[str]) -> None:
    """Predict every example and write the predictions."""
    settings = config.parse(PredictConfig, arguments, prog="electra predict")
    if not settings.out:
        raise InputError("give --out FILE for the predictions (see 'electra predict --help')")
    predicted = []
    for one in predict_splits(settings, on_start=show_precision):
        predicted.append(one)
        print(f"  {one.task.name} {one.split}: {len(one.predictions):,} examples", flush=True)
    for remark in write_form(Path(settings.out), predicted):
        print(f"  note: {remark}")
    print(f"  {settings.out}")


def show_precision(task: str, precision: ChosenPrecision) -> None:
    """Say how a model computes, before it does."""
    print(f"  {task}: computes in {precision}", flush=True)
