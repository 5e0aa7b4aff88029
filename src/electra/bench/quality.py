"""Recipes, tasks and budgets -> how good encoders are after minutes of pre-training, with their spread.

    rows       each recipe, pre-trained on the same data for the same budget with several seeds; the encoder
               of the last recipe with random weights; a linear model of scikit-learn
    columns    tasks, fine-tuned with the same settings for all rows; minimal pairs, without any fine-tuning
    budgets    wall-clock times, or with --quality.tokens numbers of tokens. Time is what a user has, and
               what a cheaper step earns. On a machine that others use as well, times measure the neighbours:
               equal tokens are the same on every machine, and the seconds stand beside them.

Every number is measured once and kept in a file, so that the command goes on where it was stopped; a
pre-training that was killed goes on from its checkpoint. The program is not among the settings: after a
change of the code, give another folder. With a cluster, each pre-training and what is measured of it is done
by a worker, which must see the data under the same names; budgets of time are equal only on equal machines,
so the result has the processors.

    OUT/cells/*.json    one for each pre-training, fine-tuning or baseline; a hash of its settings is its name
    OUT/runs/*          the pre-trained runs, without their checkpoints
    OUT/tasks           the demo's tasks, if they are columns
    OUT/quality.json    everything in one file, written after each cell
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from electra import config, files, show
from electra.bench.turns import processor_flags, say
from electra.cluster import connected
from electra.demo import tasks as demo
from electra.errors import InputError, import_extra
from electra.prediction.load import load
from electra.prediction.minimal_pairs import score_minimal_pairs
from electra.prediction.scoring import METHODS
from electra.pretraining.build import FINAL, Data, run_pretraining
from electra.pretraining.config import FREE_KEYS, PretrainRunConfig, paper_defaults
from electra.tasks import baselines, finetuning
from electra.tasks.config import FinetuneConfig
from electra.tasks.data import catalogue
from electra.tasks.data.minimal_pairs import TASK as MINIMAL_PAIRS
from electra.tasks.data.minimal_pairs import load_minimal_pairs
from electra.tasks.model import RANDOM
from electra.tasks.study import content_hash, limited, require_trainable
from electra.tasks.task import Task
from electra.train import devices, engine
from electra.train.engine import ENVIRONMENT, json_values
from electra.train.schedule import parse_duration
from electra.train.session import CHECKPOINTS

RESULT, CELLS, RUNS = "quality.json", "cells", "runs"
RANDOM_WEIGHTS, LINEAR = "random weights", "linear model"
BUDGETS = ("3m", "10m", "30m")
FINETUNING = (
    *("limit_train=3000", "train.epochs=6", "train.learning_rate=1e-3", "train.layer_decay=1"),
    "log.evaluate_epochs=1000",
)
"""Bounded, so that a cell takes a minute, and long enough for random weights to learn what they can."""
_TEST = "test"


@dataclass(frozen=True, kw_only=True)
class QualityBenchConfig:
    """How good encoders are after equal budgets of pre-training. Run the same command again to continue."""

    data: str = ""
    """Folder made by `electra prepare`, which all recipes are pre-trained on."""
    out: str = "quality"
    """Folder for everything that was measured."""
    recipes: list[str] = field(
        default_factory=lambda: ["mlm: mlm model.size=tiny", "electra: tiny", "minutes"]
    )
    """Rows: recipes or YAML files, each with a name before it and keys behind it if wanted, in quotes:
    "wide: minutes model.hidden_size=256". The last one's encoder is also tried with random weights."""
    budgets: list[str] = field(default_factory=list)
    """Times of pre-training. Default: 3m 10m 30m, unless tokens are given."""
    tokens: list[float] = field(default_factory=list)
    """Numbers of tokens to pre-train on, such as 2e6, in place of times."""
    seeds: int = 3
    """Pre-trainings of each recipe and budget."""
    tasks: list[str] = field(default_factory=list)
    """Columns: NAME=DIR with the name of a task of `electra finetune` (conll2000=DIR conllu=DIR sst2=DIR
    stsb=DIR) or minimal_pairs=DIR; a YAML file of a task of your own; code_words and passages, the demo's."""
    finetune_seeds: int = 1
    """Fine-tunings of each pre-trained encoder; their median counts."""
    finetune: list[str] = field(default_factory=list)
    """Keys of `electra finetune` for all rows, such as limit_train=1000 train.epochs=4. Defaults:
    limit_train=3000 train.epochs=6 train.learning_rate=1e-3 train.layer_decay=1."""
    pretrain: list[str] = field(default_factory=list)
    """Keys of `electra pretrain` for all recipes, such as train.precision=fp32."""
    pairs: int = 200
    """Minimal pairs of each phenomenon."""

    def __post_init__(self) -> None:
        for key in ("seeds", "finetune_seeds", "pairs"):
            if getattr(self, key) < 1:
                raise InputError(f"quality.{key} is {getattr(self, key)}, expected 1 or more")
        if self.budgets and self.tokens:
            raise InputError("quality.budgets and quality.tokens are both given: give times or tokens")
        for text in self.budgets:
            parse_duration(text, key="quality.budgets")
        for number in self.tokens:
            if number < 1:
                raise InputError(f"quality.tokens has {number:g}, expected 1 or more")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a pre-training may use."""

    name: str
    size: float
    """Seconds or tokens."""
    words: tuple[str, ...]
    """The keys of `electra pretrain` that say so."""


def budgets_of(settings: QualityBenchConfig) -> list[Budget]:
    """From the smallest to the largest."""
    found = [
        Budget(
            name=f"{show.short(number)} tokens",
            size=number,
            words=(f"train.max_tokens={number:g}", "train.max_time=null", "train.steps=null"),
        )
        for number in settings.tokens
    ] or [
        Budget(
            name=text,
            size=parse_duration(text, key="quality.budgets"),
            words=(f"train.max_time={text}", "train.max_tokens=null", "train.steps=null"),
        )
        for text in settings.budgets or BUDGETS
    ]
    return sorted(found, key=lambda budget: budget.size)


def options(words: Sequence[str], *, key: str) -> list[str]:
    """key=value -> --key=value."""
    for word in words:
        if not re.fullmatch(r"(--)?[a-z_][\w.]*=.*", word):
            raise InputError(f"{key} has {word!r}, expected KEY=VALUE such as train.precision=fp32")
    return [f"--{word.removeprefix('--')}" for word in words]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recipe by the name it has in the table."""

    name: str
    recipe: str
    keys: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "Row":
        """[NAME: ]RECIPE [KEY=VALUE ...]"""
        found = re.fullmatch(r"(?:([^:=]+):\s+)?(\S+)((?:\s+\S+)*)\s*", text.strip())
        if not found:
            raise InputError(f"quality.recipes has {text!r}, expected a recipe such as minutes")
        recipe, keys = found[2], tuple(found[3].split())
        name = found[1] or " ".join(
            [Path(recipe).stem if recipe.endswith((".yaml", ".yml")) else recipe, *keys]
        )
        if name in (RANDOM_WEIGHTS, LINEAR):
            raise InputError(f"quality.recipes has a row called {name!r}, which there is one of already")
        return cls(name=name, recipe=recipe, keys=keys)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Something that is measured once."""

    name: str
    """Of its file, without the hash."""
    facts: Mapping[str, Any]
    """All that its value depends on."""

    @cached_property
    def file_name(self) -> str:
        """The name with a hash of the facts: other settings are another cell."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.name)}-{digest[:10]}"


