"""Text in pieces, one JSON object a line -> the text field of every object."""

import json
import re
from collections.abc import Iterable, Iterator

from electra.text.decoder import without_marks
from electra.text.documents import utf8_size
from electra.text.tally import Reading

LINE_LIMIT = 64 << 20
"""Bytes of a line that is still parsed."""

# Whole numbers of any length are no reason to refuse a row whose text is sound: Python's int has a limit.
_DECODER = json.JSONDecoder(parse_int=float)
_NUM_NAMES_SHOWN = 10
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Such as \ud800.
_ESCAPE_BYTES = 6


class BadRowError(ValueError):
    """A row that gives no text, and why."""


def read_json_lines(pieces: Iterable[str], text_field: str, reading: Reading) -> Iterator[str]:
    """The texts as they are stored; a line without one is a problem, a blank line is none."""
    is_first = True
    for number, line in _lines(pieces, reading):
        if line.isspace():
            continue
        if is_first and (line.lstrip().startswith("[") or line.strip() == "{"):
            reason = (
                "one JSON value over many lines, expected one object a line (jq -c '.[]' makes such a file)"
            )
            reading.problem(reason, lost=reading.source.bytes)
            return
        is_first = False
        try:
            text = field_text(_parsed(line), text_field)
            # Only an escape can stand for what the file itself cannot hold.
            yield without_bad_characters(text, reading) if "\\u" in line else text
        except BadRowError as error:
            reading.bad_row(str(error), line=number, lost=utf8_size(line))


def field_text(row: object, text_field: str) -> str:
    """The text in a row, or what the row has instead."""
    if not isinstance(row, dict):
        raise BadRowError(f"a JSON {_kind(row)}, expected an object")
    if text_field not in row:
        raise BadRowError(missing_field(list(row), text_field))
    text = row[text_field]
    if not isinstance(text, str):
        raise BadRowError(f"field {text_field!r} is a {_kind(text)}, expected a string")
    return text


def without_bad_characters(text: str, reading: Reading) -> str:
    """The text with lone surrogates replaced, and without NULs and byte order marks."""
    text, num_replaced = _SURROGATE.subn("\ufffd", text)
    reading.tally.replaced_bytes += (num_replaced + text.count("\0")) * _ESCAPE_BYTES
    return without_marks(text.replace("\0", ""))


def missing_field(names: list[str], text_field: str) -> str:
    """What to say where the text field is looked for in vain: which others there are."""
    shown = ", ".join(repr(name[:40]) for name in names[:_NUM_NAMES_SHOWN]) or "none"
    more = f" and {len(names) - _NUM_NAMES_SHOWN} more" if len(names) > _NUM_NAMES_SHOWN else ""
    return f"no field {text_field!r}; it has {shown}{more} (--text_field)"


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "string", float: "number", int: "number", bool: "boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _parsed(line: str) -> object:
    try:
        return _DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise BadRowError(f"not JSON: {error.msg} at character {error.colno}") from error
    except RecursionError as error:
        raise BadRowError("JSON nested too deeply") from error


def _lines(pieces: Iterable[str], reading: Reading) -> Iterator[tuple[int, str]]:
    """Numbered lines, empty ones left out. One beyond the limit is passed over without being kept."""
    number = 1
    parts: list[str] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split("\n")
        for end in ended:
            if not size and len(end) * 4 <= LINE_LIMIT:
                if end:
                    yield number, end
            else:
                yield from _line(number, [*parts, end], size + utf8_size(end), reading)
                parts, size = [], 0
            number += 1
        if rest:
            size += utf8_size(rest)
            if size <= LINE_LIMIT:
                parts.append(rest)
            else:
                parts.clear()
    yield from _line(number, parts, size, reading)


def _line(number: int, parts: list[str], size: int, reading: Reading) -> Iterator[tuple[int, str]]:
    if size > LINE_LIMIT:
        reason = f"a line of {size:,} bytes, at most {LINE_LIMIT:,} are read"
        reading.bad_row(reason, line=number, lost=size)
    elif size:
        yield number, "".join(parts)
