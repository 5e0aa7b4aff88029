"""Tasks and a tokenizer -> the rows of every split that is trained on or scored, and their hash."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.tasks.family import TaskRow
from electra.tasks.outcomes import Rows
from electra.tasks.splits import class_of, limit
from electra.tasks.task import TRAIN, Task
from electra.text.tokenizer import Tokenizer

_LIMIT_SEED = 0
"""All runs that leave examples out see the same ones, whatever their own seeds."""


@dataclass(frozen=True, kw_only=True)
class Material:
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


def make_material(
    tasks: Sequence[Task], tokenizer: Tokenizer, encoder: EncoderConfig, *, max_length: int | None
) -> Material:
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
    return Material(tasks=tasks, rows=rows, max_lengths=lengths, num_cut=num_cut)


def row_length(task: Task, encoder: EncoderConfig, *, max_length: int | None) -> int:
    """What was asked for, or the task's own as far as the encoder goes."""
    longest = encoder.max_position_embeddings
    if max_length is None:
        return min(task.max_length, longest)
    if not 8 <= max_length <= longest:
        raise InputError(
            f"max_length is {max_length}, expected 8 to {longest}, the most that the model takes"
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
