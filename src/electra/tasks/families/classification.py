"""Texts and pairs -> one class, several classes, or a value, judged by [CLS] or by the mean of all states.

transformers' class for sequences has a layer more than the original: gelu(dense(x)) and then another dense.
It holds ours exactly all the same, since gelu(x) - gelu(-x) = x: the first layer gives each logit and its
negative, the second adds them up. That takes two numbers of the hidden state for each label. A model that was
fine-tuned there keeps its two layers (`head_layers`).

B rows, L positions, C classes, N examples, D numbers in a hidden state.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import ClassificationHead, HeadLayers, RegressionHead
from electra.model.sizes import EncoderConfig
from electra.schema import short
from electra.show import did_you_mean
from electra.tasks.data.columns import Cells, ClassCount, Classes, OwnTaskConfig, RowReader, quoted
from electra.tasks.families import scores
from electra.tasks.families.family import (
    LEAVE_HEAD,
    Ability,
    Card,
    Family,
    ForeignModel,
    HeadPooling,
    Learned,
    Mistake,
    PooledFamily,
    Prediction,
    Predictor,
    Recognised,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TextExample,
    TransformersHead,
    check_finite,
    known_labels,
    label_names,
    pair_outputs,
    sequence,
    value_notes,
)
from electra.tasks.task import TRAIN, content_key
from electra.text.spans import check_pairs
from electra.text.tokenizer import Tokenizer

CLASSIFIER = "ElectraForSequenceClassification"
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
"""What transformers calls the three kinds, in the key `problem_type`."""
CLASS_METRICS = ("accuracy", "macro_f1", "mcc")
THRESHOLD = 0.5
"""Of several labels, those with at least this probability are predicted."""


class TextReader(RowReader):
    """One text or a pair, and its class."""

    classes: ClassVar[ClassCount] = "one"

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The text, and the second one if there is one."""
        return (self.config.text, *([self.config.text_pair] if self.config.text_pair is not None else []))

    def names(self, cells: Cells) -> tuple[str, ...]:
        """The class."""
        return (cells.name(self.label_column),)

    def label(self, cells: Cells, classes: Classes) -> int | float | tuple[int, ...]:
        """The number of the class."""
        return self.number(cells, cells.name(self.label_column), classes)

    def number(self, cells: Cells, name: str, classes: Classes) -> int:
        """The number of a class, or an error that says which classes there are."""
        if name not in classes:
            raise InputError(
                f"{cells.where}: {self.label_column!r} is {name!r}, which is not among the labels to learn: "
                f"{quoted(classes)}{did_you_mean(name, classes)}"
            )
        return classes[name]

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> TextExample:
        """The text or pair."""
        pair = self.config.text_pair
        return TextExample(
            id=id,
            where=cells.where,
            text=cells.text(self.config.text),
            text_pair=None if pair is None else cells.text(pair),
            label=None if classes is None else self.label(cells, classes),
        )

    def content(self, example: TextExample) -> str:
        """The text or pair."""
        return content_key(example.text, *([example.text_pair] if example.text_pair is not None else []))


class MultiLabelReader(TextReader):
    """A text and any number of classes, none of them too."""

    classes: ClassVar[ClassCount] = "several"

    def names(self, cells: Cells) -> tuple[str, ...]:
        """The classes, each once."""
        return tuple(dict.fromkeys(cells.words(self.label_column, separator=self.config.label_separator)))

    def label(self, cells: Cells, classes: Classes) -> tuple[int, ...]:
        """The numbers of the classes."""
        return tuple(sorted(self.number(cells, name, classes) for name in self.names(cells)))


class ValueReader(TextReader):
    """A text or pair and a number."""

    classes: ClassVar[ClassCount] = "none"

    def names(self, cells: Cells) -> tuple[str, ...]:
        """None."""
        return ()

    def label(self, cells: Cells, classes: Classes) -> float:
        """The number."""
        return cells.number(self.label_column)


