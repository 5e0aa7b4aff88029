"""A user's table, or a folder of tables, and what its columns mean -> a task, checked before any training.

    config, path = read_task_file(Path("my_task.yaml"))
    task = load_own(config, path, name="my_task", seed=0)

In the order of this file: find the table of each split, read its rows, read examples out of the rows, note
what a person should know about them, choose the family, and put the task together. The labels are those of
the training file. If there is no file to score on, a part of the training examples is held out.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from electra import show
from electra.errors import InputError
from electra.show import did_you_mean
from electra.tasks.data.columns import (
    Cells,
    Classes,
    OwnTaskConfig,
    RowReader,
    are_decimal,
    in_order,
    quoted,
    read_task_file,
)
from electra.tasks.families.family import Family, Splits
from electra.tasks.families.table import family_of_kind
from electra.tasks.task import TRAIN, Task, class_of, held_out
from electra.text.quarantine import strict_reading
from electra.text.sources import COMPRESSIONS, without_compression
from electra.text.tables import SUFFIXES, NumberedRow, is_table, read_table, table_source

DEV, TEST = "dev", "test"
_NAMES: Mapping[str, tuple[str, ...]] = {
    TRAIN: ("train", "training"),
    DEV: ("dev", "valid", "validation", "val", "eval"),
    TEST: ("test",),
}


def find_files(config: OwnTaskConfig, path: Path) -> dict[str, Path]:
    """The table of each split; a single file is the training split."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder{did_you_mean(path.name, _names_in(path.parent))}")
    folder = path if path.is_dir() else path.parent
    given = {TRAIN: config.train, DEV: config.dev, TEST: config.test}
    found = {split: _named(folder, split, name) for split, name in given.items() if name is not None}
    if path.is_file():
        if config.train is not None:
            raise InputError(
                f"train is {config.train!r}, but data is the file {path}: set data to its folder"
            )
        found[TRAIN] = path
    else:
        tables = sorted(file for file in folder.iterdir() if file.is_file() and is_table(file))
        for split in given:
            stems = {table: _stem(table) for table in tables}
            if split not in found and (table := by_name(split, stems, where=str(folder))) is not None:
                found[split] = table
    if TRAIN not in found:
        raise InputError(
            f"{path}: no table to train on, expected one with 'train' in its name and one of "
            f"{' '.join(SUFFIXES)} (also with {' '.join(COMPRESSIONS)}) at its end; there are "
            f"{quoted(_names_in(path)) or 'no files'}: name the file in train"
        )
    return {split: found[split] for split in given if split in found}


Named = TypeVar("Named", Path, str)


def by_name(split: str, names: Mapping[Named, str], *, where: str) -> Named | None:
    """The table whose name contains the split's; a table named only that goes first."""
    words = {table: re.split(r"[^a-z0-9]+", name.lower()) for table, name in names.items()}
    found = [table for table in names if not set(_NAMES[split]).isdisjoint(words[table])]
    exact = [table for table in found if names[table].lower() in _NAMES[split]]
    chosen = exact or found
    if len(chosen) > 1:
        known = quoted([Path(table).name for table in chosen])
        raise InputError(f"{where}: several tables for {split}: {known}; name one in {split}")
    return chosen[0] if chosen else None


def _stem(table: Path) -> str:
    return Path(without_compression(table.name)).stem.lower()


def _named(folder: Path, split: str, name: str) -> Path:
    if not (folder / name).is_file():
        names = _names_in(folder)
        raise InputError(
            f"{split} is {name!r}: no such file in {folder}, only {quoted(names)}{did_you_mean(name, names)}"
        )
    return folder / name


def _names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


SECRET = "-1"
"""Stands for a hidden class in datasets of the Hugging Face Hub."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one file, or of one split of a dataset, except those without text."""

    path: Path | str
    reader: RowReader
    rows: Sequence[Cells]
    skipped: Sequence[int]
    """Lines without text."""
    encoding: str | None = None
    """None for what is no text file."""
    declared: tuple[str, ...] = ()
    """The classes that the data itself lists, in its order; empty if it lists none."""


