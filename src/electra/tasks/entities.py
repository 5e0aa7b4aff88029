"""True and predicted tags -> precision, recall and F1 of chunks, as conlleval counts them.

A chunk is right if its first word, its last word and its type are. Tags of any scheme are read, those of a
model that keeps to none too: see `tag_schemes.chunks`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from electra.tasks.family import Score
from electra.tasks.tag_schemes import chunks


class ChunkCounts(NamedTuple):
    """How many chunks there are, over all sentences."""

    true: int
    predicted: int
    right: int
    """Both true and predicted."""


def count_chunks(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> ChunkCounts:
    """Compare the tags of sentences; no chunk reaches into the next sentence."""
    num_true = num_predicted = num_right = 0
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        assert len(true_tags) == len(predicted_tags)
        true_chunks, predicted_chunks = set(chunks(true_tags)), set(chunks(predicted_tags))
        num_true += len(true_chunks)
        num_predicted += len(predicted_chunks)
        num_right += len(true_chunks & predicted_chunks)
    return ChunkCounts(num_true, num_predicted, num_right)


def chunk_scores(counts: ChunkCounts) -> dict[str, Score]:
    """F1, precision, recall; undefined where there is nothing to divide by, for which conlleval prints 0."""
    nothing = "there is no chunk, neither true nor predicted"
    return {
        "f1": _ratio(2 * counts.right, counts.true + counts.predicted, nothing),
        "precision": _ratio(counts.right, counts.predicted, "no chunk is predicted"),
        "recall": _ratio(counts.right, counts.true, "there is no true chunk"),
    }


def tag_accuracy(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> Score:
    """The share of words with the right tag."""
    right = [
        true_tag == predicted_tag
        for true_tags, predicted_tags in zip(true, predicted, strict=True)
        for true_tag, predicted_tag in zip(true_tags, predicted_tags, strict=True)
    ]
    return _ratio(sum(right), len(right), "there is no word")


def _ratio(part: int, whole: int, undefined: str) -> Score:
    return Score(part / whole) if whole else Score(math.nan, undefined)