class ClassifyRequest(TypedDict):
    """Texts, or pairs of texts, to classify."""

    texts: Annotated[list[str], "Texts of any length, or the first text of each pair."]
    pairs: NotRequired[Annotated[list[str] | None, "The second text of each pair."]]


class OneClass(TypedDict):
    """The class of a text; null if the text is empty."""

    label: str | None
    probabilities: dict[str, float]


class SeveralLabels(TypedDict):
    """All labels of a text."""

    labels: list[str]
    probabilities: dict[str, float]


class OneValue(TypedDict):
    """The value of a text; null if the text is empty."""

    value: float | None


CLASSIFY = Ability(
    name="classify",
    purpose="classes, labels or values",
    request=ClassifyRequest,
    answer=OneClass | SeveralLabels | OneValue,
    example={"texts": ["the music was good"]},
)
USE = 'model.classify(["The chef ate the meal."])  # a second list would be the other texts of pairs'
VECTOR_LINES: dict[HeadPooling, str] = {
    "cls": "vector = model(**inputs).last_hidden_state[:, 0]",
    "mean": "vector = model(**inputs).last_hidden_state.mean(dim=1)  # of several texts, without padding",
}


class TextFamily(PooledFamily[TextExample]):
    """What is common to those that judge a text, or a pair, as a whole: one row for each example."""

    ability: ClassVar[Ability | None] = CLASSIFY
    no_text: ClassVar[Prediction]
    """The answer for a text without tokens."""

    def input_columns(self, examples: Sequence[TextExample]) -> dict[str, Any]:
        """Whether there is a second text."""
        is_pair = any(example.text_pair is not None for example in examples[:1])
        return {"text_pair": "text_pair"} if is_pair else {}

    def line_example(self, line: str, *, id: str, where: str) -> TextExample:
        """The line as the text."""
        return TextExample(id=id, where=where, text=line.strip())

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

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Prediction]:
        """A class, several, or a value of each text or pair."""
        first, second = check_pairs(fields["texts"], fields.get("pairs"), names=("texts", "pairs"))
        encode = predictor.tokenizer.encode
        pairs = list(zip(encode(first).split(), encode(second).split(), strict=True))
        judged = [number for number, (a, b) in enumerate(pairs) if len(a) + len(b)]
        examples = [
            TextExample(id=str(number), where=f"texts[{number}]", text=first[number]) for number in judged
        ]
        outputs = pair_outputs([pairs[number] for number in judged], predictor)
        found = dict(zip(judged, self.predictions(examples, [], outputs), strict=True))
        return [found.get(number, dict(self.no_text)) for number in range(len(pairs))]

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """It judges by [CLS], and two numbers of the hidden state are needed for each label."""
        if obstacle := self.pooling_obstacle(config, CLASSIFIER):
            return obstacle
        if self.head_layers == "two" or 2 * len(self.labels()) <= config.hidden_size:
            return None
        return (
            f"{CLASSIFIER} can hold at most {config.hidden_size // 2} labels at this "
            f"hidden_size of {config.hidden_size}, and there are {len(self.labels())}"
        )

    @property
    def value_range(self) -> tuple[float, float]:
        """What 0 and 1 of the head stand for in the data."""
        return 0.0, 1.0

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first half of its first layer, or both layers as they are."""
        low, high = self.value_range
        if self.head_layers == "two":
            weight, bias = (tensors[f"classifier.out_proj.{kind}"] for kind in ("weight", "bias"))
            return {
                **{f"dense.{kind}": tensors[f"classifier.dense.{kind}"] for kind in ("weight", "bias")},
                "output.weight": weight / (high - low),
                "output.bias": (bias - low) / (high - low),
            }
        num_classes = len(tensors["classifier.out_proj.bias"])
        state = {
            f"output.{kind}": tensors[f"classifier.dense.{kind}"][:num_classes] for kind in ("weight", "bias")
        }
        # Trained further by transformers, its two layers need no longer be our one.
        for name, tensor in two_layers(state, low=low, high=high).items():
            if not torch.equal(tensor, tensors[name]):
                raise InputError(
                    f"{name} is not as we write it, so the head is not our one layer any more. Without the "
                    "key 'electra_task' in its config.json it is read as transformers has it"
                )
        return state

    def transformers_head(self, head: nn.Module, config: dict[str, Any]) -> TransformersHead:
        """The head in transformers' class for sequences, with these keys of its config."""
        low, high = self.value_range
        return TransformersHead(CLASSIFIER, config, two_layers(head.state_dict(), low=low, high=high))

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """The logits."""
        return {"logits": head(hidden_BLD, attention_mask_BL)}

    @property
    def head_lines(self) -> Sequence[str]:
        """The vector of a text, and one layer."""
        return (
            'inputs = tokenizer("The chef ate the meal.", return_tensors="pt")',
            VECTOR_LINES[self.head_pooling],
            'head = load_file(f"{folder}/head.safetensors")',
            'logits = vector @ head["output.weight"].T + head["output.bias"]',
        )


