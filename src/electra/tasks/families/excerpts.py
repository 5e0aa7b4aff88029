"""Texts -> windows as rows, with what is to be learned from them -> the spans that a head favours -> answers.

rows      [CLS] question [SEP] a window that slides over the text [SEP]; a text is tokenised once, however
          many questions are asked about it
spans     in each window the spans that the head favours, then the best of all windows of a question. The
          answer is cut out of the context by characters. The original puts it together from tokens and then
          aligns these with the words of the text. Where that succeeds both give the same text; it fails, and
          gives whole words, where lower-casing or stripping accents changes the number of characters

B rows, L positions, K starts in the beam, N candidates in a row, T tokens of a text or a window.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import InputError
from electra.model.heads import SPAN_HIDDEN_SIZE, JointSpanHead, SpanBeam, SpanHead
from electra.tasks.families.answers import Answer, AnswerExample
from electra.tasks.families.family import Prediction, TaskRow
from electra.text.tokenizer import Located, Tokenizer
from electra.text.windows import Window as Cut
from electra.text.windows import windows as cuts

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
class Excerpt:
    """The part of a text that a row shows: what leads a position in the row back to characters."""

    first: int
    """Position in the row of the window's first token."""
    offsets_T2: NDArray[np.int64]
    """First and one past the last character of each token."""
    is_best_T: NDArray[np.bool_]
    """Whether no other window shows more of the text on both sides of the token."""


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
                    origin=Excerpt(
                        first=len(opening),
                        offsets_T2=text.offsets_T2[cut.start : cut.stop],
                        is_best_T=cut.is_judged(),
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
    # A text without tokens is one empty window, so that every question has a row.
    for cut in cuts(len(text.ids), room=room, stride=stride) or (Cut(0, 0, 0, 0),):
        targets: Targets = {}
        if is_known:
            start, end = 0, 0
            if span and cut.start <= span[0] and span[1] < cut.stop:
                start, end = (first + token - cut.start for token in span)
            targets = {"start": start, "end": end, "is_impossible": int(example.is_impossible)}
        yield cut, targets


NUMBERS_PER_CHUNK = 2**23
"""Hidden numbers of the joint head that are held at a time, one row's at least: 32 MiB in float32."""


class Candidates(NamedTuple):
    """Spans of one window that may be the answer."""

    start_N: NDArray[np.int64]
    """First token, counted in the window."""
    end_N: NDArray[np.int64]
    """Last token."""
    start_logit_N: NDArray[np.float32]
    end_logit_N: NDArray[np.float32]
    null_logit: float | None = None
    """Above 0 the window seems to hold no answer; None if the head does not say."""


class Span(NamedTuple):
    """A candidate as characters of its context."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float


@dataclass(frozen=True, kw_only=True)
class AnswerLimits:
    """How many answers are considered, and how long they may be."""

    max_answer_length: int = 30
    """In tokens."""
    beam_size: int = 20
    """Starts, and ends for each of them, that the joint head considers in a window."""
    n_best_size: int = 20
    """Answers that are given for a question; the plain head considers as many starts and ends."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise InputError(f"{name} is {value}, expected at least 1")


def candidate_spans(
    head: SpanHead | JointSpanHead, hidden_BLD: Tensor, answer_mask_BL: Tensor, limits: AnswerLimits
) -> Iterator[SpanBeam]:
    """The spans that each row is most in favour of, some rows at a time: those of the joint head are wide."""
    num_rows, length, _ = hidden_BLD.shape
    if isinstance(head, SpanHead):
        yield plain_beam(head, hidden_BLD, answer_mask_BL, size=limits.n_best_size)
        return
    chunk_size = max(1, NUMBERS_PER_CHUNK // (limits.beam_size * length * SPAN_HIDDEN_SIZE))
    for first in range(0, num_rows, chunk_size):
        chunk = slice(first, first + chunk_size)
        yield head.beam(hidden_BLD[chunk], answer_mask_BL[chunk], beam_size=limits.beam_size)


def plain_beam(head: SpanHead, hidden_BLD: Tensor, answer_mask_BL: Tensor, *, size: int) -> SpanBeam:
    """The best starts, each with the same best ends. As in the original these are logits."""
    size = min(size, hidden_BLD.shape[1])
    start_BL, end_BL = head(hidden_BLD, answer_mask_BL)
    start_BK, start_index_BK = start_BL.float().topk(size)
    end_BK, end_index_BK = end_BL.float().topk(size)
    shape = (-1, size, -1)
    return SpanBeam(
        start_BK, start_index_BK, end_BK[:, None].expand(shape), end_index_BK[:, None].expand(shape)
    )


def possible(beam: SpanBeam, windows: Sequence[Excerpt], *, max_answer_length: int) -> Iterator[Candidates]:
    """Of each row the spans that lie in its text, in order, not too long, and start where it sees most."""
    arrays = [tensor.detach().cpu().numpy() for tensor in beam]
    for window, start_logit_K, start_K, end_logit_KK, end_KK in zip(windows, *arrays, strict=True):
        num_tokens = len(window.is_best_T)
        start_K1, end_KK = (start_K - window.first)[:, None], end_KK - window.first
        is_possible_KK = (start_K1 >= 0) & (start_K1 <= end_KK) & (end_KK < num_tokens)
        is_possible_KK &= end_KK - start_K1 < max_answer_length
        if num_tokens:
            is_possible_KK &= window.is_best_T[np.clip(start_K1, 0, num_tokens - 1)]
        row, column = np.nonzero(is_possible_KK)
        yield Candidates(start_K1[row, 0], end_KK[row, column], start_logit_K[row], end_logit_KK[row, column])


def best_answers(
    context: str, windows: Sequence[Excerpt], found: Sequence[Candidates], *, n_best_size: int
) -> list[Span]:
    """The best answers of all windows, each text once; none if no window has a candidate."""
    numbered = [(number, at) for number, row in enumerate(found) for at in range(len(row.start_N))]
    if not numbered:
        return []
    total_N = np.concatenate([row.start_logit_N + row.end_logit_N for row in found])
    best: dict[str, Span] = {}
    for place in np.argsort(-total_N, kind="stable"):
        number, at = numbered[place]
        window, row = windows[number], found[number]
        start, end = characters(
            context, window.offsets_T2[row.start_N[at], 0], window.offsets_T2[row.end_N[at], 1]
        )
        text = context[start:end]
        if text not in best:
            best[text] = Span(text, start, end, float(row.start_logit_N[at]), float(row.end_logit_N[at]))
            if len(best) == n_best_size:
                break
    return list(best.values())


def characters(context: str, start: int, end: int) -> tuple[int, int]:
    """The characters of some tokens, without blanks at either side, with all accents of the last letter."""
    # Tokenizers that strip accents leave a combining one, which follows its letter, outside of the token.
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    text = context[start:end]
    return int(start) + len(text) - len(text.lstrip()), int(end) - len(text) + len(text.rstrip())


def as_prediction(best: Sequence[Span], null_odds: float | None, *, null_threshold: float) -> Prediction:
    """What is said of one question.

    `answer` is what to show: "" if there seems to be none. `text` is the best answer even then, which the
    official search for the best threshold needs; "" if no window has a candidate.
    """
    total_N = np.array([span.start_logit + span.end_logit for span in best])
    weight_N = np.exp(total_N - total_N.max(initial=-np.inf))
    text = best[0].text if best else ""
    has_none = null_odds is not None and null_odds > null_threshold
    return {
        "answer": "" if has_none else text,
        "text": text,
        "start": best[0].start if best else None,
        "end": best[0].end if best else None,
        **({} if null_odds is None else {"null_odds": null_odds}),
        "n_best": [
            {
                "text": span.text,
                "probability": float(weight / weight_N.sum()),
                "start_logit": span.start_logit,
                "end_logit": span.end_logit,
            }
            for span, weight in zip(best, weight_N, strict=True)
        ],
    }
