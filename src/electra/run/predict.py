"""`electra predict`: a fine-tuned model and examples -> predictions, for a person, a program or a server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config
from electra.errors import InputError
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import GLUE, TaskSource
from electra.tasks.model import FineTuned, load_model
from electra.tasks.predictions import TEST, Predicted, check_form, form_of, load_input, write_form
from electra.tasks.seed_results import judge_split
from electra.tasks.task import Task
from electra.train import devices
from electra.train.devices import DeviceName, PrecisionName
from electra.train.distributed import World


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskSource):
    """A model that was fine-tuned, and examples to judge: a file of your own, or a split of a task."""

    model: str = ""
    """Folder of a fine-tuning, or of its model; with --task glue, that in which all tasks were trained."""
    input: str = ""
    """Your own file: CSV, TSV, JSONL or parquet with the columns of --own, or .txt with a text a line."""
    split: str | None = None
    """Which part of a task's data to judge; by default the part that has no labels."""
    out: str = ""
    """File for the predictions, .jsonl, .csv or .tsv; .zip for a submission to GLUE; a folder for the
    official files of SQuAD."""
    device: DeviceName = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Of matrix products; auto takes what is fast on the device."""


def main(arguments: Sequence[str]) -> None:
    """Judge every example and write what the model says."""
    settings = config.parse(PredictConfig, arguments, prog="electra predict")
    if not settings.model or not settings.out or bool(settings.input) == bool(settings.task or settings.data):
        raise InputError(
            "give --model DIR, --out FILE, and either --input FILE or --task NAME with --data DIR "
            "(see 'electra predict --help')"
        )
    out = Path(settings.out)
    if form_of(out) == "submission" and settings.input:
        raise InputError(f"--out {out} is a submission to GLUE, and --input is your own file: give a .csv")
    devices.set_up_allocator()
    device = devices.choose_device(settings.device)
    predicted = []
    with devices.autocast(device, devices.choose_precision(settings.precision, device, World())):
        for tuned, task, splits in jobs(settings):
            check_form(out, task, splits)
            tuned.model.to(device)
            for split in splits:
                predictions = judge_split(tuned, task, split).predictions
                predicted.append(Predicted(task=task, split=split, predictions=predictions))
                print(f"  {task.name} {split}: {len(predictions):,} examples", flush=True)
    for remark in write_form(out, predicted):
        print(f"  note: {remark}")
    print(f"  {out}")


def jobs(settings: PredictConfig) -> Iterator[tuple[FineTuned, Task, list[str]]]:
    """Models, each with the task and the splits that it is to judge."""
    if settings.input:
        tuned = load_model(settings.model)
        yield tuned, load_input(tuned, Path(settings.input), settings.own), [TEST]
        return
    if settings.task != GLUE:
        tuned = load_model(settings.model)
        name = catalogue.one_task(settings, default=tuned.task)
        yield judged_by(tuned, name, settings)
        return
    for name in catalogue.glue_with_tests(settings.data):
        folder = Path(settings.model) / catalogue.trained_as(name)
        if folder.is_dir():
            yield judged_by(load_model(folder), name, settings)
        else:
            print(f"  {name}: there is no model in {folder}, so it is left out")


def judged_by(tuned: FineTuned, name: str, settings: PredictConfig) -> tuple[FineTuned, Task, list[str]]:
    """A task for a model, and what of it is to be judged."""
    task = catalogue.load_for(tuned, name, settings)
    splits = [settings.split] if settings.split else sorted(task.unlabelled)
    if not splits:
        raise InputError(
            f"{name} has no examples without labels: choose with --split what to judge, of "
            f"{', '.join(task.splits)}"
        )
    return tuned, task, splits
