"""Raw documentation (docstring, topic, README, comment) -> its English prose, one paragraph per line.

reStructuredText, numpydoc, Google style and Markdown are read by one tolerant pass, because docstrings mix
them. What has a block of its own and is not prose goes: doctests, code, tables, signatures, headings,
references. Parameter lists stay as lines of the form "name: description", without the types.
"""

import inspect
import re
from collections.abc import Iterator

from electra.text.prose import is_english, is_prose, plain

MIN_CHARACTERS = 200  # A shorter passage says too little to be a document.

_FENCE = re.compile(r"\s*(```|~~~)")
_PROMPT = re.compile(r"\s*(>>>|\.\.\. |In \[\d+\]:|\$ )")
_TABLE = re.compile(r"\s*(\||[+][-=+]{3}|[=-]+( +[=-]{2,})+\s*$|\S.*\|.*\|)")
_DIRECTIVE = re.compile(r"\s*\.\. ?([\w:-]+)::\s*(.*)")
_ADMONITION = re.compile(r"admonition|attention|caution|danger|hint|important|note|seealso|tip|warning")
_VERSION_NOTE = re.compile(r"deprecated|version(added|changed)")
_EXPLICIT = re.compile(r"\s*\.\.( |$)")  # comments, link targets, footnotes
_QUOTE = re.compile(r"^(\s*)> ?(?:\[!\w+\])?(?!>)")
_SIGNATURE = re.compile(r"\s*[\w.]+\([^()]*(\([^()]*\)[^()]*)*\)(\s*->.*)?\s*$")
_UNDERLINE = re.compile(r"\s*([=\-~^*\"'`#+_.<>:])\1{2,}#?\s*$")
_LISTING = re.compile(
    r"[#\s]*(see also|references?|authors?|bibliography|license|copyright|contents|contributors)\s*:?\s*$",
    re.IGNORECASE,
)
_SECTION = re.compile(r"\s*[A-Z][A-Za-z]*( [A-Za-z]+){0,2}:\s*$|#")  # "Args:" of Google style, "# Title"

_BULLET = re.compile(r"([-*+•]|\(?(?:\d{1,2}|[a-zA-Z])[.)]|#\.) +")
_FIELD = re.compile(
    r"[:@](param(?:eter)?|arg|keyword|[rv]?(?:ar)?type|returns?|yields?|raises?|[ic]?var)(?: +([^:`]*))?: *"
)
_ENTRY = re.compile(
    r"(\*{0,2}`{0,2}[A-Za-z_][\w.]*`{0,2})(?:\[[\w., \[\]]*\])?(?: ?\(.*?\))? ?:(?: +(?=\S)|$)"
)
_TYPED_TERM = re.compile(r"([`*]{0,2}[A-Za-z_][\w., *`]*?) : ")
_REMARK = re.compile(r"([A-Z]{2,}(\(\w*\))?|Note|Warning|Example|Default): ")
_TERM = re.compile(r"[`*\w\"'][^.!?]{0,59}(?<![:,])$")


def prose_of(raw: str) -> str:
    """The paragraphs of English in a piece of documentation, one per line; empty if there is too little."""
    lines = list(_without_blocks(inspect.cleandoc(raw).splitlines()))
    paragraphs = (plain(paragraph) for paragraph in _paragraphs(lines) if paragraph)
    text = "\n".join(paragraph for paragraph in paragraphs if is_prose(paragraph))
    return text if len(text) >= MIN_CHARACTERS and is_english(text) else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """Leave out every block that is not prose. Blank lines still separate the rest."""
    index = 0
    while index < len(lines):
        line = _QUOTE.sub(r"\1", lines[index].rstrip(), count=1)
        indent = _indent(line)
        index += 1
        if _FENCE.match(line):
            index = _after_fence(lines, index)
        elif _PROMPT.match(line) or _TABLE.match(line):
            index = _after_block(lines, index)
        elif directive := _DIRECTIVE.match(line):
            if _ADMONITION.match(directive[1]):
                yield ""
                yield " " * indent + directive[2]
                continue
            if not _VERSION_NOTE.match(directive[1]):
                index = _after_body(lines, index, indent)
        elif _EXPLICIT.match(line):
            index = _after_body(lines, index, indent)
        elif _LISTING.match(line):
            underlined = _is_underlined(lines, index - 1) or line.startswith("#")
            index = _after_section(lines, index + 1) if underlined else _after_body(lines, index, indent)
        elif _is_underlined(lines, index - 1):
            index += 1
        elif line.endswith("::"):
            if not _SECTION.match(line[:-1]):
                yield line[:-1]
            index = _after_body(lines, index, indent)
        elif not (_UNDERLINE.match(line) or _SECTION.match(line) or _SIGNATURE.match(line)):
            yield line
            continue
        yield ""


def _after_body(lines: list[str], start: int, indent: int) -> int:
    """Index of the first line from `start` that is neither blank nor indented deeper than `indent`."""
    while start < len(lines) and (not lines[start].strip() or _indent(lines[start]) > indent):
        start += 1
    return start


def _after_block(lines: list[str], start: int) -> int:
    """Index of the first blank line from `start`."""
    while start < len(lines) and lines[start].strip():
        start += 1
    return start


def _after_fence(lines: list[str], start: int) -> int:
    """Index behind the closing fence."""
    while start < len(lines) and not _FENCE.match(lines[start]):
        start += 1
    return start + 1


def _after_section(lines: list[str], start: int) -> int:
    """Index of the next heading, underlined or of Markdown."""
    while start < len(lines) and not (_is_underlined(lines, start) or lines[start].startswith("#")):
        start += 1
    return start


def _is_underlined(lines: list[str], index: int) -> bool:
    title, below = lines[index].strip(), lines[index + 1 : index + 2]
    return bool(title and below and _UNDERLINE.match(below[0]) and not _UNDERLINE.match(title))


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Join hard-wrapped lines; a list item or a described parameter is a paragraph of its own."""
    text, start, hanging = "", 0, False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        stripped, indent = line.strip(), _indent(line)
        wrapped = bool(text) and (indent > start if hanging else indent == start)
        opening = _opening(stripped, deeper=bool(following.strip()) and _indent(following) > indent)
        inside = wrapped and hanging and not _BULLET.match(stripped)
        if opening is not None and not inside:
            yield text
            text, start, hanging = opening, indent, True
        elif stripped and (wrapped or (text and stripped[0].islower() and text[-1] not in ".:;!?")):
            text += " " + stripped
        else:
            yield text
            text, start, hanging = stripped, indent, False
    yield text


def _opening(line: str, *, deeper: bool) -> str | None:
    """The first words of a list item or description if `line` starts one, without its marker and type."""
    if bullet := _BULLET.match(line):
        return line[bullet.end() :]
    if field := _FIELD.match(line):
        name = (field[2] or "").split()[-1:]
        return "" if field[1].endswith("type") else ": ".join([*name, line[field.end() :]])
    if deeper and (typed := _TYPED_TERM.match(line)) and line[-1] not in ".,":
        return f"{typed[1]}:"
    if (entry := _ENTRY.match(line)) and (deeper or not (line.endswith(":") or _REMARK.match(line))):
        return f"{entry[1]}: {line[entry.end() :]}"
    if deeper and _TERM.match(line):
        return f"{line}:"
    return None
