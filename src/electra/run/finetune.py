"""`electra finetune`: a model and labelled examples -> scores over seeds, and the fine-tuned model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import config
from electra.config import Given
from electra.report import write_report
from electra.show import table
from electra.store.cache import with_urls
from electra.tasks import finetuning, results
from electra.tasks.config import FinetuneConfig, is_lightly_trained, paper_size
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import GLUE
from electra.tasks.finetuning import Job
from electra.tasks.model import find_start
from electra.tasks.study import describe_tasks
from electra.tasks.workers import clustered
from electra.train import engine
from electra.train.distributed import World


def main(arguments: Sequence[str]) -> None:
    """Fine-tune, or resume."""
    given = config.read(FinetuneConfig, arguments, prog="electra finetune")
    with given.opened(reads=("model", "like", "data", "baseline"), writes=("out",)) as given:
        finetune(given)


def finetune(given: Given[FinetuneConfig]) -> None:
    """Train every job that was asked for, and show its scores."""
    draft = given.draft()
    medians: dict[str, float | None] = {}
    address = None if draft.dry_run else draft.cluster
    with engine.joined(draft.train.device) as (world, device), clustered(address) as cluster:
        found = announced(finetuning.jobs(given, world, device), world)
        for job, contents in finetuning.run_jobs(found, cluster):
            for name, content in contents.items():
                show(job.study.task_folder(name), content)
                medians[name] = results.main_median(content)
        if medians and catalogue.task_names(draft) == [GLUE]:
            show_glue(draft, medians)


def announced(jobs: Iterable[Job], world: World) -> Iterator[Job]:
    """Jobs to run, each described before it is."""
    for job in jobs:
        if world.writes:
            print(with_urls(table(list(describe(job)))), flush=True)
        if not job.settings.dry_run:
            yield job


def describe(job: Job) -> Iterator[tuple[str, str]]:
    """What a person should know before the training begins."""
    study, train = job.study, job.settings.train
    yield from describe_tasks(study.tokenized)
    size = sum(weight.numel() for weight in study.model(study.seeds[0]).parameters())
    yield "model", f"{study.start.description()}; {size:,} parameters"
    yield "encoder", describe_reading(study.start.tokens_read)
    budget = train.budget_for(steps_per_epoch=study.train_batches(study.seeds[0]).num_batches)
    words = [
        *([] if train.epochs is None else [f"{train.epochs:g} epoch{'s' if train.epochs != 1 else ''}"]),
        *([] if budget.steps is None else [f"{budget.steps:,} steps of {train.batch_size} examples"]),
        f"learning rate {train.learning_rate:g}, layer decay {train.layer_decay}",
        *([] if job.settings.pooling == "auto" else [f"pooling {job.settings.pooling}"]),
        f"{job.engine.device.type} in {job.engine.precision}",
    ]
    yield "training", ", ".join(words)
    yield "seeds", ", ".join(map(str, study.seeds))


def describe_reading(tokens_read: int | None) -> str:
    """How much an encoder has read, which decides what `auto` is."""
    lightly = is_lightly_trained(tokens_read)
    read = "an unknown number of" if tokens_read is None else f"{tokens_read:,}"
    auto = "pooling mean and layer decay 1" if lightly else "the paper's pooling cls and layer decay"
    return f"has read {read} tokens{', few' if lightly else ''}: auto is {auto}"


def show(folder: Path, content: Mapping[str, Any]) -> None:
    """The scores, and where everything is."""
    before = content.get("before")
    print(f"\n{results.score_table(content['splits'], main_score=content['main_score'], before=before)}\n")
    if before:
        print("  before: the encoder as it was, without any training\n")
    places = table([*results.places(folder, content), ("report", write_report(folder))])
    print(with_urls(places), flush=True)


def show_glue(settings: FinetuneConfig, medians: Mapping[str, float | None]) -> None:
    """All tasks in one row, beside the paper's."""
    content = finetuning.write_glue(settings, medians)
    size = paper_size(find_start(settings.model, like=settings.like, dropout=None).config)
    print(f"\n{results.glue_table(medians, size=size, names=catalogue.GLUE_COLUMNS)}")
    for reason in content["left_out"].values():
        print(f"  left out: {reason}")
    if settings.limit_train or settings.limit_eval:
        print("  a quick look: only some of the examples were used for training or scoring")
