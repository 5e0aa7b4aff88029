"""The files of somebody's own data -> examples of every split, with labels or without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import InputError
from electra.tasks.own_cells import Cells
from electra.tasks.own_config import Kind, OwnTaskConfig
from electra.tasks.own_files import TEST
from electra.tasks.own_questions import AnswerReader, ChoiceReader
from electra.tasks.own_readers import (
    Classes,
    MultiLabelReader,
    Reader,
    SimilarityReader,
    TagReader,
    TextReader,
    ValueReader,
)
from electra.tasks.table_files import read_table

READERS: Mapping[Kind, type[Reader]] = {
    "classification": TextReader,
    "multi_label": MultiLabelReader,
    "regression": ValueReader,
    "similarity": SimilarityReader,
    "tagging": TagReader,
    "answering": AnswerReader,
    "multiple_choice": ChoiceReader,
}

SECRET = "-1"
"""What datasets of the Hugging Face Hub put in the place of a class that is kept secret."""

Splits = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one file that have text."""

    path: Path
    reader: Reader
    rows: Sequence[Cells]
    skipped: Sequence[int]
    """Lines without text."""


def read_rows(config: OwnTaskConfig, path: Path) -> Table:
    """All rows with text. A row without is an error, or is left out and counted."""
    reader = READERS[config.kind](config)
    rows, skipped = [], []
    for line, row in read_table(path, delimiter=config.delimiter_character, quoting=config.quoting):
        cells = Cells(f"{path}:{line}", row)
        empty = next((column for column in reader.text_columns if cells.has_no_text(column)), None)
        if empty is None:
            rows.append(cells)
        elif config.empty == "skip":
            skipped.append(line)
        else:
            raise InputError(
                f"{cells.where}: {empty!r} is empty; mend or remove the line, or set empty to skip to leave "
                "out all such lines"
            )
    if not rows:
        raise InputError(f"{path}: no examples in it{' but empty ones' if skipped else ''}")
    return Table(path=path, reader=reader, rows=rows, skipped=skipped)


def needs_labels(config: OwnTaskConfig) -> bool:
    """Whether there is nothing to learn and to score without labels."""
    return config.kind != "similarity" or config.similarity_loss != "contrastive"


def has_labels(table: Table, *, known: Classes | None = None) -> bool:
    """Whether any row has a label; if so, all must. `known` are the classes of the training file."""
    labelled = (cells for cells in table.rows if table.reader.has_label(cells))
    if known and SECRET not in known and table.reader.config.kind == "classification":
        return any(cells.name(table.reader.label_column) != SECRET for cells in labelled)
    return any(True for _ in labelled)


def require_labels(table: Table, *, known: Classes | None = None) -> None:
    """Say so if a file that is trained or scored on has no label at all."""
    if needs_labels(table.reader.config) and not has_labels(table, known=known):
        column = table.reader.label_column
        # Where the column is missing, this says which there are.
        table.rows[0].value(column)
        raise InputError(f"{table.path}: no line has a label in {column!r}, expected one in every line")


def read_splits(tables: Mapping[str, Table], classes: Classes) -> tuple[Splits, frozenset[str]]:
    """The examples of every split, and which splits have no labels: only test may be one of those."""
    splits: Splits = {}
    unlabelled = set()
    for split, table in tables.items():
        is_labelled = has_labels(table, known=classes)
        if split != TEST:
            require_labels(table, known=classes)
        elif not is_labelled and needs_labels(table.reader.config):
            unlabelled.add(split)
        splits[split] = examples_of(table, classes=classes if is_labelled else None)
    return splits, frozenset(unlabelled)


def examples_of(table: Table, *, classes: Classes | None) -> list[Any]:
    """Rows as examples, each with an id of its own; without `classes` nothing is known of them."""
    column = table.reader.config.id
    examples: list[Any] = []
    places: dict[str, str] = {}
    for cells in table.rows:
        id = cells.where.rpartition(":")[2] if column is None else cells.name(column)
        if id in places:
            raise InputError(
                f"{cells.where}: {column!r} is {id!r}, as in {places[id]}: an id may be there only once"
            )
        places[id] = cells.where
        examples.append(table.reader.example(cells, id, classes=classes))
    return examples
