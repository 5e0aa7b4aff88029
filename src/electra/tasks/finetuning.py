"""A model, labelled examples and settings -> a fine-tuned model for each seed, and their scores.

`jobs` reads and checks everything that was asked for, `run_job` trains a job. A `Study` keeps the results.
"""

import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from electra import config, files
from electra.cluster import Cluster
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
from electra.tasks.data.catalogue import AX, CONTRASTIVE, GLUE
from electra.tasks.families.family import PooledFamily
from electra.tasks.families.tagging import Decoding, Tagging
from electra.tasks.model import StartModel, TaskModel, find_start
from electra.tasks.seed_results import SCORES, SeedResult
from electra.tasks.step import FinetunePart, FinetuneProblem, HeldOut, Share, flops_per_token
from electra.tasks.study import (
    Study,
    content_hash,
    limited,
    require_trainable,
    tokenize_tasks,
)
from electra.tasks.sweep import Looks, Outcome, Proposal, SweepConfig, TrialStoppedError
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

    @property
    def threads(self) -> int:
        """Cores of a worker on a cluster."""
        return self.settings.train.threads or int(self.study.choices["cores"])

    def changed(self, *, out: str, learning_rate: float, epochs: float, looks: int = 0) -> "Job":
        """The same in another folder with what a sweep has chosen, and nothing left to sweep.

        With `looks`, it is evaluated so often on its way.
        """
        train = dataclasses.replace(self.settings.train, learning_rate=learning_rate, epochs=epochs)
        if train.optimizer == "muon":
            # A sweep searches one learning rate: that of the matrices stays in proportion to it.
            share = learning_rate / self.settings.train.learning_rate
            train = dataclasses.replace(train, matrix_learning_rate=share * train.matrix_learning_rate)
        settings = dataclasses.replace(self.settings, out=out, train=train, sweep=SweepConfig())
        if looks:
            log = dataclasses.replace(settings.log, evaluate_epochs=epochs / (looks + 1))
            settings = dataclasses.replace(settings, log=log)
        study = dataclasses.replace(self.study, out=Path(out), config=kept_config(settings))
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
    given, fitted = fit(given, start, world)
    settings = given.config(finetune_defaults(given, start.config, tasks, fitted))
    check(settings, tasks, world)
    if CONTRASTIVE in names:
        require_different_views(settings, start)
    tasks = [decoded(pooled(task, settings.pooling), settings.decoding) for task in tasks]
    engine = Engine.choose(settings.train, world, device, run=Path(settings.out) if settings.out else None)
    fewer = [limited(task, train=settings.limit_train, held_out=settings.limit_eval) for task in tasks]
    study = Study(
        out=Path(settings.out),
        source=settings,
        start=start,
        tokenized=tokenize_tasks(fewer, start.tokenizer, start.config, max_length=settings.max_length),
        dataset_sha256=content_hash(tasks),
        seeds=[settings.seed + number for number in range(settings.seeds)],
        config=kept_config(settings),
        choices=engine.choices(**fitted_choices(settings)),
        precisely=partial(devices.autocast, device, engine.precision),
    )
    whole = next((task.name for task in tasks if task.family.needs_whole_batch), "")
    obstacle = f"{whole} compares the examples of a batch with one another" if whole else ""
    # A dry run trains nothing, and a cluster does it elsewhere, so that there is nothing to measure here.
    is_elsewhere = settings.cluster and settings.train.cores == "auto" and "cores" not in engine.kept
    is_untimed = settings.dry_run or is_elsewhere
    cores = 1 if is_untimed else engine.num_cores(StepTimer(study, engine), obstacle=obstacle)
    study = dataclasses.replace(study, choices={**study.choices, "cores": cores})
    peak = 0.0 if settings.dry_run else engine.peak()
    return Job(settings=settings, study=study, engine=engine, peak=peak)


def kept_config(settings: FinetuneConfig) -> dict[str, Any]:
    """What a fine-tuning keeps of its settings: where it was trained makes no difference."""
    here = dataclasses.replace(settings, cluster=None, cluster_gpus=0.0)
    return dict(json_values(config.to_dict(here)))


def fit(
    given: Given[FinetuneConfig], start: StartModel, world: World
) -> tuple[Given[FinetuneConfig], dict[str, Any]]:
    """What was given, without any `auto` of `FITTED`; and what these keys are for the start unless given.

    A run that has begun keeps what it chose then; before there was a choice, that was the paper's.
    """
    given = dataclasses.replace(
        given,
        values={key: value for key, value in given.values.items() if key not in FITTED or value != "auto"},
    )
    out, tuned = given.draft().out, start.tuned
    kept = world.first_says(lambda: read_choices(Path(out))) if out else {}
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


