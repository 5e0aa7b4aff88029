"""A table (CSV, TSV, JSON lines, parquet, a Hub dataset) -> its rows, each with its line number.

The one reader of tables for `prepare`, which wants the text of one column and goes on after a bad row, and
for tasks, which want all columns exactly as stored and refuse the file at its first bad row. The `Reading`
decides which: see `electra.text.quarantine`. Files may be compressed and in any encoding.

    for line, row in read_table(strict_reading(table_source(path))):  # row: {column: value}
"""

import csv
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from electra import hub
from electra.errors import InputError, import_extra
from electra.show import listed
from electra.store.cache import open_file
from electra.text.compression import PIECE_BYTES, read_pieces
from electra.text.encoding import check_encoding, decode_utf8, read_text, with_unix_line_ends, without_marks
from electra.text.quarantine import Reading, strict_reading
from electra.text.sources import COMPRESSIONS, Source, format_of, without_compression

Row = dict[str, Any]
NumberedRow = tuple[int, Row]
Quoting = Literal["double", "none"]

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")
LINE_LIMIT = 64 << 20
"""Longest line in bytes that is parsed."""


class BadRowError(ValueError):
    """Why a row cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How text files are to be read where their own content does not tell."""

    encoding: str | None = None
    """Encoding; None detects it."""
    delimiter: str | None = None
    """Character between the values of a CSV or TSV file, or "tab"; None takes it from the header."""
    quoting: Quoting | None = None
    """Whether double quotes around a value are syntax (double) or part of the value (none)."""

    def __post_init__(self) -> None:
        if self.encoding is not None:
            check_encoding(self.encoding)
        given = self.delimiter
        if given is not None and (len(given) != 1 or given in '\n\r"') and given not in ("tab", "\\t"):
            raise InputError(f"delimiter is {given!r}, expected one character or the word tab")

    def delimiter_for(self, header: str, *, is_tsv: bool) -> str:
        """The delimiter that is given, or else the one that splits the header into the most columns."""
        if self.delimiter is not None:
            return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter
        bare = _QUOTED.sub("", header)
        return "\t" if is_tsv and "\t" in bare else max(_DELIMITERS, key=bare.count)

    def quoting_for(self, delimiter: str) -> Quoting:
        """The quoting that is given; by default, quotes in tab-separated values are part of the value."""
        return self.quoting or ("none" if delimiter == "\t" else "double")


_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
DETECTED = Dialect()


def is_table(path: Path) -> bool:
    """Whether a file's name promises a table."""
    return Path(without_compression(path.name)).suffix.lower() in SUFFIXES


def table_source(path: Path) -> Source:
    """A file to be read as a table: unlike in a corpus, .txt is one, such as the files of NSMC."""
    if not is_table(path):
        raise InputError(
            f"{path}: not a known kind of table, expected {' '.join(SUFFIXES)} (also with "
            f"{' '.join(COMPRESSIONS)})"
        )
    format_, compression = format_of(path.name)
    return Source(
        path=str(path),
        format="csv" if format_ in (None, "text") else format_,
        compression=compression,
        bytes=path.stat().st_size if path.is_file() else 0,
    )


