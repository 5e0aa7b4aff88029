"""Texts and a fine-tuned model -> classes, values, tags and answers, as plain data.

Rows are as long as in training. What does not fit is read in several windows, never cut.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.prediction.spans import Ids, Window, Word, windows
from electra.tasks.families.answering import AnswerExample, QuestionAnswering
from electra.tasks.families.family import Example, TaskRow, kept_tokens, sequence
from electra.tasks.families.tagging import Tagging, TaggingExample, chunks
from electra.tasks.folders import FineTuned
from electra.tasks.inference import outputs_of, predict

NO_CLASS: dict[str, dict[str, Any]] = {
    "classification": {"label": None, "probabilities": {}},
    "multi_label": {"labels": [], "probabilities": {}},
    "regression": {"value": None},
}
"""Family -> what is said of a text without tokens."""


class Part(NamedTuple):
    """A window of a text and, of a pair, one of the other."""

    first: Window
    second: Window

    @property
    def weight(self) -> int:
        """How much of the whole it judges."""
        return max(1, self.first.num_judged) * max(1, self.second.num_judged)


def classify(tuned: FineTuned, first: Sequence[Ids], second: Sequence[Ids]) -> list[dict[str, Any]]:
    """A class, several, or a value of each text or pair; of several windows the mean, by their tokens."""
    rows: list[TaskRow] = []
    weights: list[int] = []
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        for part in parts(len(a), len(b), max_length=tuned.max_length):
            ids, types = sequence(
                a[part.first.start : part.first.stop],
                b[part.second.start : part.second.stop],
                tuned.tokenizer,
                max_length=tuned.max_length,
            )
            rows.append(TaskRow(input_ids=ids, token_type_ids=types, example=number, unit=len(rows)))
            weights.append(part.weight)
    outputs = outputs_of(tuned.model, tuned.task, rows, pad_id=tuned.tokenizer.pad_id)
    judged = sorted({row.example for row in rows})
    examples = [Example(id=str(number), where=f"texts[{number}]") for number in judged]
    means = [mean for _, mean in weighted_means(rows, outputs, weights)]
    found = dict(zip(judged, tuned.family.predictions(examples, rows, means), strict=True))
    return [found.get(number, dict(NO_CLASS[tuned.family.name])) for number in range(len(first))]


def parts(num_first: int, num_second: int, *, max_length: int) -> Iterator[Part]:
    """Windows of a text; of a pair, each window of one with each of the other. None if there are no tokens.

    Only the longer text of a pair is read in several, unless both are longer than half of a row.
    """
    if not num_first + num_second:
        return
    num_special = 3 if num_second else 2
    room = kept_tokens(num_first, num_second, max_length - num_special)
    nothing = (Window(0, 0, 0, 0),)
    first, second = (
        windows(length, room=max(1, kept)) or nothing
        for length, kept in zip((num_first, num_second), room, strict=True)
    )
    yield from itertools.starmap(Part, itertools.product(first, second))


def weighted_means(
    rows: Sequence[TaskRow], outputs: Sequence[NDArray[np.float32]], weights: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """The mean output of each example's rows, which stand side by side."""
    triples = zip(rows, outputs, weights, strict=True)
    for number, group in itertools.groupby(triples, key=lambda triple: triple[0].example):
        _, of_example, shares = zip(*group, strict=True)
        yield number, np.average(np.stack(of_example), axis=0, weights=shares)


def tag(tuned: FineTuned, sentences: Sequence[Sequence[Word]]) -> list[list[dict[str, Any]]]:
    """Each word of each sentence with its tag."""
    # The family knows no sentence without words.
    examples = [
        TaggingExample(
            id=str(number), where=f"texts[{number}]", words=tuple(word.text for word in words), tags=None
        )
        for number, words in enumerate(sentences)
        if words
    ]
    predictions = predict(tuned.model, tuned.task, examples, tuned.tokenizer, max_length=tuned.max_length)
    found = iter(predictions)
    return [tagged_words(words, next(found)) if words else [] for words in sentences]


def tagged_words(words: Sequence[Word], prediction: dict[str, Any]) -> list[dict[str, Any]]:
    """Words as plain data."""
    return [
        {**word._asdict(), "tag": tag, "confidence": confidence}
        for word, tag, confidence in zip(words, prediction["tags"], prediction["confidences"], strict=True)
    ]


def chunks_of(tuned: FineTuned, text: str, words: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the tags mark as belonging together; nothing if each tag stands for itself."""
    assert isinstance(tuned.family, Tagging)
    if tuned.family.scheme != "entities":
        return []
    marked = chunks([word["tag"] for word in words])
    places = [(words[chunk.first]["start"], words[chunk.last]["end"], chunk.type) for chunk in marked]
    return [
        {"text": text[start:end], "start": start, "end": end, "type": kind} for start, end, kind in places
    ]


def answer(tuned: FineTuned, questions: Sequence[str], contexts: Sequence[str]) -> list[dict[str, Any]]:
    """The part of each context that answers its question, if any seems to."""
    check_questions(tuned, questions)
    asked = [
        number
        for number, pair in enumerate(zip(questions, contexts, strict=True))
        if all(text.strip() for text in pair)
    ]
    examples = [
        AnswerExample(
            id=str(number), where=f"questions[{number}]", question=questions[number], context=contexts[number]
        )
        for number in asked
    ]
    predictions = predict(tuned.model, tuned.task, examples, tuned.tokenizer, max_length=tuned.max_length)
    found = {number: plain_answer(prediction) for number, prediction in zip(asked, predictions, strict=True)}
    nothing = {"text": "", "start": None, "end": None, "score": 0.0, "no_answer": 1.0}
    return [found.get(number, dict(nothing)) for number in range(len(questions))]


def check_questions(tuned: FineTuned, questions: Sequence[str]) -> None:
    """Refuse a question of which the model would not read the end."""
    assert isinstance(tuned.family, QuestionAnswering)
    longest = tuned.family.sizes.max_query_length
    for number, length in enumerate(tuned.tokenizer.encode(questions).lengths):
        if length > longest:
            raise InputError(
                f"questions[{number}] has {length} tokens, and this model reads {longest} of a question: "
                "shorten it, or move what it tells into the context"
            )


def plain_answer(prediction: dict[str, Any]) -> dict[str, Any]:
    """The best answer; without text and place if there seems to be none."""
    is_given = prediction["answer"] != ""
    odds = prediction.get("null_odds")
    return {
        "text": prediction["answer"],
        "start": prediction["start"] if is_given else None,
        "end": prediction["end"] if is_given else None,
        "score": prediction["n_best"][0]["probability"] if prediction["n_best"] else 0.0,
        # Written so that no exponential of a large number is needed.
        "no_answer": None if odds is None else (1 + math.tanh(odds / 2)) / 2,
    }
