"""Questions with choices -> the right one.

B rows, L positions, U questions, C choices, D numbers in a hidden state.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from electra.model.heads import RegressionHead
from electra.model.sizes import EncoderConfig
from electra.tasks.families import scores
from electra.tasks.families.family import (
    ChoiceExample,
    Family,
    Prediction,
    Score,
    TaskBatch,
    TaskRow,
    check_finite,
    known_labels,
    sequence,
)
from electra.text.tokenizer import Tokenizer


class MultipleChoice(Family[ChoiceExample]):
    """The right one of several answers: a row for each, and the rows of a question are a unit."""

    name: ClassVar[str] = "multiple_choice"

    def labels(self) -> tuple[str, ...]:
        """There are none: every question has its own choices."""
        return ()

    def rows(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """[CLS] prompt [SEP] choice [SEP] for each choice."""
        prompts = tokenizer.encode([example.prompt for example in examples]).split()
        choices = iter(
            tokenizer.encode([choice for example in examples for choice in example.choices]).split()
        )
        rows = []
        for place, (example, prompt) in enumerate(zip(examples, prompts, strict=True)):
            targets = {} if example.label is None else {"label": example.label}
            for choice in range(len(example.choices)):
                ids, types = sequence(prompt, next(choices), tokenizer, max_length=max_length)
                rows.append(
                    TaskRow(
                        input_ids=ids,
                        token_type_ids=types,
                        example=place,
                        unit=place,
                        targets=targets,
                        origin=choice,
                    )
                )
        return rows

    def head(self, config: EncoderConfig) -> nn.Module:
        """One logit for each row."""
        return RegressionHead(config)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy over the choices of each question, which may have different numbers of them."""
        questions = questions_of(batch.rows)
        logits_B = head(hidden_BLD).float()
        logits_UC = nn.utils.rnn.pad_sequence(
            [logits_B[question] for question in questions], batch_first=True, padding_value=float("-inf")
        )
        target_U = batch.target("label")[[question.start for question in questions]]
        return functional.cross_entropy(logits_UC, target_U, reduction="none")

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The logit of each choice."""
        return list(head(hidden_BLD).float().cpu().numpy())

    def predictions(
        self, examples: Sequence[ChoiceExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The most probable choice, and the probability of each."""
        logits = np.array(outputs, np.float32)
        by_question = [logits[question] for question in questions_of(rows)]
        check_finite(examples, by_question)
        result: list[Prediction] = []
        for logits_C in by_question:
            share_C = np.exp(logits_C - logits_C.max(), dtype=np.float64)
            share_C /= share_C.sum()
            result.append({"choice": int(share_C.argmax()), "probabilities": share_C.tolist()})
        return result

    def scores(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]
    ) -> dict[str, Score]:
        """The share of questions that are answered right."""
        gold = known_labels(examples)
        return {"accuracy": scores.accuracy(gold, [prediction["choice"] for prediction in predictions])}


def questions_of(rows: Sequence[TaskRow]) -> list[slice]:
    """Where the rows of each question lie; its first choice is number 0."""
    starts = [place for place, row in enumerate(rows) if row.origin == 0]
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)]
