"""Questions with their texts -> the part of the text that answers: extractive question answering.

The joint head, the original's, predicts an answer's end knowing its start; the plain head, transformers',
predicts each by itself. With answerability on, a classifier beside it says whether the text holds an answer
at all.

From a question to its answer:
rows      [CLS] question [SEP] a window that slides over the text [SEP]; a text is tokenised once, however
          many questions are asked about it
spans     in each window the spans that the head favours, then the best of all windows of a question. The
          answer is cut out of the context by characters. The original puts it together from tokens and then
          aligns these with the words of the text. Where that succeeds both give the same text; it fails, and
          gives whole words, where lower-casing or stripping accents changes the number of characters
scores    those of the official scripts of SQuAD 1.1 and 2.0, by their names and rules, but as fractions
          from 0 to 1 in place of percentages; a question's score is that of the right answer it is nearest to

B rows, L positions, K starts in the beam, N candidates in a row or questions, T tokens of a text or a window.
"""

import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra import files
from electra.errors import InputError
from electra.model.heads import SPAN_HIDDEN_SIZE, JointSpanHead, SpanBeam, SpanHead, UnanswerableHead
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import MISSING, Cells, Classes, OwnTaskConfig, RowReader
from electra.tasks.families.family import (
    LEAVE_HEAD,
    Ability,
    Card,
    Example,
    Family,
    ForeignModel,
    Learned,
    Mistake,
    Prediction,
    Predictor,
    Recognised,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TransformersHead,
)
from electra.tasks.task import TRAIN, content_key
from electra.text.spans import check_pairs
from electra.text.tokenizer import Located, Tokenizer
from electra.text.windows import Window as Cut
from electra.text.windows import windows as cuts


class Answer(NamedTuple):
    """What counts as right."""

    text: str
    start: int | None
    """Its first character in the context; None if the context does not hold it word for word, which is good
    enough to score by and not to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExample(Example):
    """A question, the text to look for an answer in, and what is known of it."""

    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    """All that people gave, the one to learn from first; none if it is unknown or if there is none."""
    is_impossible: bool = False
    """Whether it is known that the context holds no answer."""

    @property
    def is_labelled(self) -> bool:
        """Whether anything is known of the answer, if only that there is none."""
        return self.is_impossible or bool(self.answers)

    @property
    def located_answer(self) -> Answer | None:
        """The answer to learn from."""
        return next((answer for answer in self.answers if answer.start is not None), None)


class AnswerReader(RowReader):
    """A question, a text, and the answers that stand in the text."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Question and text."""
        return self.config.question, self.config.context

    @property
    def label_column(self) -> str:
        """The answers."""
        return self.config.answers

    def has_label(self, cells: Cells) -> bool:
        """Whether there is an answer."""
        return self.label_column in cells.row and bool(self.given_answers(cells))

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> AnswerExample:
        """The question with its answers; if they are known and there are none, it has no answer."""
        context = cells.text(self.config.context)
        given = [] if classes is None else self.given_answers(cells)
        return AnswerExample(
            id=id,
            where=cells.where,
            question=cells.text(self.config.question),
            context=context,
            answers=tuple(located(cells, context, text, start) for text, start in given),
            is_impossible=classes is not None and not given,
        )

    def given_answers(self, cells: Cells) -> list[tuple[str, Any]]:
        """Text and place, if it is given, of each answer: as plain texts or in either way of SQuAD."""
        column = self.config.answers
        answers = [
            answer if isinstance(answer, dict) else {"text": [answer]} for answer in cells.values(column)
        ]
        found: list[tuple[str, Any]] = []
        for answer in answers:
            inner = Cells(f"{cells.where}: {column!r}", answer)
            texts = [inner.text_of("text", text) for text in inner.values("text")]
            no_places = inner.is_missing("answer_start")
            starts = [None] * len(texts) if no_places else inner.values("answer_start")
            if len(texts) != len(starts):
                raise InputError(
                    f"{inner.where}: {len(texts)} texts, but 'answer_start' has {len(starts)} places"
                )
            found += zip(texts, starts, strict=True)
        return found

    def content(self, example: AnswerExample) -> str:
        """The text: all questions about it stay together."""
        return content_key(example.context)


