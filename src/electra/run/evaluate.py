"""`electra evaluate`: a fine-tuned model and labelled examples -> scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config, show
from electra.errors import InputError
from electra.tasks import results
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.model import load_model
from electra.tasks.seed_results import SeedResult, judge_split
from electra.tasks.study import describe_task, limited
from electra.tasks.task import TRAIN
from electra.train import devices
from electra.train.devices import DeviceName, PrecisionName
from electra.train.distributed import World


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TaskSource):
    """A model that was fine-tuned, and examples whose labels are known."""

    model: str = ""
    """Folder of a fine-tuning, or of its model."""
    split: str | None = None
    """Which part of the data to score; by default all that has labels, but what was trained on."""
    out: str = ""
    """Folder for scores.json, predictions and mistakes; by default the scores are only shown."""
    limit_eval: int | None = None
    """Examples to score, for a quick look: marked as partial."""
    device: DeviceName = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Of matrix products; auto takes what is fast on the device."""


def main(arguments: Sequence[str]) -> None:
    """Score a model."""
    settings = config.parse(EvaluateConfig, arguments, prog="electra evaluate")
    if not settings.model or not (settings.data or settings.task):
        raise InputError("give --model DIR, --task NAME|FILE and --data DIR (see 'electra evaluate --help')")
    tuned = load_model(settings.model)
    name = catalogue.one_task(settings, default=tuned.task)
    task = catalogue.load_for(tuned, name, settings)
    splits = [settings.split] if settings.split else task.scored_splits
    for split in splits:
        task.examples(split)
        if split in task.unlabelled:
            raise InputError(
                f"{split} of {name} has no labels, so there is nothing to score: electra predict"
            )
    if not splits:
        raise InputError(f"{name} has no labelled examples but those of train, if any: name one with --split")
    on_train = settings.limit_eval if settings.split == TRAIN else None
    task = limited(task, train=on_train, held_out=settings.limit_eval)
    print(show.table([("model", settings.model), *describe_task(task)]), flush=True)
    devices.set_up_allocator()
    device = devices.choose_device(settings.device)
    tuned.model.to(device)
    with devices.autocast(device, devices.choose_precision(settings.precision, device, World())):
        judgements = {split: judge_split(tuned, task, split) for split in splits}
    seed = int(tuned.facts.get("seed", 0))
    result = SeedResult(seed=seed, judgements={task.name: judgements}, facts={})
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
    print(f"\n{results.score_table(content['splits'], main_score=task.main_score)}")
    if settings.out:
        results.write_scores(Path(settings.out), task, content, chosen=result)
        print(f"\n  {settings.out}")
