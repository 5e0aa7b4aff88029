"""Hidden states of windows -> candidates for the answer -> the best answers to each question.

The text of an answer is cut out of the context by characters. The original puts it together from tokens and
then aligns these with the words of the text. Where that succeeds both give the same text; it fails, and gives
whole words, where lower-casing or stripping accents changes the number of characters.

B rows, L positions, K starts in the beam, N candidates in a row.
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
from electra.tasks.family import Prediction
from electra.tasks.squad_windows import Window

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
class Limits:
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


def spans(
    head: SpanHead | JointSpanHead, hidden_BLD: Tensor, answer_mask_BL: Tensor, limits: Limits
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


def possible(beam: SpanBeam, windows: Sequence[Window], *, max_answer_length: int) -> Iterator[Candidates]:
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
    context: str, windows: Sequence[Window], found: Sequence[Candidates], *, n_best_size: int
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


def prediction(best: Sequence[Span], null_odds: float | None, *, null_threshold: float) -> Prediction:
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
