"""Text in pieces, or one text of any length -> documents within the limit.

A document is stripped, not empty and at most DOCUMENT_LIMIT characters long. A longer one is given as
several, cut at a line end, else at white space, else anywhere.
"""

import re
from collections.abc import Iterable, Iterator

from electra.text.tally import Tally

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
