"""A sequence longer than the encoder reads at once -> windows; each token is judged in one of them."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

OVERLAP = 1 / 4
"""Of a window, how much it shares with the next one at least."""


class Window(NamedTuple):
    """Tokens `start` to `stop` of a text, of which those from `judged` to `judged_stop` are judged here."""

    start: int
    stop: int
    judged: int
    judged_stop: int

    @property
    def num_judged(self) -> int:
        """How many tokens it answers for."""
        return self.judged_stop - self.judged


@lru_cache(maxsize=4096)
def windows(num_tokens: int, *, room: int) -> tuple[Window, ...]:
    """Windows of at most `room` tokens; a token is judged where the nearer end of its window is farthest.

    They lie evenly, so that none is shorter than another and no token is left with little context. A text
    that fits is one window, a text without tokens none.
    """
    assert room >= 1, room
    if num_tokens <= room:
        return (Window(0, num_tokens, 0, num_tokens),) if num_tokens else ()
    longest_step = room - int(room * OVERLAP)
    num_steps = -(-(num_tokens - room) // longest_step)
    starts = [(num_tokens - room) * number // num_steps for number in range(num_steps + 1)]
    # In the middle of what two windows share, a token is as far from the end of one as from the other's.
    middles = [(start + room + following) // 2 for start, following in pairwise(starts)]
    borders = [0, *middles, num_tokens]
    return tuple(
        Window(start, start + room, borders[number], borders[number + 1])
        for number, start in enumerate(starts)
    )
