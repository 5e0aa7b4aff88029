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
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def cleaned(text: str, tally: Tally, *, escape_bytes: int) -> str:
    """A stored text with "\\n" line ends and without NULs, lone surrogates and byte order marks."""
    bad = text.count("\0")
    if bad:
        text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        text, num_replaced = _SURROGATE.subn("\ufffd", text)
        bad += num_replaced
    tally.replaced_bytes += bad * escape_bytes
    return text.replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")


def whole_document(text: str, tally: Tally) -> Iterator[str]:
    """One text as one document, or as several if it is too long."""
    parts, rest = _overflow(text.strip())
    tally.documents_split += bool(parts)
    yield from parts
    if rest:
        yield rest


def split_documents(pieces: Iterable[str], tally: Tally) -> Iterator[str]:
    """The documents between blank lines, in constant memory and whatever the pieces."""
    open_document = ""
    is_split = on_blank_line = False
    for piece in pieces:
        rest = piece
        if open_document and on_blank_line:
            # The line so far may be blank in full: its end decides, which may be many pieces away.
            line, line_end, others = piece.partition("\n")
            if line_end and not line.strip():
                yield open_document.rstrip()
                open_document, is_split, rest = "", False, others
        *ended, rest = _BLANK_LINES.split(rest)
        for text in ended:
            parts, last = _overflow(open_document + text if open_document else text.lstrip())
            tally.documents_split += bool(parts) and not is_split
            yield from parts
            if last := last.rstrip():
                yield last
            open_document, is_split = "", False
        line_start = rest.rfind("\n") + 1
        on_blank_line = (on_blank_line or line_start > 0) and not rest[line_start:].strip()
        parts, open_document = _overflow(open_document + rest if open_document else rest.lstrip())
        tally.documents_split += bool(parts) and not is_split
        is_split = is_split or bool(parts)
        yield from parts
    if open_document := open_document.rstrip():
        yield open_document


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
