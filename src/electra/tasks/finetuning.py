"""A model, labelled examples and settings -> a fine-tuned model for each seed, and their scores.

`jobs` reads and checks everything that was asked for, `run_job` trains a job. A `Study` keeps the results.
"""

import dataclasses
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from electra import config, files
from electra.config import Given
from electra.errors import InputError
from electra.model.names import is_layer_matrix, layer_depth
from electra.tasks import results, sweep
from electra.tasks.batches import TaskMixture
from electra.tasks.config import (
    FITTED,
    FREE_KEYS,
    FinetuneConfig,
    finetune_defaults,
    fitted_values,
    values_before,
)
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import AX, GLUE
from electra.tasks.families.family import PooledFamily
from electra.tasks.model import StartModel, TaskModel, find_start
from electra.tasks.seed_results import SeedResult
from electra.tasks.step import FinetunePart, FinetuneProblem, HeldOut, Share, flops_per_token
from electra.tasks.study import (
    Study,
    content_hash,
    limited,
    require_trainable,
    tokenize_tasks,
)
from electra.tasks.sweep import SweepConfig
from electra.tasks.task import Task
from electra.text.tokenizer import Tokenizer
from electra.train import devices
from electra.train.cores import gradients, timed
from electra.train.distributed import World
from electra.train.engine import Engine, check_same_run, json_values, read_choices, write_description
from electra.train.log import METRICS
from electra.train.optim import build_optimizer
from electra.train.session import CHECKPOINTS
from electra.train.state import TrainState

