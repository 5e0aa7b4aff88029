"""A table in a file (CSV, TSV, line-JSON, parquet; also .gz) -> its rows, each with the number of its line.

Nothing is repaired: what cannot be read as it stands is an error with file and line, since a guess would
train a model on other data than the person thinks.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from electra.errors import InputError, import_extra

Row = dict[str, Any]
Quoting = Literal["double", "none"]
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")

_DELIMITERS = ",;\t|"
# The csv module stops at 131,072 characters; some documents are longer.
_FIELD_LIMIT = 1 << 26
_BATCH_ROWS = 1024
_QUOTED = re.compile(r'"[^"]*"')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def is_table(path: Path) -> bool:
    """Whether the name of a file promises a table that can be read."""
    return table_suffix(path) in SUFFIXES


def table_suffix(path: Path) -> str:
    """What kind of table a file's name promises, whether it is compressed or not."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_table(
    path: Path, *, delimiter: str | None = None, quoting: Quoting | None = None
) -> Iterator[tuple[int, Row]]:
    """(line, {column: value}): strings from CSV and TSV, what was stored from JSON and parquet.

    A parquet file has no lines: its rows are counted from 1. Unless `delimiter` and `quoting` are given, the
    header tells the delimiter, and quotes have a meaning unless it is a tab.
    """
    suffix = table_suffix(path)
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of table, expected {' '.join(SUFFIXES)} (also with .gz)")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if suffix == ".parquet":
        yield from _parquet_rows(path)
    elif suffix in (".jsonl", ".ndjson", ".json"):
        yield from _json_rows(path)
    else:
        yield from _delimited_rows(path, delimiter, quoting)


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _lines(path: Path) -> Iterator[str]:
    """Decoded lines with their ends; only a line feed ends one, as a JSON string may hold other breaks."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise InputError(f"{path} is UTF-16: convert it, as in iconv -f UTF-16 -t UTF-8")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}:{number}: byte 0x{error.object[error.start]:02x} at position {error.start + 1} of the "
            "line is not UTF-8: convert the file, as in iconv -f WINDOWS-1252 -t UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read after line {number}: {error}") from error


def _delimited_rows(path: Path, delimiter: str | None, quoting: Quoting | None) -> Iterator[tuple[int, Row]]:
    lines = _lines(path)
    header = next(lines, "")
    if not header.strip():
        raise InputError(f"{path}:1: expected the names of the columns, found an empty line")
    delimiter = delimiter or _sniffed(header, table_suffix(path))
    quoting = quoting or ("none" if delimiter == "\t" else "double")
    split = _split if quoting == "none" else _split_quoted
    records = split(chain([header], lines), delimiter, path)
    _, names = next(records)
    columns = [name.strip() for name in names]
    _check_columns(path, columns)
    for line, values in records:
        if len(values) != len(columns):
            raise InputError(
                f"{path}:{line}: {len(values)} values, but the header names {len(columns)} columns "
                f"({', '.join(columns)}); {_WAY_OUT[quoting].format(delimiter=delimiter)}"
            )
        yield line, dict(zip(columns, values, strict=True))


_WAY_OUT = {
    "double": "a value with {delimiter!r} or a line break in it must stand in double quotes",
    "none": "quotes have no meaning here: give quoting double if values stand in double quotes",
}


def _sniffed(header: str, suffix: str) -> str:
    """The delimiter that gives the most columns; a comma if there is but one column."""
    bare = _QUOTED.sub("", header)
    if suffix == ".tsv" and "\t" in bare:
        return "\t"
    return max(_DELIMITERS, key=bare.count)


def _split(lines: Iterator[str], delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        if bare := line.rstrip("\r\n"):
            yield number, bare.split(delimiter)


def _split_quoted(lines: Iterator[str], delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_FIELD_LIMIT)
    # Strict, or a quote that is never closed would swallow the rest of the file without a word.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        for values in reader:
            if values:
                yield start, values
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: not readable as CSV from here: {error}; a quote within a value is doubled "
            '(""), or give quoting none if quotes have no meaning in this file'
        ) from error


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    found = ", ".join(repr(name) for name in columns)
    if "" in columns:
        number = columns.index("") + 1
        raise InputError(
            f"{path}:1: column {number} has no name, found {found}: name it (pandas writes such a column "
            "unless told to_csv(index=False))"
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(f"{path}:1: column {twice[0]!r} is there twice, found {found}: rename one of them")


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON: {error}{_ONE_OBJECT_A_LINE}") from error
        if not isinstance(row, dict):
            raise InputError(
                f"{path}:{number}: not a JSON object but {line.strip()[:40]!r}{_ONE_OBJECT_A_LINE}"
            )
        if _SURROGATE.search(line) and _has_half_character(row):
            raise InputError(
                f"{path}:{number}: half of a \\ud... pair, which is no character: mend or remove it"
            )
        yield number, row


_ONE_OBJECT_A_LINE = "; expected one object a line (jq -c '.[]' makes such lines of one list)"


def _has_half_character(row: Row) -> bool:
    text = json.dumps(row, ensure_ascii=False)
    return any("\ud800" <= character <= "\udfff" for character in text)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    arrow = import_extra("pyarrow", extra="parquet")
    parquet = import_extra("pyarrow.parquet", extra="parquet")
    number = 0
    try:
        with _opened(path) as file:
            # Parquet is read from its end, where gzip cannot seek to.
            contents = io.BytesIO(file.read()) if path.name.lower().endswith(".gz") else file
            table = parquet.ParquetFile(contents)
            _check_columns(path, table.schema_arrow.names)
            for batch in table.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: cannot be read as parquet after row {number}: {reason}") from error