class ClassFamily(TextFamily):
    """What is common to those that know classes by name."""

    fewest_labels: ClassVar[int] = 2

    def __init__(
        self,
        labels: Sequence[str],
        head_pooling: HeadPooling = "cls",
        head_layers: HeadLayers = "one",
    ) -> None:
        super().__init__(head_pooling, head_layers)
        if len(set(labels)) != len(labels):
            raise InputError(f"the labels are {short(list(labels))}: expected each of them once")
        if len(labels) < self.fewest_labels:
            raise InputError(f"the labels are {list(labels)}: expected at least two to choose from")
        self._labels = tuple(labels)

    def labels(self) -> tuple[str, ...]:
        """In the order of the logits; of two, the second is the one that F1 and AUC look for."""
        return self._labels

    def head(self, config: EncoderConfig) -> nn.Module:
        """Dropout and one layer, or two."""
        return ClassificationHead(config, len(self._labels), self.head_pooling, self.head_layers)

    def label_counts(self, examples: Sequence[TextExample]) -> Counter[str]:
        """Of every class, also of those without an example."""
        counts = Counter(dict.fromkeys(self._labels, 0))
        for example in examples:
            numbers = example.label if isinstance(example.label, tuple) else (example.label,)
            counts.update(self._labels[number] for number in numbers if isinstance(number, int))
        return counts


