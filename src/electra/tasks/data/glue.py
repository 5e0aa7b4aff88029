"""A folder of official GLUE files and the name of a task -> the task, its examples checked.

The table of tasks holds what the benchmark defines: files, columns, labels and scores. The files are lines of
values between tabs, in which a double quote is a double quote: nothing is quoted. Some begin with a byte
order mark, some end lines with CR LF, some lack the end of the last line.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from electra.errors import InputError
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.family import Score, TextExample
from electra.tasks.task import TRAIN, Task
from electra.text.sources import COMPRESSIONS
from electra.text.tables import read_lines

MISSING_COLUMNS = "columns are missing"
EMPTY_TEXT = "a text is empty"


@dataclass(frozen=True, kw_only=True)
class GlueSplit:
    """One file of a task."""

    name: str
    files: tuple[str, ...]
    """Names that it goes by; the first is the official one."""
    num_examples: int
    """As published."""
    columns: tuple[str, ...] | None = None
    """Names of its columns, if its first line does not hold them."""
    submission: str | None = None
    """Name of the file that predictions go to the benchmark's server in, which keeps the labels to itself."""


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of the benchmark. Its columns have the same names in all its files."""

    name: str
    folders: tuple[str, ...]
    """Names that its folder goes by; the first is the official one."""
    texts: tuple[str, ...]
    """Columns of the text, or of the pair."""
    label: str = "label"
    """Column of the class or value."""
    id: str = "index"
    """Column of the example's own number, in those files that have it."""
    family: Classification | Regression
    written: tuple[str, ...] = ()
    """How labels stand in the files, also in those for the server, in the order of the family's names."""
    splits: tuple[GlueSplit, ...]
    leaderboard: tuple[str, ...]
    """Scores whose mean over all sets is the task's number on the leaderboard. The paper, and our average,
    count the family's first score alone, and of MNLI the matched set."""
    epochs: float = 3.0
    is_unordered: bool = False
    """Whether a pair means the same when it is swapped."""
    known_flaws: tuple[str, ...] = ()
    """What is wrong with some lines of the official files themselves."""


def three_files(
    train: int, dev: int, test: int, *, submission: str, columns: tuple[str, ...] | None = None
) -> tuple[GlueSplit, ...]:
    """The usual files, from their numbers of examples; a test file always names its columns."""
    return (
        GlueSplit(name="train", files=("train.tsv",), num_examples=train, columns=columns),
        GlueSplit(name="dev", files=("dev.tsv",), num_examples=dev, columns=columns),
        GlueSplit(name="test", files=("test.tsv",), num_examples=test, submission=submission),
    )


BINARY = ("0", "1")
PAIR = ("sentence1", "sentence2")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("entailment", "neutral", "contradiction")

TASKS = (
    GlueTask(
        name="cola",
        folders=("CoLA",),
        texts=("sentence",),
        family=Classification(("unacceptable", "acceptable"), ("mcc", "accuracy")),
        written=BINARY,
        splits=three_files(
            8551, 1043, 1063, submission="CoLA.tsv", columns=("source", "label", "mark", "sentence")
        ),
        leaderboard=("mcc",),
    ),
    GlueTask(
        name="sst2",
        folders=("SST-2",),
        texts=("sentence",),
        family=Classification(("negative", "positive"), ("accuracy",)),
        written=BINARY,
        splits=three_files(67349, 872, 1821, submission="SST-2.tsv"),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="mrpc",
        folders=("MRPC",),
        texts=("#1 String", "#2 String"),
        label="Quality",
        family=Classification(("not_equivalent", "equivalent"), ("accuracy", "f1")),
        written=BINARY,
        splits=three_files(3668, 408, 1725, submission="MRPC.tsv"),
        leaderboard=("accuracy", "f1"),
        is_unordered=True,
    ),
    GlueTask(
        name="stsb",
        folders=("STS-B",),
        texts=PAIR,
        label="score",
        family=Regression(low=0.0, high=5.0, metrics=("spearman", "pearson")),
        splits=three_files(5749, 1500, 1379, submission="STS-B.tsv"),
        leaderboard=("pearson", "spearman"),
        epochs=10.0,
        is_unordered=True,
    ),
    GlueTask(
        name="qqp",
        folders=("QQP",),
        texts=("question1", "question2"),
        label="is_duplicate",
        id="id",
        family=Classification(("not_duplicate", "duplicate"), ("accuracy", "f1")),
        written=BINARY,
        splits=three_files(363846, 40430, 390965, submission="QQP.tsv"),
        leaderboard=("accuracy", "f1"),
        known_flaws=(MISSING_COLUMNS, EMPTY_TEXT),
    ),
    GlueTask(
        name="mnli",
        folders=("MNLI",),
        texts=PAIR,
        label="gold_label",
        family=Classification(THREE_WAY, ("accuracy",)),
        written=THREE_WAY,
        splits=(
            GlueSplit(name="train", files=("train.tsv",), num_examples=392702),
            GlueSplit(name="dev_matched", files=("dev_matched.tsv",), num_examples=9815),
            GlueSplit(name="dev_mismatched", files=("dev_mismatched.tsv",), num_examples=9832),
            GlueSplit(
                name="test_matched", files=("test_matched.tsv",), num_examples=9796, submission="MNLI-m.tsv"
            ),
            GlueSplit(
                name="test_mismatched",
                files=("test_mismatched.tsv",),
                num_examples=9847,
                submission="MNLI-mm.tsv",
            ),
        ),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="qnli",
        folders=("QNLI",),
        texts=("question", "sentence"),
        family=Classification(TWO_WAY, ("accuracy",)),
        written=TWO_WAY,
        splits=three_files(104743, 5463, 5463, submission="QNLI.tsv"),
        leaderboard=("accuracy",),
    ),
    GlueTask(
        name="rte",
        folders=("RTE",),
        texts=PAIR,
        family=Classification(TWO_WAY, ("accuracy",)),
        written=TWO_WAY,
        splits=three_files(2490, 277, 3000, submission="RTE.tsv"),
        leaderboard=("accuracy",),
        epochs=10.0,
    ),
    GlueTask(
        name="wnli",
        folders=("WNLI",),
        texts=PAIR,
        family=Classification(("not_entailment", "entailment"), ("accuracy",)),
        written=BINARY,
        splits=three_files(635, 71, 146, submission="WNLI.tsv"),
        leaderboard=("accuracy",),
    ),
    # Nobody trains on the diagnostic set: it is for models that learned MNLI, whose labels it has.
    GlueTask(
        name="ax",
        folders=("AX", "diagnostic", "MNLI"),
        texts=PAIR,
        family=Classification(THREE_WAY, ("mcc",)),
        written=THREE_WAY,
        splits=(
            GlueSplit(
                name="test", files=("diagnostic.tsv", "AX.tsv"), num_examples=1104, submission="AX.tsv"
            ),
        ),
        leaderboard=("mcc",),
    ),
)