def decoded(task: Task, decoding: Decoding | None) -> Task:
    """The task with tags that are chosen in the way that was asked for, if it has tags."""
    if decoding is None or not isinstance(task.family, Tagging):
        return task
    return dataclasses.replace(task, family=dataclasses.replace(task.family, decoding=decoding))


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
            "one vector: leave it at auto (for vectors: --own.pooling, --contrastive.pooling)"
        )
    if settings.decoding and not any(isinstance(task.family, Tagging) for task in tasks):
        raise InputError(f"decoding is {settings.decoding}, but {tasks[0].name} has no tags: leave it out")
    if settings.cluster and world.size > 1:
        raise InputError("--cluster starts its own workers: start the command itself without torchrun")
    if settings.sweep.trials and (len(tasks) > 1 or settings.train.epochs is None or world.size > 1):
        raise InputError("--sweep.trials is for one task, one process, and a budget in epochs")


def require_different_views(settings: FinetuneConfig, start: StartModel) -> None:
    """Refuse a text seen twice where neither dropout nor hidden tokens make a difference."""
    encoder = start.config
    is_same = not (encoder.hidden_dropout_prob or encoder.attention_probs_dropout_prob or settings.mask_prob)
    if settings.contrastive.views == "dropout" and is_same:
        raise InputError(
            "--contrastive.views dropout sees a passage twice with other dropout, and the model has none: "
            "give --dropout 0.1, or --contrastive.views spans"
        )


def run_job(job: Job) -> dict[str, dict[str, Any]]:
    """Train and score every seed that is not finished: the content of scores.json by task."""
    ((_, content),) = run_jobs([job], None)
    return content


def run_jobs(jobs: Iterable[Job], cluster: Cluster | None) -> Iterator[tuple[Job, dict[str, dict[str, Any]]]]:
    """Each job with what `run_job` gives; on a cluster, several seeds of several jobs at the same time."""
    if cluster is None:
        for job in jobs:
            with job.engine.holding(job.study.out):
                yield conclude(*begin(job, None))
        return
    with contextlib.ExitStack() as stack:
        begun: deque[tuple[Job, list[str]]] = deque()

        def pieces() -> Iterator[SeedPiece]:
            for job in jobs:
                stack.enter_context(job.engine.holding(job.study.out))
                ready, notes = begin(job, cluster)
                begun.append((ready, notes))
                unfinished = [seed for seed in ready.study.seeds if not ready.study.is_finished(seed)]
                if unfinished:
                    ready.describe()
                yield from (SeedPiece(job=ready, seed=seed) for seed in unfinished)

        for piece, content in on_cluster(cluster, train_on_node, pieces()):
            keep_seed(piece, content)
            while begun and all(map(begun[0][0].study.is_finished, begun[0][0].study.seeds)):
                yield conclude(*begun.popleft())
        while begun:
            yield conclude(*begun.popleft())


def begin(job: Job, cluster: Cluster | None) -> tuple[Job, list[str]]:
    """The job with what a sweep has chosen, and notes; refuses what was begun with other settings."""
    notes = []
    if job.settings.sweep.trials:
        job, note = sweep_settings(job, cluster)
        notes.append(note)
    job.engine.world.first_says(lambda: check_finished(job))
    return job, notes


def check_finished(job: Job) -> None:
    """Refuse seeds that were trained with other settings."""
    for seed in filter(job.study.is_finished, job.study.seeds):
        job.check(job.study.read(seed).facts, seed=seed)


def conclude(job: Job, notes: Sequence[str]) -> tuple[Job, dict[str, dict[str, Any]]]:
    """Train the seeds that are not finished, and write the scores of all."""
    study = job.study
    for seed in study.seeds:
        run_seed(job, seed)
    if not job.engine.world.writes:
        return job, {}
    contents = study.conclude([study.read(seed) for seed in study.seeds], notes)
    return job, {task.name: content for task, content in zip(study.tasks, contents, strict=True)}


@dataclass(frozen=True, kw_only=True)
class SeedPiece:
    """A seed to train on a node, with everything that it needs: nodes see no folder of ours."""

    job: Job
    seed: int

    @property
    def name(self) -> str:
        """For a person."""
        return f"seed {self.seed} of {', '.join(task.name for task in self.job.study.tasks)}"


@dataclass(frozen=True, kw_only=True)
class TrialPiece:
    """A trial of a sweep, in the same way."""

    job: Job
    proposal: Proposal

    @property
    def name(self) -> str:
        """For a person."""
        return f"trial {self.proposal.number}"


PieceT = TypeVar("PieceT", SeedPiece, TrialPiece)
Result = TypeVar("Result")


def on_cluster(
    cluster: Cluster, function: Callable[[PieceT], Result], pieces: Iterable[PieceT]
) -> Iterator[tuple[PieceT, Result]]:
    """Pieces with their results, in order; each is reported when it is done."""
    found = iter(pieces)
    first = next(found, None)
    if first is None:
        return

    def report(piece: PieceT, node: str) -> None:
        print(f"  {piece.name} is trained, on node {node}", file=sys.stderr, flush=True)

    yield from cluster.work(
        function,
        chain([first], found),
        cpus=first.job.threads,
        gpus=first.job.settings.cluster_gpus,
        on_done=report,
    )


