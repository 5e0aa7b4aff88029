"""The token lines of a document -> examples: pairs of segments that fit a row.

Two builders answer the same protocol. `FullRows` keeps every token: a line that does not fit is split and
goes on in the next example. `AsGoogle` is the original's builder, which cuts what does not fit; it consumes
random numbers in the original's order, so that a seed gives the original's examples.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from electra import seeds

Ids = npt.NDArray[np.uint32]
Example = tuple[Ids, Ids]
"""The first and the second segment, without special tokens; the second may be empty."""

SINGLE_SEGMENT_PROB = 0.1
"""As in classification tasks, some inputs have one segment only."""
RANDOM_LENGTH_PROB = 0.05
"""Some examples are shorter, so that the model meets short inputs at full positions of a batch."""
SHORTEST_TARGET = 5
SHORTEST_SPLIT_LINE = 32
"""A line of fewer tokens, such as a heading, is not cut in two to make a second segment."""


class Builder(Protocol):
    """What turns documents into examples; called in corpus order within one shard."""

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Examples of one document, given as the ids of its lines end to end and each line's length."""


class FullRows:
    """Examples that together hold every token of a document once, in order."""

    def __init__(self, seq_length: int, *, seed: int) -> None:
        self._seq_length = seq_length
        self._seed = seed

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Cut the document into rows as full as their target length allows."""
        # A generator per document: adding text elsewhere never changes this document's examples.
        rng = seeds.python_random(self._seed, "examples", document_hash)
        line_ends = np.cumsum(line_lengths).tolist()
        start = 0
        while start < len(ids):
            has_one_segment = rng.random() < SINGLE_SEGMENT_PROB
            target = self._seq_length
            if rng.random() < RANDOM_LENGTH_PROB:
                target = rng.randint(SHORTEST_TARGET, self._seq_length)
            # Room for [CLS] and a [SEP] behind each segment.
            stop = min(start + target - 3, len(ids))
            middle = stop if has_one_segment else _middle(line_ends, start, stop)
            if middle == stop:
                middle = stop = min(start + target - 2, len(ids))
            yield ids[start:middle], ids[middle:stop]
            start = stop


def _middle(line_ends: list[int], start: int, stop: int) -> int:
    """Where the second segment of these tokens begins: at the line end nearest the middle, else there."""
    middle = (start + stop + 1) // 2
    after = bisect_left(line_ends, middle)
    # Only a line end in the middle half makes two segments of comparable length.
    quarter = (stop - start) // 4
    near = [end for end in line_ends[max(0, after - 1) : after + 1] if abs(end - middle) <= quarter]
    if near:
        return min(near, key=lambda end: abs(end - middle))
    return middle if stop - start >= SHORTEST_SPLIT_LINE else stop


class AsGoogle:
    """The original's example builder. State goes on from document to document, as there."""

    def __init__(self, seq_length: int, *, rng: random.Random) -> None:
        self._seq_length = seq_length
        self._target_length = seq_length
        self._rng = rng

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Collect lines until the target length is reached or the document ends."""
        lines: list[Ids] = []
        collected = 0
        for line in np.split(ids, np.cumsum(line_lengths)[:-1]):
            lines.append(line)
            collected += len(line)
            if collected >= self._target_length:
                yield self._example(lines)
                lines, collected = [], 0
        if collected:
            yield self._example(lines)

    def _example(self, lines: list[Ids]) -> Example:
        has_one_segment = self._rng.random() < SINGLE_SEGMENT_PROB
        first_target = 100_000 if has_one_segment else (self._target_length - 3) // 2
        first: list[Ids] = []
        second: list[Ids] = []
        first_length = 0
        for line in lines:
            # A line goes to the first segment if that is empty, if it stays short enough with the line, or
            # half of the time when this line takes it over its target.
            if (
                first_length == 0
                or first_length + len(line) < first_target
                or (not second and first_length < first_target and self._rng.random() < 0.5)
            ):
                first.append(line)
                first_length += len(line)
            else:
                second.append(line)
        first_ids = np.concatenate(first)[: self._seq_length - 2]
        room = max(0, self._seq_length - len(first_ids) - 3)
        second_ids = np.concatenate(second)[:room] if second else first_ids[:0]
        self._target_length = self._seq_length
        if self._rng.random() < RANDOM_LENGTH_PROB:
            self._target_length = self._rng.randint(SHORTEST_TARGET, self._seq_length)
        return first_ids, second_ids
