"""Passages of Python's documentation -> a corpus and two labelled tasks on disk, for the demo and `electra
bench quality`.

FOLDER/passages.jsonl            which package does a passage come from?
FOLDER/code_words/train.conll    which words of a sentence did its authors mark as code?
FOLDER/code_words/test.conll

The corpus that an encoder is pre-trained on has no marks (see `documentation`), so reading it gives no
answers away, and no document is on both sides of the split. Names such as `num_layers` or `TensorDict` give
themselves away by their form. What is left is a question of context: sentences whose marks are all on plain
lower-case words of three letters or more, and which have no such name beside them, marked or not. "If bins is
not monotonic" has bins marked, "sort into bins" has not.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from electra import files, seeds
from electra.demo import corpus
from electra.demo.corpus import Passage
from electra.demo.documentation import CLOSE, OPEN, sentences_of
from electra.errors import InputError

PASSAGES, CODE_WORDS = "passages", "code_words"
NUM_TRAIN, NUM_TEST = 1500, 1000
_TEST_SHARE = 3
"""One document of so many is for testing."""
# Passages per package: torch alone is nearly half of the corpus.
_LEAST_PASSAGES, _MOST_PASSAGES = 100, 300
_LEAST_WORDS, _MOST_WORDS = 5, 50

_WORD = re.compile(r"\w+|[^\w\s]")
_PLAIN_MARK = re.compile(r"[a-z]{3,}")
_NAME = re.compile(r"\w*_\w*|\w*[a-z][A-Z]\w*|\w*\d[A-Za-z]\w*")
_PIECE = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}|([^{OPEN}{CLOSE}]+)")


class TaggedSentence(NamedTuple):
    """Words, each with a tag in IOB2."""

    document: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


def write_tasks(folder: Path, *, text: Path | None = None) -> None:
    """Write both tasks, and all passages as documents to the file `text`, unless they are there."""
    table, tagged = folder / f"{PASSAGES}.jsonl", folder / CODE_WORDS
    paths = (table, tagged / "train.conll", tagged / "test.conll")
    if all(path.is_file() for path in (*paths, *([text] if text else []))):
        return
    found = list(corpus.passages(workers=os.cpu_count() or 1))
    if text is not None:
        _write(text, (json.dumps({"text": one.text}, ensure_ascii=False) + "\n" for one in found))
    chosen = balanced(found)
    _write(table, (json.dumps({"package": one.package, "text": one.text}) + "\n" for one in chosen))
    for path, sentences in zip(paths[1:], split_sentences(found), strict=True):
        lines = ("\n".join(map("\t".join, zip(one.words, one.tags, strict=True))) for one in sentences)
        _write(path, (f"{line}\n\n" for line in lines))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(path, lambda file: file.writelines(line.encode() for line in lines))


def balanced(found: Iterable[Passage]) -> list[Passage]:
    """Passages of the packages that have enough of them, and not too many of any."""
    by_package: dict[str, list[Passage]] = {}
    for passage in found:
        by_package.setdefault(passage.package, []).append(passage)
    return [
        passage
        for of_package in by_package.values()
        if len(of_package) >= _LEAST_PASSAGES
        for passage in sorted(of_package, key=lambda one: seeds.derive(0, one.text))[:_MOST_PASSAGES]
    ]


def split_sentences(found: Iterable[Passage]) -> tuple[list[TaggedSentence], list[TaggedSentence]]:
    """Sentences to train and to test on, of different documents; their order decides nothing."""
    every = sorted(one for passage in found for one in code_sentences(passage))
    distinct = {one.words: one for one in every}
    ranked = sorted(distinct.values(), key=lambda one: seeds.derive(0, "sentence", *one.words))
    sides: tuple[list[TaggedSentence], list[TaggedSentence]] = ([], [])
    for one in ranked:
        sides[seeds.derive(0, "document", one.document) % _TEST_SHARE == 0].append(one)
    if not all(sides):
        raise InputError(
            "the documentation of this Python installation marks no code words in at least two files: "
            "install electra with its dependencies as wheels that bring their docstrings"
        )
    return sides[0][:NUM_TRAIN], sides[1][:NUM_TEST]


def code_sentences(passage: Passage) -> Iterator[TaggedSentence]:
    """The sentences of a passage whose marks only their context explains."""
    document = f"{passage.package}:{passage.origin.partition(':')[0]}"
    for line in passage.marked:
        for sentence in sentences_of(line):
            pieces = [(code, prose) for code, prose in _PIECE.findall(sentence)]
            marks = [code for code, _ in pieces if code]
            words = tuple(
                (word, "B-CODE" if code else "O")
                for code, prose in pieces
                for word in ([code] if code else _WORD.findall(prose))
            )
            is_whole = sentence.count(OPEN) == sentence.count(CLOSE) == len(marks)
            if (
                is_whole
                and marks
                and all(map(_PLAIN_MARK.fullmatch, marks))
                and not any(_NAME.fullmatch(word) for word, _ in words)
                and _LEAST_WORDS <= len(words) <= _MOST_WORDS
            ):
                texts, tags = zip(*words, strict=True)
                yield TaggedSentence(document, texts, tags)