class Classification(ClassFamily):
    """One of several classes."""

    name: ClassVar[str] = "classification"
    kind: ClassVar[str] = "classification"
    reader = TextReader
    no_text: ClassVar[Prediction] = {"label": None, "probabilities": {}}
    card: ClassVar[Card] = Card(
        what="An ELECTRA that tells the class of a text, or of a pair of texts.",
        hub_task="text-classification",
        use=USE,
        pipeline='pipeline("text-classification", model=folder)("The chef ate the meal.")',
    )

    def __init__(
        self,
        labels: Sequence[str],
        metrics: Sequence[str] = ("accuracy",),
        head_pooling: HeadPooling = "cls",
        head_layers: HeadLayers = "one",
    ) -> None:
        known = (*scores.CLASS_SCORES, "auc")
        for metric in metrics:
            if metric not in known:
                raise InputError(f"score {metric!r} is unknown, expected one of {', '.join(known)}")
            if metric in ("f1", "auc") and len(labels) != 2:
                raise InputError(
                    f"{metric} is of two classes, and there are {len(labels)}: use macro_f1 in its place"
                )
        super().__init__(labels, head_pooling, head_layers)
        self.metrics = tuple(metrics)

    def settings(self) -> dict[str, Any]:
        """Labels, scores and the head."""
        return {
            "labels": self._labels,
            "metrics": self.metrics,
            "head_pooling": self.head_pooling,
            "head_layers": self.head_layers,
        }

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the classes that were found."""
        return Learned(cls(labels, CLASS_METRICS), "accuracy", splits, [])

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model of one class, with the labels that its config names."""
        labels = foreign_labels(foreign, "single_label_classification")
        if labels is None:
            return None
        if len(labels) < cls.fewest_labels:
            raise InputError(
                f"{foreign.where}: problem_type is single_label_classification with one label, expected two "
                f"or more, or another problem_type. {LEAVE_HEAD}"
            )
        return Recognised(cls(labels, CLASS_METRICS, head_layers="two"), "accuracy")

    def targets(self, example: TextExample) -> dict[str, Any]:
        """The number of the class."""
        assert isinstance(example.label, int)
        assert 0 <= example.label < len(self._labels), example.where
        return {"label": example.label}

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy."""
        logits_BC = head(hidden_BLD, batch.attention_mask_BL).float()
        return functional.cross_entropy(logits_BC, batch.target("label"), reduction="none")

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The probabilities of the classes."""
        return list(head(hidden_BLD, batch.attention_mask_BL).float().softmax(dim=-1).cpu().numpy())

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

    def mistakes(self, example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
        """Another class than the true one; the surer the worse."""
        assert isinstance(example.label, int)
        gold, predicted = self._labels[example.label], prediction["label"]
        if gold != predicted:
            confidence = prediction["probabilities"][predicted]
            said = {"gold": gold, "predicted": predicted, "confidence": confidence}
            yield Mistake(confidence, {**texts_of(example), **said})

    def confusion(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> list[list[int]] | None:
        """Of classes."""
        predicted = [self._labels.index(prediction["label"]) for prediction in predictions]
        return scores.confusion(self._labels, known_labels(examples), predicted)

    def table_row(self, example: TextExample, prediction: Prediction) -> dict[str, str]:
        """The text, the class, and how probable it is."""
        probability = prediction["probabilities"][prediction["label"]]
        return {**super().table_row(example, prediction), "probability": f"{probability:.4f}"}

    def submission_value(self, prediction: Prediction, written: Sequence[str]) -> str:
        """The label as the task's files write it."""
        return written[self._labels.index(prediction["label"])]

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """As two layers."""
        names = {"problem_type": "single_label_classification", **label_names(self._labels)}
        return self.transformers_head(head, names)


class MultiLabel(ClassFamily):
    """Any number of labels, each of which is there or not."""

    name: ClassVar[str] = "multi_label"
    kind: ClassVar[str] = "multi_label"
    # One that is there or not.
    fewest_labels: ClassVar[int] = 1
    reader = MultiLabelReader
    no_text: ClassVar[Prediction] = {"labels": [], "probabilities": {}}
    card: ClassVar[Card] = Card(
        what="An ELECTRA that tells which labels a text has, or a pair of texts.",
        hub_task="text-classification",
        use=USE,
        pipeline='pipeline("text-classification", model=folder, top_k=None)("The chef ate the meal.")',
    )

    def settings(self) -> dict[str, Any]:
        """The labels, and the head."""
        return {
            "labels": self._labels,
            "head_pooling": self.head_pooling,
            "head_layers": self.head_layers,
        }

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the classes that were found."""
        return Learned(cls(labels), "micro_f1", splits, [])

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model of several labels, by the names in its config."""
        labels = foreign_labels(foreign, "multi_label_classification")
        return None if labels is None else Recognised(cls(labels, head_layers="two"), "micro_f1")

    def targets(self, example: TextExample) -> dict[str, Any]:
        """0 or 1 for each label."""
        assert isinstance(example.label, tuple)
        present_C = np.zeros(len(self._labels), np.float32)
        present_C[list(example.label)] = 1
        return {"labels": present_C}

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Binary cross-entropy, the mean over the labels."""
        present_BC = batch.padded_target("labels", padding=0, dtype=torch.float32)
        logits_BC = head(hidden_BLD, batch.attention_mask_BL).float()
        losses_BC = functional.binary_cross_entropy_with_logits(logits_BC, present_BC, reduction="none")
        return losses_BC.mean(dim=-1)

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The probability of each label."""
        return list(head(hidden_BLD, batch.attention_mask_BL).float().sigmoid().cpu().numpy())

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

    def mistakes(self, example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
        """Labels that are missing or too many; the more the worse."""
        assert isinstance(example.label, tuple)
        gold = [self._labels[number] for number in example.label]
        wrong = set(gold) ^ set(prediction["labels"])
        if wrong:
            said = {"gold": ", ".join(gold) or "none", "predicted": ", ".join(prediction["labels"]) or "none"}
            yield Mistake(len(wrong), {**texts_of(example), **said})

    def table_row(self, example: TextExample, prediction: Prediction) -> dict[str, str]:
        """The text and its labels."""
        return {**texts_of(example), "labels": "|".join(prediction["labels"])}

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """As two layers."""
        names = {"problem_type": "multi_label_classification", **label_names(self._labels)}
        return self.transformers_head(head, names)


class Regression(TextFamily):
    """A number. It is learned as its place between `low` and `high`, as in the original."""

    name: ClassVar[str] = "regression"
    kind: ClassVar[str] = "regression"
    reader = ValueReader
    no_text: ClassVar[Prediction] = {"value": None}
    card: ClassVar[Card] = Card(
        what="An ELECTRA that gives a text, or a pair of texts, a value.",
        hub_task="text-classification",
        use=USE,
        pipeline=(
            'pipeline("text-classification", model=folder, function_to_apply="none")'
            '("The chef ate the meal.")'
        ),
    )

    def __init__(
        self,
        *,
        low: float = 0.0,
        high: float = 1.0,
        metrics: Sequence[str] = ("pearson", "spearman"),
        head_pooling: HeadPooling = "cls",
        head_layers: HeadLayers = "one",
        value_name: str = "value",
    ) -> None:
        super().__init__(head_pooling, head_layers)
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise InputError(f"values from {low} to {high}: expected a range of finite numbers")
        for metric in metrics:
            if metric not in scores.VALUE_SCORES:
                known = ", ".join(scores.VALUE_SCORES)
                raise InputError(f"score {metric!r} is unknown, expected one of {known}")
        self.low, self.high = low, high
        self.metrics = tuple(metrics)
        # What transformers calls it, for which a value is the only one of its labels.
        self.value_name = value_name

    def labels(self) -> tuple[str, ...]:
        """There are none."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Range, scores, the head and the name of the value."""
        return {
            "low": self.low,
            "high": self.high,
            "metrics": self.metrics,
            "head_pooling": self.head_pooling,
            "head_layers": self.head_layers,
            "value_name": self.value_name,
        }

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the range of the training examples."""
        values = [example.label for example in splits[TRAIN]]
        if min(values) == max(values):
            raise InputError(
                f"{splits[TRAIN][0].where}: {values[0]:g}, as in every line: nothing to tell apart"
            )
        return Learned(cls(low=min(values), high=max(values)), "pearson", splits, value_notes(values))

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model of one value, as it comes out of the head: no range of it is known."""
        labels = foreign_labels(foreign, "regression")
        if labels is None:
            return None
        if len(labels) > 1:
            raise InputError(
                f"{foreign.where}: problem_type is regression with {len(labels)} values, and of such models "
                f"those of one value can be read. {LEAVE_HEAD}"
            )
        return Recognised(cls(head_layers="two", value_name=labels[0]), "pearson")

    def continued(self, before: Family[Any]) -> Self:
        """With the name of the value, too."""
        family = super().continued(before)
        if not isinstance(before, Regression):
            return family
        return type(self)(**{**family.settings(), "value_name": before.value_name})

    def kept_head(self, state: Mapping[str, Tensor], before: Family[Any]) -> Mapping[str, Tensor] | None:
        """The same values in another range."""
        kept = super().kept_head(state, before)
        if kept is None:
            return None
        assert isinstance(before, Regression)
        scale = (before.high - before.low) / (self.high - self.low)
        shift = (before.low - self.low) / (self.high - self.low)
        return {
            **kept,
            "output.weight": kept["output.weight"] * scale,
            "output.bias": kept["output.bias"] * scale + shift,
        }

    def targets(self, example: TextExample) -> dict[str, Any]:
        """The value's place in the range."""
        assert isinstance(example.label, int | float)
        return {"value": (example.label - self.low) / (self.high - self.low)}

    def head(self, config: EncoderConfig) -> nn.Module:
        """Dropout and one layer, or two."""
        return RegressionHead(config, self.head_pooling, self.head_layers)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Squared error."""
        target_B = batch.target("value", dtype=torch.float32)
        losses_B: Tensor = (head(hidden_BLD, batch.attention_mask_BL).float() - target_B) ** 2
        return losses_B

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The value in the range of 0 to 1; it may lie outside."""
        return list(head(hidden_BLD, batch.attention_mask_BL).float().cpu().numpy())

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

    def mistakes(self, example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
        """How far off it is."""
        if isinstance(example.label, int | float):
            predicted = prediction["value"]
            said = {"gold": f"{example.label:g}", "predicted": f"{predicted:.3g}"}
            yield Mistake(abs(predicted - example.label), {**texts_of(example), **said})

    def submission_value(self, prediction: Prediction, written: Sequence[str]) -> str:
        """The value, within the range of the task."""
        return f"{min(max(prediction['value'], self.low), self.high):.3f}"

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """It judges by [CLS]; one value always fits."""
        return self.pooling_obstacle(config, CLASSIFIER)

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """As two layers, the second of which leads back to the range."""
        return self.transformers_head(head, {"problem_type": "regression", **label_names([self.value_name])})

    @property
    def value_range(self) -> tuple[float, float]:
        """That of the data."""
        return self.low, self.high

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """The value in its range."""
        value_B = head(hidden_BLD, attention_mask_BL)
        return {"logits": self.low + value_B[:, None] * (self.high - self.low)}

    @property
    def head_lines(self) -> Sequence[str]:
        """The vector of a text, one layer, and the range."""
        return (*super().head_lines, f"value = {self.low:g} + {self.high - self.low:g} * logits")


def texts_of(example: TextExample) -> dict[str, str]:
    """The text, and the second one of a pair, by name."""
    pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
    return {"text": example.text, **pair}


def foreign_labels(foreign: ForeignModel, problem: Problem) -> tuple[str, ...] | None:
    """The labels of a model of transformers, if it was fine-tuned for this kind of problem."""
    if foreign.architecture != CLASSIFIER:
        return None
    labels = foreign.labels(len(foreign.tensor("classifier.out_proj.weight")))
    # As there: one number is a value, unless the config says otherwise.
    guess = "regression" if len(labels) == 1 else "single_label_classification"
    found = foreign.values.get("problem_type") or guess
    if found not in get_args(Problem):
        known = ", ".join(get_args(Problem))
        raise InputError(f"{foreign.where}: problem_type is {found!r}, expected one of {known}. {LEAVE_HEAD}")
    return labels if found == problem else None


def two_layers(state: Mapping[str, Tensor], *, low: float, high: float) -> dict[str, Tensor]:
    """A head by the names of transformers, one layer as two, see above; 0 and 1 become `low` and `high`."""
    weight_CD, bias_C, scale = state["output.weight"], state["output.bias"], high - low
    if "dense.weight" in state:
        return {
            **{f"classifier.dense.{kind}": state[f"dense.{kind}"] for kind in ("weight", "bias")},
            "classifier.out_proj.weight": weight_CD * scale,
            "classifier.out_proj.bias": bias_C * scale + low,
        }
    num_classes, hidden_size = weight_CD.shape
    dense_DD = weight_CD.new_zeros(hidden_size, hidden_size)
    dense_DD[: 2 * num_classes] = torch.cat([weight_CD, -weight_CD])
    bias_D = bias_C.new_zeros(hidden_size)
    bias_D[: 2 * num_classes] = torch.cat([bias_C, -bias_C])
    output_CD = weight_CD.new_zeros(num_classes, hidden_size)
    each = scale * torch.eye(num_classes)
    output_CD[:, : 2 * num_classes] = torch.cat([each, -each], dim=1)
    return {
        "classifier.dense.weight": dense_DD,
        "classifier.dense.bias": bias_D,
        "classifier.out_proj.weight": output_CD,
        "classifier.out_proj.bias": torch.full_like(bias_C, low),
    }