def read_rows(config: OwnTaskConfig, path: Path) -> Table:
    """The rows of a file."""
    reading = strict_reading(table_source(path))
    table = table_of(config, path, read_table(reading, dialect=config.dialect))
    return dataclasses.replace(table, encoding=next(iter(reading.tally.encodings), None))


def table_of(
    config: OwnTaskConfig,
    path: Path | str,
    numbered: Iterable[NumberedRow],
    *,
    declared: tuple[str, ...] = (),
) -> Table:
    """All rows that have text. A row without is an error, or is skipped and counted."""
    reader = family_of_kind(config.kind).reader(config)
    skipped: list[int] = []
    rows = list(rows_with_text(reader, path, numbered, skip=skipped.append))
    return Table(path=path, reader=reader, rows=rows, skipped=skipped, declared=declared)


def rows_with_text(
    reader: RowReader, path: Path | str, numbered: Iterable[NumberedRow], *, skip: Callable[[int], object]
) -> Iterator[Cells]:
    """One row after the other; `skip` gets the lines that are left out."""
    num_rows = num_skipped = 0
    for line, row in numbered:
        cells = Cells(f"{path}:{line}", row)
        empty = next((column for column in reader.text_columns if cells.has_no_text(column)), None)
        if empty is None:
            num_rows += 1
            yield cells
        elif reader.config.empty == "skip":
            num_skipped += 1
            skip(line)
        else:
            raise InputError(
                f"{cells.where}: {empty!r} is empty; correct or remove the line, or set empty to skip to "
                "leave out all such lines"
            )
    if not num_rows:
        raise InputError(f"{path}: no examples in it{' but empty ones' if num_skipped else ''}")


def has_labels(table: Table, *, known: Classes | None = None) -> bool:
    """Whether any row has a label; then all must have one. `known`: the classes of the training file."""
    labelled = (cells for cells in table.rows if table.reader.has_label(cells))
    if known and SECRET not in known and table.reader.classes == "one":
        return any(cells.name(table.reader.label_column) != SECRET for cells in labelled)
    return any(True for _ in labelled)


def require_labels(table: Table, *, known: Classes | None = None) -> None:
    """Refuse to train or score on a file without any label."""
    if table.reader.needs_labels and not has_labels(table, known=known):
        column = table.reader.label_column
        # If the column is missing, this names those that exist.
        table.rows[0].value(column)
        raise InputError(f"{table.path}: no line has a label in {column!r}, expected one in every line")


def read_splits(tables: Mapping[str, Table], classes: Classes) -> tuple[Splits, frozenset[str]]:
    """The examples of every split, and the splits without labels, which only test may be."""
    splits: Splits = {}
    unlabelled = set()
    for split, table in tables.items():
        is_labelled = has_labels(table, known=classes)
        if split != TEST:
            require_labels(table, known=classes)
        elif not is_labelled and table.reader.needs_labels:
            unlabelled.add(split)
        splits[split] = examples_of(table, classes=classes if is_labelled else None)
    return splits, frozenset(unlabelled)


def examples_of(table: Table, *, classes: Classes | None) -> list[Any]:
    """Rows as examples, each with a unique id; without `classes`, they have no labels."""
    column = table.reader.config.id
    examples: list[Any] = []
    places: dict[str, str] = {}
    for cells in table.rows:
        id = id_of(cells, column)
        if id in places:
            raise InputError(f"{cells.where}: {column!r} is {id!r}, as in {places[id]}: ids must be unique")
        places[id] = cells.where
        examples.append(table.reader.example(cells, id, classes=classes))
    return examples


def id_of(cells: Cells, column: str | None) -> str:
    """What a column says, or the number of the line."""
    return cells.where.rpartition(":")[2] if column is None else cells.name(column)


