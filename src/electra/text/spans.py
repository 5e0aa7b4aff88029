"""Texts as a program gives them -> tokens and words that know their characters.

T tokens of a text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.text.tokenizer import Encoded, Located, Tokenizer, read_tokenizer

MASK = "[MASK]"
"""In a text, the mark of a gap."""

Value = TypeVar("Value")
Ids = NDArray[np.uint32]
Span = tuple[int, int]


class Tokens(NamedTuple):
    """The tokens of a text, each with its first and one past its last character. No two share a character."""

    ids_T: Ids
    spans: list[Span]


class Word(NamedTuple):
    """A word of a text with its characters."""

    text: str
    start: int
    end: int


class SharedTokenizer(Tokenizer):
    """A tokenizer without a memory of words, so that threads may share it."""

    @classmethod
    def read(cls, folder: Path) -> "SharedTokenizer":
        """The tokenizer beside a model."""
        return cls(read_tokenizer(folder))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Token ids without special tokens."""
        return self.encode_plainly(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Located]:
        """The same with characters; a text has no special tokens, whatever its words are."""
        never = [self.pad_id, self.cls_id, self.sep_id, self.mask_id]
        located = super().encode_with_offsets(texts)
        return [
            Located(np.where(np.isin(ids, never), np.uint32(self.unk_id), ids), offsets_T2)
            for ids, offsets_T2 in located
        ]


def as_list(given: Iterable[Value], *, name: str = "texts") -> list[Value]:
    """A list of what a list, a generator or anything else yields that can be gone through once."""
    if not isinstance(given, Iterable):
        raise InputError(f"{name} is of type {type(given).__name__}, expected a list")
    return list(given)


def check_texts(texts: Iterable[str], *, name: str = "texts") -> list[str]:
    """The texts, or what is wrong with which of them."""
    if isinstance(texts, str):
        raise InputError(f"{name} is one string, expected a list of strings: write [{texts[:20]!r}]")
    found = as_list(texts, name=name)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"{name}[{number}] is of type {type(text).__name__}, expected a string")
        check_characters(text, where=f"{name}[{number}]")
    return found


def check_pairs(
    first: Iterable[str], second: Iterable[str] | None, *, names: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """Two lists of one length; without a second, its texts are empty."""
    texts = check_texts(first, name=names[0])
    if second is None:
        return texts, [""] * len(texts)
    others = check_texts(second, name=names[1])
    check_lengths(texts, others, names=names)
    return texts, others


def check_lengths(first: Sequence[object], second: Sequence[object], *, names: tuple[str, str]) -> None:
    """Refuse lists that do not belong together."""
    if len(first) != len(second):
        raise InputError(
            f"{len(first)} {names[0]} and {len(second)} {names[1]}: expected one of each for the other"
        )


def check_characters(text: str, *, where: str) -> None:
    """Refuse what no text can hold, but a string of Python or JSON can: half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds {text[error.start]!r} at character {error.start}: half of a surrogate pair, "
            "which is no character. Decode the text properly"
        ) from error


def locate(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text; "[MASK]" is text."""
    located = tokenizer.encode_with_offsets(texts)
    return [Tokens(ids, spans(text, offsets)) for text, (ids, offsets) in zip(texts, located, strict=True)]


def locate_with_gaps(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text, where "[MASK]" is one token: the gap."""
    parts = [text.split(MASK) for text in texts]
    between = iter(locate([part for of_text in parts for part in of_text], tokenizer))
    gap = np.array([tokenizer.mask_id], np.uint32)
    found = []
    for of_text in parts:
        ids: list[Ids] = []
        places: list[Span] = []
        start = 0
        for part in of_text:
            if ids:
                ids.append(gap)
                places.append((start - len(MASK), start))
            tokens = next(between)
            ids.append(tokens.ids_T)
            places += [(start + first, start + end) for first, end in tokens.spans]
            start += len(part) + len(MASK)
        found.append(Tokens(np.concatenate(ids), places))
    return found


def spans(text: str, offsets_T2: NDArray[np.int64]) -> list[Span]:
    """The characters of each token: without blanks around them, with all accents of the last letter.

    Of tokens that share characters, as the mark of a word's beginning does with its first letter and as
    the bytes of an emoji do, the last has them and the others none.
    """
    starts = offsets_T2[:, 0].tolist()
    following = [*starts, len(text)][1:]
    found = []
    for start, end, limit in zip(starts, offsets_T2[:, 1].tolist(), following, strict=True):
        end = min(end, limit)
        # What strips accents leaves a combining one, which follows its letter, outside of the token.
        while end < limit and unicodedata.combining(text[end]):
            end += 1
        covered = text[start:end]
        first = start + len(covered) - len(covered.lstrip())
        found.append((first, max(first, start + len(covered.rstrip()))))
    return found


def words_of(text: str, tokens: Tokens, continues_word_V: NDArray[np.bool_]) -> list[Word]:
    """The words that the tokenizer sees in a text: its tokens, those that continue a word joined to it.

    With WordPiece these are ended by blanks and punctuation, and a Chinese character is one of its own.
    """
    found: list[Span] = []
    for (start, end), continues in zip(tokens.spans, continues_word_V[tokens.ids_T], strict=True):
        if continues and found:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return [Word(text[start:end], start, end) for start, end in found if start < end]


def join_words(words: Sequence[str]) -> tuple[str, list[Word]]:
    """Words with a blank between them as one text, and where they stand in it."""
    found, start = [], 0
    for word in words:
        found.append(Word(word, start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), found


def mask_gaps(text: str) -> Iterator[Span]:
    """The characters of each "[MASK]"."""
    return (match.span() for match in re.finditer(re.escape(MASK), text))
