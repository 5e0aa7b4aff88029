"""A model, tasks and settings -> what several fine-tunings have in common, and where each keeps what it has.

    OUT/seed-0/             metrics, checkpoints while it is trained, and of a finished one:
    OUT/seed-0/model/TASK   the model
    OUT/seed-0/scores.json  what it gave; written last

In common are the tokenized rows of all splits with their hash, what a person should know of a task before
hours are spent on it, and the ensemble: the mean of all models' probabilities. How a seed is trained is not
known here: `tasks/finetuning.py` passes a function for that.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.model.store import SHORTEST, TOKENS_READ
from electra.show import listed
from electra.store.cache import with_urls
from electra.tasks import results
from electra.tasks.batches import TaskMixture, TrainBatches
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.families.family import Score, TaskRow
from electra.tasks.inference import outputs_of
from electra.tasks.model import FineTuned, StartModel, TaskModel, load_model, save_model
from electra.tasks.predictions import INPUT, MAIN_SCORE, input_columns
from electra.tasks.seed_results import (
    SCORES,
    Judgements,
    Rows,
    SeedResult,
    judge,
    read_seed_result,
    write_seed_result,
)
from electra.tasks.step import HeldOut
from electra.tasks.task import TRAIN, Task, class_of, limit
from electra.text.tokenizer import Tokenizer

_LIMIT_SEED = 0
"""All runs that leave examples out see the same ones, whatever their own seeds."""


@dataclass(frozen=True, kw_only=True)
class TokenizedTasks:
    """All that a model is trained and scored with."""

    tasks: Sequence[Task]
    rows: Rows
    max_lengths: Mapping[str, int]
    """Tokens of a row, by task."""
    num_cut: Mapping[str, int]
    """Training rows that are as long as a row may be: most of them lost their end."""

    @property
    def train_rows(self) -> list[TaskRow]:
        """Of all tasks."""
        return [row for by_split in self.rows.values() for row in by_split[TRAIN]]


def tokenize_tasks(
    tasks: Sequence[Task], tokenizer: Tokenizer, encoder: EncoderConfig, *, max_length: int | None
) -> TokenizedTasks:
    """Rows of `train` and of all that is scored."""
    lengths = {task.name: row_length(task, encoder, max_length=max_length) for task in tasks}
    rows = {
        task.name: {
            split: task.family.rows(task.examples(split), tokenizer, max_length=lengths[task.name])
            for split in (TRAIN, *task.scored_splits)
        }
        for task in tasks
    }
    num_cut = {
        name: sum(len(row.input_ids) == lengths[name] for row in by_split[TRAIN])
        for name, by_split in rows.items()
    }
    return TokenizedTasks(tasks=tasks, rows=rows, max_lengths=lengths, num_cut=num_cut)


def row_length(task: Task, encoder: EncoderConfig, *, max_length: int | None) -> int:
    """What was asked for, or the task's own as far as the encoder goes."""
    longest = encoder.max_position_embeddings
    if max_length is None:
        return min(task.max_length, longest)
    if not SHORTEST <= max_length <= longest:
        raise InputError(
            f"max_length is {max_length}, expected {SHORTEST} to {longest}, the most that the model takes"
        )
    return max_length


def require_trainable(task: Task) -> None:
    """Refuse early what cannot be learned, or could not be scored when it is."""
    if not task.splits.get(TRAIN):
        found = ", ".join(task.splits) or "nothing"
        raise InputError(
            f"task {task.name} has no training examples, only {found}: give the file of `{TRAIN}`"
        )
    if not task.scored_splits:
        raise InputError(
            f"task {task.name} has no labelled examples beside those of `{TRAIN}`: give a file of `dev`"
        )


def limited(task: Task, *, train: int | None, held_out: int | None) -> Task:
    """The task with fewer examples, classes in their shares; the same ones every time."""
    splits = dict(task.splits)
    notes = list(task.notes)
    for split in task.splits:
        asked = train if split == TRAIN else held_out if split in task.scored_splits else None
        if asked is not None and asked < len(splits[split]):
            splits[split] = limit(splits[split], asked, seed=_LIMIT_SEED, stratify=class_of)
            notes.append(f"{split}: {len(splits[split]):,} of {len(task.splits[split]):,} examples are used")
    return dataclasses.replace(task, splits=splits, notes=notes)


