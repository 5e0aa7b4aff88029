"""`electra predict`: a fine-tuned model and examples -> predictions, for a person, a program or a server."""

from collections.abc import Sequence
from pathlib import Path

from electra import config
from electra.errors import InputError
from electra.store.cache import with_urls
from electra.tasks.evaluation import InputStream, PredictConfig, predict_splits
from electra.tasks.precision import ChosenPrecision
from electra.tasks.predictions import TEST, form_of, write_form


def main(arguments: Sequence[str]) -> None:
    """Predict every example and write the predictions."""
    given = config.read(PredictConfig, arguments, prog="electra predict")
    with given.opened(reads=("model", "data", "input"), writes=("out",)) as given:
        predict(given.config())


def predict(settings: PredictConfig) -> None:
    """Predict every example of every split."""
    if not settings.out:
        raise InputError("give --out FILE for the predictions (see 'electra predict --help')")
    if settings.input and form_of(Path(settings.out)) in ("lines", "table"):
        predict_input(settings)
    else:
        predicted = []
        for one in predict_splits(settings, on_start=show_precision):
            predicted.append(one)
            print(f"  {one.task.name} {one.split}: {len(one.predictions):,} examples", flush=True)
        for remark in write_form(Path(settings.out), predicted):
            print(f"  note: {remark}")
    print(f"  {with_urls(settings.out)}")


def predict_input(settings: PredictConfig) -> None:
    """Predict a file of any size."""
    stream = InputStream.prepare(settings)
    show_precision(stream.tuned.task, stream.place.precision)
    by_node = stream.write(Path(settings.out))
    print(f"  {stream.tuned.task} {TEST}: {stream.num_examples:,} examples", flush=True)
    for node, count in sorted(by_node.items()):
        print(f"    {count:,} on node {node}")


def show_precision(task: str, precision: ChosenPrecision) -> None:
    """Say how a model computes, before it does."""
    print(f"  {task}: computes in {precision}", flush=True)
