"""Texts -> the class whose word looks least replaced to the discriminator in a sentence behind the text.

"It was {}." behind a review, with *great* and with *terrible*: what a discriminator has learned in
pre-training prefers one of them. The score of a word is the mean, over its tokens, of log(1 - p(replaced)),
so that words of one token and of several can be compared; the softmax over the words gives probabilities.
There are no new weights: untrained, the family classifies without examples, as `model.choose` does, and
training begins there (Xia et al. 2022, Prompting ELECTRA; Yao et al. 2022).

B rows, L positions, U texts, C classes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model import names
from electra.model.heads import DETECTION_HEADS, DetectionHead, DiscriminatorHead, detection_head_of
from electra.model.names import ARCHITECTURES
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import OwnTaskConfig, in_order, quoted
from electra.tasks.families.classification import CLASS_METRICS, CLASSIFY, Classification, TextReader
from electra.tasks.families.family import (
    Ability,
    Card,
    Family,
    Learned,
    Mistake,
    Prediction,
    Predictor,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TextExample,
    TransformersHead,
    check_finite,
    label_names,
    sequence,
)
from electra.text.spans import check_texts
from electra.text.templates import DEFAULT_TEMPLATE, OptionPrompts, Shown, Template
from electra.text.tokenizer import Tokenizer

ROLE: names.Role = "discriminator"
SCOPE = f"{ROLE}_head."


class OptionPlace(NamedTuple):
    """What a row shows, and at which positions its option stands."""

    shown: Shown
    first: int
    stop: int


class Options(Family[TextExample]):
    """One of several classes, each of which has a word: a row for each, and the rows of a text are a unit."""

    name: ClassVar[str] = "options"
    kind: ClassVar[str] = "options"
    reader = TextReader
    ability: ClassVar[Ability | None] = CLASSIFY
    epochs: ClassVar[float] = 10.0
    card: ClassVar[Card] = Card(
        what="An ELECTRA that tells the class of a text: the one whose word looks least replaced behind it.",
        use='model.classify(["The chef ate the meal."])',
        class_lines=(
            'inputs = tokenizer("The chef ate the meal. It was great.", return_tensors="pt")',
            "original = 1 - model(**inputs).logits.sigmoid()  # of the words, the highest",
        ),
    )

    def __init__(
        self,
        labels: Sequence[str],
        words: Sequence[str],
        template: str = DEFAULT_TEMPLATE,
        metrics: Sequence[str] = CLASS_METRICS,
        detection_head: DetectionHead = "plain",
    ) -> None:
        self._classes = Classification(labels, metrics)
        if len(words) != len(labels):
            raise InputError(f"{len(labels)} labels and {len(words)} words: expected a word for each label")
        if detection_head not in get_args(DetectionHead):
            known = " or ".join(get_args(DetectionHead))
            raise InputError(f"detection_head is {detection_head!r}, expected {known}")
        self.words = tuple(words)
        self.template = Template(template)
        self.detection_head = detection_head

    def labels(self) -> tuple[str, ...]:
        """In the order of the words."""
        return self._classes.labels()

    def settings(self) -> dict[str, Any]:
        """Labels with their words, the sentence, scores and the form of the head."""
        return {
            "labels": self.labels(),
            "words": self.words,
            "template": self.template.written,
            "metrics": self._classes.metrics,
            "detection_head": self.detection_head,
        }

    def can_judge(self, other: Family[Any]) -> bool:
        """Also examples of ordinary classification, if they have the same classes."""
        return other.name in (self.name, Classification.name) and other.labels() == self.labels()

    # Tables.

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the words that were given; a class without one is its own word."""
        words = words_of(config.words)
        if unknown := [label for label in words if label not in labels]:
            raise InputError(f"words names the label {unknown[0]!r}, but the labels are {quoted(labels)}")
        family = cls(labels, [words.get(label, label) for label in labels], config.template)
        said = ", ".join(f"{label} is {word!r}" for label, word in zip(labels, family.words, strict=True))
        note = f"judged by the word in {family.template.written!r}: {said}"
        return Learned(family, "accuracy", splits, [note])

    def line_example(self, line: str, *, id: str, where: str) -> TextExample:
        """The line as the text."""
        return self._classes.line_example(line, id=id, where=where)

    # Training.

    def rows(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """[CLS] text sentence [SEP] for each word; a long text loses its end, the sentence nothing."""
        for example in examples:
            if example.text_pair is not None:
                raise InputError(f"{example.where}: a pair of texts, but options are judged behind one text")
        prompts = self._prompts(tokenizer, max_length)
        targets = [{} if example.label is None else {"label": example.label} for example in examples]
        rows = option_rows(prompts, [example.text for example in examples], cut=True)
        return [replace(row, targets=targets[row.example]) for row in rows]

    def _prompts(self, tokenizer: Tokenizer, max_length: int) -> OptionPrompts:
        names = [f"the word for {label!r}" for label in self.labels()]
        return OptionPrompts.check(
            self.words, self.template.written, tokenizer, max_length=max_length, names=names
        )

    def head(self, config: EncoderConfig) -> nn.Module:
        """That of a discriminator."""
        return DETECTION_HEADS[self.detection_head](config)

    def begun(self, head: nn.Module | None, *, where: str) -> Self:
        """With a head of the form that the encoder was pre-trained with."""
        if not isinstance(head, DiscriminatorHead):
            raise InputError(
                f"{where} has no discriminator with its head, by which options are judged: name a run of "
                "`electra pretrain`, or an ElectraForPreTraining"
            )
        return type(self)(**{**self.settings(), "detection_head": detection_head_of(head.state_dict())})

    def first_head(self, head: nn.Module) -> Mapping[str, Tensor]:
        """The same weights."""
        return head.state_dict()

    def continued(self, before: Family[Any]) -> Self:
        """With a head of the same form as one of this kind, whatever its labels; others have lost theirs."""
        if not isinstance(before, Options):
            raise InputError(
                f"a model that was fine-tuned for {before.kind} has lost the discriminator's head, by which "
                "options are judged: begin with the run that it was made from"
            )
        return type(self)(**{**self.settings(), "detection_head": before.detection_head})

    def kept_head(self, state: Mapping[str, Tensor], before: Family[Any]) -> Mapping[str, Tensor] | None:
        """The same weights: they know nothing of labels."""
        return state

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy over the scores of the words of each text."""
        count = len(self.words)
        scores_UC = self._word_scores(head, hidden_BLD, batch).view(-1, count)
        return functional.cross_entropy(scores_UC, batch.target("label")[::count], reduction="none")

    def label_counts(self, examples: Sequence[TextExample]) -> Counter[str]:
        """Of every class, also of those without an example."""
        return self._classes.label_counts(examples)

    def _word_scores(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """The mean of log(1 - p(replaced)) over the tokens of the word in each row: (B), in float32."""
        share_BL = torch.zeros(hidden_BLD.shape[:2])
        for number, row in enumerate(batch.rows):
            place: OptionPlace = row.origin
            share_BL[number, place.first : place.stop] = 1 / (place.stop - place.first)
        logits_BL = head(hidden_BLD).float()
        return (functional.logsigmoid(-logits_BL) * share_BL.to(logits_BL.device)).sum(dim=1)

    # Prediction.

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The score of each word."""
        return list(self._word_scores(head, hidden_BLD, batch).cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The class of the word that looks least replaced, and the probability of each."""
        scores_UC = np.array(outputs, np.float64).reshape(-1, len(self.words))
        check_finite(examples, list(scores_UC))
        return self._classes.predictions(examples, [], list(shares(scores_UC)))

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Those of classification."""
        return self._classes.scores(examples, predictions)

    def mistakes(self, example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
        """Another class than the true one; the surer the worse."""
        return self._classes.mistakes(example, prediction)

    def confusion(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> list[list[int]] | None:
        """Of classes."""
        return self._classes.confusion(examples, predictions)

    def table_row(self, example: TextExample, prediction: Prediction) -> dict[str, str]:
        """The text, the class, and how probable it is."""
        return self._classes.table_row(example, prediction)

    def submission_value(self, prediction: Prediction, written: Sequence[str]) -> str:
        """The label as the task's files write it."""
        return self._classes.submission_value(prediction, written)

    # API.

    @property
    def num_readings(self) -> int:
        """A text is read with each word."""
        return len(self.words)

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Prediction]:
        """The class of each text; a long one is read window by window, with the sentence behind each."""
        texts = check_texts(fields["texts"])
        if fields.get("pairs") is not None:
            raise InputError("pairs: this model judges words behind one text, so that there are no pairs")
        prompts = self._prompts(predictor.tokenizer, predictor.max_length)
        rows = [row for row in option_rows(prompts, texts, cut=False) if row.origin.shown.weight]
        shown = [row.origin.shown for row in rows]
        scores_UC = window_means(
            shown, predictor.outputs(rows), num_texts=len(texts), num_options=len(self.words)
        )
        known = np.flatnonzero(~np.isnan(scores_UC[:, 0])).tolist()
        examples = [TextExample(id=str(place), where=f"texts[{place}]", text="") for place in known]
        said = self.predictions(examples, [], list(scores_UC[known].ravel()))
        found = dict(zip(known, said, strict=True))
        return [found.get(place, dict(Classification.no_text)) for place in range(len(texts))]

    # Export.

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """ELECTRA's class of pre-training has this head, unless it looks at [CLS]."""
        if self.detection_head == "plain" and not config.is_modern:
            return None
        return "it is the head of this discriminator, of which the words of the classes are compared"

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """The head of pre-training."""
        state = {f"{SCOPE}{name}": tensor for name, tensor in head.state_dict().items()}
        labels = label_names(self.labels())
        return TransformersHead(ARCHITECTURES[ROLE], labels, names.to_transformers(state, ROLE))

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same."""
        modules = tuple(module.transformers for module, _ in names.HEADS[ROLE])
        of_head = {name: tensor for name, tensor in tensors.items() if name.startswith(modules)}
        state = names.from_transformers(of_head, ROLE)
        return {name.removeprefix(SCOPE): tensor for name, tensor in state.items()}


def option_rows(prompts: OptionPrompts, texts: Sequence[str], *, cut: bool) -> list[TaskRow]:
    """Texts with each option as rows; the windows of a long text are units of their own."""
    tokenizer = prompts.tokenizer
    rows: list[TaskRow] = []
    for row in prompts.rows(texts, cut=cut):
        ids, types = sequence(row.ids_T, row.ids_T[:0], tokenizer, max_length=prompts.room + 2)
        # Behind [CLS].
        place = OptionPlace(row.shown, 1 + row.place.start, 1 + row.place.stop)
        unit = len(rows) // len(prompts.options)
        rows.append(
            TaskRow(input_ids=ids, token_type_ids=types, example=row.shown.text, unit=unit, origin=place)
        )
    return rows


def shares(scores_UC: NDArray[np.float64]) -> NDArray[np.float64]:
    """The softmax over the options of each text."""
    share_UC = np.exp(scores_UC - scores_UC.max(axis=1, keepdims=True))
    found: NDArray[np.float64] = share_UC / share_UC.sum(axis=1, keepdims=True)
    return found


def window_means(
    shown: Sequence[Shown], scores: Sequence[float], *, num_texts: int, num_options: int
) -> NDArray[np.float64]:
    """The score of each option behind each text, the mean of its windows by their tokens; NaN without any."""
    total_UC, weight_UC = np.zeros((num_texts, num_options)), np.zeros((num_texts, num_options))
    for one, score in zip(shown, scores, strict=True):
        total_UC[one.text, one.option] += score * one.weight
        weight_UC[one.text, one.option] += one.weight
    found: NDArray[np.float64] = np.where(weight_UC > 0, total_UC, np.nan) / np.maximum(weight_UC, 1)
    return found


def words_of(written: Sequence[str]) -> dict[str, str]:
    """`label=word`, or a word that is its own label -> the word of each label."""
    found: dict[str, str] = {}
    for entry in written:
        label, equals, word = (part.strip() for part in entry.partition("="))
        if not label or (equals and not word):
            raise InputError(f"{entry!r} is no word for a label, expected such as positive=great")
        if label in found:
            raise InputError(f"the label {label!r} has two words, {found[label]!r} and {word or label!r}")
        found[label] = word or label
    return found


def options_family(written: Sequence[str], template: str) -> Options:
    """The family that chooses among options as a person writes them, `word` or `label=word`."""
    words = words_of(written)
    # As a table's labels are ordered, so that examples of a table have the same numbers.
    labels = in_order(words)
    if len(labels) < 2:
        raise InputError(f"options: {len(labels)} given, expected two or more to choose from")
    return Options(labels, [words[label] for label in labels], template)
