"""Raw documentation (docstring, topic, README, comment) -> its English prose, one paragraph per line.

Beside it, where the authors marked code in it: the marks are no part of the prose.

reStructuredText, numpydoc, Google style and Markdown are read in one tolerant pass, because docstrings mix
them. Blocks that are not prose are dropped: doctests, code, tables, signatures, headings, references.
Parameter lists stay as lines of the form "name: description", without types. Inline markup is removed, and a
sentence that is not readable without its link or formula is dropped. What is left must consist of words, and
have the function words of English.
"""

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

MIN_CHARACTERS = 200  # A shorter passage says too little to be a document.
OPEN, CLOSE = "\ue000", "\ue001"
"""Stand around a piece of code in a marked paragraph; no text uses these characters."""

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


class Prose(NamedTuple):
    """What is left of a piece of documentation."""

    text: str
    """Its paragraphs, one per line; empty if there is too little."""
    marked: tuple[str, ...] = ()
    """Those of the paragraphs in which code is marked, with `OPEN` and `CLOSE` around each piece of it."""


def prose_of(raw: str) -> Prose:
    """The paragraphs of English in a piece of documentation, and those in which it marks code."""
    lines = list(_without_blocks(inspect.cleandoc(raw).splitlines()))
    paragraphs = [(plain_text(paragraph), paragraph) for paragraph in _paragraphs(lines) if paragraph]
    kept = [(plain, paragraph) for plain, paragraph in paragraphs if is_prose(plain)]
    text = "\n".join(plain for plain, _ in kept)
    if len(text) < MIN_CHARACTERS or not is_english(text):
        return Prose("")
    marked = (marked_text(paragraph) for _, paragraph in kept if "`" in paragraph)
    plain_lines = {plain for plain, _ in kept}
    # A mark may change what other markup means. Where it did, the paragraph is left out.
    return Prose(text, tuple(line for line in marked if OPEN in line and unmarked(line) in plain_lines))


def unmarked(text: str) -> str:
    """A marked paragraph without its marks."""
    return text.replace(OPEN, "").replace(CLOSE, "")


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


_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        """a about after all also an and any are as at be because been before being between both but by can
        cannot could do does each either else for from given had has have how if in into is it its itself may
        might more most must no not of on one only or other otherwise over same should since so some such than
        that the their them then there these they this those through to under unless until up used using was
        we were what when where whether which while will with within without would you your"""
    )
)

_MATH = re.compile(r":math:`([^`]*)`|\$([^$]{1,80})\$|`([^`\\]*\\[^`]*)`")
_MATH_FONT = re.compile(r"\\(?:text\w*|math\w+|operatorname|boldsymbol)\s*\{([^{}]*)\}")
_MATH_INDEX = re.compile(r"([_^])\{([^{}]*)\}")
_MATH_NAME = re.compile(r"\\([A-Za-z]+|[,;!_ ])")
_MATH_SYMBOLS = dict(
    re.findall(
        r"(\S+) (\S+)",
        """times × cdot · leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ to → rightarrow → in ∈ infty ∞ pm ± odot ⊙ sim ~
        approx ≈ ldots ... dots ... cdots ... _ _""",
    )
)
_MATH_SPACES = {"left": "", "right": "", "!": "", ",": " ", ";": " ", " ": " ", "quad": " "}
_MATH_WORDS = _WORD.findall(
    """log exp sin cos tan sinh cosh min max det lim sup inf gcd deg dim alpha beta gamma delta epsilon zeta
    eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi
    Omega"""
)
_MATH_NAMES = _MATH_SYMBOLS | _MATH_SPACES | {word: word for word in _MATH_WORDS}