def unlabelled_examples(config: OwnTaskConfig, path: Path, *, family: Family[Any]) -> Iterator[Any]:
    """The examples of a file one after the other, without their labels: for any size of file."""
    check_family(config, family)
    reader = family_of_kind(config.kind).reader(config)
    numbered = read_table(strict_reading(table_source(path)), dialect=config.dialect)
    for cells in rows_with_text(reader, path, numbered, skip=lambda _line: None):
        yield reader.example(cells, id_of(cells, config.id), classes=None)


IMBALANCE = 10
"""Ratio between the sizes of two classes above which they are reported."""

FEW_EXAMPLES = 10
"""Classes with fewer examples are reported."""

_SHOWN_LABELS = 12
_SHOWN_LINES = 5


def label_notes(counts: Mapping[str, int]) -> list[str]:
    """All labels with their counts, in the given order, and anything suspicious about them."""
    labels = list(counts)
    notes = [f"{len(labels)} labels: {_some([f'{label} ({counts[label]:,})' for label in labels])}"]
    largest, smallest = max(labels, key=counts.__getitem__), min(labels, key=counts.__getitem__)
    if counts[largest] > IMBALANCE * counts[smallest]:
        notes.append(
            f"out of balance: {largest} has {counts[largest]:,} examples and {smallest} has "
            f"{counts[smallest]:,}; macro_f1 counts every label the same"
        )
    if are_decimal(labels):
        notes.append(
            "the labels are decimal numbers: if they are values and not classes, set kind to regression"
        )
    rare = [label for label in labels if counts[label] < FEW_EXAMPLES]
    if rare:
        notes.append(f"fewer than {FEW_EXAMPLES} examples to learn from: {_some(rare)}")
    return notes


def table_notes(table: Table) -> list[str]:
    """Lines without text, and an encoding that had to be guessed: another would give other text."""
    notes = []
    if lines := table.skipped:
        shown = ", ".join(map(str, lines[:_SHOWN_LINES])) + (", ..." if len(lines) > _SHOWN_LINES else "")
        notes.append(f"{table.path}: {len(lines):,} without text skipped: line {shown}")
    if table.reader.config.encoding is None and table.encoding not in (None, "utf-8"):
        notes.append(f"{table.path}: read as {table.encoding}; if that is wrong, set encoding")
    return notes


def repeated_notes(splits: Mapping[str, Sequence[Any]], content: Callable[[Any], str]) -> list[str]:
    """Texts of train that are in other splits, too, and texts with contradicting labels."""
    labels: defaultdict[str, set[Any]] = defaultdict(set)
    for example in splits[TRAIN]:
        labels[content(example)].add(getattr(example, "label", None))
    notes = []
    for split, examples in splits.items():
        num_known = sum(content(example) in labels for example in examples) if split != TRAIN else 0
        if num_known:
            share = num_known / len(examples)
            notes.append(
                f"{split}: the texts of {num_known:,} examples ({share:.1%}) are in train too, which "
                "flatters the scores"
            )
    if num_contradicting := sum(len(different) > 1 for different in labels.values()):
        notes.append(f"train: {num_contradicting:,} texts are there more than once with different labels")
    return notes


def _some(names: Sequence[str]) -> str:
    return show.listed(names, most=_SHOWN_LABELS)


MAX_DECIMAL_CLASSES = 50
"""With more distinct decimal numbers than this, labels are values and not classes."""


def count_labels(table: Table) -> Counter[str]:
    """Number of training examples of each class, in the order of the classes; empty without classes."""
    if not has_labels(table):
        return Counter()
    counts = Counter(name for cells in table.rows for name in table.reader.names(cells))
    labels = table.declared if counts and counts.keys() <= set(table.declared) else in_order(counts)
    ordered = Counter({label: counts[label] for label in labels})
    _check_labels(table, ordered)
    return ordered