def read_table(
    reading: Reading,
    *,
    dialect: Dialect = DETECTED,
    text_column: str | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[NumberedRow]:
    """(line, {column: value}): strings from CSV and TSV, the stored values from JSON and parquet.

    A parquet file has no lines: its rows are counted from 1. With `text_column`, only that column is read:
    every row has a string there, without characters that no text file can contain; a file without such a
    column is one problem.
    """
    match reading.source.format:
        case "hf":
            assert text_column is not None
            return open_dataset(text_column, reading)
        case "parquet":
            return _parquet_rows(reading, text_column)
        case "jsonl":
            # A carriage return inside a JSON string is always escaped, so that line ends can be unified.
            pieces = with_unix_line_ends(
                read_text(reading, encoding=dialect.encoding, piece_bytes=piece_bytes)
            )
            return _json_rows(_lines(pieces, reading), reading, text_column)
        case _:
            pieces = read_text(reading, encoding=dialect.encoding, piece_bytes=piece_bytes)
            return _delimited_rows(_lines(pieces, reading), reading, dialect, text_column)


def read_lines(path: Path, *, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file without their ends; what cannot be read is an InputError.

    Only a line feed ends a line: other line ends that Unicode knows may be part of a text.
    """
    reading = strict_reading(_text_source(path))
    for number, line in _lines(read_text(reading, encoding=encoding), reading):
        yield number, line.removesuffix("\r")


def read_whole(path: Path) -> str:
    """The text of a file in one piece; what cannot be read is an InputError."""
    return "".join(read_text(strict_reading(_text_source(path))))


def _text_source(path: Path) -> Source:
    return Source(path=str(path), format="text", compression=format_of(path.name)[1])


def _lines(pieces: Iterable[str], reading: Reading) -> Iterator[tuple[int, str]]:
    """Numbered lines. One beyond the limit is reported and skipped without being kept in memory."""
    number = 1
    parts: list[str] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split("\n")
        for end in ended:
            if not size and len(end) * 4 <= LINE_LIMIT:
                yield number, end
            elif (size := size + utf8_size(end)) <= LINE_LIMIT:
                yield number, "".join([*parts, end])
            else:
                _too_long(number, size, reading)
            if size:
                parts, size = [], 0
            number += 1
        if rest:
            size += utf8_size(rest)
            if size <= LINE_LIMIT:
                parts.append(rest)
            else:
                parts.clear()
    if size > LINE_LIMIT:
        _too_long(number, size, reading)
    elif size:
        yield number, "".join(parts)


def _too_long(number: int, size: int, reading: Reading) -> None:
    reading.bad_row(f"a line of {size:,} bytes, at most {LINE_LIMIT:,} are read", line=number, lost=size)


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# --- CSV and TSV ---

# The csv module stops at 131,072 characters; some documents are longer.
_FIELD_LIMIT = 1 << 26
_WAY_OUT = {
    "double": "a value that contains {delimiter!r} or a line break must be in double quotes",
    "none": "double quotes are part of the values here: set quoting to double if they enclose values",
}

_Record = tuple[int, int, list[str]]
"""First line, bytes and values."""


def _delimited_rows(
    lines: Iterator[tuple[int, str]], reading: Reading, dialect: Dialect, text_column: str | None
) -> Iterator[NumberedRow]:
    first = next(lines, None)
    if first is None or not first[1].strip():
        reading.problem("expected the names of the columns, found nothing", line=1, lost=reading.source.bytes)
        return
    delimiter = dialect.delimiter_for(first[1], is_tsv=reading.source.format == "tsv")
    quoting = dialect.quoting_for(delimiter)
    split = _split if quoting == "none" else _split_quoted
    records = split(chain([first], lines), delimiter, reading)
    columns = [name.strip() for name in next(records, (1, 0, [""]))[2]]
    if wrong := _wrong_columns(columns, text_column):
        reading.problem(wrong, line=1, lost=reading.source.bytes)
        return
    for line, size, values in records:
        if len(values) == len(columns):
            yield line, dict(zip(columns, values, strict=True))
        else:
            names = ", ".join(columns)
            way_out = _WAY_OUT[quoting].format(delimiter=delimiter)
            reason = f"{len(values)} values, but the header names {len(columns)} columns ({names}); {way_out}"
            reading.bad_row(reason, line=line, lost=size)


def _split(lines: Iterable[tuple[int, str]], delimiter: str, reading: Reading) -> Iterator[_Record]:
    for number, line in lines:
        if bare := line.rstrip("\r"):
            yield number, utf8_size(line), bare.split(delimiter)


def _split_quoted(lines: Iterable[tuple[int, str]], delimiter: str, reading: Reading) -> Iterator[_Record]:
    csv.field_size_limit(_FIELD_LIMIT)
    record: list[tuple[int, str]] = []

    def taken() -> Iterator[str]:
        for number, line in lines:
            record.append((number, line))
            yield f"{line}\n"

    # Strict, or a quote that is never closed would swallow the rest of the file without a word.
    reader = csv.reader(taken(), delimiter=delimiter, strict=True)
    while True:
        record.clear()
        try:
            values = next(reader, None)
        except csv.Error as error:
            reason = (
                f'not readable as CSV from here: {error}; double a quote inside a value (""), or set quoting '
                "to none if quotes are part of the values"
            )
            lost = sum(utf8_size(line) + 1 for _, line in record)
            reading.bad_row(reason, line=record[0][0], lost=lost)
            continue
        if values is None:
            return
        if values:
            yield record[0][0], sum(utf8_size(line) + 1 for _, line in record), values


def _wrong_columns(columns: Sequence[str], text_column: str | None) -> str | None:
    """What is wrong with a header, if anything."""
    found = ", ".join(repr(name) for name in columns)
    if text_column is not None:
        if columns.count(text_column) == 1:
            return None
        if text_column not in columns:
            return missing_field(columns, text_column)
    elif "" in columns:
        return (
            f"column {columns.index('') + 1} has no name, found {found}: name it (pandas writes such a "
            "column unless told to_csv(index=False))"
        )
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        return f"column {repeated[0]!r} occurs twice, found {found}: rename one of them"
    return None


# --- JSON lines ---

_ONE_OBJECT_A_LINE = "expected one JSON object per line (jq -c '.[]' makes such lines from a list)"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE_BYTES = len(r"\ud800")
# Python's int has a limit of digits, which is no reason to refuse a row.
_LONG_NUMBERS = json.JSONDecoder(parse_int=float)


def _json_rows(
    lines: Iterator[tuple[int, str]], reading: Reading, text_column: str | None
) -> Iterator[NumberedRow]:
    is_first = True
    for number, line in lines:
        if not line or line.isspace():
            continue
        if is_first and (line.lstrip().startswith("[") or line.strip() == "{"):
            reading.problem(
                f"one JSON value over many lines; {_ONE_OBJECT_A_LINE}", lost=reading.source.bytes
            )
            return
        is_first = False
        try:
            row = _json_row(line)
            if text_column is not None:
                text = _text(row, text_column)
                # Only an escape can stand for what the file itself cannot contain.
                row = {text_column: _without_bad_characters(text, reading) if "\\u" in line else text}
            elif _SURROGATE_ESCAPE.search(line) and _SURROGATE.search(json.dumps(row, ensure_ascii=False)):
                raise BadRowError("half of a \\ud... pair, which is not a character: correct or remove it")
            yield number, row
        except BadRowError as error:
            reading.bad_row(str(error), line=number, lost=utf8_size(line))


def _json_row(line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRowError(
            f"not JSON: {error.msg} at character {error.colno}; {_ONE_OBJECT_A_LINE}"
        ) from error
    except RecursionError as error:
        raise BadRowError("JSON nested too deeply") from error
    except ValueError:
        row = _LONG_NUMBERS.decode(line)
    if not isinstance(row, dict):
        raise BadRowError(f"a JSON {_kind(row)}, expected an object")
    return row


def _without_bad_characters(text: str, reading: Reading) -> str:
    """The text with lone surrogates replaced, and without NULs and byte order marks."""
    text, num_replaced = _SURROGATE.subn("\ufffd", text)
    reading.tally.replaced_bytes += (num_replaced + text.count("\0")) * _ESCAPE_BYTES
    return without_marks(text.replace("\0", ""))


def _text(row: Row, text_column: str) -> str:
    """The text in a row, or a BadRowError that says what is there instead."""
    if text_column not in row:
        raise BadRowError(missing_field(list(row), text_column))
    text = row[text_column]
    if not isinstance(text, str):
        raise BadRowError(f"field {text_column!r} is a {_kind(text)}, expected a string")
    return text


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", float: "number", int: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


_NAMES_SHOWN = 10


def missing_field(names: Sequence[str], text_column: str) -> str:
    """That there is no such field, and which others there are."""
    known = listed([repr(name[:40]) for name in names], most=_NAMES_SHOWN) or "none"
    return f"no field {text_column!r}; it has {known} (--text_field)"


# --- parquet ---

_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20


def _parquet_rows(reading: Reading, text_column: str | None) -> Iterator[NumberedRow]:
    """A row group that cannot be read is a problem, and the next one follows."""
    arrow = import_extra("pyarrow", extra="parquet")
    parquet = import_extra("pyarrow.parquet", extra="parquet")
    damage = (arrow.ArrowException, OSError, ValueError, MemoryError)
    source, tally = reading.source, reading.tally
    start = tally.source_bytes
    try:
        with _seekable(reading) as contents:
            # pyarrow cannot open a path that contains undecodable bytes, so it gets the open file.
            file = parquet.ParquetFile(contents, buffer_size=_BUFFER_BYTES)
            if wrong := _wrong_schema(file.schema_arrow, text_column, arrow.types):
                raise BadRowError(wrong)
            first_row = 1
            for group in range(file.num_row_groups):
                try:
                    yield from _row_group(file, group, first_row, reading, text_column)
                except InputError:
                    raise
                except damage as error:
                    size = file.metadata.row_group(group).total_byte_size
                    reading.problem(
                        f"row group {group + 1}: {short_reason(error)}", line=first_row, lost=size
                    )
                first_row += file.metadata.row_group(group).num_rows
                progress = start + source.bytes * (group + 1) // file.num_row_groups
                tally.source_bytes = max(tally.source_bytes, progress)
    except BadRowError as error:
        reading.problem(str(error), lost=source.bytes)
    except InputError:
        raise
    except damage as error:
        reading.problem(f"cannot be read as parquet: {short_reason(error)}", lost=source.bytes)


@contextmanager
def _seekable(reading: Reading) -> Iterator[IO[bytes]]:
    """The file, or a decompressed copy of it, because parquet is read from its end."""
    if reading.source.compression == "none":
        source = reading.source
        with open_file(source.path, size=source.bytes, modified=source.modified) as file:
            yield file
            reading.record_change(file, lost=0)
    else:
        with tempfile.TemporaryFile() as copy:
            try:
                copy.writelines(read_pieces(reading))
                copy.seek(0)
            except OSError as error:
                # Not the file's fault: what is wrong with that, the pieces have said.
                raise InputError(
                    f"{reading.source.name} cannot be decompressed into {tempfile.gettempdir()}: "
                    f"{error.strerror or error}; make room there, or set TMPDIR to a folder with more"
                ) from error
            yield copy


def _wrong_schema(schema: Any, text_column: str | None, types: Any) -> str | None:
    """What is wrong with the columns, if anything."""
    wrong = _wrong_columns(schema.names, text_column)
    if wrong or text_column is None:
        return wrong
    kind = schema.field(text_column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
    return None if is_text else f"column {text_column!r} holds {kind}, expected string"


def _row_group(
    file: Any, group: int, first_row: int, reading: Reading, text_column: str | None
) -> Iterator[NumberedRow]:
    columns = None if text_column is None else [text_column]
    batches = file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)
    number = first_row
    for batch in batches:
        rows = batch.to_pylist() if text_column is None else _text_rows(batch, text_column, reading)
        for row in rows:
            if text_column is not None and row[text_column] is None:
                reading.bad_row(f"column {text_column!r} is null", line=number)
            else:
                yield number, row
            number += 1


def _text_rows(batch: Any, text_column: str, reading: Reading) -> Iterator[Row]:
    column = batch.column(0)
    column = column.dictionary_decode() if hasattr(column, "dictionary") else column
    # As strings, one bad byte would be the end of the whole batch.
    for value in column.cast("large_binary").to_pylist():
        text, replaced_bytes = (None, 0) if value is None else decode_utf8(value)
        reading.tally.replaced_bytes += replaced_bytes
        yield {text_column: text}


# --- datasets of the Hugging Face Hub ---


def open_dataset(text_column: str, reading: Reading) -> Iterator[NumberedRow]:
    """The rows of a dataset as they arrive. It is opened at once, as nothing can be read if that fails."""
    name, config, split = dataset_name(reading.source.path)
    try:
        if not Path(name).exists():
            hub.ask_for_dataset(name)
        datasets = import_extra("datasets", extra="hf")
        dataset = datasets.load_dataset(name, config, split=split or "train", streaming=True)
    # The client passes on whatever its network library raises; the way out is the same for all of it.
    except Exception as error:
        way_out = "expected hf:NAME[:CONFIG][@SPLIT], the name of a dataset on huggingface.co, which must be "
        way_out += "reachable, or a local folder"
        if isinstance(error, PermissionError):
            way_out = f"{error.filename or 'its cache'} cannot be written: set HF_HOME to a folder that can"
        raise InputError(
            f"{reading.source.name} cannot be opened: {short_reason(error)} ({way_out})"
        ) from error
    if dataset.column_names is not None:
        if text_column not in dataset.column_names:
            raise InputError(f"{reading.source.name}: {missing_field(dataset.column_names, text_column)}")
        dataset = dataset.select_columns([text_column])
    return _dataset_rows(dataset, text_column, reading)


def dataset_name(path: str) -> tuple[str, str | None, str | None]:
    """NAME[:CONFIG][@SPLIT]; a folder of exactly that name goes first."""
    if Path(path).exists():
        return path, None, None
    name, _, split = path.partition("@")
    name, _, config = name.partition(":")
    return name, config or None, split or None


def _dataset_rows(dataset: Any, text_column: str, reading: Reading) -> Iterator[NumberedRow]:
    number, begun = 0, reading.tally.text_bytes
    try:
        for number, row in enumerate(dataset, start=1):
            try:
                text = _without_bad_characters(_text(row, text_column), reading)
            except BadRowError as error:
                reading.bad_row(str(error), line=number)
            else:
                yield number, {text_column: text}
    except Exception as error:
        # How much is missing nobody knows: it counts as much as what came.
        lost = max(1, reading.tally.text_bytes - begun)
        reading.problem(
            f"breaks off after {number:,} rows: {short_reason(error)}", line=number + 1, lost=lost
        )


def short_reason(error: BaseException) -> str:
    """The first line of a message, as other libraries' messages may be long."""
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
