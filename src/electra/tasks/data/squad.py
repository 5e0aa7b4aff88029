"""Files of SQuAD (JSON) or MRQA (JSON lines) -> a question-answering task."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from electra.errors import InputError
from electra.tasks.families.answering import Answerability, QuestionAnswering
from electra.tasks.families.answers import Answer, AnswerExample
from electra.tasks.task import TRAIN, Task
from electra.text.sources import without_compression
from electra.text.tables import read_lines, read_whole

Purpose = Literal["learn", "score"]

LINES = ".jsonl"
SUFFIXES = (".json", LINES)

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
    if _suffix(path) == LINES:
        for number, line in read_lines(path):
            where = f"{path}, line {number}"
            # The first line of an MRQA file tells what the file is.
            if line.strip() and "header" not in (paragraph := _parsed(line, where)):
                yield where, paragraph
        return
    content = _parsed(read_whole(path), str(path))
    for article_number, article in enumerate(_get(content, "data", list, str(path)), 1):
        where = f"{path}, article {article_number}"
        paragraphs = _get(_checked(article, dict, "an article", where), "paragraphs", list, where)
        for number, paragraph in enumerate(paragraphs, 1):
            place = f"{where}, paragraph {number}"
            yield place, _checked(paragraph, dict, "a paragraph", place)


def _suffix(path: Path) -> str:
    return Path(without_compression(path.name)).suffix


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not readable JSON: {error}") from error
    content: dict[str, Any] = _checked(value, dict, "the JSON", where)
    return content


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


ANSWERABILITY: dict[str, Answerability] = {"squad_v1": "off", "squad_v2": "on"}
MAIN_SCORES = {"squad_v1": "f1", "squad_v2": "best_f1"}
SPLITS = (TRAIN, "dev", "test")


def load_squad(
    name: str,
    source: Path | None = None,
    *,
    train: Sequence[Path] = (),
    dev: Sequence[Path] = (),
    test: Sequence[Path] = (),
    family: QuestionAnswering | None = None,
) -> Task:
    """A task from a folder with files of the official names, from one file, or from files named by split.

    `squad_v1` has an answer to every question, in `squad_v2` there may be none. A folder is searched for
    `train*`, `dev*` and `test*` of its version only for the splits that are not named.
    """
    if name not in ANSWERABILITY:
        raise InputError(f"no task {name!r}, expected one of {', '.join(ANSWERABILITY)}")
    family = family or QuestionAnswering(answerability=ANSWERABILITY[name])
    paths = {split: list(named) for split, named in zip(SPLITS, (train, dev, test), strict=True)}
    if source is not None:
        paths = {split: paths[split] or found for split, found in _search(name, source).items()}
    paths = {split: of_split for split, of_split in paths.items() if of_split}
    if not paths:
        raise InputError(
            f"{name}: no file to read: give a folder with {_expected(name)}, or name the files of the splits"
            + (f"; {source} has {_contents(source)}" if source else "")
        )
    splits: dict[str, Sequence[AnswerExample]] = {}
    unlabelled, notes = set(), []
    for split, of_split in paths.items():
        found = read_questions(of_split, purpose="learn" if split == TRAIN else "score")
        if family.answerability == "off":
            _refuse_impossible(found)
        splits[split] = found.examples
        if not _is_labelled(found):
            unlabelled.add(split)
        notes += _notes(split, found)
    return Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=frozenset(unlabelled),
        main_score=MAIN_SCORES[name],
        epochs=2.0,
        max_length=512,
        notes=notes,
    )


def _search(name: str, source: Path) -> dict[str, list[Path]]:
    """The files of each split. A single file is of the split that its name begins with, else `dev`."""
    if source.is_file():
        of_file = next((split for split in SPLITS if source.name.startswith(split)), "dev")
        return {split: [source] if split == of_file else [] for split in SPLITS}
    if not source.is_dir():
        raise InputError(f"{source} is neither a folder nor a file")
    found: dict[str, list[Path]] = {}
    for split in SPLITS:
        candidates = sorted(path for path in source.glob(f"{split}*") if _suffix(path) in SUFFIXES)
        found[split] = [path for path in candidates if _version(path) in (None, name)]
        if len(found[split]) > 1:
            listed = ", ".join(path.name for path in found[split])
            raise InputError(f"{source} has several files for {split}: {listed}; name the one that is meant")
    return found


def _version(path: Path) -> str | None:
    """The task that a file's name tells, such as dev-v2.0.json."""
    version = re.search(r"v([12])\.", path.name)
    return f"squad_v{version[1]}" if version else None


def _expected(name: str) -> str:
    version = {"squad_v1": "v1.1", "squad_v2": "v2.0"}[name]
    return f"train-{version}.json or dev-{version}.json"


def _contents(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"


def _refuse_impossible(found: Questions) -> None:
    for example in found.examples:
        if example.is_impossible:
            raise InputError(
                f"{example.where}: is_impossible is true, but squad_v1 has an answer to every question: "
                "use squad_v2"
            )


def _is_labelled(found: Questions) -> bool:
    """Whether the answers of a split are known, all or none of them."""
    unknown = [example for example in found.examples if not example.is_labelled]
    if unknown and len(unknown) < len(found.examples):
        raise InputError(
            f"{unknown[0].where}: no answers, and no is_impossible true, unlike other questions "
            f"({len(unknown)} of {len(found.examples)} are so): say which it is, or remove it"
        )
    return not unknown


def _notes(split: str, found: Questions) -> list[str]:
    """What a person should know of a split."""
    num_contexts = len({example.context for example in found.examples})
    num_impossible = sum(example.is_impossible for example in found.examples)
    notes = [f"{split}: {len(found.examples):,} questions on {num_contexts:,} texts"]
    if num_impossible:
        notes[0] += f", {num_impossible:,} without an answer"
    if found.num_moved:
        notes.append(
            f"{split}: {found.num_moved:,} answers do not stand where answer_start says: "
            "the first place where the text has them was taken"
        )
    if found.num_unlocated:
        notes.append(f"{split}: {found.num_unlocated:,} answers do not occur in their text word for word")
    return notes