def _check_labels(table: Table, counts: Counter[str]) -> None:
    """Refuse labels that are not classes, or only one class."""
    reader = table.reader
    if reader.classes == "one" and are_decimal(counts) and len(counts) > MAX_DECIMAL_CLASSES:
        raise InputError(
            f"{table.path}: {reader.label_column!r} holds {len(counts)} different decimal numbers, which are "
            "values and not classes: set kind to regression"
        )
    if reader.classes != "none" and len(counts) < 2:
        raise InputError(
            f"{table.path}: {quoted(counts)} is the only label of all {len(table.rows)} examples, expected "
            "two or more to tell apart"
        )


def check_family(config: OwnTaskConfig, family: Family[Any]) -> None:
    """Refuse columns of another kind of task than the model was trained for."""
    if family.kind != config.kind:
        raise InputError(
            f"kind is {config.kind}, but the model was trained for {family.kind}: set kind to {family.kind}"
        )


__all__ = ["OwnTaskConfig", "load_own", "load_own_file", "read_task_file"]


def load_own(config: OwnTaskConfig, path: Path, *, name: str, seed: int) -> Task:
    """The task in a file, or in a folder of files for train, dev and test.

    `seed` selects the part that is held out, which must be the same for all seeds of the training.
    """
    if config.words and config.kind != "options":
        raise InputError(
            f"words is {config.words}, but kind is {config.kind}: words are for the kind options"
        )
    tables = {split: read_rows(config, file) for split, file in find_files(config, path).items()}
    return build_task(config, tables, name=name, seed=seed)


def build_task(config: OwnTaskConfig, tables: Mapping[str, Table], *, name: str, seed: int) -> Task:
    """The task in the tables of train and, if they are there, dev and test."""
    train = tables[TRAIN]
    require_labels(train)
    counts = count_labels(train)
    classes = {label: number for number, label in enumerate(counts)}
    splits, unlabelled = read_splits(tables, classes)
    # Before anything is held out: a rare tag or class may be there only once.
    learned = family_of_kind(config.kind).learn_table(config, tuple(counts), splits)
    family, main_score, splits, notes = learned
    notes = [*(label_notes(counts) if counts else []), *notes]
    for table in tables.values():
        notes += table_notes(table)
    notes += [f"{tables[split].path} has no labels: predicted, not scored" for split in sorted(unlabelled)]
    if DEV not in splits:
        splits, note = _with_dev(train.reader, splits, seed)
        notes.append(note)
    notes += repeated_notes(splits, train.reader.content)
    return Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=unlabelled,
        main_score=main_score,
        epochs=family.epochs,
        max_length=family.max_length,
        notes=tuple(notes),
    )


def load_own_file(
    config: OwnTaskConfig, path: Path, *, name: str, family: Family[Any], main_score: str, split: str = TEST
) -> Task:
    """One file for a model that was trained before: the model's labels count, and the file may have none."""
    tables = {split: read_rows(config, path)}
    return judged_task(config, tables, name=name, family=family, main_score=main_score)


def judged_task(
    config: OwnTaskConfig, tables: Mapping[str, Table], *, name: str, family: Family[Any], main_score: str
) -> Task:
    """Tables for a model that was trained before."""
    check_family(config, family)
    classes = {label: number for number, label in enumerate(family.labels())}
    splits: Splits = {}
    unlabelled = set()
    for split, table in tables.items():
        is_labelled = has_labels(table, known=classes)
        splits[split] = family.adapted(examples_of(table, classes=classes if is_labelled else None))
        if table.reader.needs_labels and not is_labelled:
            unlabelled.add(split)
    return Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=frozenset(unlabelled),
        main_score=main_score,
        epochs=family.epochs,
        max_length=family.max_length,
        notes=tuple(note for table in tables.values() for note in table_notes(table)),
    )


def _with_dev(reader: RowReader, splits: Splits, seed: int) -> tuple[Splits, str]:
    """The splits with a part of train as dev, and a note about it."""
    by_class = reader.classes == "one"
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