def content_hash(tasks: Sequence[Task]) -> str:
    """Of all examples, but not of where they were read from."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr((task.name, task.family.labels())).encode())
        for split, examples in task.splits.items():
            digest.update(split.encode())
            for example in examples:
                names = [field.name for field in dataclasses.fields(example) if field.name != "where"]
                digest.update(repr([getattr(example, name) for name in names]).encode())
    return digest.hexdigest()


_NUM_LABELS = 12


def describe_tasks(tokenized: TokenizedTasks) -> Iterator[tuple[str, str]]:
    """Lines of a name and what there is to say."""
    for task in tokenized.tasks:
        yield from describe_task(task)
        cut, length = tokenized.num_cut[task.name], tokenized.max_lengths[task.name]
        if cut:
            yield "note", f"{cut:,} training rows fill all {length} tokens: longer texts are cut or divided"


def describe_task(task: Task) -> Iterator[tuple[str, str]]:
    """What it is, how much of it there is, and what was noticed when it was read."""
    yield "task", f"{task.name}: {task.family.name.replace('_', ' ')}, scored by {task.main_score}"
    sizes = [
        f"{split} {len(examples):,}" + (" (no labels)" if split in task.unlabelled else "")
        for split, examples in task.splits.items()
    ]
    yield "examples", ", ".join(sizes)
    if counts := label_counts(task, task.splits.get(TRAIN) or ()):
        yield "labels", counts
    for note in task.notes:
        yield "note", note


def label_counts(task: Task, examples: Sequence[Any]) -> str:
    """Every class with its number of examples; empty if there are no classes."""
    counts = task.family.label_counts(examples)
    shown = [f"{name} {count:,} ({count / max(1, len(examples)):.0%})" for name, count in counts.items()]
    return listed(shown, most=_NUM_LABELS)


def ensemble_judgements(
    models: Sequence[TaskModel], task: Task, split: str, rows: Sequence[TaskRow], *, pad_id: int
) -> dict[str, Score]:
    """The scores of several models as one."""
    outputs = [outputs_of(model, task.name, rows, pad_id=pad_id) for model in models]
    examples = task.examples(split)
    return task.family.scores(examples, task.family.averaged(examples, rows, outputs))


_SHOWN = ("learning_rate", "layer_decay", "warmup_fraction", "batch_size", "weight_decay", "schedule")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Several fine-tunings of one model, which differ in their seeds."""

    out: Path
    source: TaskSource
    start: StartModel
    tokenized: TokenizedTasks
    dataset_sha256: str
    seeds: Sequence[int]
    config: Mapping[str, Any]
    """All settings, as JSON can hold them."""
    choices: Mapping[str, Any]
    """What the machine decided: device and precision."""
    precisely: Callable[[], AbstractContextManager[Any]]
    """The precision in which models are run."""

    @property
    def tasks(self) -> Sequence[Task]:
        """In the order in which they were named."""
        return self.tokenized.tasks

    def folder(self, seed: int) -> Path:
        """Where a seed keeps what it has."""
        return self.out / f"seed-{seed}"

    def task_folder(self, task: str) -> Path:
        """Where the results of a task are: with one task, in the folder of all."""
        return self.out if len(self.tasks) == 1 else self.out / task

    def facts(self, seed: int) -> dict[str, Any]:
        """What one fine-tuning is made of."""
        return {
            "config": {**self.config, "seed": seed, "model_sha256": self.start.sha256},
            "dataset_sha256": self.dataset_sha256,
            "tokenizer_sha256": self.start.tokenizer.content_hash,
            "choices": dict(self.choices),
        }

    def model(self, seed: int) -> TaskModel:
        """The model of a seed before it is trained."""
        return self.start.model({task.name: task.family for task in self.tasks}, seed=seed)

    def train_batches(self, seed: int) -> TaskMixture:
        """The batches of a seed."""
        size = self.config["train"]["batch_size"]
        batches = {
            name: TrainBatches(rows[TRAIN], task=name, seed=seed, batch_size=size)
            for name, rows in self.tokenized.rows.items()
        }
        return TaskMixture(batches, seed=seed)

    def held_out(self) -> list[HeldOut]:
        """What tells how it goes while a model is trained: the first split of each task."""
        return [
            HeldOut(
                task=task.name,
                split=split,
                examples=task.examples(split),
                rows=self.tokenized.rows[task.name][split],
                main_score=task.main_score,
            )
            for task in self.tasks
            for split in task.scored_splits[:1]
        ]

    def judge(self, model: TaskModel) -> Judgements:
        """What a model says of every split that is scored, of every task."""
        pad_id, rows = self.start.tokenizer.pad_id, self.tokenized.rows
        with self.precisely():
            return {
                task.name: {
                    split: judge(model, task.name, task, split, rows[task.name][split], pad_id=pad_id)
                    for split in task.scored_splits
                }
                for task in self.tasks
            }

    def is_finished(self, seed: int) -> bool:
        """Whether a seed has given all that it gives."""
        return (self.folder(seed) / SCORES).is_file()

    def finish(self, seed: int, model: TaskModel, result: SeedResult) -> None:
        """Write what a seed gave."""
        for task in self.tasks:
            save_model(self._tuned(model, task, result), self._model_folder(seed, task))
        write_seed_result(self.folder(seed), result, self.tasks)

    def read(self, seed: int) -> SeedResult:
        """What a finished seed gave."""
        return read_seed_result(self.folder(seed))

    def conclude(self, by_seed: Sequence[SeedResult], notes: Sequence[str]) -> list[dict[str, Any]]:
        """Write scores, predictions and the model that stands for all seeds; scores.json of each task."""
        chosen = results.median_result(self.tasks, by_seed)
        contents = []
        for task in self.tasks:
            is_together = self.config["ensemble"] == "on"
            content = results.scores_content(
                task,
                by_seed,
                chosen=chosen,
                model=with_urls(self.start.description()),
                train=self._train_facts(task, by_seed),
                together=self._together(task) if is_together else {},
                notes=notes,
                baseline=results.read_baseline(self.config["baseline"], task, alone=len(self.tasks) == 1),
                before=self._before(task),
                is_partial=self.config["limit_eval"] is not None,
            )
            folder = self.task_folder(task.name)
            results.copy_final(self._model_folder(chosen.seed, task), folder)
            results.write_scores(folder, task, content, chosen=chosen)
            contents.append(content)
        return contents

    def _model_folder(self, seed: int, task: Task) -> Path:
        return self.folder(seed) / "model" / task.name

    def _tuned(self, model: TaskModel, task: Task, result: SeedResult) -> FineTuned:
        """The model for one of its tasks, and facts for whoever finds it."""
        named = catalogue.task_names(self.source)[self.tasks.index(task)]
        return FineTuned(
            model=model,
            task=task.name,
            tokenizer=self.start.tokenizer,
            max_length=self.tokenized.max_lengths[task.name],
            facts={
                MAIN_SCORE: task.main_score,
                "score": results.main_value(task, result),
                "split": task.scored_splits[0],
                "seed": result.seed,
                "start": with_urls(self.start.path),
                TOKENS_READ: self.start.tokens_read,
                INPUT: input_columns(task, catalogue.own_columns(named, self.source)),
            },
        )

    def _together(self, task: Task) -> dict[str, Mapping[str, Score]]:
        """How good all seeds' models are as one, by split."""
        models = [
            load_model(self._model_folder(seed, task)).model.to(self.choices["device"]) for seed in self.seeds
        ]
        pad_id, rows = self.start.tokenizer.pad_id, self.tokenized.rows[task.name]
        with self.precisely():
            return {
                split: ensemble_judgements(models, task, split, rows[split], pad_id=pad_id)
                for split in task.scored_splits
            }

    def _before(self, task: Task) -> dict[str, Any] | None:
        """The scores of the start, by split, if no head is learned and the encoder alone predicts."""
        if any(True for _ in task.family.head(self.start.config).parameters()):
            return None
        # Random weights differ from seed to seed, all others are the same.
        seeds = self.seeds if self.start.state is None else self.seeds[:1]
        pad_id, rows, device = (
            self.start.tokenizer.pad_id,
            self.tokenized.rows[task.name],
            self.choices["device"],
        )
        by_seed: list[dict[str, Mapping[str, Score]]] = []
        for seed in seeds:
            model = self.start.model({task.name: task.family}, seed=seed).to(device)
            with self.precisely():
                by_seed.append(
                    {
                        split: judge(model, task.name, task, split, rows[split], pad_id=pad_id).scores
                        for split in task.scored_splits
                    }
                )
        return {
            split: {"scores": results.scores_over_seeds([scores[split] for scores in by_seed])}
            for split in task.scored_splits
        }

    def _train_facts(self, task: Task, by_seed: Sequence[SeedResult]) -> dict[str, Any]:
        return {
            "examples": len(task.examples(TRAIN)),
            **{key: by_seed[0].train[key] for key in ("epochs", "steps")},
            "seconds": sum(result.train["seconds"] for result in by_seed),
            **{key: self.config["train"][key] for key in _SHOWN},
            "max_length": self.tokenized.max_lengths[task.name],
            **self.choices,
        }
