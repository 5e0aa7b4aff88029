"""A source of text -> its documents, counted, with a problem for everything that could not be read.

A plain text file holds documents separated by blank lines; a table holds one document per row. A document is
stripped, not empty and at most DOCUMENT_LIMIT characters long. A longer one becomes several, cut at a line
end, else at white space, else anywhere.
"""

import re
from collections.abc import Iterable, Iterator

from electra.text.compression import PIECE_BYTES
from electra.text.encoding import read_text, with_unix_line_ends
from electra.text.quarantine import Reading, Tally
from electra.text.sources import require_extras
from electra.text.tables import DETECTED, Dialect, read_table, utf8_size

DOCUMENT_LIMIT = 4 << 20
_BLANK_LINES = re.compile(r"\n\s*\n")
_SOLID = re.compile(r"\S")


def read_documents(
    reading: Reading, *, text_column: str, dialect: Dialect = DETECTED, piece_bytes: int = PIECE_BYTES
) -> Iterator[str]:
    """All documents of a source.

    Only what the user can correct at once is an InputError: a missing extra, an unknown dataset.
    """
    require_extras([reading.source])
    if reading.source.format == "text":
        pieces = with_unix_line_ends(read_text(reading, encoding=dialect.encoding, piece_bytes=piece_bytes))
        documents = split_documents(pieces, reading.tally)
    else:
        rows = read_table(reading, dialect=dialect, text_column=text_column, piece_bytes=piece_bytes)
        documents = (
            document for _, row in rows for document in whole_document(row[text_column], reading.tally)
        )
    return _counted(documents, reading)


def _counted(documents: Iterable[str], reading: Reading) -> Iterator[str]:
    tally = reading.tally
    end = tally.source_bytes + reading.source.bytes
    for document in documents:
        tally.documents += 1
        tally.text_bytes += utf8_size(document)
        yield document
    # A source that was not read to its end is finished, too.
    tally.source_bytes = max(tally.source_bytes, end)


def whole_document(text: str, tally: Tally) -> Iterator[str]:
    """The text of a row as one document, or as several if it is too long."""
    parts, rest = _overflow(_unix_lines(text).strip())
    tally.documents_split += bool(parts)
    yield from parts
    if rest:
        yield rest


def split_documents(pieces: Iterable[str], tally: Tally) -> Iterator[str]:
    """The documents between blank lines, in constant memory and independent of how the text is cut."""
    open_parts: list[str] = []
    is_split = on_blank_line = False
    for piece in pieces:
        rest = piece
        if open_parts and on_blank_line:
            # Whether the line so far is blank is decided at its end, which may be many pieces away.
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
    """Parts cut off the front of a text while more than the limit is left, and the rest, which may continue.

    White space at the end is no reason to cut, because nothing may follow it. Of a very long stretch, enough
    is kept for the same cuts to be made if something does.
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
    """Where to cut a text within the limit, but not in its first half: no part should be tiny."""
    half, limit = start + DOCUMENT_LIMIT // 2, start + DOCUMENT_LIMIT
    if (line_end := text.rfind("\n", half, limit + 1)) > start:
        return line_end
    window = text[half : limit + 1]
    last_word = "" if window[-1].isspace() else window.rsplit(None, 1)[-1]
    return limit if len(last_word) == len(window) else limit + 1 - max(len(last_word), 1)


def _unix_lines(text: str) -> str:
    """The same text with "\\n" line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