def located(cells: Cells, context: str, text: str, start: Any) -> Answer:
    """An answer where it is said to begin, or else at the first place where the text has it."""
    if text.strip() in MISSING:
        raise InputError(f"{cells.where}: an answer is blank; without any answer, the question has none")
    if start is None:
        text = text.strip()
        if text not in context:
            raise InputError(
                f"{cells.where}: the answer {text[:60]!r} is not in its text, expected it word for word"
            )
        return Answer(text, context.find(text))
    if not isinstance(start, int) or start < 0 or not context.startswith(text, start):
        hint = f"it is at {context.find(text)}" if text in context else "it is nowhere in the text"
        raise InputError(
            f"{cells.where}: the answer {text[:60]!r} is not at answer_start {start!r}, {hint}; without "
            "answer_start the first place counts"
        )
    return Answer(text, start)


_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous blanks."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap_f1(right: str, given: str) -> float:
    """Of the words of two normalised texts; 0 if they share none, also if both are empty."""
    right_words, given_words = right.split(), given.split()
    num_shared = (Counter(right_words) & Counter(given_words)).total()
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(given_words), num_shared / len(right_words)
    return 2 * precision * recall / (precision + recall)


def scores_v1(examples: Sequence[AnswerExample], texts: Sequence[str]) -> dict[str, Score]:
    """Every question has an answer."""
    assert examples
    exact, f1 = [], []
    for example, text in zip(examples, texts, strict=True):
        given = normalise(text)
        right = {normalise(answer.text) for answer in example.answers}
        exact.append(given in right)
        f1.append(max((overlap_f1(answer, given) for answer in right), default=0.0))
    return {"f1": _mean(f1), "exact_match": _mean(exact)}


def scores_v2(
    examples: Sequence[AnswerExample],
    texts: Sequence[str],
    null_odds: Sequence[float],
    *,
    null_threshold: float,
) -> dict[str, Score]:
    """Some questions have no answer: `texts` are the best answers, which count where the null odds are low.

    `best_f1` and `best_exact` are those of the best threshold for these very questions, as the paper and the
    official script report them; `f1` and `exact` those of the threshold that was given.
    """
    assert examples
    exact_N, f1_N = np.array([_question_scores(*pair) for pair in zip(examples, texts, strict=True)]).T
    has_answer_N = np.array([bool(example.answers) for example in examples])
    odds_N = np.array(null_odds, np.float64)
    is_given_N = np.array([bool(text) for text in texts])
    scores: dict[str, Score] = {}
    for name, score_N in (("f1", f1_N), ("exact", exact_N)):
        best, threshold = best_threshold(score_N, has_answer_N, is_given_N, odds_N)
        scores |= {f"best_{name}": Score(best), f"best_{name}_thresh": Score(threshold)}
    at_threshold = {
        name: np.where(odds_N > null_threshold, ~has_answer_N, score_N)
        for name, score_N in (("f1", f1_N), ("exact", exact_N))
    }
    groups = (
        ("", np.ones_like(has_answer_N), ""),
        ("HasAns_", has_answer_N, "no question has an answer"),
        ("NoAns_", ~has_answer_N, "every question has an answer"),
    )
    for prefix, is_in_group_N, undefined in groups:
        for name, score_N in at_threshold.items():
            scores[f"{prefix}{name}"] = _mean(score_N[is_in_group_N], undefined)
    return scores


def best_threshold(
    score_N: NDArray[np.float64],
    has_answer_N: NDArray[np.bool_],
    is_given_N: NDArray[np.bool_],
    null_odds_N: NDArray[np.float64],
) -> tuple[float, float]:
    """The highest mean score that any threshold gives, and the lowest such threshold.

    As in the official script: without any answer the threshold is 0, and of questions with equal odds
    some may be answered and others not.
    """
    order_N = np.argsort(null_odds_N, kind="stable")
    gain_N = np.where(has_answer_N, score_N, -1.0 * is_given_N)[order_N]
    # The first total is that of answering nothing, each further one that of answering one question more.
    totals = np.cumsum([float((~has_answer_N).sum()), *gain_N])
    best = int(totals.argmax())
    return float(totals[best]) / len(score_N), float(null_odds_N[order_N[best - 1]]) if best else 0.0