class Column(Protocol):
    """What is measured of an encoder: one or more scores."""

    name: str
    needs_training: bool
    """Whether it says something of random weights."""
    scores: dict[str, str]
    """Heading of a column -> what is scored, for a person."""
    fingerprint: dict[str, Any]
    """All that a value depends on beside the encoder."""

    def measure(self, start: Sequence[str], *, seed: int, folder: Path) -> dict[str, float | None]:
        """Heading -> value for the encoder of `--model=...`; `folder` may be used, and is removed later."""

    def linear(self) -> dict[str, float | None]:
        """Heading -> value of the linear model; empty if there is none."""


class TaskColumn:
    """A task to fine-tune on."""

    needs_training = True

    def __init__(self, name: str, words: Sequence[str], settings: QualityBenchConfig) -> None:
        self.name = name
        own = options(settings.finetune, key="quality.finetune")
        self._words = [*options(FINETUNING, key=""), *words, *own, f"--seeds={settings.finetune_seeds}"]
        asked = config.read(FinetuneConfig, self._words, prog="electra finetune").draft()
        (task_name,) = names = catalogue.task_names(asked)
        if names == [catalogue.GLUE]:
            raise InputError("quality.tasks has glue: name its tasks one by one, such as sst2=DIR")
        whole = catalogue.load_task(task_name, asked)
        require_trainable(whole)
        self._task: Task = limited(whole, train=asked.limit_train, held_out=asked.limit_eval)
        splits = self._task.scored_splits
        self._split = _TEST if _TEST in splits else splits[0]
        self._seeds = settings.finetune_seeds
        size = len(self._task.examples(self._split))
        self.scores = {name: f"{self._task.main_score} on {size:,} examples of {self._split}"}
        known = json_values(config.to_dict(asked))
        self.fingerprint: dict[str, Any] = {
            "task": name,
            "content": content_hash([self._task]),
            "finetune": {key: value for key, value in known.items() if key != "data"},
        }

    def measure(self, start: Sequence[str], *, seed: int, folder: Path) -> dict[str, float | None]:
        """Fine-tune, and take the median of the seeds."""
        words = [*self._words, *start, f"--seed={seed * self._seeds}", f"--out={folder}"]
        given = config.read(FinetuneConfig, words, prog="electra finetune")
        with engine.joined(given.draft().train.device) as (world, device):
            (content,) = finetuning.run_job(finetuning.prepare_job(given, world, device)).values()
        score = content["splits"][self._split]["scores"][self._task.main_score]["median"]
        # Undefined is the score of a model that says the same of everything.
        return {self.name: score or 0.0}

    def linear(self) -> dict[str, float | None]:
        """Of scikit-learn, if it has one for this kind of task."""
        if baselines.baseline_name(self._task) is None:
            return {}
        score = baselines.baseline_scores(self._task)[self._split][self._task.main_score]
        return {self.name: score.value if score.is_defined else 0.0}


