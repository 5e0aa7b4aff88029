"""Text in pieces, or one text of any length -> documents within the limit.

A document is stripped, not empty and at most DOCUMENT_LIMIT characters long. A longer one is given as
several, cut at a line end, else at white space, else anywhere.

Text in pieces, one JSON object a line -> the text field of every object.
"""

import json
import re
from collections.abc import Iterable, Iterator

from electra.text.encoding import without_marks
from electra.text.quarantine import Reading, Tally

DOCUMENT_LIMIT = 4 << 20
_BLANK_LINES = re.compile(r"\n\s*\n")
_SOLID = re.compile(r"\S")


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def unix_lines(text: str) -> str:
    """The same text with "\\n" line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def whole_document(text: str, tally: Tally) -> Iterator[str]:
    """A stored text as one document, or as several if it is too long."""
    parts, rest = _overflow(unix_lines(text).strip())
    tally.documents_split += bool(parts)
    yield from parts
    if rest:
        yield rest


def split_documents(pieces: Iterable[str], tally: Tally) -> Iterator[str]:
    """The documents between blank lines, in constant memory and whatever the pieces."""
    open_parts: list[str] = []
    is_split = on_blank_line = False
    for piece in pieces:
        rest = piece
        if open_parts and on_blank_line:
            # The line so far may be blank in full: its end decides, which may be many pieces away.
            line, line_end, others = piece.partition("\n")
            if line_end and not line.strip():
                yield "".join(open_parts).rstrip()
                open_parts, is_split, rest = [], False, others
        *ended, rest = _BLANK_LINES.split(rest)
        for text in ended:
            parts, last = _overflow("".join([*open_parts, text]).strip())
            tally.documents_split += bool(parts) and not is_split
            yield from parts
            if last:
                yield last
            open_parts, is_split = [], False
        line_start = rest.rfind("\n") + 1
        on_blank_line = (on_blank_line or line_start > 0) and not rest[line_start:].strip()
        if rest := rest if open_parts else rest.lstrip():
            open_parts.append(rest)
        if sum(map(len, open_parts)) > DOCUMENT_LIMIT:
            parts, last = _overflow("".join(open_parts))
            tally.documents_split += bool(parts) and not is_split
            open_parts, is_split = [last], is_split or bool(parts)
            yield from parts
    if open_parts:
        yield "".join(open_parts).rstrip()


def _overflow(text: str) -> tuple[list[str], str]:
    """Parts cut off the front of a text while more than the limit is left, and the rest, which may go on.

    White space at the end is no reason to cut, as nothing may follow it; of very much of it enough is kept
    that the same cuts are made if something does.
    """
    parts = []
    start, end = 0, len(text)
    if end > DOCUMENT_LIMIT:
        end = len(text.rstrip())
    while end - start > DOCUMENT_LIMIT:
        cut = _cut(text, start)
        parts.append(text[start:cut].rstrip())
        solid = _SOLID.search(text, cut)
        assert solid is not None
        start = solid.start()
    return parts, text[start : start + 2 * DOCUMENT_LIMIT]


def _cut(text: str, start: int) -> int:
    """Where to cut a text within the limit: not in the first half, so that every part is worth having."""
    half, limit = start + DOCUMENT_LIMIT // 2, start + DOCUMENT_LIMIT
    if (line_end := text.rfind("\n", half, limit + 1)) > start:
        return line_end
    window = text[half : limit + 1]
    last_word = "" if window[-1].isspace() else window.rsplit(None, 1)[-1]
    return limit if len(last_word) == len(window) else limit + 1 - max(len(last_word), 1)


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
