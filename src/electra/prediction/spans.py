"""The number of a text's tokens -> windows that the encoder can read; each token is judged in one of them.

Texts as a program gives them -> tokens that know their characters; texts -> words.

T tokens of a text.

Sequences of token ids of any length -> hidden states, window by window, in batches of like length.

B rows, L positions, D numbers in a hidden state, T tokens of a sequence.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import InputError
from electra.tasks import inference
from electra.tasks.batches import PREDICTION_TOKENS, collate
from electra.tasks.families.family import TaskBatch, TaskRow, sequence
from electra.text.tokenizer import Encoded, Located, Tokenizer, read_tokenizer

OVERLAP = 1 / 4
"""Of a window, how much it shares with the next one at least."""


class Window(NamedTuple):
    """Tokens `start` to `stop` of a text, of which those from `judged` to `judged_stop` are judged here."""

    start: int
    stop: int
    judged: int
    judged_stop: int

    @property
    def num_judged(self) -> int:
        """How many tokens it answers for."""
        return self.judged_stop - self.judged


@lru_cache(maxsize=4096)
def windows(num_tokens: int, *, room: int) -> tuple[Window, ...]:
    """Windows of at most `room` tokens; a token is judged where the nearer end of its window is farthest.

    They lie evenly, so that none is shorter than another and no token is left with little context. A text
    that fits is one window, a text without tokens none.
    """
    assert room >= 1, room
    if num_tokens <= room:
        return (Window(0, num_tokens, 0, num_tokens),) if num_tokens else ()
    longest_step = room - int(room * OVERLAP)
    num_steps = -(-(num_tokens - room) // longest_step)
    starts = [(num_tokens - room) * number // num_steps for number in range(num_steps + 1)]
    # In the middle of what two windows share, a token is as far from the end of one as from the other's.
    middles = [(start + room + following) // 2 for start, following in pairwise(starts)]
    borders = [0, *middles, num_tokens]
    return tuple(
        Window(start, start + room, borders[number], borders[number + 1])
        for number, start in enumerate(starts)
    )


MASK = "[MASK]"
"""In a text, the mark of a gap."""

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


def check_texts(texts: Sequence[str], *, name: str = "texts") -> list[str]:
    """The texts, or what is wrong with which of them."""
    if isinstance(texts, str):
        raise InputError(f"{name} is one string, expected a list of strings: write [{texts[:20]!r}]")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"{name}[{number}] is of type {type(text).__name__}, expected a string")
        check_characters(text, where=f"{name}[{number}]")
    return found


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


def gaps(text: str) -> Iterator[Span]:
    """The characters of each "[MASK]"."""
    return (match.span() for match in re.finditer(re.escape(MASK), text))


class WindowRow(NamedTuple):
    """A row of a batch: which part of which sequence it is."""

    number: int
    """Of the sequence."""
    window: Window

    @property
    def judged(self) -> slice:
        """The positions in the row, behind [CLS], of the tokens that are judged here."""
        first = 1 + self.window.judged - self.window.start
        return slice(first, first + self.window.num_judged)


class ReadBatch(NamedTuple):
    """Hidden states of some windows."""

    rows: list[WindowRow]
    hidden_BLD: Tensor
    attention_mask_BL: Tensor


@dataclass(frozen=True, kw_only=True)
class Reader:
    """An encoder with its tokenizer."""

    encoder: Callable[..., Tensor]
    tokenizer: Tokenizer
    max_length: int
    """Tokens that it reads at once, [CLS] and [SEP] included."""
    device: torch.device
    max_tokens: int = PREDICTION_TOKENS
    """Of a batch, padding included."""

    def read(
        self, sequences: Sequence[Ids], *, is_wanted: Callable[[WindowRow], bool] = lambda _: True
    ) -> Iterator[ReadBatch]:
        """All windows of all sequences that are wanted, between [CLS] and [SEP]."""
        places = [
            row
            for number, ids_T in enumerate(sequences)
            for window in windows(len(ids_T), room=self.max_length - 2)
            if is_wanted(row := WindowRow(number, window))
        ]
        rows = [self._task_row(sequences, place, unit=unit) for unit, place in enumerate(places)]

        def states(batch_places: list[int]) -> ReadBatch:
            batch = collate(
                [rows[place] for place in batch_places], pad_id=self.tokenizer.pad_id, device=self.device
            )
            return ReadBatch(
                [places[place] for place in batch_places], self._states(batch), batch.attention_mask_BL
            )

        yield from inference.spread_rows(states, rows, device=self.device, max_tokens=self.max_tokens)

    def _task_row(self, sequences: Sequence[Ids], place: WindowRow, *, unit: int) -> TaskRow:
        ids_T = sequences[place.number][place.window.start : place.window.stop]
        ids, types = sequence(ids_T, ids_T[:0], self.tokenizer, max_length=self.max_length)
        return TaskRow(input_ids=ids, token_type_ids=types, example=place.number, unit=unit)

    @torch.no_grad()
    def _states(self, batch: TaskBatch) -> Tensor:
        hidden_BLD = self.encoder(
            batch.input_ids_BL,
            token_type_ids_BL=batch.token_type_ids_BL,
            attention_mask_BL=batch.attention_mask_BL,
        )
        # The highest of several NaN would be an invented answer, and JSON has no word for them.
        if not torch.isfinite(hidden_BLD).all():
            raise InputError("the model computes NaN: its weights are damaged, or its training diverged")
        return hidden_BLD