def glue_task(name: str) -> GlueTask:
    """The row of a task, or which there are."""
    for task in TASKS:
        if task.name == name:
            return task
    raise InputError(f"{name!r} is no task of GLUE, expected one of {', '.join(task.name for task in TASKS)}")


SHOWN = 80
"""Characters of a bad line that are shown."""


@dataclass(kw_only=True)
class GlueFile:
    """What a file was found to hold."""

    examples: list[TextExample] = field(default_factory=list)
    flaws: dict[str, list[int]] = field(default_factory=dict)
    """Lines that are wrong in the official file, too, by what is wrong."""


def read_glue_file(path: Path, task: GlueTask, split: GlueSplit) -> GlueFile:
    """All examples of a file, or which line is wrong and how."""
    lines = numbered_lines(path)
    columns = split.columns or tuple(next(lines)[1].split("\t"))
    check_columns(path, columns, task, split)
    result = GlueFile()
    line_of_id: dict[str, int] = {}
    for number, line in lines:
        where = f"{path}:{number}"
        values = line.split("\t")
        flaw = flaw_of(values, columns, task)
        # The server wants an answer to every line of a test file: there, none can be left out.
        if flaw and (flaw not in task.known_flaws or (flaw == MISSING_COLUMNS and split.submission)):
            raise InputError(
                f"{where}: {flaw} in {line[:SHOWN]!r}, expected {', '.join(columns)} between tabs. "
                "Restore the line from the official file, or delete it"
            )
        if flaw:
            result.flaws.setdefault(flaw, []).append(number)
        if flaw != MISSING_COLUMNS:
            example = read_example(dict(zip(columns, values, strict=True)), task, split, number, where)
            first = line_of_id.setdefault(example.id, number)
            if first != number:
                raise InputError(f"{where}: {task.id} {example.id!r} was already used in line {first}")
            result.examples.append(example)
    if not result.examples:
        raise InputError(f"{path}: no examples in it, expected {split.num_examples} as published")
    return result


def flaw_of(values: Sequence[str], columns: Sequence[str], task: GlueTask) -> str | None:
    """What is wrong with the values of a line, whatever their meaning."""
    if len(values) < len(columns):
        return MISSING_COLUMNS
    if len(values) > len(columns):
        return "too many columns"
    texts = (value for value, column in zip(values, columns, strict=True) if column in task.texts)
    return None if all(map(str.strip, texts)) else EMPTY_TEXT


def read_example(
    row: Mapping[str, str], task: GlueTask, split: GlueSplit, number: int, where: str
) -> TextExample:
    """The example that a line holds."""
    texts = [row[column] for column in task.texts]
    return TextExample(
        id=row.get(task.id, str(number)),
        where=where,
        text=texts[0],
        text_pair=texts[1] if len(texts) > 1 else None,
        label=None if split.submission else read_label(row[task.label], task, where=where),
    )


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without blank lines at the end."""
    blank: list[tuple[int, str]] = []
    is_empty = True
    for number, line in read_lines(path):
        if line:
            yield from blank
            yield number, line
            blank, is_empty = [], False
        else:
            blank.append((number, line))
    if is_empty:
        raise InputError(f"{path} is empty: get it again from the official source")


def check_columns(path: Path, columns: tuple[str, ...], task: GlueTask, split: GlueSplit) -> None:
    """Refuse a file that lacks what the task needs."""
    needed = (*task.texts, task.label) if split.submission is None else (*task.texts, task.id)
    for name in needed:
        if name not in columns:
            raise InputError(
                f"{path}:1: there is no column {name!r}, only {', '.join(map(repr, columns))}. "
                f"Is this the official {split.files[0]} of {task.folders[0]}?"
            )


def read_label(written: str, task: GlueTask, *, where: str) -> int | float:
    """The number of a class, or a value in its range."""
    if not isinstance(task.family, Regression):
        if written not in task.written:
            raise InputError(
                f"{where}: {task.label} is {written!r}, expected one of {', '.join(task.written)}"
            )
        return task.written.index(written)
    low, high = task.family.low, task.family.high
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{where}: {task.label} is {written!r}, expected a number from {low:g} to {high:g}")
    return value


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
            names = [name + suffix for name in split.files for suffix in ("", *COMPRESSIONS)]
            there = [place / name for name in names if (place / name).is_file()]
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