_MARKUP = re.compile(r"[`*\[<|\\$]|\(https?:|  | [.,;:)]")
_CITED = "".join(rf"(?<!\b{word} )" for word in _WORD.findall("and by from in of on or per see See to with"))
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LITERAL = re.compile(r"``([^`]+)``")
_QUOTED = re.compile(r"`([^`]+)`_{0,2}")
_INLINE = [
    (re.compile(r"`(\w[\w. ()-]{0,40})'"), r"'\1'"),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)|\[!\[.*?\)\]\([^)]*\)"), ""),  # images and badges
    (re.compile(r"\[([^\[\]]+)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"<!--.*?-->|</?[a-z][a-z0-9]*(\s[^<>]*)?/?>"), ""),
    (_ROLE, r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),
    (_LITERAL, r"\1"),
    (_QUOTED, r"\1"),
    # Citations, but "as shown in [1]_" is no sentence without its object.
    (re.compile(_CITED + r"(?:\[[\w.#*-]+\]_|\[\d+(?:, ?\d+)*\](?=[ .,;:)]|$))"), ""),
    (re.compile(r" *\((?:see )?https?:[^)\s]*\)|\\\s"), ""),
    (re.compile(r"(?<!\w)\*\*(?=[^\s*])([^*]+?)(?<=\S)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*/(])\*(?=[^\s*,)])([^*]+?)(?<=[^\s(,])\*(?![\w*])"), r"\1"),
    (re.compile(r"\|(\w+)\|"), r"\1"),
    (re.compile(r"\\(?=[*_`|<>\"'#])"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r" +([.,;:)](?:\s|$))"), r"\1"),
]
_CODE_PATTERNS = (_ROLE, _LITERAL, _QUOTED)
_NO_CODE = re.compile(
    r":(\w+:)?(ref|doc|term|numref|eq|cite\w*|footcite\w*|pep|rfc|emphasis|strong|su[bp]):|.*_$"
)
"""Roles and links that stand for sections, terms and papers."""
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)\s+(?=[A-Z\"'(])"
)
_UNREADABLE = re.compile(
    r"\\[A-Za-z({\[]|\$|[_^]\{|\{\w*\}|`|\]_| \[\d+\]|https?:|www\.|arXiv|\w@\w+[.-]\w|::=|\S{60}|"
    r"doctest|flake8|noqa|pylint|type: ?ignore|[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]"
)

_BOILERPLATE = re.compile(
    r"copyright|licen[sc]ed? (under|to)|all rights reserved|permission is hereby|redistribution and use|"
    r"without warrant|spdx|auto-?generated|do not edit|\bdoi\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"(import |from \S+ import|def |class \w+[:(]|return [^a-z]|print ?\(|assert |yield |raise |"
    r"(else|try|finally):|(if|for|while|with|elif) [^.]*:( |$)|[\w.\[\]]+(, [\w.]+)* [-+*/|]?= |"
    r"[{}<>]|\[(?!Note)|@\w|[$%#] |[\w.]+\([^()]*\)( ->.*)?$)"
)


def plain_text(paragraph: str) -> str:
    """Strip inline markup, and drop the sentences that are not readable without their formula or link."""
    return _readable(_without_markup(paragraph) if _MARKUP.search(paragraph) else paragraph)


def marked_text(paragraph: str) -> str:
    """The same with `OPEN` and `CLOSE` around everything that was marked as code."""
    return _readable(_without_markup(paragraph, keeps_code=True))


def sentences_of(paragraph: str) -> list[str]:
    """Cut a paragraph, marked or not, into sentences."""
    return _SENTENCE_END.split(paragraph)


def _without_markup(paragraph: str, *, keeps_code: bool = False) -> str:
    paragraph = _MATH.sub(_written_out, paragraph)
    for pattern, replacement in _INLINE:
        kept = keeps_code and pattern in _CODE_PATTERNS
        paragraph = pattern.sub(_marked if kept else replacement, paragraph)
    return paragraph


def _marked(found: re.Match[str]) -> str:
    code: str = found[1]
    return code if _NO_CODE.match(found[0]) else f"{OPEN}{code}{CLOSE}"


def _readable(paragraph: str) -> str:
    if _UNREADABLE.search(paragraph):
        sentences = sentences_of(paragraph)
        paragraph = " ".join(sentence for sentence in sentences if not _UNREADABLE.search(sentence))
    return paragraph.strip()


def _written_out(formula: re.Match[str]) -> str:
    """A formula simple enough to be written without LaTeX, or unchanged: its sentence is then dropped."""
    body = formula[1] or formula[2] or formula[3] or ""
    if "{{" in body:  # escaped for str.format
        body = body.replace("{{", "{").replace("}}", "}")
    body = _MATH_INDEX.sub(r"\1\2", _MATH_FONT.sub(r"\1", body))
    body = _MATH_NAME.sub(lambda name: _MATH_NAMES.get(name[1], name[0]), body)
    return formula[0] if "\\" in body or "{" in body else body


def is_prose(paragraph: str) -> bool:
    """Whether a plain paragraph reads as English: enough words and letters, no code, no licence."""
    words = _WORD.findall(paragraph)
    return (
        len(words) >= 5
        and sum(map(len, words)) >= 0.76 * len(paragraph.replace(" ", ""))
        and _share(words) >= 0.1
        and not _CODE.match(paragraph)
        and not _BOILERPLATE.search(paragraph)
    )


def is_english(text: str) -> bool:
    """Whether a whole passage has the function words of English; a single paragraph may be telegraphic."""
    return _share(_WORD.findall(text)) >= 0.2


def _share(words: list[str]) -> float:
    """How many of the words are the small ones that hold English sentences together."""
    return sum(word.lower() in _FUNCTION_WORDS for word in words) / max(1, len(words))