class PairsColumn:
    """Minimal pairs, by each way that a model can score texts."""

    name = MINIMAL_PAIRS
    needs_training = False

    def __init__(self, folder: str, settings: QualityBenchConfig) -> None:
        self._folder, self._limit = folder, settings.pairs
        found = load_minimal_pairs(folder, limit=self._limit)
        number = sum(map(len, found.values()))
        about = f"accuracy on {number:,} pairs of {len(found)} phenomena; a guess is right in 50 %"
        self.scores = {f"pairs by {method}": about for method in METHODS}
        content = repr([(name, [pair[:2] for pair in pairs]) for name, pairs in found.items()])
        self.fingerprint: dict[str, Any] = {
            "task": self.name,
            "content": hashlib.sha256(content.encode()).hexdigest(),
        }

    def measure(self, start: Sequence[str], *, seed: int, folder: Path) -> dict[str, float | None]:
        """By the networks that the run has; the others stay empty."""
        (model,) = (word.removeprefix("--model=") for word in start)
        found = score_minimal_pairs(load(model), self._folder, by="auto", limit=self._limit).accuracies
        return {f"pairs by {method}": found.get(method) for method in METHODS}

    def linear(self) -> dict[str, float | None]:
        """There is none."""
        return {}


def read_columns(settings: QualityBenchConfig) -> list[Column]:
    """All columns, with their data read and checked."""
    if not settings.tasks:
        raise InputError(
            "quality.tasks is empty: give at least one, such as --quality.tasks conll2000=DIR "
            "minimal_pairs=DIR code_words"
        )
    demos = {demo.PASSAGES, demo.CODE_WORDS} & set(settings.tasks)
    read = {text: read_column(text, settings) for text in settings.tasks if text not in demos}
    if demos:
        # Last: reading all of Python's documentation takes half a minute.
        demo.write_tasks(Path(settings.out) / "tasks")
        read |= {text: read_column(text, settings) for text in demos}
    columns = [read[text] for text in settings.tasks]
    headings = [heading for column in columns for heading in column.scores]
    if len(set(headings)) < len(headings):
        raise InputError(f"quality.tasks names a task twice: {' '.join(settings.tasks)}")
    return columns