def _question_scores(example: AnswerExample, text: str) -> tuple[float, float]:
    """Exact match and F1 of one question that may have no answer."""
    given = normalise(text)
    # Of a question without an answer only the empty text is right.
    right = {normalise(answer.text) for answer in example.answers} - {""} or {""}
    f1 = max(overlap_f1(answer, given) if answer and given else float(answer == given) for answer in right)
    return float(given in right), f1


def _mean(values: Sequence[float] | NDArray[np.float64], undefined: str = "") -> Score:
    return Score(math.fsum(values) / len(values)) if len(values) else Score(math.nan, undefined)


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


SpanKind = Literal["joint", "plain"]
Answerability = Literal["on", "off"]

ANSWERER = "ElectraForQuestionAnswering"

UNANSWERABLE_WEIGHT = 0.5
"""Of the answerability loss beside that of the span, as in the original."""

NULL_THRESHOLD = -2.75
"""Null odds above which no answer is given, as in the original: found there on the development set."""


class AnswerHead(nn.Module):
    """A head for spans and, where questions may have no answer, one for that."""

    def __init__(self, span: SpanHead | JointSpanHead, unanswerable: UnanswerableHead | None) -> None:
        super().__init__()
        self.span = span
        self.unanswerable = unanswerable


class AnswerRequest(TypedDict):
    """Questions, each with the text that may answer it."""

    questions: Annotated[list[str], "Questions."]
    contexts: Annotated[list[str], "The text in which to find the answer to each question."]


class Answered(TypedDict):
    """The part of a context that answers the question."""

    text: Annotated[str, "Empty if there seems to be no answer."]
    start: int | None
    end: int | None
    score: float
    no_answer: Annotated[
        float | None, "The probability that there is none; null if the model was not trained to tell."
    ]


ANSWER = Ability(
    name="answer",
    purpose="question answering",
    request=AnswerRequest,
    answer=Answered,
    example={"questions": ["where is the river ?"], "contexts": ["the river is in a small city"]},
)


