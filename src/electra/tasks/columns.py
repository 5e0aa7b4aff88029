"""Somebody's own labelled table, and what its columns mean -> a task; all that is wrong with it comes first.

    config, path = read_task_file(Path("my_task.yaml"))
    task = load_own(config, path, name="my_task", seed=0)

The labels are those of the training file. Where there is no file to score on, a part of the training examples
is held out.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from electra.tasks import own_notes
from electra.tasks.family import Family
from electra.tasks.own_config import OwnTaskConfig, read_task_file
from electra.tasks.own_families import check_family, count_labels, in_iob2, learn_family
from electra.tasks.own_files import DEV, TEST, find_files
from electra.tasks.own_readers import Reader
from electra.tasks.own_tables import (
    Splits,
    examples_of,
    has_labels,
    needs_labels,
    read_rows,
    read_splits,
    require_labels,
)
from electra.tasks.splits import class_of, held_out
from electra.tasks.tagging import Tagging
from electra.tasks.task import TRAIN, Task

__all__ = ["OwnTaskConfig", "load_own", "load_own_file", "read_task_file"]


def load_own(config: OwnTaskConfig, path: Path, *, name: str, seed: int) -> Task:
    """The task in a file, or in a folder of files for train, dev and test.

    `seed` is that of the part that is held out: fine-tuning with several seeds wants the same for all.
    """
    tables = {split: read_rows(config, file) for split, file in find_files(config, path).items()}
    train = tables[TRAIN]
    require_labels(train)
    counts = count_labels(train)
    classes = {label: number for number, label in enumerate(counts)}
    splits, unlabelled = read_splits(tables, classes)
    # Before anything is held out: a rare tag or class may be there only once.
    family, main_score, splits, notes = learn_family(config, counts, splits)
    for table in tables.values():
        notes += own_notes.skipped_notes(table.path, table.skipped)
    notes += [f"{tables[split].path} has no labels: predicted, not scored" for split in sorted(unlabelled)]
    if DEV not in splits:
        splits, note = _with_dev(train.reader, splits, seed)
        notes.append(note)
    notes += own_notes.repeated_notes(splits, train.reader.content)
    task = Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=unlabelled,
        main_score=main_score,
        notes=tuple(notes),
    )
    return _with_long_rows(task) if config.kind == "answering" else task


def load_own_file(
    config: OwnTaskConfig, path: Path, *, name: str, family: Family[Any], main_score: str, split: str = TEST
) -> Task:
    """One file for a model that is trained already: the model's labels count, the file need not have any."""
    check_family(config, family)
    table = read_rows(config, path)
    classes = {label: number for number, label in enumerate(family.labels())}
    is_labelled = has_labels(table, known=classes)
    examples = examples_of(table, classes=classes if is_labelled else None)
    if isinstance(family, Tagging) and family.scheme == "entities":
        examples = in_iob2(examples)
    task = Task(
        name=name,
        family=family,
        splits={split: examples},
        unlabelled=frozenset({split} if needs_labels(config) and not is_labelled else ()),
        main_score=main_score,
        notes=tuple(own_notes.skipped_notes(path, table.skipped)),
    )
    return _with_long_rows(task) if config.kind == "answering" else task


def _with_long_rows(task: Task) -> Task:
    """As in the paper for SQuAD."""
    return replace(task, epochs=2.0, max_length=512)


def _with_dev(reader: Reader, splits: Splits, seed: int) -> tuple[Splits, str]:
    """A part of train as dev, and what was done."""
    by_class = reader.config.kind == "classification"
    train, dev = held_out(
        splits[TRAIN],
        content=reader.content,
        seed=seed,
        share=reader.config.dev_share,
        stratify=class_of if by_class else None,
    )
    note = (
        f"no file for dev: {len(dev):,} of {len(splits[TRAIN]):,} examples are held out of train by a hash "
        f"of their text{', the same share of each class' if by_class else ''} (seed {seed})"
    )
    return {TRAIN: train, DEV: dev, **{split: splits[split] for split in splits if split != TRAIN}}, note
