"""Questions with their texts -> answers: the family of extractive question answering.

The joint head, the original's, predicts an answer's end knowing its start; the plain head predicts each by
itself. With answerability on, a classifier beside it says whether the text holds an answer at all.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import JointSpanHead, SpanHead, UnanswerableHead
from electra.model.sizes import EncoderConfig
from electra.tasks import squad_answers, squad_scores
from electra.tasks.family import Family, Prediction, Score, TaskBatch, TaskRow
from electra.tasks.squad_answers import Candidates, Limits
from electra.tasks.squad_examples import AnswerExample
from electra.tasks.squad_windows import WindowSizes, window_rows
from electra.text.tokenizer import Tokenizer

SpanKind = Literal["joint", "plain"]
Answerability = Literal["on", "off"]

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


class QuestionAnswering(Family[AnswerExample]):
    """Find the answer to a question in a text."""

    name: ClassVar[str] = "question_answering"

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
        self.limits = Limits(
            max_answer_length=max_answer_length, beam_size=beam_size, n_best_size=n_best_size
        )
        self.null_threshold = null_threshold

    @property
    def settings(self) -> dict[str, str | int | float]:
        """What it is made from: `QuestionAnswering(**settings)` is the same again."""
        return {
            "head": self.span_kind,
            "answerability": self.answerability,
            **vars(self.sizes),
            **vars(self.limits),
            "null_threshold": self.null_threshold,
        }

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
        for beam in squad_answers.spans(head.span, hidden_BLD, answer_mask_BL, self.limits):
            chunk = windows[len(found) : len(found) + len(beam.start_index_BK)]
            found += squad_answers.possible(beam, chunk, max_answer_length=self.limits.max_answer_length)
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
            best = squad_answers.best_answers(
                example.context,
                [rows[number].origin for number in of_example],
                found,
                n_best_size=self.limits.n_best_size,
            )
            # As in the original: one window that seems to hold an answer is enough.
            doubts = [row.null_logit for row in found if row.null_logit is not None]
            null_odds = min(doubts) if doubts else None
            predictions.append(squad_answers.prediction(best, null_odds, null_threshold=self.null_threshold))
        return predictions

    def scores(
        self, examples: Sequence[AnswerExample], predictions: Sequence[Prediction]
    ) -> dict[str, Score]:
        """The official scores; where questions may have no answer, those of the best threshold first."""
        texts = [prediction["text"] for prediction in predictions]
        if self.answerability == "off":
            return squad_scores.scores_v1(examples, texts)
        null_odds = [prediction["null_odds"] for prediction in predictions]
        return squad_scores.scores_v2(examples, texts, null_odds, null_threshold=self.null_threshold)

    def labels(self) -> tuple[str, ...]:
        """None: an answer is a part of the text."""
        return ()


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