def read_column(text: str, settings: QualityBenchConfig) -> Column:
    """NAME=DIR, a YAML file, or one of the demo's tasks."""
    name, equals, folder = text.partition("=")
    made = Path(settings.out) / "tasks"
    if text == demo.CODE_WORDS:
        return TaskColumn(text, ["--task=conll", f"--data={made / demo.CODE_WORDS}"], settings)
    if text == demo.PASSAGES:
        words = ["--task=csv", f"--data={made / demo.PASSAGES}.jsonl", "--own.label=package"]
        return TaskColumn(text, words, settings)
    if name == MINIMAL_PAIRS and equals:
        return PairsColumn(folder, settings)
    if equals:
        return TaskColumn(name, [f"--task={name}", f"--data={folder}"], settings)
    if Path(text).suffix in (".yaml", ".yml"):
        return TaskColumn(Path(text).stem, [f"--task={text}"], settings)
    raise InputError(
        f"quality.tasks has {text!r}, expected NAME=DIR, a YAML file of a task, {demo.CODE_WORDS} or "
        f"{demo.PASSAGES}"
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is going to be measured, checked."""

    settings: QualityBenchConfig
    dataset: Mapping[str, Any]
    rows: Sequence[Row]
    budgets: Sequence[Budget]
    columns: Sequence[Column]
    is_reading: bool = False
    """Whether nothing is to be measured any more: `NotMeasuredError` where something would be."""

    @property
    def out(self) -> Path:
        """Where everything is kept."""
        return Path(self.settings.out)

    def pretraining(self, row: Row, budget: Budget, seed: int) -> PretrainRunConfig:
        """The config of one pre-training."""
        words = [
            *(f"--config={row.recipe}", f"--data={self.settings.data}", f"--seed={seed}"),
            *options(self.settings.pretrain, key="quality.pretrain"),
            *options(row.keys, key="quality.recipes"),
            *options(budget.words, key=""),
        ]
        given = config.read(PretrainRunConfig, words, prog="electra pretrain")
        return given.config(paper_defaults(given))

    def run_cell(self, row: Row, budget: Budget, seed: int) -> Cell:
        """What a pre-training depends on."""
        known = json_values(config.to_dict(self.pretraining(row, budget, seed)))
        facts = {key: value for key, value in known.items() if key not in FREE_KEYS}
        return Cell(
            name=f"{row.name}-{budget.name}-seed-{seed}",
            facts={"pretrain": facts, "dataset": self.dataset["sha256"]},
        )


def check_plan(settings: QualityBenchConfig) -> Plan:
    """Read and check all that is needed, before anything that takes long."""
    import_extra("sklearn", extra="tasks")
    if not settings.data:
        raise InputError("give --quality.data DATA, a folder made by `electra prepare`")
    data = Data.read(Path(settings.data))
    dataset = {
        "path": settings.data,
        "sha256": files.sha256(data.folder / files.MANIFEST),
        "vocab_size": data.tokens.vocab_size,
        "seq_length": data.rows.seq_length,
        "rows": len(data.rows),
    }
    rows = [Row.read(text) for text in settings.recipes]
    if not rows or len({row.name for row in rows}) < len(rows):
        raise InputError(
            f"quality.recipes is {settings.recipes}, expected at least one, each with a name of its own"
        )
    plan = Plan(settings=settings, dataset=dataset, rows=rows, budgets=budgets_of(settings), columns=())
    for row in rows:
        encoder = plan.pretraining(row, plan.budgets[0], 0).model.encoder(vocab_size=data.tokens.vocab_size)
        if encoder.max_position_embeddings < data.rows.seq_length:
            raise InputError(
                f"{row.name}: {settings.data} has rows of {data.rows.seq_length} tokens, the model takes "
                f"{encoder.max_position_embeddings}: add model.max_position_embeddings={data.rows.seq_length}"
            )
    return dataclasses.replace(plan, columns=read_columns(settings))


class NotMeasuredError(LookupError):
    """A cell has no file yet."""


def measure_quality(
    settings: QualityBenchConfig, *, cluster: str | None = None, cores: int = 1
) -> dict[str, Any]:
    """Measure every cell that is not there yet; the result is written after each.

    On a cluster, each worker has so many cores, and the result is written when all is measured.
    """
    plan = check_plan(settings)
    plan.out.mkdir(parents=True, exist_ok=True)
    busy = (
        f"{plan.out} is in use by another `electra bench quality`: wait for it, or choose another quality.out"
    )
    with files.locked(plan.out / ".lock", busy=busy):
        if cluster is not None:
            measure_on_cluster(plan, cluster, cores=cores)
        result = empty_result(plan)
        for record in measured(plan):
            result["runs" if "tokens" in record else "cells"].append(record)
            result["summary"] = summary(result)
            result["processors"] = dict(Counter(run["machine"]["cpu"] for run in result["runs"]))
            files.write_json(plan.out / RESULT, result)
    return result


def empty_result(plan: Plan) -> dict[str, Any]:
    """What is known before the first measurement."""
    headings = {heading: about for column in plan.columns for heading, about in column.scores.items()}
    return {
        "title": f"quality after equal {'tokens' if plan.settings.tokens else 'times'} of pre-training",
        "machine": {**devices.describe_machine(), "flags": processor_flags()},
        "data": dict(plan.dataset),
        "unit": "tokens" if plan.settings.tokens else "seconds",
        "budgets": {budget.name: budget.size for budget in plan.budgets},
        "rows": [RANDOM_WEIGHTS, LINEAR, *(row.name for row in plan.rows)],
        "recipes": {row.name: " ".join([row.recipe, *row.keys]) for row in plan.rows},
        "columns": headings,
        "finetune": [*FINETUNING, *plan.settings.finetune],
        "seeds": plan.settings.seeds,
        "finetune_seeds": plan.settings.finetune_seeds,
        "processors": {},
        "runs": [],
        "cells": [],
        "summary": {},
    }


def measured(plan: Plan) -> Iterator[dict[str, Any]]:
    """Every cell, from its file or measured now: small budgets first, which tell the most in an hour."""
    for column in plan.columns:
        yield from linear_cell(plan, column)
    for one in runs_of(plan):
        yield from run_records(plan, one)


class Run(NamedTuple):
    """A pre-training."""

    row: Row
    budget: Budget
    seed: int


def runs_of(plan: Plan) -> list[Run]:
    """All pre-trainings, in order."""
    return [
        Run(row, budget, seed)
        for budget in plan.budgets
        for seed in range(plan.settings.seeds)
        for row in plan.rows
    ]


def run_records(plan: Plan, one: Run) -> Iterator[dict[str, Any]]:
    """A pre-training and what is measured of it."""
    row, budget, seed = one
    run = pretrained(plan, row, budget, seed)
    yield run
    start = [f"--model={plan.out / run['folder']}"]
    for column in plan.columns:
        place = {"row": row.name, "budget": budget.name, "seed": seed}
        yield encoder_cell(plan, column, start, place, {"run": run["id"]})
    if budget == plan.budgets[0] and row == plan.rows[-1]:
        # The last run lends its shape: it has the seed that these weights get.
        yield from random_cells(plan, run, seed)


@dataclass(frozen=True, kw_only=True)
class RunPiece:
    """A pre-training for a worker of a cluster."""

    plan: Plan
    run: Run
    folder: str
    """The current one, from which data and tasks are named."""
    kept: Mapping[str, bytes]
    """Files of the run, if it is there and something else is missing."""
    cores: int


def measure_on_cluster(plan: Plan, address: str, *, cores: int) -> None:
    """Measure every pre-training that lacks a cell, and keep what comes back as if it were measured here."""
    pieces = [
        RunPiece(plan=plan, run=run, folder=str(Path.cwd()), kept=kept_files(plan, run), cores=cores)
        for run in runs_of(plan)
        if not is_measured(plan, run)
    ]
    if not pieces:
        return

    def report(piece: RunPiece, node: str) -> None:
        row, budget, seed = piece.run
        say(f"{row.name} {budget.name} seed {seed}: measured on node {node}")

    with connected(address) as cluster:
        say(f"{len(pieces)} pre-trainings on {show.listed([node.name for node in cluster.nodes])}")
        for _, content in cluster.work(measure_on_node, pieces, cpus=cores, ordered=False, on_done=report):
            # Runs before the cells that say that they are there.
            for is_cell in (False, True):
                files.write_folder(
                    plan.out,
                    {name: data for name, data in content.items() if name.startswith(CELLS) == is_cell},
                )


def measure_on_node(piece: RunPiece) -> dict[str, bytes]:
    """The files of a pre-training and of all that was measured of it."""
    torch.set_num_threads(piece.cores)
    require_same_data(piece)
    with contextlib.chdir(piece.folder), tempfile.TemporaryDirectory(prefix="electra-quality-") as out:
        files.write_folder(Path(out), piece.kept)
        settings = dataclasses.replace(piece.plan.settings, out=out)
        for _ in run_records(dataclasses.replace(piece.plan, settings=settings), piece.run):
            pass
        shutil.rmtree(Path(out) / "unfinished", ignore_errors=True)
        return files.read_folder(Path(out))


def require_same_data(piece: RunPiece) -> None:
    """Refuse a machine that does not see the data, or sees others."""
    manifest = Path(piece.folder) / piece.plan.settings.data / files.MANIFEST
    if not manifest.is_file() or files.sha256(manifest) != piece.plan.dataset["sha256"]:
        raise InputError(
            f"{manifest.parent} is not there, or has other data than here: all nodes must see quality.data "
            "and the tasks under the same names, as in a shared folder"
        )


def is_measured(plan: Plan, run: Run) -> bool:
    """Whether all cells of a pre-training have a file."""
    try:
        return all(True for _ in run_records(dataclasses.replace(plan, is_reading=True), run))
    except NotMeasuredError:
        return False


def kept_files(plan: Plan, run: Run) -> dict[str, bytes]:
    """The files of a finished pre-training; none if it is not."""
    name = plan.run_cell(*run).file_name
    cell, folder = plan.out / CELLS / f"{name}.json", plan.out / RUNS / name
    if not cell.is_file():
        return {}
    found = {f"{RUNS}/{name}/{place}": data for place, data in files.read_folder(folder).items()}
    return {**found, f"{CELLS}/{name}.json": cell.read_bytes()}


def linear_cell(plan: Plan, column: Column) -> Iterator[dict[str, Any]]:
    """The linear model of a column, if there is one."""
    cell = Cell(name=f"linear-{column.name}", facts=column.fingerprint)
    record = kept(plan, cell, lambda: {"values": column.linear()})
    if record["values"]:
        yield {"row": LINEAR, "budget": None, "seed": 0, "column": column.name, **record}


def random_cells(plan: Plan, run: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """All columns that say something of random weights, with the encoder of a run."""
    start = ["--model=" + RANDOM, f"--like={plan.out / run['folder']}"]
    shape = {"model": run["model"], "dataset": plan.dataset["sha256"]}
    for column in plan.columns:
        if column.needs_training:
            place = {"row": RANDOM_WEIGHTS, "budget": None, "seed": seed}
            yield encoder_cell(plan, column, start, place, shape)


def encoder_cell(
    plan: Plan, column: Column, start: Sequence[str], place: Mapping[str, Any], encoder: Mapping[str, Any]
) -> dict[str, Any]:
    """A column of an encoder."""
    name = f"{place['row']}-{place['budget'] or 'none'}-seed-{place['seed']}-{column.name}"
    cell = Cell(name=name, facts={**column.fingerprint, **encoder, "seed": place["seed"]})

    def measure() -> dict[str, Any]:
        folder = plan.out / "unfinished" / cell.file_name
        begun = time.monotonic()
        values = column.measure(start, seed=place["seed"], folder=folder)
        return {"values": values, "seconds": time.monotonic() - begun}

    record = kept(plan, cell, measure)
    shutil.rmtree(plan.out / "unfinished" / cell.file_name, ignore_errors=True)
    return {**place, "column": column.name, **record}


def pretrained(plan: Plan, row: Row, budget: Budget, seed: int) -> dict[str, Any]:
    """A pre-training: where it is, what it read and how long it took."""
    cell = plan.run_cell(row, budget, seed)
    folder = Path(RUNS) / cell.file_name

    def measure() -> dict[str, Any]:
        settings = dataclasses.replace(plan.pretraining(row, budget, seed), out=str(plan.out / folder))
        is_new = not (plan.out / folder).exists()
        begun = time.monotonic()
        with engine.joined(settings.train.device) as (world, device):
            state = run_pretraining(settings, world, device).state
        wall = time.monotonic() - begun
        shutil.rmtree(plan.out / folder / CHECKPOINTS, ignore_errors=True)
        return {
            "folder": str(folder),
            "model": json_values(config.to_dict(settings.model)),
            "steps": state.step,
            "tokens": state.tokens,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens / state.seconds,
            # What comes before the first step and after the last one; unknown if the run was interrupted.
            "other_seconds": wall - state.seconds if is_new else None,
            "precision": files.read_json(plan.out / folder / ENVIRONMENT)["choices"]["precision"],
            "machine": {**devices.describe_machine(), "flags": processor_flags()},
        }

    record = kept(plan, cell, measure)
    if not (plan.out / folder / FINAL).is_dir():
        stale = plan.out / CELLS / f"{cell.file_name}.json"
        raise InputError(
            f"{stale} says that {plan.out / folder} is finished, but it has no {FINAL}: remove that file to "
            "pre-train it again"
        )
    return {"row": row.name, "budget": budget.name, "seed": seed, "id": cell.file_name, **record}


def kept(plan: Plan, cell: Cell, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The record of a cell: from its file, or measured and written."""
    path = plan.out / CELLS / f"{cell.file_name}.json"
    if path.is_file():
        record: dict[str, Any] = files.read_json(path)["record"]
        return record
    if plan.is_reading:
        raise NotMeasuredError(cell.name)
    say(cell.name.replace("-", " "))
    record = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"facts": json_values(dict(cell.facts)), "record": record})
    return record


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """Budget -> row -> column -> median, lowest, highest, standard deviation and the value of every seed.

    Rows that need no pre-training are the same for all budgets.
    """
    found: dict[str, Any] = {budget: {row: {} for row in result["rows"]} for budget in result["budgets"]}
    for budget, by_row in found.items():
        for row, by_column in by_row.items():
            for heading in result["columns"]:
                values = [
                    cell["values"][heading]
                    for cell in result["cells"]
                    if cell["row"] == row and cell["budget"] in (budget, None) and heading in cell["values"]
                ]
                if any(value is not None for value in values):
                    by_column[heading] = spread([value for value in values if value is not None])
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Of several seeds."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }
