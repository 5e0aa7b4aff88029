"""A folder of CoNLL column files or CoNLL-U treebanks -> a tagging task.

Confidence NN B-NP          a word in a line, columns between blanks or tabs
in IN B-PP
                            a blank line ends a sentence
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from electra.errors import InputError
from electra.tasks.families.tagging import TaggingExample, TagKind, understand_tags
from electra.tasks.task import Task
from electra.text.sources import without_compression
from electra.text.tables import read_lines

TreebankColumn = Literal["upos", "xpos"]

DOCUMENT_START = "-DOCSTART-"
SPLIT_WORDS = {
    "train": ("train",),
    "dev": ("dev", "valid", "validation", "val", "testa"),
    "test": ("test", "testb"),
}
"""Names of files by split: one of these words, set off by dots or hyphens, as in eng.testa."""
COLUMN_ENDINGS = (".txt", ".conll", ".tsv", ".bio", ".iob", ".iob2", ".bioes")
TREEBANK_COLUMNS: dict[TreebankColumn, int] = {"upos": 3, "xpos": 4}
NUM_TREEBANK_COLUMNS = 10
UNKNOWN = "_"


class TaggedWord(NamedTuple):
    """A line that holds a word; no tag if there is no column for it."""

    line: int
    text: str
    tag: str | None


class Sentence(NamedTuple):
    """Words that stand together, with their id if the file gives one."""

    id: str
    words: list[TaggedWord]


def load_conll(
    name: str,
    folder: str | Path,
    *,
    word_column: int = 0,
    tag_column: int = -1,
    scheme: TagKind | None = None,
) -> Task:
    """Read train, dev (valid, testa) and test (testb); columns are counted from 0, or from -1 for the last.

    What has labels is scored, so of CoNLL-2000, which has no dev, it is the test set, as in the paper. A file
    without the column of the tags is predicted only.
    """
    paths = find_splits(Path(folder), endings=COLUMN_ENDINGS)
    width = max(_num_columns(path) for path in paths.values())
    for option, column in (("word_column", word_column), ("tag_column", tag_column)):
        if not -width <= column < width:
            raise InputError(f"{option} is {column}, but the files in {folder} have {width} columns")
    sentences = {
        split: list(read_columns(path, word_column=word_column % width, tag_column=tag_column % width))
        for split, path in paths.items()
    }
    return _task(name, paths, sentences, scheme=scheme)


def load_conllu(folder: str | Path, *, name: str = "conllu", column: TreebankColumn = "upos") -> Task:
    """Read the parts of speech of a Universal Dependencies treebank: universal or the language's own."""
    paths = find_splits(Path(folder), endings=(".conllu",))
    sentences = {split: list(read_treebank(path, column=column)) for split, path in paths.items()}
    return _task(name, paths, sentences, scheme="tokens")


def find_splits(folder: Path, *, endings: Sequence[str]) -> dict[str, Path]:
    """The file of each split that is there."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder, expected one with train{endings[0]} and others")
    found: dict[str, Path] = {}
    for split, words in SPLIT_WORDS.items():
        named = [path for path in sorted(folder.iterdir()) if _is_named(path, words, endings)]
        if len(named) > 1:
            raise InputError(
                f"{folder} has several files for {split}: {', '.join(p.name for p in named)}; keep one"
            )
        if named:
            found[split] = named[0]
    if not found:
        known = ", ".join(word for words in SPLIT_WORDS.values() for word in words)
        raise InputError(f"{folder} has no file *{endings[0]} with one of these words in its name: {known}")
    return found


def _is_named(path: Path, words: Sequence[str], endings: Sequence[str]) -> bool:
    name = without_compression(path.name)
    parts = re.split(r"[._-]+", name.lower())
    # CoNLL-2003 names the split where others have the ending: eng.train.
    is_kind = Path(name).suffix in endings or (".txt" in endings and parts[-1] in words)
    return path.is_file() and is_kind and any(part in words for part in parts)


def read_columns(path: Path, *, word_column: int, tag_column: int) -> Iterator[Sentence]:
    """The sentences of a column file."""
    width = _num_columns(path)
    words: list[TaggedWord] = []
    for number, line in read_lines(path):
        columns = _columns(line)
        if not columns or columns[0] == DOCUMENT_START:
            yield from _finished(words)
            words = []
            continue
        if len(columns) != width:
            raise InputError(
                f"{path}:{number}: {len(columns)} columns in {line!r}, expected {width} as in the first line"
            )
        text, tag = columns[word_column], columns[tag_column] if tag_column < width else None
        _check_filled(path, number, text, tag)
        words.append(TaggedWord(number, text, tag))
    yield from _finished(words)


def read_treebank(path: Path, *, column: TreebankColumn) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file; multiword ranges (1-2) and empty nodes (1.1) are no words."""
    words: list[TaggedWord] = []
    sentence_id = ""
    for number, line in chain(read_lines(path), [(0, "")]):
        if not line.strip():
            yield from _finished(words, sentence_id)
            words, sentence_id = [], ""
        elif line.startswith("#"):
            key, _, value = line[1:].partition("=")
            sentence_id = value.strip() if key.strip() == "sent_id" else sentence_id
        else:
            columns = line.split("\t")
            if len(columns) != NUM_TREEBANK_COLUMNS or not re.fullmatch(r"\d+([-.]\d+)?", columns[0]):
                raise InputError(
                    f"{path}:{number}: {line!r} has {len(columns)} columns between tabs, expected "
                    f"{NUM_TREEBANK_COLUMNS} as in all CoNLL-U files, and a number in the first"
                )
            if columns[0].isdigit():
                text, tag = columns[1], columns[TREEBANK_COLUMNS[column]]
                _check_filled(path, number, text, tag)
                words.append(TaggedWord(number, text, tag))


