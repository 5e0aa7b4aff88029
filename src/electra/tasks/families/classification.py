"""Texts and pairs -> one class, several classes, or a value.

B rows, L positions, C classes, N examples, D numbers in a hidden state.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import ClassificationHead, RegressionHead
from electra.model.sizes import EncoderConfig
from electra.tasks.families import scores
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.family import (
    Family,
    Prediction,
    Score,
    TaskBatch,
    TaskRow,
    TextExample,
    check_finite,
    known_labels,
    sequence,
)
from electra.text.tokenizer import Tokenizer

__all__ = ["Classification", "MultiLabel", "MultipleChoice", "Regression"]

THRESHOLD = 0.5
"""Of several labels, those with at least this probability are predicted."""


class TextFamily(Family[TextExample]):
    """What is common to those that judge a text, or a pair, by its [CLS]: one row for each example."""

    def rows(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """One for each example, cut to `max_length`."""
        first = tokenizer.encode([example.text for example in examples]).split()
        second = tokenizer.encode([example.text_pair or "" for example in examples]).split()
        rows = []
        for place, (example, a, b) in enumerate(zip(examples, first, second, strict=True)):
            ids, types = sequence(a, b, tokenizer, max_length=max_length)
            targets = {} if example.label is None else self.targets(example)
            rows.append(
                TaskRow(input_ids=ids, token_type_ids=types, example=place, unit=place, targets=targets)
            )
        return rows

    @abstractmethod
    def targets(self, example: TextExample) -> Mapping[str, Any]:
        """What is to be learned of an example whose label is known."""


class Classification(TextFamily):
    """One of several classes."""

    name: ClassVar[str] = "classification"

    def __init__(self, labels: Sequence[str], metrics: Sequence[str] = ("accuracy",)) -> None:
        known = (*scores.CLASS_SCORES, "auc")
        for metric in metrics:
            if metric not in known:
                raise InputError(f"score {metric!r} is unknown, expected one of {', '.join(known)}")
            if metric in ("f1", "auc") and len(labels) != 2:
                raise InputError(
                    f"{metric} is of two classes, and there are {len(labels)}: use macro_f1 in its place"
                )
        self._labels = distinct_labels(labels)
        self.metrics = tuple(metrics)

    def labels(self) -> tuple[str, ...]:
        """In the order of the logits; the second is the one that F1 and AUC look for."""
        return self._labels

    def targets(self, example: TextExample) -> dict[str, Any]:
        """The number of the class."""
        assert isinstance(example.label, int)
        assert 0 <= example.label < len(self._labels), example.where
        return {"label": example.label}

    def head(self, config: EncoderConfig) -> nn.Module:
        """Dropout and one layer."""
        return ClassificationHead(config, len(self._labels))

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(head(hidden_BLD).float(), batch.target("label"), reduction="none")

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The probabilities of the classes."""
        return list(head(hidden_BLD).float().softmax(dim=-1).cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The most probable class, and the probability of each."""
        check_finite(examples, outputs)
        return [
            {
                "label": self._labels[int(np.argmax(output))],
                "probabilities": dict(zip(self._labels, map(float, output), strict=True)),
            }
            for output in outputs
        ]

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Those that were asked for."""
        gold = known_labels(examples)
        predicted = [self._labels.index(prediction["label"]) for prediction in predictions]
        result = {}
        for metric in self.metrics:
            if metric == "auc":
                positive = self._labels[scores.POSITIVE]
                probability = [prediction["probabilities"][positive] for prediction in predictions]
                result[metric] = scores.auc(gold, probability)
            else:
                result[metric] = scores.CLASS_SCORES[metric](gold, predicted)
        return result


class MultiLabel(TextFamily):
    """Any number of labels, each of which is there or not."""

    name: ClassVar[str] = "multi_label"

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = distinct_labels(labels)

    def labels(self) -> tuple[str, ...]:
        """In the order of the logits."""
        return self._labels

    def targets(self, example: TextExample) -> dict[str, Any]:
        """0 or 1 for each label."""
        assert isinstance(example.label, tuple)
        present_C = np.zeros(len(self._labels), np.float32)
        present_C[list(example.label)] = 1
        return {"labels": present_C}

    def head(self, config: EncoderConfig) -> nn.Module:
        """Dropout and one layer."""
        return ClassificationHead(config, len(self._labels))

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Binary cross-entropy, the mean over the labels."""
        present_BC = batch.padded_target("labels", padding=0, dtype=torch.float32)
        logits_BC = head(hidden_BLD).float()
        losses_BC = functional.binary_cross_entropy_with_logits(logits_BC, present_BC, reduction="none")
        return losses_BC.mean(dim=-1)

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The probability of each label."""
        return list(head(hidden_BLD).float().sigmoid().cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The labels that are more probable than not."""
        check_finite(examples, outputs)
        return [
            {
                "labels": [label for label, p in zip(self._labels, output, strict=True) if p >= THRESHOLD],
                "probabilities": dict(zip(self._labels, map(float, output), strict=True)),
            }
            for output in outputs
        ]

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """F1 in both averages, and the share of examples with all labels right."""
        known_labels(examples)
        gold_NC = np.array([self.targets(example)["labels"] for example in examples], np.int64)
        predicted_NC = np.array(
            [[label in prediction["labels"] for label in self._labels] for prediction in predictions],
            np.int64,
        )
        return {
            "micro_f1": scores.micro_f1(gold_NC, predicted_NC),
            "macro_f1": scores.macro_f1(gold_NC, predicted_NC),
            "exact_match": scores.accuracy(gold_NC, predicted_NC),
        }


class Regression(TextFamily):
    """A number. It is learned as its place between `low` and `high`, as in the original."""

    name: ClassVar[str] = "regression"

    def __init__(
        self,
        *,
        low: float = 0.0,
        high: float = 1.0,
        metrics: Sequence[str] = ("pearson", "spearman"),
    ) -> None:
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InputError(f"values from {low} to {high}: expected a range of finite numbers")
        for metric in metrics:
            if metric not in scores.VALUE_SCORES:
                known = ", ".join(scores.VALUE_SCORES)
                raise InputError(f"score {metric!r} is unknown, expected one of {known}")
        self.low, self.high = low, high
        self.metrics = tuple(metrics)

    def labels(self) -> tuple[str, ...]:
        """There are none."""
        return ()

    def targets(self, example: TextExample) -> dict[str, Any]:
        """The value's place in the range."""
        assert isinstance(example.label, int | float)
        return {"value": (example.label - self.low) / (self.high - self.low)}

    def head(self, config: EncoderConfig) -> nn.Module:
        """Dropout and one layer."""
        return RegressionHead(config)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Squared error."""
        target_B = batch.target("value", dtype=torch.float32)
        losses_B: Tensor = (head(hidden_BLD).float() - target_B) ** 2
        return losses_B

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The value in the range of 0 to 1; it may lie outside."""
        return list(head(hidden_BLD).float().cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The value as in the data; not clipped, since that would only make ties."""
        check_finite(examples, outputs)
        return [{"value": self.low + float(output) * (self.high - self.low)} for output in outputs]

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Those that were asked for."""
        gold = known_labels(examples)
        predicted = [prediction["value"] for prediction in predictions]
        return {metric: scores.VALUE_SCORES[metric](gold, predicted) for metric in self.metrics}


def distinct_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The names, which are at least two and differ."""
    assert len(set(labels)) == len(labels), f"a label is named twice in {labels}"
    if len(labels) < 2:
        raise InputError(f"the labels are {list(labels)}: expected at least two to choose from")
    return tuple(labels)
