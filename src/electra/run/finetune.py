"""`electra finetune`: a model and labelled examples -> scores over seeds, and the fine-tuned model."""

import dataclasses
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from electra import config, files
from electra.errors import InputError, import_extra
from electra.model.encoder import Layer
from electra.model.names import layer_depth
from electra.show import table
from electra.tasks import results, sweep
from electra.tasks.batches import TaskMixture
from electra.tasks.config import EpochLogConfig, EpochTrainConfig, paper_size, paper_values
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import AX, GLUE, TaskSource
from electra.tasks.model import TaskModel, find_start
from electra.tasks.seed_results import SeedResult
from electra.tasks.step import FinetuneProblem, Share, flops_per_token
from electra.tasks.study import (
    Study,
    content_hash,
    describe_tasks,
    limited,
    require_trainable,
    tokenize_tasks,
)
from electra.tasks.sweep import SweepConfig
from electra.train import devices, resume
from electra.train.checkpoint import CheckpointConfig
from electra.train.devices import Precision
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.log import METRICS
from electra.train.loop import LoopConfig
from electra.train.optim import build_optimizer
from electra.train.resume import ResumeConfig
from electra.train.session import CHECKPOINTS, Session
from electra.train.state import TrainState

USAGE = "electra finetune --model RUN|DIR|none --task NAME|FILE --data DIR --out DIR"


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TaskSource):
    """A fine-tuning, with several seeds. Values that are not given are the paper's."""

    model: str = ""
    """Run of `electra pretrain`, folder of a model (fine-tuned before or not), or none for random weights."""
    like: str = ""
    """With --model none: the run or folder whose shape and tokenizer it has."""
    out: str = ""
    """Folder for scores, predictions, report and model; the same command on an existing one continues it."""
    seeds: int = 5
    """Fine-tunings of the same model, which differ in new heads, order of examples and dropout."""
    seed: int = 0
    """Of the first of them; the others have the numbers that follow."""
    limit_train: int | None = None
    """Training examples to use, classes in their shares; the same ones for all seeds."""
    limit_eval: int | None = None
    """Held-out examples to score, for a quick look: marked as partial wherever the scores are shown."""
    max_length: int | None = None
    """Tokens of a row, special ones included; by default the task's own."""
    dropout: float | None = None
    """Dropout of the encoder; by default its own."""
    baseline: str = ""
    """Folder of another fine-tuning of the task, such as one of --model none, whose scores the report has
    beside these."""
    ensemble: Literal["off", "on"] = "off"
    """Whether the mean of all seeds' probabilities is scored, too."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of a seed that is finished; its model is always kept."""
    train: EpochTrainConfig = field(default_factory=EpochTrainConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    log: EpochLogConfig = field(default_factory=EpochLogConfig)
    checkpoint: CheckpointConfig = field(
        default_factory=lambda: CheckpointConfig(save_every=500, keep_last=1)
    )
    # Examples that are known by heart have losses near nothing, beside which any other is a spike.
    health: HealthConfig = field(default_factory=lambda: HealthConfig(spike_factor=math.inf))
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    dry_run: bool = False
    """Check everything and say what would be done; nothing is written."""

    def __post_init__(self) -> None:
        for key in ("seeds", "limit_train", "limit_eval"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise InputError(f"{key} is {value}, expected 1 or more")


# Keys that change nothing about what one fine-tuning computes. That model and data are the same is told by
# their hashes.
FREE_KEYS = (
    *("model", "like", "data", "out", "seeds", "ensemble", "keep_checkpoints", "sweep", "dry_run"),
    *("checkpoint", "resume", "log.log_every", "log.trackers", "baseline"),
)


def main(arguments: Sequence[str]) -> None:
    """Fine-tune, or continue to."""
    given = read_settings(arguments)
    world = World.from_environment()
    devices.set_up_allocator()
    device = devices.choose_device(given.train.device, local_rank=world.local_rank)
    with world.joined(device):
        if catalogue.task_names(given) == [GLUE]:
            finetune_glue(arguments, given, world, device)
        else:
            finetune(arguments, given, world, device)


def read_settings(arguments: Sequence[str]) -> FinetuneConfig:
    """What was given, and whether it is enough to begin."""
    words = [word for word in arguments if word.partition("=")[0] != "--print_config"]
    given = config.parse(FinetuneConfig, words, prog="electra finetune")
    needed = ("model", "task") if given.dry_run else ("model", "task", "out")
    missing = [key for key in needed if not getattr(given, key)]
    if missing and words == list(arguments):
        raise InputError(f"--{missing[0]} is missing: {USAGE} (see 'electra finetune --help')")
    # With everything given, the answer to --print_config has the values of the paper for it.
    return config.parse(FinetuneConfig, arguments, prog="electra finetune") if missing else given


def with_paper_values(
    arguments: Sequence[str], given: FinetuneConfig, values: Mapping[str, float]
) -> FinetuneConfig:
    """The paper's values first, then the file's, then the command line's."""
    other_budget = given.train.steps or given.train.max_time or given.train.max_tokens
    preset = [
        f"--{key}={value!r}" for key, value in values.items() if key != "train.epochs" or not other_budget
    ]
    return config.parse(FinetuneConfig, [*preset, *arguments], prog="electra finetune")


def finetune_glue(
    arguments: Sequence[str], given: FinetuneConfig, world: World, device: torch.device
) -> None:
    """Every task of a folder after the other, and their table."""
    names, left_out = catalogue.trainable_glue(given.data)
    medians: dict[str, float | None] = {}
    for name in names:
        out = Path(given.out) / name
        words = [*arguments, f"--task={name}", f"--out={out}"]
        if given.baseline:
            words.append(f"--baseline={Path(given.baseline) / name}")
        finetune(words, read_settings(words), world, device)
        if not given.dry_run:
            medians[name] = results.main_median(out)
    if world.writes and not given.dry_run:
        size = paper_size(find_start(given.model, like=given.like, dropout=None).config)
        print(f"\n{results.glue_table(medians, size=size, names=catalogue.GLUE_COLUMNS)}")
        for reason in left_out.values():
            print(f"  left out: {reason}")
        if given.limit_train or given.limit_eval:
            print("  a quick look: only a part of the examples was trained on or scored")
        files.write_json(Path(given.out) / "glue.json", {"medians": medians, "left_out": left_out})


@dataclass(frozen=True, kw_only=True)
class Job:
    """A study, and what it is run with."""

    settings: FinetuneConfig
    study: Study
    world: World
    device: torch.device
    precision: Precision
    peak: float

    def changed(self, *, out: str, learning_rate: float, epochs: float) -> "Job":
        """The same with what a sweep has chosen, which leaves nothing to sweep, in another folder."""
        train = dataclasses.replace(self.settings.train, learning_rate=learning_rate, epochs=epochs)
        settings = dataclasses.replace(self.settings, out=out, train=train, sweep=SweepConfig())
        values = resume.plain(config.to_dict(settings))
        study = dataclasses.replace(self.study, out=Path(out), config=values)
        return dataclasses.replace(self, settings=settings, study=study)

    def check(self, saved: Mapping[str, Any], *, seed: int) -> None:
        """Refuse to go on with what was begun with other settings."""
        resume.check_same_run(saved, self.study.facts(seed), self.settings.resume, free_keys=FREE_KEYS)


def finetune(arguments: Sequence[str], given: FinetuneConfig, world: World, device: torch.device) -> None:
    """Train and score every seed, then say how good they are."""
    job = prepare(arguments, given, world, device)
    study, notes = job.study, list[str]()
    if world.writes:
        print(table(list(describe(job))), flush=True)
    if job.settings.dry_run:
        return
    with ExitStack() as stack:
        if world.writes:
            study.out.mkdir(parents=True, exist_ok=True)
            busy = f"{study.out} is being worked on by another process: wait for it, or choose another --out"
            stack.enter_context(files.locked(study.out / ".lock", busy=busy))
        world.barrier()
        if job.settings.sweep.trials:
            job, note = swept(job)
            study = job.study
            notes.append(note)
        for seed in filter(study.is_finished, study.seeds):
            job.check(study.read(seed).facts, seed=seed)
        by_seed = [run_seed(job, seed) for seed in study.seeds]
        if world.writes:
            for task, content in zip(study.tasks, study.conclude(by_seed, notes), strict=True):
                show(study.task_folder(task), content)


def prepare(arguments: Sequence[str], given: FinetuneConfig, world: World, device: torch.device) -> Job:
    """Read and check everything: model, data, settings."""
    names = catalogue.task_names(given)
    if AX in names:
        raise InputError(
            "ax has no training examples: fine-tune on mnli, then electra predict --model DIR --task ax"
        )
    start = find_start(given.model, like=given.like, dropout=given.dropout)
    tasks = [catalogue.load_task(name, given) for name in names]
    settings = with_paper_values(arguments, given, paper_values(start.config, tasks))
    for task in tasks:
        require_trainable(task)
        results.read_baseline(settings.baseline, task, alone=len(tasks) == 1)
        if settings.ensemble == "on" and (reason := task.family.ensemble_obstacle):
            raise InputError(f"--ensemble on is not possible for {task.name}: {reason}")
        if task.family.needs_whole_batch and (settings.train.micro_batch != "all" or world.size > 1):
            raise InputError(
                f"{task.name} learns by comparing the pairs of a batch, which must then be in one piece: "
                "--train.micro_batch all, and one process"
            )
    if settings.sweep.trials and (len(tasks) > 1 or settings.train.epochs is None or world.size > 1):
        raise InputError("--sweep.trials is for one task, one process, and a budget in epochs")
    # What a run has once found for itself stays, so that it goes on as the same run.
    found = resume.read_choices(Path(settings.out)) if settings.out else {}
    asked = settings.train.precision
    precision = devices.choose_precision(
        found.get("precision", asked) if asked == "auto" else asked, device, world
    )
    fewer = [limited(task, train=settings.limit_train, held_out=settings.limit_eval) for task in tasks]
    study = Study(
        out=Path(settings.out),
        source=settings,
        start=start,
        tokenized=tokenize_tasks(fewer, start.tokenizer, start.config, max_length=settings.max_length),
        dataset_sha256=content_hash(tasks),
        seeds=[settings.seed + number for number in range(settings.seeds)],
        config=resume.plain(config.to_dict(settings)),
        choices={"device": device.type, "precision": precision},
        precisely=partial(devices.autocast, device, precision),
    )
    peak = devices.gemm_speed(device, precision) if world.writes and not settings.dry_run else 0.0
    return Job(settings=settings, study=study, world=world, device=device, precision=precision, peak=peak)


def describe(job: Job) -> Iterator[tuple[str, str]]:
    """What a person should know before it begins."""
    study, train = job.study, job.settings.train
    yield from describe_tasks(study.tokenized)
    size = sum(weight.numel() for weight in study.model(study.seeds[0]).parameters())
    yield "model", f"{study.start.description()}; {size:,} parameters"
    budget = train.budget_for(steps_per_epoch=study.train_batches(study.seeds[0]).num_batches)
    words = [
        *([] if train.epochs is None else [f"{train.epochs:g} epoch{'s' if train.epochs != 1 else ''}"]),
        *([] if budget.steps is None else [f"{budget.steps:,} steps of {train.batch_size} examples"]),
        f"learning rate {train.learning_rate:g}, layer decay {train.layer_decay:g}",
        f"{job.device.type} in {job.precision}",
    ]
    yield "training", ", ".join(words)
    yield "seeds", ", ".join(map(str, study.seeds))


def run_seed(job: Job, seed: int) -> SeedResult:
    """One fine-tuning; what it gave is read again if it is finished."""
    study, folder = job.study, job.study.folder(seed)
    if not study.is_finished(seed):
        if job.world.writes:
            print(f"\nseed {seed}", file=sys.stderr, flush=True)
        result, model = train_seed(job, seed, folder)
        if job.world.writes:
            study.finish(seed, model, result)
    job.world.barrier()
    if job.world.writes and not job.settings.keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return study.read(seed)


def train_seed(job: Job, seed: int, folder: Path) -> tuple[SeedResult, TaskModel]:
    """Train to the end of the budget, and score what is held out."""
    settings, train, study = job.settings, job.settings.train, job.study
    model, batches = study.model(seed).to(job.device), study.train_batches(seed)
    num_layers = study.start.config.num_hidden_layers
    model.encoder.recomputes_layers = train.checkpoint_activations
    if train.compile != "off":
        # One graph for all lengths: one for each would take minutes, and after eight torch gives up.
        model.encoder.compile(mode=train.compile, dynamic=True)
    depth = partial(layer_depth, num_layers=num_layers)
    state = TrainState(
        model=model,
        optimizer=build_optimizer(train, model.named_parameters(), depth=depth, num_layers=num_layers),
        scaler=torch.amp.GradScaler(job.device.type) if job.precision == "fp16" else None,
    )
    if job.world.writes:
        folder.mkdir(parents=True, exist_ok=True)
    Session(
        folder=folder,
        state=state,
        problem=make_problem(job, model, batches, seed),
        loop=LoopConfig(
            schedule=train,
            clip_norm=train.clip_norm,
            budget=train.budget_for(steps_per_epoch=batches.num_batches),
            device=job.device,
            precision=job.precision,
        ),
        log=settings.log.in_steps(steps_per_epoch=batches.num_batches),
        checkpoint=settings.checkpoint,
        health=settings.health,
        world=job.world,
        facts=study.facts(seed),
        check_facts=partial(job.check, seed=seed),
        on_start=partial(write_description, job),
        peak=job.peak * job.world.size,
    ).run()
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


def make_problem(job: Job, model: TaskModel, batches: TaskMixture, seed: int) -> FinetuneProblem:
    """What is minimised."""
    world, train, study = job.world, job.settings.train, job.study
    micro_batch = train.micro_batch if isinstance(train.micro_batch, int) else None
    return FinetuneProblem(
        model=model,
        module=world.wrap(
            model,
            train.parallel,
            layers=[part for part in model.modules() if isinstance(part, Layer)],
            # A batch is of one task: the heads of the others have no gradient.
            idle_weights=len(study.tasks) > 1,
        ),
        train=batches,
        held_out=study.held_out(),
        seed=seed,
        share=Share(rank=world.rank, world_size=world.size, micro_batch=micro_batch),
        device=job.device,
        tokenizer=study.start.tokenizer,
        flops_per_token=flops_per_token(model, study.tokenized.train_rows),
    )


def write_description(job: Job) -> None:
    """Write config.yaml and environment.json."""
    if job.world.writes:
        resume.write_description(
            job.study.out,
            config.to_dict(job.settings),
            choices=job.study.choices,
            gemm_peak_flops=job.peak,
        )


def swept(job: Job) -> tuple[Job, str]:
    """Search learning rate and epochs by the first held-out split: the job with the best of them."""
    (task,), train, out = job.study.tasks, job.settings.train, job.study.out
    assert train.epochs is not None
    write_description(job)

    def run(number: int, learning_rate: float, epochs: float) -> float | None:
        folder = out / "sweep" / f"trial-{number:03}"
        tried = job.changed(out=str(folder), learning_rate=learning_rate, epochs=epochs)
        result, _ = train_seed(tried, job.settings.seed, folder)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        return results.main_value(task, result)

    best, note = sweep.choose(
        job.settings.sweep,
        run,
        out / "sweep.json",
        task,
        learning_rate=train.learning_rate,
        epochs=train.epochs,
        seed=job.settings.seed,
    )
    return job.changed(out=str(out), learning_rate=best.learning_rate, epochs=best.epochs), note


def show(folder: Path, content: Mapping[str, Any]) -> None:
    """The scores, and where a person finds what."""
    print(f"\n{results.score_table(content['splits'], main_score=content['main_score'])}\n")
    print(table([*results.places(folder, content), ("page", write_page(folder))]), flush=True)


def write_page(folder: Path) -> str:
    """Write report.html; where it is, or what is missing for it."""
    try:
        import_extra("matplotlib", extra="report")
    except InputError as error:
        return f"not written: {error}"
    # It imports matplotlib, so only now.
    from electra.report.finetune import write_finetune_report

    return str(write_finetune_report(folder))
