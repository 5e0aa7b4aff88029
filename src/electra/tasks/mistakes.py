"""Examples and predictions -> the worst mistakes, for a person to look at, and the confusion of classes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from electra.tasks.classification import Classification
from electra.tasks.family import Example, Family, Prediction
from electra.tasks.multiple_choice import MultipleChoice
from electra.tasks.scores import confusion
from electra.tasks.squad_examples import AnswerExample
from electra.tasks.squad_scores import normalise
from electra.tasks.tagging import TaggingExample
from electra.tasks.text_examples import ChoiceExample, TextExample

MAX_MISTAKES = 50

# How bad it is, and what is said of it.
Mistake = tuple[float, dict[str, Any]]


def worst_mistakes(
    family: Family[Any], examples: Sequence[Any], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """The mistakes that the model is surest of; where values are predicted, those that are farthest off."""
    compare = _COMPARE[family.name]
    found: list[Mistake] = []
    for example, prediction in zip(examples, predictions, strict=True):
        found += [
            (badness, {"id": example.id, "where": example.where, **said})
            for badness, said in compare(family, example, prediction)
        ]
    found.sort(key=lambda mistake: -mistake[0])
    return [said for _, said in found[:MAX_MISTAKES]]


def confusion_of(
    family: Family[Any], examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, Any] | None:
    """Labels, and counts with a row for each true one; None if examples have not one class each."""
    if not isinstance(family, Classification):
        return None
    labels = family.labels()
    gold = [_number(example) for example in examples if isinstance(example, TextExample)]
    predicted = [labels.index(prediction["label"]) for prediction in predictions]
    return {"labels": list(labels), "counts": confusion(labels, gold, predicted)}


def _texts(example: TextExample) -> dict[str, str]:
    pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
    return {"text": example.text, **pair}


def _class(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    gold, predicted = family.labels()[_number(example)], prediction["label"]
    if gold != predicted:
        confidence = prediction["probabilities"][predicted]
        said = {**_texts(example), "gold": gold, "predicted": predicted, "confidence": confidence}
        yield confidence, said


def _number(example: TextExample) -> int:
    assert isinstance(example.label, int)
    return example.label


def _classes(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    assert isinstance(example.label, tuple)
    gold = [family.labels()[number] for number in example.label]
    wrong = set(gold) ^ set(prediction["labels"])
    if wrong:
        said = {"gold": ", ".join(gold) or "none", "predicted": ", ".join(prediction["labels"]) or "none"}
        yield len(wrong), {**_texts(example), **said}


def _value(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    if isinstance(example.label, int | float):
        predicted = prediction["value"]
        said = {"gold": f"{example.label:g}", "predicted": f"{predicted:.3g}"}
        yield abs(predicted - example.label), {**_texts(example), **said}


def _similarity(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    if isinstance(example.label, int | float):
        predicted = prediction["similarity"]
        said = {"gold": f"{example.label:g}", "predicted": f"{predicted:.3f} (cosine)"}
        # Labels and cosines are on different scales: which pair is worst is not to be told.
        yield 0.0, {**_texts(example), **said}


def _choice(family: Family[Any], example: ChoiceExample, prediction: Prediction) -> Iterator[Mistake]:
    if example.label is not None and prediction["choice"] != example.label:
        confidence = prediction["probabilities"][prediction["choice"]]
        yield (
            confidence,
            {
                "text": example.prompt,
                "gold": example.choices[example.label],
                "predicted": example.choices[prediction["choice"]],
                "confidence": confidence,
            },
        )


def _tags(family: Family[Any], example: TaggingExample, prediction: Prediction) -> Iterator[Mistake]:
    """A mistake for each wrong word."""
    triples = zip(example.tags or (), prediction["tags"], prediction["confidences"], strict=True)
    for place, (gold, predicted, confidence) in enumerate(triples):
        if gold != predicted:
            words = [f"[{word}]" if number == place else word for number, word in enumerate(example.words)]
            yield (
                confidence,
                {
                    "where": example.where_is(place),
                    "text": " ".join(words),
                    "gold": gold,
                    "predicted": predicted,
                    "confidence": confidence,
                },
            )


def _answer(family: Family[Any], example: AnswerExample, prediction: Prediction) -> Iterator[Mistake]:
    right = {normalise(answer.text) for answer in example.answers} or {""}
    if normalise(prediction["answer"]) in right:
        return
    confidence = prediction["n_best"][0]["probability"] if prediction["n_best"] else 0.0
    gold = " / ".join(sorted({answer.text for answer in example.answers})) or "(no answer)"
    yield (
        confidence,
        {
            "text": example.question,
            "text_pair": example.context,
            "gold": gold,
            "predicted": prediction["answer"] or "(no answer)",
            "confidence": confidence,
        },
    )


_COMPARE: dict[str, Callable[[Family[Any], Any, Prediction], Iterator[Mistake]]] = {
    "classification": _class,
    "multi_label": _classes,
    "regression": _value,
    "similarity": _similarity,
    MultipleChoice.name: _choice,
    "tagging": _tags,
    "question_answering": _answer,
}
