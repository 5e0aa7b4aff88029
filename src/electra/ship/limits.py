"""How much a server takes on at a time -> one config; what it costs to read some texts."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from electra.errors import InputError

BODIES_PER_PLACE = 4
"""Bodies that may be under way at a time, for each place in the queue."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server: whatever clients do, its memory and its time for each of them have an end."""

    queue_size: int = 32
    """Requests that may wait for the model; one more is answered 503."""
    max_batch: int = 64
    """Texts that requests of one kind are computed together up to; a larger request is computed alone."""
    deadline: float = 10.0
    """Seconds for a request, its time in the queue included; after that the answer is 503."""
    max_texts: int = 128
    """Texts of a request."""
    max_characters: int = 50_000
    """Characters of all texts of a request; two long texts of a pair count as often as they are read."""
    max_body: int = 1_000_000
    """Bytes of a request's body."""
    body_seconds: float = 10.0
    """Seconds in which a body has to arrive."""
    chunk_seconds: float = 5.0
    """Seconds in which some more of a body has to arrive."""
    drain_seconds: float = 30.0
    """Seconds that requests get to be answered when the server is asked to stop."""

    def __post_init__(self) -> None:
        for key in dataclasses.fields(Limits):
            value = getattr(self, key.name)
            if not 0 < value < math.inf:
                raise InputError(f"{key.name} is {value}, expected a number above 0")

    @property
    def max_bodies(self) -> int:
        """Bodies that are received at a time: slow clients take no place in the queue, but memory."""
        return BODIES_PER_PLACE * self.queue_size


def pair_cost(first: Sequence[str], second: Sequence[str], *, row_length: int) -> int:
    """Characters that are read of pairs, roughly.

    If neither text of a pair fits into half a row, each window of one is read with each of the other.
    """
    return sum(
        max(len(a) + len(b), 2 * len(a) * len(b) // row_length) for a, b in zip(first, second, strict=True)
    )