GLUE_SCORES = "glue.json"
USAGE = "electra finetune --model RUN|DIR|none --task NAME|FILE --data DIR --out DIR"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A study, checked, and what it is run with."""

    settings: FinetuneConfig
    study: Study
    engine: Engine
    peak: float
    """Measured FLOP/s of this machine; 0 if unknown."""

    def changed(self, *, out: str, learning_rate: float, epochs: float) -> "Job":
        """The same in another folder with what a sweep has chosen, and nothing left to sweep."""
        train = dataclasses.replace(self.settings.train, learning_rate=learning_rate, epochs=epochs)
        if train.optimizer == "muon":
            # A sweep searches one learning rate: that of the matrices stays in proportion to it.
            share = learning_rate / self.settings.train.learning_rate
            train = dataclasses.replace(train, matrix_learning_rate=share * train.matrix_learning_rate)
        settings = dataclasses.replace(self.settings, out=out, train=train, sweep=SweepConfig())
        study = dataclasses.replace(self.study, out=Path(out), config=json_values(config.to_dict(settings)))
        engine = dataclasses.replace(self.engine, train=train)
        return dataclasses.replace(self, settings=settings, study=study, engine=engine)

    def check(self, saved: Mapping[str, Any], *, seed: int) -> None:
        """Refuse to resume what was begun with other settings."""
        check_same_run(
            saved,
            self.study.facts(seed),
            self.settings.resume,
            free_keys=FREE_KEYS,
            defaults=json_values(values_before(self.settings)),
        )

    def describe(self) -> None:
        """Write config.yaml and environment.json."""
        if self.engine.world.writes:
            write_description(
                self.study.out,
                config.to_dict(self.settings),
                choices=self.study.choices,
                gemm_peak_flops=self.peak,
            )


def jobs(given: Given[FinetuneConfig], world: World, device: torch.device) -> Iterator[Job]:
    """What was asked for, read and checked: one job, or with the task glue one for each of its tasks."""
    draft = given.draft()
    needed = ("model", "task") if draft.dry_run else ("model", "task", "out")
    missing = [key for key in needed if not getattr(draft, key)]
    if missing:
        # Ends here if --print_config was asked for: the paper's values need a model and a task.
        given.config()
        raise InputError(f"--{missing[0]} is missing: {USAGE} ({given.help})")
    if catalogue.task_names(draft) != [GLUE]:
        yield prepare_job(given, world, device)
        return
    for name in catalogue.trainable_glue(draft.data)[0]:
        values = {"task": name, "out": Path(draft.out) / name}
        if draft.baseline:
            values["baseline"] = Path(draft.baseline) / name
        yield prepare_job(given.changed(values), world, device)


def prepare_job(given: Given[FinetuneConfig], world: World, device: torch.device) -> Job:
    """Read and check everything that a job needs: model, data, settings."""
    draft = given.draft()
    names = catalogue.task_names(draft)
    if AX in names:
        raise InputError(
            "ax has no training examples: fine-tune on mnli, then electra predict --model DIR --task ax"
        )
    start = find_start(draft.model, like=draft.like, dropout=draft.dropout)
    tasks = [catalogue.load_task(name, draft) for name in names]
    given, fitted = fit(given, start)
    settings = given.config(finetune_defaults(given, start.config, tasks, fitted))
    check(settings, tasks, world)
    tasks = [pooled(task, settings.pooling) for task in tasks]
    engine = Engine.choose(settings.train, world, device, run=Path(settings.out) if settings.out else None)
    fewer = [limited(task, train=settings.limit_train, held_out=settings.limit_eval) for task in tasks]
    study = Study(
        out=Path(settings.out),
        source=settings,
        start=start,
        tokenized=tokenize_tasks(fewer, start.tokenizer, start.config, max_length=settings.max_length),
        dataset_sha256=content_hash(tasks),
        seeds=[settings.seed + number for number in range(settings.seeds)],
        config=json_values(config.to_dict(settings)),
        choices=engine.choices(**fitted_choices(settings)),
        precisely=partial(devices.autocast, device, engine.precision),
    )
    whole = next((task.name for task in tasks if task.family.needs_whole_batch), "")
    obstacle = f"{whole} compares the examples of a batch with one another" if whole else ""
    # A dry run trains nothing, so that there is nothing to measure for.
    cores = 1 if settings.dry_run else engine.num_cores(StepTimer(study, engine), obstacle=obstacle)
    study = dataclasses.replace(study, choices={**study.choices, "cores": cores})
    peak = 0.0 if settings.dry_run else engine.peak()
    return Job(settings=settings, study=study, engine=engine, peak=peak)


def fit(given: Given[FinetuneConfig], start: StartModel) -> tuple[Given[FinetuneConfig], dict[str, Any]]:
    """What was given, without any `auto` of `FITTED`; and what these keys are for the start unless given.

    A run that has begun keeps what it chose then; before there was a choice, that was the paper's.
    """
    given = dataclasses.replace(
        given,
        values={key: value for key, value in given.values.items() if key not in FITTED or value != "auto"},
    )
    out, tuned = given.draft().out, start.tuned
    kept = read_choices(Path(out)) if out else {}
    before = tuned.family.head_pooling if tuned and isinstance(tuned.family, PooledFamily) else None
    known = None if kept and "layer_decay" not in kept else start.tokens_read
    fitted = fitted_values(start.config, tokens_read=known, head_pooling=before)
    chosen = {key: kept[name] for key in FITTED if (name := key.rpartition(".")[2]) in kept}
    return given, {**fitted, **chosen}


def fitted_choices(settings: FinetuneConfig) -> dict[str, Any]:
    """What `fit` finds again when the run goes on; no pooling where no head has one."""
    pooling = {} if settings.pooling == "auto" else {"pooling": settings.pooling}
    return {**pooling, "layer_decay": settings.train.layer_decay}


def pooled(task: Task, pooling: Literal["auto", "cls", "mean"]) -> Task:
    """The task with a head that judges by what was chosen, if its head judges whole rows."""
    if pooling == "auto" or not isinstance(task.family, PooledFamily):
        return task
    return dataclasses.replace(task, family=task.family.pooled_by(pooling))


def check(settings: FinetuneConfig, tasks: list[Task], world: World) -> None:
    """Refuse settings that do not go together, before anything is trained."""
    for task in tasks:
        require_trainable(task)
        results.read_baseline(settings.baseline, task, alone=len(tasks) == 1)
        if settings.ensemble == "on" and (reason := task.family.ensemble_obstacle):
            raise InputError(f"--ensemble on is not possible for {task.name}: {reason}")
        if task.family.needs_whole_batch and (settings.train.micro_batch != "all" or world.size > 1):
            raise InputError(
                f"{task.name} is learned by comparing the pairs of a batch with one another, so a batch must "
                "stay in one piece: --train.micro_batch all, and one process"
            )
    if settings.pooling != "auto" and not any(isinstance(task.family, PooledFamily) for task in tasks):
        raise InputError(
            f"pooling is {settings.pooling}, but the head of {tasks[0].name} does not judge whole rows by "
            "one vector: leave it at auto (for similarity there is --own.pooling)"
        )
    if settings.sweep.trials and (len(tasks) > 1 or settings.train.epochs is None or world.size > 1):
        raise InputError("--sweep.trials is for one task, one process, and a budget in epochs")


def run_job(job: Job) -> dict[str, dict[str, Any]]:
    """Train and score every seed that is not finished: the content of scores.json by task."""
    with job.engine.holding(job.study.out):
        notes = []
        if job.settings.sweep.trials:
            job, note = sweep_settings(job)
            notes.append(note)
        study = job.study
        for seed in filter(study.is_finished, study.seeds):
            job.check(study.read(seed).facts, seed=seed)
        by_seed = [run_seed(job, seed) for seed in study.seeds]
        if not job.engine.world.writes:
            return {}
        contents = study.conclude(by_seed, notes)
        return {task.name: content for task, content in zip(study.tasks, contents, strict=True)}


def run_seed(job: Job, seed: int) -> SeedResult:
    """Train one seed, unless it is finished, and read what it gave."""
    study, world, folder = job.study, job.engine.world, job.study.folder(seed)
    if not study.is_finished(seed):
        if world.writes:
            print(f"\nseed {seed}", file=sys.stderr, flush=True)
        result, model = train_seed(job, seed, folder)
        if world.writes:
            study.finish(seed, model, result)
    world.barrier()
    if world.writes and not job.settings.keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return study.read(seed)


def train_seed(job: Job, seed: int, folder: Path) -> tuple[SeedResult, TaskModel]:
    """Train to the end of the budget, and score what is held out."""
    settings, study, engine = job.settings, job.study, job.engine
    model, batches = study.model(seed).to(engine.device), study.train_batches(seed)
    problem, state = build_seed(
        model,
        batches,
        engine,
        seed=seed,
        tokenizer=study.start.tokenizer,
        held_out=study.held_out(),
        flops_per_token=flops_per_token(model, study.tokenized.train_rows),
        cores=study.choices["cores"],
    )
    if engine.world.writes:
        folder.mkdir(parents=True, exist_ok=True)
    engine.run(
        folder,
        settings,
        state=state,
        problem=problem,
        budget=settings.train.budget_for(steps_per_epoch=batches.num_batches),
        log=settings.log.in_steps(steps_per_epoch=batches.num_batches),
        facts=study.facts(seed),
        free_keys=FREE_KEYS,
        defaults=values_before(settings),
        describe=job.describe,
        peak=job.peak,
    )
    progress = {"steps": state.step, "tokens": state.tokens, "seconds": state.seconds}
    result = SeedResult(
        seed=seed,
        judgements=study.judge(model),
        facts=study.facts(seed),
        train={**progress, "epochs": state.step / batches.num_batches},
        history=results.history(
            folder / METRICS, study.tasks, seed=seed, steps_per_epoch=batches.num_batches
        ),
    )
    return result, model


def build_seed(
    model: TaskModel,
    batches: TaskMixture,
    engine: Engine,
    *,
    seed: int,
    tokenizer: Tokenizer,
    held_out: Sequence[HeldOut] = (),
    flops_per_token: float = 1.0,
    cores: int = 1,
) -> tuple[FinetuneProblem, TrainState]:
    """What the loop minimises, and the state it starts from."""
    world, train = engine.world, engine.train
    num_layers = model.encoder.config.num_hidden_layers
    engine.set_recomputation(model)
    # A batch is of one task: the heads of the others have no gradient.
    module = engine.wrap(model, idle_weights=len(batches.tasks) > 1)
    micro_batch = train.micro_batch if isinstance(train.micro_batch, int) else None
    problem = FinetuneProblem(
        model=model,
        module=module,
        train=batches,
        held_out=held_out,
        seed=seed,
        share=Share(rank=world.rank, world_size=world.size, micro_batch=micro_batch, cores=cores),
        device=engine.device,
        tokenizer=tokenizer,
        flops_per_token=flops_per_token,
    )
    optimizer = build_optimizer(
        train,
        model.named_parameters(),
        depth=partial(layer_depth, num_layers=num_layers),
        num_layers=num_layers,
        is_matrix=is_layer_matrix,
        peak=train.learning_rate,
        precision=engine.precision,
    )
    return problem, engine.state(model, optimizer)


class StepTimer:
    """Times a step of a study but for its update, with any number of cores that have rows of their own."""

    def __init__(self, study: Study, engine: Engine) -> None:
        self._study, self._engine = study, engine

    @cached_property
    def _started(self) -> tuple[TaskModel, TaskMixture]:
        seed = self._study.seeds[0]
        return self._study.model(seed).train(), self._study.train_batches(seed)

    def __call__(self, cores: int) -> float:
        model, batches = self._started
        problem, _ = build_seed(
            model, batches, self._engine, seed=0, tokenizer=self._study.start.tokenizer, cores=cores
        )

        def backward(part: FinetunePart, module: nn.Module) -> None:
            with self._study.precisely():
                loss, _ = part(module)
            torch.autograd.backward(loss)

        parts = problem.begin(step=0, batch_number=0, progress=0.0).parts
        seconds = timed(lambda: gradients(model, parts, backward, cores=cores))
        model.zero_grad(set_to_none=True)
        return seconds


def sweep_settings(job: Job) -> tuple[Job, str]:
    """Search learning rate and epochs by the first held-out split: the job with the best, and a note."""
    (task,), train, out = job.study.tasks, job.settings.train, job.study.out
    assert train.epochs is not None
    job.describe()

    def run_trial(number: int, learning_rate: float, epochs: float) -> float | None:
        folder = out / "sweep" / f"trial-{number:03}"
        trial = job.changed(out=str(folder), learning_rate=learning_rate, epochs=epochs)
        result, _ = train_seed(trial, job.settings.seed, folder)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        return results.main_value(task, result)

    best, note = sweep.choose_trial(
        job.settings.sweep,
        run_trial,
        out / "sweep.json",
        task,
        learning_rate=train.learning_rate,
        epochs=train.epochs,
        seed=job.settings.seed,
    )
    return job.changed(out=str(out), learning_rate=best.learning_rate, epochs=best.epochs), note


def write_glue(settings: FinetuneConfig, medians: Mapping[str, float | None]) -> dict[str, Any]:
    """Write glue.json beside the folders of the tasks: their medians, and why tasks were left out."""
    content = {"medians": dict(medians), "left_out": catalogue.trainable_glue(settings.data)[1]}
    files.write_json(Path(settings.out) / GLUE_SCORES, content)
    return content