def _columns(line: str) -> list[str]:
    """Between tabs if there are any, else between blanks; none in a blank line."""
    if not line.strip(" \t"):
        return []
    return line.split("\t") if "\t" in line else [column for column in line.split(" ") if column]


def _num_columns(path: Path) -> int:
    """Columns of the first word's line."""
    lines = (_columns(line) for _, line in read_lines(path))
    width = next((len(columns) for columns in lines if columns and columns[0] != DOCUMENT_START), 0)
    if not width:
        raise InputError(f"{path} has no words, expected a word and its tag in each line")
    return width


def _check_filled(path: Path, number: int, text: str, tag: str | None) -> None:
    for name, value in (("word", text), ("tag", tag)):
        if value is not None and not value.strip(" "):
            raise InputError(f"{path}:{number}: the {name} is empty: fill it in or remove the line")


def _finished(words: list[TaggedWord], sentence_id: str = "") -> Iterable[Sentence]:
    return [Sentence(sentence_id or str(words[0].line), words)] if words else []


def _task(
    name: str, paths: Mapping[str, Path], sentences: Mapping[str, list[Sentence]], *, scheme: TagKind | None
) -> Task:
    splits = {split: _examples(paths[split], found) for split, found in sentences.items()}
    unlabelled = frozenset(split for split, examples in splits.items() if examples[0].tags is None)
    family, splits, notes = understand_tags(splits, scheme=scheme)
    sizes = [
        f"{split}: {len(examples):,} sentences, {sum(len(example.words) for example in examples):,} words"
        + (" without tags" if split in unlabelled else "")
        for split, examples in splits.items()
    ]
    return Task(
        name=name,
        family=family,
        splits=splits,
        unlabelled=unlabelled,
        main_score="f1" if family.scheme == "entities" else "accuracy",
        notes=(*sizes, *notes),
    )


def _examples(path: Path, sentences: Sequence[Sentence]) -> list[TaggingExample]:
    """Sentences as examples; a file has tags for all words or for none."""
    words = [word for sentence in sentences for word in sentence.words]
    if not words:
        raise InputError(f"{path} has no words")
    has_tags = any(word.tag not in (None, UNKNOWN) for word in words)
    missing = next((word for word in words if word.tag == UNKNOWN), None)
    if has_tags and missing:
        raise InputError(f"{path}:{missing.line}: {missing.text!r} has no tag, others in the file have one")
    repeated = [key for key, count in Counter(sentence.id for sentence in sentences).items() if count > 1]
    if repeated:
        raise InputError(
            f"{path}: the id {repeated[0]!r} stands for several sentences, expected each one once"
        )
    return [
        TaggingExample(
            id=sentence.id,
            where=f"{path}:{sentence.words[0].line}",
            words=tuple(word.text for word in sentence.words),
            tags=tuple(word.tag or "" for word in sentence.words) if has_tags else None,
            lines=tuple(word.line for word in sentence.words),
        )
        for sentence in sentences
    ]