class QuestionAnswering(Family[AnswerExample]):
    """Find the answer to a question in a text."""

    name: ClassVar[str] = "question_answering"
    kind: ClassVar[str] = "answering"
    reader = AnswerReader
    ability: ClassVar[Ability | None] = ANSWER
    card: ClassVar[Card] = Card(
        what="An ELECTRA that finds the answer to a question in a text.",
        hub_task="question-answering",
        use='model.answer(["Who ate the meal?"], ["The chef ate the meal."])',
        class_lines=(
            'inputs = tokenizer("Who ate the meal?", "The chef ate the meal.", return_tensors="pt")',
            "output = model(**inputs)",
            "first, last = output.start_logits.argmax(), output.end_logits.argmax()",
            'answer = tokenizer.decode(inputs["input_ids"][0, first : last + 1])',
        ),
        tokenizer_arguments='"Who ate the meal?", "The chef ate the meal."',
    )
    # As in the paper for SQuAD.
    epochs: ClassVar[float] = 2.0
    max_length: ClassVar[int] = 512
    official_files: ClassVar[str] = "SQuAD"

    def __init__(
        self,
        *,
        head: SpanKind = "joint",
        answerability: Answerability,
        max_query_length: int = 64,
        doc_stride: int = 128,
        max_answer_length: int = 30,
        beam_size: int = 20,
        n_best_size: int = 20,
        null_threshold: float = NULL_THRESHOLD,
    ) -> None:
        if head not in get_args(SpanKind):
            raise InputError(f"head is {head!r}, expected one of {', '.join(get_args(SpanKind))}")
        if answerability not in get_args(Answerability):
            choices = ", ".join(get_args(Answerability))
            raise InputError(f"answerability is {answerability!r}, expected one of {choices}")
        self.span_kind = head
        self.answerability = answerability
        self.sizes = WindowSizes(max_query_length=max_query_length, doc_stride=doc_stride)
        self.limits = AnswerLimits(
            max_answer_length=max_answer_length, beam_size=beam_size, n_best_size=n_best_size
        )
        self.null_threshold = null_threshold

    def labels(self) -> tuple[str, ...]:
        """None: an answer is a part of the text."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Head, windows, limits and threshold."""
        return {
            "head": self.span_kind,
            "answerability": self.answerability,
            **vars(self.sizes),
            **vars(self.limits),
            "null_threshold": self.null_threshold,
        }

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With answerability on, if any question has no answer."""
        if not any(example.is_impossible for examples in splits.values() for example in examples):
            return Learned(cls(answerability="off"), "f1", splits, [])
        count, total = sum(example.is_impossible for example in splits[TRAIN]), len(splits[TRAIN])
        notes = [f"{count:,} of {total:,} questions have no answer"] if count else []
        return Learned(cls(answerability="on"), "best_f1", splits, notes)

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model with the plain head."""
        if foreign.architecture != ANSWERER:
            return None
        num_outputs = len(foreign.tensor("qa_outputs.weight"))
        if num_outputs != 2:
            raise InputError(
                f"{foreign.where}: its head has {num_outputs} outputs, expected two: start and end. "
                f"{LEAVE_HEAD}"
            )
        return Recognised(cls(head="plain", answerability="off"), "f1")

    def continued(self, before: Family[Any]) -> Self:
        """With the plain head of a model that has it, as transformers' have."""
        if not isinstance(before, QuestionAnswering) or before.answerability != self.answerability:
            return self
        kind = "plain" if before.span_kind == "plain" else self.span_kind
        return type(self)(**{**self.settings(), "head": kind})

    def rows(
        self, examples: Sequence[AnswerExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """One row for each window, which is a unit of its own."""
        return window_rows(examples, tokenizer, max_length=max_length, sizes=self.sizes)

    def head(self, config: EncoderConfig) -> AnswerHead:
        """The span head asked for and, with answerability on, the classifier beside it."""
        span = JointSpanHead(config) if self.span_kind == "joint" else SpanHead(config)
        return AnswerHead(span, UnanswerableHead(config) if self.answerability == "on" else None)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """The mean of start and end loss, and half of the answerability loss."""
        assert isinstance(head, AnswerHead)
        answer_mask_BL, start_B = answer_mask(batch), batch.target("start")
        if isinstance(head.span, JointSpanHead):
            start_BL, end_BL = head.span(hidden_BLD, answer_mask_BL, start_B)
        else:
            start_BL, end_BL = head.span(hidden_BLD, answer_mask_BL)
        losses_B = functional.cross_entropy(start_BL.float(), start_B, reduction="none")
        losses_B = losses_B + functional.cross_entropy(end_BL.float(), batch.target("end"), reduction="none")
        losses_B = losses_B / 2
        if head.unanswerable is not None:
            doubt_B = head.unanswerable(hidden_BLD, start_BL).float()
            target_B = batch.target("is_impossible", dtype=torch.float32)
            losses_B = losses_B + UNANSWERABLE_WEIGHT * functional.binary_cross_entropy_with_logits(
                doubt_B, target_B, reduction="none"
            )
        return losses_B

    @torch.no_grad()
    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Candidates]:
        """The possible answers in each window, and whether it seems to hold none."""
        assert isinstance(head, AnswerHead)
        answer_mask_BL = answer_mask(batch)
        windows = [row.origin for row in batch.rows]
        found: list[Candidates] = []
        for beam in candidate_spans(head.span, hidden_BLD, answer_mask_BL, self.limits):
            chunk = windows[len(found) : len(found) + len(beam.start_index_BK)]
            found += possible(beam, chunk, max_answer_length=self.limits.max_answer_length)
        if head.unanswerable is None:
            return found
        start_BL = start_logits(head.span, hidden_BLD, answer_mask_BL)
        doubts = head.unanswerable(hidden_BLD, start_BL).tolist()
        return [row._replace(null_logit=doubt) for row, doubt in zip(found, doubts, strict=True)]

    def predictions(
        self, examples: Sequence[AnswerExample], rows: Sequence[TaskRow], outputs: Sequence[Candidates]
    ) -> list[Prediction]:
        """The best answers of all windows of each example."""
        numbers: list[list[int]] = [[] for _ in examples]
        for number, row in enumerate(rows):
            numbers[row.example].append(number)
        predictions = []
        for example, of_example in zip(examples, numbers, strict=True):
            found = [outputs[number] for number in of_example]
            best = best_answers(
                example.context,
                [rows[number].origin for number in of_example],
                found,
                n_best_size=self.limits.n_best_size,
            )
            # As in the original: one window that seems to hold an answer is enough.
            doubts = [row.null_logit for row in found if row.null_logit is not None]
            null_odds = min(doubts) if doubts else None
            predictions.append(as_prediction(best, null_odds, null_threshold=self.null_threshold))
        return predictions

    def scores(
        self, examples: Sequence[AnswerExample], predictions: Sequence[Prediction]
    ) -> dict[str, Score]:
        """The official scores; where questions may have no answer, those of the best threshold first."""
        texts = [prediction["text"] for prediction in predictions]
        if self.answerability == "off":
            return scores_v1(examples, texts)
        null_odds = [prediction["null_odds"] for prediction in predictions]
        return scores_v2(examples, texts, null_odds, null_threshold=self.null_threshold)

    def averaged(
        self,
        examples: Sequence[AnswerExample],
        rows: Sequence[TaskRow],
        outputs_by_model: Sequence[Sequence[Candidates]],
    ) -> list[Prediction]:
        """The answer that is most probable over all models: their candidates are not the same spans."""
        by_model = [self.predictions(examples, rows, outputs) for outputs in outputs_by_model]
        return [self._together(said) for said in zip(*by_model, strict=True)]

    def _together(self, said: Sequence[Prediction]) -> Prediction:
        """What several models say of one question; an answer that a model does not name has none from it."""
        probabilities: defaultdict[str, float] = defaultdict(float)
        for prediction in said:
            for candidate in prediction["n_best"]:
                probabilities[candidate["text"]] += candidate["probability"] / len(said)
        ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[: self.limits.n_best_size]
        text = ranked[0][0] if ranked else ""
        named = next((prediction for prediction in said if prediction["text"] == text), said[0])
        odds = [prediction["null_odds"] for prediction in said if "null_odds" in prediction]
        null_odds = float(np.mean(odds)) if odds else None
        return {
            **{key: named[key] if named["text"] == text else None for key in ("start", "end")},
            "answer": "" if null_odds is not None and null_odds > self.null_threshold else text,
            "text": text,
            **({} if null_odds is None else {"null_odds": null_odds}),
            "n_best": [{"text": answer, "probability": probability} for answer, probability in ranked],
        }

    def mistakes(self, example: AnswerExample, prediction: Prediction) -> Iterator[Mistake]:
        """An answer that no person gave; the surer the worse."""
        right = {normalise(answer.text) for answer in example.answers} or {""}
        if normalise(prediction["answer"]) in right:
            return
        confidence = prediction["n_best"][0]["probability"] if prediction["n_best"] else 0.0
        said = {
            "text": example.question,
            "text_pair": example.context,
            "gold": " / ".join(sorted({answer.text for answer in example.answers})) or "(no answer)",
            "predicted": prediction["answer"] or "(no answer)",
            "confidence": confidence,
        }
        yield Mistake(confidence, said)

    def table_row(self, example: AnswerExample, prediction: Prediction) -> dict[str, str]:
        """The question and its answer."""
        return {"question": example.question, "answer": prediction["answer"]}

    def write_official(self, folder: Path, predictions: Mapping[str, Prediction]) -> None:
        """The files that the official scripts read.

            predictions.json        {id: text}: the best answer, also where there seems to be none
            nbest_predictions.json  {id: [{"text", "probability", "start_logit", "end_logit"}, ...]}

        and only where questions may have no answer

            null_odds.json          {id: number}: the higher, the less likely there is an answer
            final_predictions.json  {id: text}: "" where the null odds are above the family's threshold

        As in the original, the official script gets predictions.json with `--na-prob-file null_odds.json
        --na-prob-thresh -2.75` and also searches for the best threshold. The last file is the one to submit.
        """
        columns = {"predictions": "text", "nbest_predictions": "n_best"}
        if all("null_odds" in prediction for prediction in predictions.values()):
            columns |= {"null_odds": "null_odds", "final_predictions": "answer"}
        folder.mkdir(parents=True, exist_ok=True)
        for name, key in columns.items():
            content = {id: prediction[key] for id, prediction in predictions.items()}
            files.write_json(folder / f"{name}.json", content)

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Answered]:
        """The part of each context that answers its question, if any seems to."""
        questions, contexts = check_pairs(
            fields["questions"], fields["contexts"], names=("questions", "contexts")
        )
        for number, length in enumerate(predictor.tokenizer.encode(questions).lengths):
            if length > self.sizes.max_query_length:
                raise InputError(
                    f"questions[{number}] has {length} tokens, and this model reads "
                    f"{self.sizes.max_query_length} of a question: shorten it, or move what it tells into "
                    "the context"
                )
        examples = [
            AnswerExample(id=str(number), where=f"questions[{number}]", question=question, context=context)
            for number, (question, context) in enumerate(zip(questions, contexts, strict=True))
            if question.strip() and context.strip()
        ]
        predictions = predictor.predict(self, examples)
        found = {
            example.id: as_answer(prediction)
            for example, prediction in zip(examples, predictions, strict=True)
        }
        nothing = Answered(text="", start=None, end=None, score=0.0, no_answer=1.0)
        return [found.get(str(number), nothing.copy()) for number in range(len(questions))]

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """It has the plain head alone."""
        if self.span_kind != "plain":
            return f"{ANSWERER} does not predict an answer's end knowing its start"
        if self.answerability == "on":
            return f"{ANSWERER} does not tell whether a question can be answered"
        return None

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """Both layers of the plain head as one."""
        state = head.state_dict()
        tensors = {
            f"qa_outputs.{kind}": torch.cat([state[f"span.start.{kind}"], state[f"span.end.{kind}"]])
            for kind in ("weight", "bias")
        }
        return TransformersHead(ANSWERER, {}, tensors)

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The one layer as two."""
        return {
            f"span.{place}.{kind}": tensors[f"qa_outputs.{kind}"][row : row + 1]
            for row, place in enumerate(("start", "end"))
            for kind in ("weight", "bias")
        }

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """Logits of starts and ends; none of the joint head, whose ends depend on the chosen starts."""
        assert isinstance(head, AnswerHead)
        if not isinstance(head.span, SpanHead):
            return {}
        return {
            "start_logits": head.span.start(hidden_BLD).squeeze(-1),
            "end_logits": head.span.end(hidden_BLD).squeeze(-1),
        }


def as_answer(prediction: Prediction) -> Answered:
    """The best answer; without text and place if there seems to be none."""
    is_given = prediction["answer"] != ""
    odds = prediction.get("null_odds")
    return Answered(
        text=prediction["answer"],
        start=prediction["start"] if is_given else None,
        end=prediction["end"] if is_given else None,
        score=prediction["n_best"][0]["probability"] if prediction["n_best"] else 0.0,
        # Written so that no exponential of a large number is needed.
        no_answer=None if odds is None else (1 + math.tanh(odds / 2)) / 2,
    )


def answer_mask(batch: TaskBatch) -> Tensor:
    """1 at the window with its [SEP], as in the original, and at [CLS], which is for no answer: (B, L)."""
    mask_BL = batch.attention_mask_BL.long() * batch.token_type_ids_BL.long()
    mask_BL[:, 0] = 1
    return mask_BL


def start_logits(head: SpanHead | JointSpanHead, hidden_BLD: Tensor, answer_mask_BL: Tensor) -> Tensor:
    """Logits (B, L) of an answer's first token."""
    if isinstance(head, JointSpanHead):
        return head.start_logits(hidden_BLD, answer_mask_BL)
    start_BL: Tensor = head(hidden_BLD, answer_mask_BL)[0]
    return start_BL
