"""An official GLUE file -> checked examples.

The files are lines of values between tabs. A double quote is a double quote: nothing is quoted. Some begin
with a byte order mark, some end lines with CR LF, some lack the last line's end.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra.errors import InputError
from electra.tasks.classification import Regression
from electra.tasks.glue_table import EMPTY_TEXT, MISSING_COLUMNS, GlueSplit, GlueTask
from electra.tasks.text_examples import TextExample

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
    """Lines with their numbers from 1; blank ones at the end are none."""
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    if not content:
        raise InputError(f"{path} is empty: get it again from the official source")
    # Only LF ends a line: `splitlines` would also cut at marks that stand within a sentence.
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            yield number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}: {error}, expected UTF-8 as in the official file") from error


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
