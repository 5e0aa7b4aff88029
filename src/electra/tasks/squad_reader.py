"""Files of SQuAD (JSON) or MRQA (JSON lines, also gzipped) -> questions with their texts, checked."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from electra import files
from electra.errors import InputError
from electra.tasks.squad_examples import Answer, AnswerExample

Purpose = Literal["learn", "score"]

LINES_SUFFIXES = (".jsonl", ".jsonl.gz")
SUFFIXES = (".json", *LINES_SUFFIXES)

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_KINDS = {dict: "an object", list: "a list", str: "a string", int: "a whole number", bool: "true or false"}


@dataclass
class Questions:
    """What some files hold, and what was found to be wrong in them."""

    examples: list[AnswerExample] = field(default_factory=list)
    num_moved: int = 0
    """Answers that do not stand where the file says, but elsewhere in the text: the first place was taken."""
    num_unlocated: int = 0
    """Answers that the text does not hold."""


def read_questions(paths: Sequence[Path], *, purpose: Purpose) -> Questions:
    """All questions of some files; what is bad is named with file, paragraph and question."""
    found = Questions()
    seen: dict[str, str] = {}
    for path in paths:
        for where, paragraph in _paragraphs(path):
            context = _text(paragraph, "context", where)
            for question in _get(paragraph, "qas", list, where):
                example = _example(_checked(question, dict, "a question", where), context, where, found)
                if example.id in seen:
                    raise InputError(
                        f"{example.where}: this id is given twice, first in {seen[example.id]}: "
                        "give every question an id of its own"
                    )
                seen[example.id] = example.where
                _check_answers(example, purpose)
                found.examples.append(example)
    if not found.examples:
        raise InputError(f"{', '.join(map(str, paths))}: no questions")
    return found


def _paragraphs(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every text with its questions, and where it stands."""
    if path.name.endswith(LINES_SUFFIXES):
        for number, line in enumerate(_lines(path), 1):
            where = f"{path}, line {number}"
            # The first line of an MRQA file tells what the file is.
            if line.strip() and "header" not in (paragraph := _parsed(line, where)):
                yield where, paragraph
        return
    content = _checked(files.read_json(path), dict, "the file", str(path))
    for article_number, article in enumerate(_get(content, "data", list, str(path)), 1):
        where = f"{path}, article {article_number}"
        paragraphs = _get(_checked(article, dict, "an article", where), "paragraphs", list, where)
        for number, paragraph in enumerate(paragraphs, 1):
            place = f"{where}, paragraph {number}"
            yield place, _checked(paragraph, dict, "a paragraph", place)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not readable JSON: {error}") from error
    paragraph: dict[str, Any] = _checked(value, dict, "the line", where)
    return paragraph


def _example(question: dict[str, Any], context: str, where: str, found: Questions) -> AnswerExample:
    # MRQA names it qid.
    id = _text(question, "qid" if "qid" in question else "id", where)
    where = f"{where}, question {id}"
    if "detected_answers" in question:
        answers = list(_detected_answers(question, context, where))
    else:
        answers = list(_answers(question, context, where, found))
    return AnswerExample(
        id=id,
        where=where,
        question=_text(question, "question", where),
        context=context,
        answers=tuple(answers),
        is_impossible="is_impossible" in question and _get(question, "is_impossible", bool, where),
    )


def _answers(question: dict[str, Any], context: str, where: str, found: Questions) -> Iterator[Answer]:
    """Answers as SQuAD gives them, each put where the text has it."""
    if "answers" not in question:  # as in a test set
        return
    for answer in _get(question, "answers", list, where):
        text = _text(_checked(answer, dict, "an answer", where), "text", where)
        start = _get(answer, "answer_start", int, where)
        if start < 0 or not context.startswith(text, start):
            start = context.find(text)
            found.num_moved += start >= 0
            found.num_unlocated += start < 0
        yield Answer(text, start if start >= 0 else None)


def _detected_answers(question: dict[str, Any], context: str, where: str) -> Iterator[Answer]:
    """Answers as MRQA gives them: the places where the text has one, then those that were asked for."""
    texts = set()
    for answer in _get(question, "detected_answers", list, where):
        _checked(answer, dict, "a detected answer", where)
        for span in _get(answer, "char_spans", list, where):
            _checked(span, list, "one of char_spans", where)
            if [type(end) for end in span] != [int, int] or not 0 <= span[0] <= span[1] < len(context):
                raise InputError(
                    f"{where}: char_spans has {span}, expected the first and last character of an answer "
                    f"in a text of {len(context)} characters"
                )
            text = context[span[0] : span[1] + 1]
            texts.add(text)
            yield Answer(text, span[0])
    for text in _get(question, "answers", list, where) if "answers" in question else ():
        if _checked(text, str, "one of answers", where) not in texts:
            yield Answer(text, None)


def _check_answers(example: AnswerExample, purpose: Purpose) -> None:
    if example.is_impossible and example.answers:
        raise InputError(f"{example.where}: is_impossible is true, but it has answers: remove one of them")
    if purpose == "score" or example.is_impossible or example.located_answer:
        return
    if example.answers:
        raise InputError(
            f"{example.where}: the answer {example.answers[0].text!r} does not occur in its context: "
            "correct it, or remove the question"
        )
    raise InputError(
        f"{example.where}: no answer to learn from: give it one, or is_impossible true if the text holds none"
    )


def _text(content: dict[str, Any], key: str, where: str) -> str:
    text: str = _get(content, key, str, where)
    if not text.strip():
        raise InputError(f"{where}: {key} is empty, expected text")
    if _SURROGATE.search(text):
        raise InputError(f"{where}: {key} holds half a character (\\ud800 to \\udfff), expected Unicode text")
    return text


def _get(content: dict[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in content:
        raise InputError(f"{where}: no {key!r}; it has {', '.join(map(repr, content)) or 'nothing'}")
    return _checked(content[key], kind, key, where)


def _checked(value: Any, kind: type, what: str, where: str) -> Any:
    if type(value) is not kind:
        raise InputError(f"{where}: {what} is {str(value)[:60]!r}, expected {_KINDS[kind]}")
    return value