@contextmanager
def working_on_node(job: Job) -> Iterator[Job]:
    """The job as it is on a node: in a folder that ends with it, on the node's own device."""
    devices.set_up_allocator()
    torch.set_num_threads(job.threads)
    engine, study = job.engine, job.study
    if job.settings.cluster_gpus:
        engine = Engine.choose(job.settings.train, World(), devices.choose_device("cuda"))
        study = dataclasses.replace(
            study,
            choices={**study.choices, **engine.choices()},
            precisely=partial(devices.autocast, engine.device, engine.precision),
        )
    with tempfile.TemporaryDirectory(prefix="electra-finetune-") as out, engine.computing():
        yield dataclasses.replace(job, engine=engine, study=dataclasses.replace(study, out=Path(out)))


def train_on_node(piece: SeedPiece) -> dict[str, bytes]:
    """The files of a finished seed's folder."""
    with working_on_node(piece.job) as job:
        run_seed(job, piece.seed)
        return files.read_folder(job.study.folder(piece.seed))


def try_on_node(piece: TrialPiece) -> Outcome:
    """What a trial gave."""
    with working_on_node(piece.job) as job:
        return run_trial(job, piece.proposal, job.study.out / "trial")


def keep_seed(piece: SeedPiece, content: Mapping[str, bytes]) -> None:
    """Write the folder of a seed as if it had been trained here: what marks it as finished comes last."""
    folder = piece.job.study.folder(piece.seed)
    files.write_folder(folder, {name: data for name, data in content.items() if name != SCORES})
    files.write_folder(folder, {SCORES: content[SCORES]})


def run_seed(job: Job, seed: int) -> None:
    """Train one seed, unless it is finished, and write what it gave."""
    study, world, folder = job.study, job.engine.world, job.study.folder(seed)
    if not world.first_says(lambda: study.is_finished(seed)):
        if world.writes:
            print(f"\nseed {seed}", file=sys.stderr, flush=True)
        result, model = train_seed(job, seed, folder)
        if world.writes:
            study.finish(seed, model, result)
    world.barrier()
    if world.writes and not job.settings.keep_checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def train_seed(
    job: Job, seed: int, folder: Path, *, on_evaluation: Looks | None = None
) -> tuple[SeedResult, TaskModel]:
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
        mask_prob=settings.mask_prob,
    )
    problem.on_evaluation = on_evaluation
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
        history=results.history(folder / METRICS, study.tasks, seed=seed, steps_per_epoch=batches.num_batches)
        if engine.world.writes
        else {},
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
    mask_prob: float = 0.0,
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
        mask_prob=mask_prob,
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


def sweep_settings(job: Job, cluster: Cluster | None) -> tuple[Job, str]:
    """Search learning rate and epochs by the first held-out split: the job with the best, and a note."""
    (task,), train, out = job.study.tasks, job.settings.train, job.study.out
    assert train.epochs is not None
    job.describe()

    def run_round(proposals: Sequence[Proposal]) -> Iterator[Outcome]:
        if cluster is None:
            for proposal in proposals:
                yield run_trial(job, proposal, out / "sweep" / f"trial-{proposal.number:03}")
            return
        pieces = [TrialPiece(job=job, proposal=proposal) for proposal in proposals]
        for _, outcome in on_cluster(cluster, try_on_node, pieces):
            yield outcome

    best, note = sweep.choose_trial(
        job.settings.sweep,
        run_round,
        out / "sweep.json",
        task,
        learning_rate=train.learning_rate,
        epochs=train.epochs,
        seed=job.settings.seed,
    )
    return job.changed(out=str(out), learning_rate=best.learning_rate, epochs=best.epochs), note


def run_trial(job: Job, proposal: Proposal, folder: Path) -> Outcome:
    """Train one seed with what is proposed, or until it is stopped."""
    (task,), seed, num_looks = job.study.tasks, job.settings.seed, len(proposal.bars)
    trial = job.changed(
        out=str(folder), learning_rate=proposal.learning_rate, epochs=proposal.epochs, looks=num_looks
    )
    looks = None
    if num_looks:
        steps_per_epoch = trial.study.train_batches(seed).num_batches
        every = trial.settings.log.in_steps(steps_per_epoch=steps_per_epoch).evaluate_every
        looks = Looks(every=every, score=task.main_score, bars=proposal.bars)
        if (metrics := folder / METRICS).is_file():
            # The trial was interrupted.
            known = results.history(metrics, [task], seed=seed, steps_per_epoch=steps_per_epoch)[task.name]
            looks.seen += [one["dev"].get(task.main_score) for one in known if not one["step"] % every]
    try:
        result, _ = train_seed(trial, seed, folder, on_evaluation=looks)
        outcome = Outcome(results.main_value(task, result), looks.seen if looks else [])
    except TrialStoppedError:
        assert looks is not None
        outcome = Outcome(looks.seen[-1], looks.seen, is_stopped=True)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return outcome


def write_glue(settings: FinetuneConfig, medians: Mapping[str, float | None]) -> dict[str, Any]:
    """Write glue.json beside the folders of the tasks: their medians, and why tasks were left out."""
    content = {"medians": dict(medians), "left_out": catalogue.trainable_glue(settings.data)[1]}
    files.write_json(Path(settings.out) / GLUE_SCORES, content)
    return content
