"""A folder of official GLUE files and the name of a task -> the task, ready to be trained and scored."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from electra.errors import InputError
from electra.tasks.family import Score
from electra.tasks.glue_files import GlueFile, read_glue_file
from electra.tasks.glue_table import EMPTY_TEXT, MISSING_COLUMNS, TASKS, GlueSplit, GlueTask, glue_task
from electra.tasks.task import TRAIN, Task
from electra.tasks.text_examples import TextExample

GLUE_TASKS = tuple(task.name for task in TASKS)

UnorderedPairs = Literal["doubled", "as_read"]

FLAW_REMARKS = {
    MISSING_COLUMNS: "columns are missing (as in the official file; left out)",
    EMPTY_TEXT: "a text is empty (as in the official file; kept)",
}
LINES_SHOWN = 10


def load_glue(name: str, folder: str | Path, *, unordered_pairs: UnorderedPairs = "doubled") -> Task:
    """Read those files of a task that are there, in its own folder or in the one above."""
    task = glue_task(name)
    found = task_files(task, Path(folder))
    if not found:
        official = ", ".join(split.files[0] for split in task.splits)
        raise InputError(
            f"{folder} holds no files of {name}: expected {official}, there or in {task.folders[0]}/"
        )
    examples: dict[str, Sequence[TextExample]] = {}
    notes = [f"{name}: there is no {split.files[0]}" for split in task.splits if split not in found]
    for split, path in found.items():
        file = read_glue_file(path, task, split)
        notes += remarks(path, file, split)
        examples[split.name] = file.examples
        if split.name == TRAIN:
            check_variety(path, task, file.examples)
    if TRAIN in examples and task.is_unordered and unordered_pairs == "doubled":
        examples[TRAIN] = [*examples[TRAIN], *map(swapped, examples[TRAIN])]
        notes.append(f"{name}: the order of a pair means nothing, so {TRAIN} holds each in both orders")
    return Task(
        name=name,
        family=task.family,
        splits=examples,
        unlabelled=frozenset(split.name for split in found if split.submission),
        main_score=task.family.metrics[0],
        epochs=task.epochs,
        notes=tuple(notes),
    )


def find_glue(folder: str | Path) -> list[str]:
    """The tasks of which a folder holds a folder of its own."""
    folder = Path(folder)
    found = [task.name for task in TASKS if any(task_files(task, own) for own in own_folders(task, folder))]
    if not found:
        expected = ", ".join(task.folders[0] for task in TASKS)
        raise InputError(f"{folder} holds no task of GLUE: expected folders such as {expected} in it")
    return found


def own_folders(task: GlueTask, folder: Path) -> list[Path]:
    """The folders in a folder that go by one of the task's names, in whatever case."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder, expected that of the official GLUE files")
    order = [name.lower() for name in task.folders]
    named = [entry for entry in sorted(folder.iterdir()) if entry.name.lower() in order and entry.is_dir()]
    return sorted(named, key=lambda entry: order.index(entry.name.lower()))


def task_files(task: GlueTask, folder: Path) -> dict[GlueSplit, Path]:
    """A task's files in the first place that has any: a folder of its name in `folder`, or `folder`."""
    for place in (*own_folders(task, folder), folder):
        found = {}
        for split in task.splits:
            there = [place / name for name in split.files if (place / name).is_file()]
            if there:
                found[split] = there[0]
        if found:
            return found
    return {}


def remarks(path: Path, file: GlueFile, split: GlueSplit) -> list[str]:
    """What a person should know of a file that was read."""
    notes = []
    for flaw, lines in file.flaws.items():
        shown = ", ".join(map(str, lines[:LINES_SHOWN])) + (" ..." if len(lines) > LINES_SHOWN else "")
        notes.append(f"{path}: {FLAW_REMARKS[flaw]} in {len(lines)} lines: {shown}")
    if len(file.examples) != split.num_examples:
        notes.append(f"{path}: {len(file.examples)} examples; the official set has {split.num_examples}")
    return notes


def check_variety(path: Path, task: GlueTask, examples: Sequence[TextExample]) -> None:
    """Refuse to train on examples that are all labelled the same."""
    if len({example.label for example in examples}) == 1:
        raise InputError(
            f"{path}: all {len(examples)} examples have the same {task.label}, so there is nothing to learn: "
            "expected at least two"
        )


def swapped(example: TextExample) -> TextExample:
    """The same pair in the other order."""
    assert example.text_pair is not None
    return dataclasses.replace(
        example, id=f"{example.id}-swapped", text=example.text_pair, text_pair=example.text
    )


def leaderboard_score(name: str, scores: Mapping[str, Mapping[str, Score]]) -> Score:
    """A task's number by the leaderboard's rule, from the scores of each of its scored splits."""
    counted = glue_task(name).leaderboard
    values = [(split, score, of_split[score]) for split, of_split in scores.items() for score in counted]
    if not values:
        return Score(math.nan, "no split was scored")
    for split, score, value in values:
        if not value.is_defined:
            return Score(math.nan, f"{score} of {split}: {value.undefined}")
    return Score(statistics.fmean(value.value for _, _, value in values))
