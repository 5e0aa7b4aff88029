"""Questions with their texts -> the part of the text that answers: extractive question answering.

The joint head, the original's, predicts an answer's end knowing its start; the plain head, transformers',
predicts each by itself. With answerability on, a classifier beside it says whether the text holds an answer
at all.

`answers` reads questions and scores what was answered, `excerpts` makes rows of them and answers of logits;
here is what is trained and asked.

B rows, L positions.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from electra import files
from electra.errors import InputError
from electra.model.heads import JointSpanHead, SpanHead, UnanswerableHead
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.families.answers import (
    AnswerExample,
    AnswerReader,
    normalise,
    scores_v1,
    scores_v2,
)
from electra.tasks.families.excerpts import (
    AnswerLimits,
    Candidates,
    WindowSizes,
    as_prediction,
    best_answers,
    candidate_spans,
    possible,
    window_rows,
)
from electra.tasks.families.family import (
    LEAVE_HEAD,
    Ability,
    Card,
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
from electra.tasks.task import TRAIN
from electra.text.spans import check_pairs
from electra.text.tokenizer import Tokenizer

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
