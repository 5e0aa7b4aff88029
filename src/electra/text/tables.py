"""A parquet file or a dataset of the Hugging Face Hub -> the text of every row."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from electra.errors import InputError, import_extra
from electra.text.compression import read_pieces
from electra.text.encoding import decode_utf8
from electra.text.quarantine import Reading
from electra.text.readers import BadRowError, field_text, missing_field, without_bad_characters

_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20
_ANSWER_SECONDS = 20


def read_parquet(text_field: str, reading: Reading) -> Iterator[str]:
    """The values of one column; a row group that cannot be read is a problem, and the next one follows."""
    arrow = import_extra("pyarrow", extra="parquet")
    parquet = import_extra("pyarrow.parquet", extra="parquet")
    damage = (arrow.ArrowException, OSError, ValueError, MemoryError)
    source, tally = reading.source, reading.tally
    start = tally.source_bytes
    try:
        with _opened(reading) as contents:
            # pyarrow opens no path with undecodable bytes in it, so it is given the open file.
            file = parquet.ParquetFile(contents, buffer_size=_BUFFER_BYTES)
            _check_column(file.schema_arrow, text_field, arrow.types)
            first_row = 1
            for group in range(file.num_row_groups):
                try:
                    yield from _column(file, group, text_field, first_row, reading)
                except damage as error:
                    size = file.metadata.row_group(group).total_byte_size
                    reading.problem(f"row group {group + 1}: {_short(error)}", line=first_row, lost=size)
                first_row += file.metadata.row_group(group).num_rows
                progress = start + source.bytes * (group + 1) // file.num_row_groups
                tally.source_bytes = max(tally.source_bytes, progress)
    except BadRowError as error:
        reading.problem(str(error), lost=source.bytes)
    except damage as error:
        reading.problem(f"cannot be read as parquet: {_short(error)}", lost=source.bytes)


@contextmanager
def _opened(reading: Reading) -> Iterator[IO[bytes]]:
    """The file, or a decompressed copy of it, as parquet is read from its end."""
    if reading.source.compression == "none":
        with Path(reading.source.path).open("rb") as file:
            yield file
    else:
        with tempfile.TemporaryFile() as copy:
            copy.writelines(read_pieces(reading))
            copy.seek(0)
            yield copy


def _check_column(schema: Any, text_field: str, types: Any) -> None:
    if text_field not in schema.names:
        raise BadRowError(missing_field(schema.names, text_field))
    kind = schema.field(text_field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)):
        raise BadRowError(f"column {text_field!r} holds {kind}, expected string")


def _column(file: Any, group: int, text_field: str, first_row: int, reading: Reading) -> Iterator[str]:
    row = first_row
    batches = file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[text_field], use_threads=False)
    for batch in batches:
        column = batch.column(0)
        column = column.dictionary_decode() if hasattr(column, "dictionary") else column
        # As strings, one bad byte would be the end of the whole batch.
        for value in column.cast("large_binary").to_pylist():
            if value is None:
                reading.bad_row(f"column {text_field!r} is null", line=row)
            else:
                text, replaced_bytes = decode_utf8(value)
                reading.tally.replaced_bytes += replaced_bytes
                yield text
            row += 1


def open_dataset(text_field: str, reading: Reading) -> Iterator[str]:
    """The rows of a dataset as they arrive. It is opened at once: nothing can be read if that fails."""
    name, config, split = _dataset_name(reading.source.path)
    try:
        if not Path(name).exists():
            _ask_for(name)
        datasets = import_extra("datasets", extra="hf")
        dataset = datasets.load_dataset(name, config, split=split, streaming=True)
    # The client passes on whatever its network library raises; the way out is the same for all of it.
    except Exception as error:
        raise InputError(
            f"{reading.source.name} cannot be opened: {_short(error)} (hf:NAME[:CONFIG][@SPLIT]; the name of "
            "a dataset on huggingface.co, which must be reachable, or a local folder)"
        ) from error
    if dataset.column_names is not None:
        if text_field not in dataset.column_names:
            raise InputError(f"{reading.source.name}: {missing_field(dataset.column_names, text_field)}")
        dataset = dataset.select_columns([text_field])
    return _dataset_rows(dataset, text_field, reading)


def _dataset_name(path: str) -> tuple[str, str | None, str]:
    """NAME[:CONFIG][@SPLIT], where a folder of that very name goes first."""
    if Path(path).exists():
        return path, None, "train"
    name, _, split = path.partition("@")
    name, _, config = name.partition(":")
    return name, config or None, split or "train"


def _ask_for(name: str) -> None:
    """Ask the Hub once. Without this, `datasets` repeats a hopeless request for half a minute."""
    hub = import_extra("huggingface_hub", extra="hf")
    if not hub.constants.HF_HUB_OFFLINE:
        hub.HfApi().dataset_info(name, timeout=_ANSWER_SECONDS)


def _dataset_rows(dataset: Any, text_field: str, reading: Reading) -> Iterator[str]:
    number = 0
    try:
        for number, row in enumerate(dataset, start=1):
            try:
                yield without_bad_characters(field_text(row, text_field), reading)
            except BadRowError as error:
                reading.bad_row(str(error), line=number)
    except Exception as error:
        reading.problem(f"breaks off after {number:,} rows: {_short(error)}", line=number + 1)


def _short(error: BaseException) -> str:
    """The first line of a message, which in other people's libraries may be long."""
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
