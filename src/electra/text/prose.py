"""A paragraph with markup -> plain English sentences, or nothing if it is not prose.

Inline markup of reStructuredText and Markdown is taken away. A sentence that would not be readable without
its link or formula is dropped; what is left must have the letters and the function words of English.
"""

import re

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
_INLINE = [
    (re.compile(r"`(\w[\w. ()-]{0,40})'"), r"'\1'"),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)|\[!\[.*?\)\]\([^)]*\)"), ""),  # images and badges
    (re.compile(r"\[([^\[\]]+)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"<!--.*?-->|</?[a-z][a-z0-9]*(\s[^<>]*)?/?>"), ""),
    (re.compile(r":[\w:+-]+:`[~!]?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
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


def plain(paragraph: str) -> str:
    """Strip inline markup, and drop the sentences that are not readable without their formula or link."""
    if _MARKUP.search(paragraph):
        paragraph = _MATH.sub(_written_out, paragraph)
        for pattern, replacement in _INLINE:
            paragraph = pattern.sub(replacement, paragraph)
    if _UNREADABLE.search(paragraph):
        sentences = _SENTENCE_END.split(paragraph)
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
