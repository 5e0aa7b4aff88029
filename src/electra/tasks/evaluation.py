"""A fine-tuned model and examples -> scores where labels are known, predictions where they are not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra.errors import InputError
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import GLUE, TaskSource
from electra.tasks.families.family import Example, Prediction
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, load_model
from electra.tasks.precision import ChosenPrecision, Precision, PrecisionName, choose, computing
from electra.tasks.predictions import TEST, Predicted, check_form, form_of, load_input
from electra.tasks.seed_results import SeedResult, judge_split
from electra.tasks.task import TRAIN, Task
from electra.train import devices
from electra.train.devices import DeviceName

NUM_COMPARED = 8
"""Examples on which another precision must say the same as fp32."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TaskSource):
    """A fine-tuned model, and examples whose labels are known."""

    model: str = ""
    """Folder of a fine-tuning, or of its model."""
    split: str | None = None
    """Part of the data to score. Default: every part that has labels, except the training examples."""
    out: str = ""
    """Folder for scores.json, predictions and mistakes. Default: the scores are only printed."""
    limit_eval: int | None = None
    """Most examples to score, for a quick look; scores are then marked as partial."""
    device: DeviceName = "auto"
    """Device to compute on; auto chooses cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """A model and what it is to be scored on, checked."""

    settings: EvaluateConfig
    tuned: FineTuned
    task: Task
    splits: Sequence[str]
    place: "Place"

    @classmethod
    def prepare(cls, settings: EvaluateConfig) -> "EvaluationJob":
        """Read the model and the examples."""
        # Imported by evaluation alone: it brings all of training, and `electra predict` needs none of that.
        from electra.tasks.study import limited

        if not settings.model or not (settings.data or settings.task):
            raise InputError(
                "give --model DIR, --task NAME|FILE and --data DIR (see 'electra evaluate --help')"
            )
        tuned = load_model(settings.model)
        name = catalogue.one_task(settings, default=tuned.task)
        task = catalogue.load_for(tuned, name, settings)
        splits = [settings.split] if settings.split else task.scored_splits
        for split in splits:
            task.examples(split)
            if split in task.unlabelled:
                raise InputError(f"{split} of {name} has no labels to score with: use electra predict")
        if not splits:
            raise InputError(
                f"{name} has no labelled examples except those of train, if any: choose a split with --split"
            )
        on_train = settings.limit_eval if settings.split == TRAIN else None
        task = limited(task, train=on_train, held_out=settings.limit_eval)
        place = Place.choose(settings, tuned, task.examples(splits[0]))
        return cls(settings=settings, tuned=tuned, task=task, splits=splits, place=place)

    def run(self) -> dict[str, Any]:
        """Score every split: the content of scores.json, which is written if `out` is given."""
        from electra.tasks import results

        settings, tuned, task = self.settings, self.tuned, self.task
        with computing(self.place.device, self.place.precision.name):
            judgements = {split: judge_split(tuned, task, split) for split in self.splits}
        result = SeedResult(
            seed=int(tuned.facts.get("seed", 0)), judgements={task.name: judgements}, facts={}
        )
        content = results.scores_content(
            task,
            [result],
            model=settings.model,
            train={},
            together={},
            notes=[],
            is_partial=settings.limit_eval is not None,
            chosen=result,
        )
        if settings.out:
            results.write_scores(Path(settings.out), task, content, chosen=result)
        return content


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskSource):
    """A fine-tuned model, and examples to predict: a file of your own, or a split of a task."""

    model: str = ""
    """Folder of a fine-tuning, or of its model; with --task glue, the folder with those of all tasks."""
    input: str = ""
    """Your own file: CSV, TSV, JSONL or parquet with the columns of --own, or .txt with one text per line."""
    split: str | None = None
    """Part of the task's data to predict. Default: the part that has no labels."""
    out: str = ""
    """File for the predictions: .jsonl, .csv or .tsv; .zip for a submission to GLUE; a folder for the
    official files of SQuAD."""
    device: DeviceName = "auto"
    """Device to compute on; auto chooses cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""


def predict_splits(
    settings: PredictConfig,
    *,
    note: Callable[[str], object] = print,
    on_start: Callable[[str, ChosenPrecision], object] = lambda _task, _precision: None,
) -> Iterator[Predicted]:
    """Predict split after split, without writing anything.

    `note` gets a line for what is left out; `on_start` is called before each model predicts, with its task.
    """
    if not settings.model or bool(settings.input) == bool(settings.task or settings.data):
        raise InputError(
            "give --model DIR, --out FILE, and either --input FILE or --task NAME with --data DIR "
            "(see 'electra predict --help')"
        )
    out = Path(settings.out) if settings.out else None
    if out is not None and form_of(out) == "submission" and settings.input:
        raise InputError(f"--out {out} is a submission to GLUE, and --input is your own file: give a .csv")
    for tuned, task, splits in _jobs(settings, note):
        if out is not None:
            check_form(out, task, splits)
        place = Place.choose(settings, tuned, task.examples(splits[0]))
        on_start(task.name, place.precision)
        for split in splits:
            with computing(place.device, place.precision.name):
                predictions = judge_split(tuned, task, split).predictions
            yield Predicted(task=task, split=split, predictions=predictions)


def _jobs(
    settings: PredictConfig, note: Callable[[str], object]
) -> Iterator[tuple[FineTuned, Task, list[str]]]:
    """Models, each with its task and the splits to predict."""
    if settings.input:
        tuned = load_model(settings.model)
        yield tuned, load_input(tuned, Path(settings.input), settings.own), [TEST]
    elif settings.task != GLUE:
        tuned = load_model(settings.model)
        name = catalogue.one_task(settings, default=tuned.task)
        yield _with_task(tuned, name, settings)
    else:
        for name in catalogue.glue_with_tests(settings.data):
            folder = Path(settings.model) / catalogue.trained_as(name)
            if folder.is_dir():
                yield _with_task(load_model(folder), name, settings)
            else:
                note(f"  {name}: there is no model in {folder}, so it is left out")


def _with_task(tuned: FineTuned, name: str, settings: PredictConfig) -> tuple[FineTuned, Task, list[str]]:
    task = catalogue.load_for(tuned, name, settings)
    splits = [settings.split] if settings.split else sorted(task.unlabelled)
    if not splits:
        raise InputError(
            f"all examples of {name} have labels: choose the split to predict with --split, one of "
            f"{', '.join(task.splits)}"
        )
    return tuned, task, splits


class Place(NamedTuple):
    """Where a model computes, and in which precision."""

    device: torch.device
    precision: ChosenPrecision

    @classmethod
    def choose(
        cls, settings: EvaluateConfig | PredictConfig, tuned: FineTuned, examples: Sequence[Example]
    ) -> "Place":
        """Bring the model there; the first examples show whether it says the same in another precision."""
        devices.set_up_allocator()
        device = devices.choose_device(settings.device)
        tuned.model.to(device)

        def say(precision: Precision) -> list[Prediction]:
            with computing(device, precision):
                return predict_examples(
                    tuned.model,
                    tuned.task,
                    examples[:NUM_COMPARED],
                    tuned.tokenizer,
                    max_length=tuned.max_length,
                )

        return cls(device, choose(settings.precision, device, [tuned.model], say))
