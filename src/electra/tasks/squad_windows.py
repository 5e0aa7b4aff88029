"""Questions and texts of any length -> rows: the question, and a window that slides over the text.

    [CLS] question [SEP] as much of the text as fits [SEP]

Every text is tokenised once, however many questions are asked about it. T tokens of a text or a window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.tasks.family import TaskRow
from electra.tasks.squad_examples import Answer, AnswerExample
from electra.text.tokenizer import Located, Tokenizer

NUM_SPECIAL = 3
"""[CLS] and two [SEP]."""

Targets = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class WindowSizes:
    """How a long text is cut, in tokens."""

    max_query_length: int = 64
    """Of a question; what is longer is cut off."""
    doc_stride: int = 128
    """From the start of a window to the start of the next, which share a quarter at least."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise InputError(f"{name} is {value}, expected at least 1 token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a text that a row shows: what leads a position in the row back to characters."""

    first: int
    """Position in the row of the window's first token."""
    offsets_T2: NDArray[np.int64]
    """First and one past the last character of each token."""
    is_best_T: NDArray[np.bool_]
    """Whether no other window shows more of the text on both sides of the token."""


class Cut(NamedTuple):
    """Where a window lies in a text."""

    start: int
    stop: int
    is_best_T: NDArray[np.bool_]


@lru_cache(maxsize=4096)
def cuts(num_tokens: int, *, room: int, stride: int) -> tuple[Cut, ...]:
    """Windows of at most `room` tokens over a text; a text without tokens is one empty window."""
    # Without an overlap an answer at an edge is whole in no window. The original's stride of 128 leaves none
    # if windows are much shorter than its 512.
    stride = min(stride, room - room // 4)
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + stride)
    stops = [min(start + room, num_tokens) for start in starts]
    most_T, best_T = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int64)
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        before_T = np.arange(stop - start)
        # As in the original: of equal contexts that in the longer window counts, then the first.
        context_T = np.minimum(before_T, before_T[::-1]) + 0.01 * (stop - start)
        is_more_T = context_T > most_T[start:stop]
        most_T[start:stop][is_more_T] = context_T[is_more_T]
        best_T[start:stop][is_more_T] = number
    return tuple(
        Cut(start, stop, best_T[start:stop] == number)
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    )


def answer_tokens(offsets_T2: NDArray[np.int64], answer: Answer) -> tuple[int, int] | None:
    """First and last of the tokens that hold any character of an answer; None if no token does.

    The original starts from whole words and looks there for the tokens of the answer. It finds the same
    where they stand once, another place where they stand twice, and all words, punctuation included, where
    the answer ends inside a token.
    """
    assert answer.start is not None
    first = int(np.searchsorted(offsets_T2[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(offsets_T2[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def window_rows(
    examples: Sequence[AnswerExample], tokenizer: Tokenizer, *, max_length: int, sizes: WindowSizes
) -> list[TaskRow]:
    """All windows of all examples, in order."""
    contexts = list(dict.fromkeys(example.context for example in examples))
    located = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    questions = tokenizer.encode([example.question for example in examples]).split()
    rows: list[TaskRow] = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        query = question[: sizes.max_query_length]
        room = max_length - len(query) - NUM_SPECIAL
        if room < 1:
            raise InputError(
                f"{example.where}: max_length {max_length} leaves no room for the text beside a question of "
                f"{len(query)} tokens: raise max_length, or lower max_query_length {sizes.max_query_length}"
            )
        text = located[example.context]
        opening = np.array([tokenizer.cls_id, *query, tokenizer.sep_id], np.uint32)
        for cut, targets in _windows(example, text, first=len(opening), room=room, stride=sizes.doc_stride):
            window_ids = text.ids[cut.start : cut.stop]
            token_types = np.repeat(np.array([0, 1], np.uint8), (len(opening), len(window_ids) + 1))
            rows.append(
                TaskRow(
                    input_ids=np.concatenate([opening, window_ids, [np.uint32(tokenizer.sep_id)]]),
                    token_type_ids=token_types,
                    example=number,
                    unit=len(rows),
                    targets=targets,
                    origin=Window(
                        first=len(opening),
                        offsets_T2=text.offsets_T2[cut.start : cut.stop],
                        is_best_T=cut.is_best_T,
                    ),
                )
            )
    return rows


def _windows(
    example: AnswerExample, text: Located, *, first: int, room: int, stride: int
) -> Iterator[tuple[Cut, Targets]]:
    """Each window and what is to be learned from it.

    As in the original: a window without the whole answer points to [CLS], as if there were none, but only
    the example says whether the question can be answered.
    """
    answer = None if example.is_impossible else example.located_answer
    span = answer_tokens(text.offsets_T2, answer) if answer else None
    is_known = example.is_impossible or answer is not None
    for cut in cuts(len(text.ids), room=room, stride=stride):
        targets: Targets = {}
        if is_known:
            start, end = 0, 0
            if span and cut.start <= span[0] and span[1] < cut.stop:
                start, end = (first + token - cut.start for token in span)
            targets = {"start": start, "end": end, "is_impossible": int(example.is_impossible)}
        yield cut, targets
