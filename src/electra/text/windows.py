"""A sequence longer than the encoder reads at once -> windows over it; each place is judged in one of them.

    windows(1000, room=510)                 # evenly, so that none is shorter than another
    windows(1000, room=380, stride=128)     # one every 128 tokens, as in the original's question answering
    word_windows([1, 3, 2], room=4)         # between words, for tagging

T places in a window or in a sequence.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OVERLAP = 1 / 4
"""Share of a window that it has in common with the next one, at least."""


class Window(NamedTuple):
    """Places `start` to `stop` of a sequence, of which `judged` to `judged_stop` are judged here.

    They are judged where they have the most context: where the nearer end of the window is farthest.
    """

    start: int
    stop: int
    judged: int
    judged_stop: int

    @property
    def num_judged(self) -> int:
        """How many places it answers for."""
        return self.judged_stop - self.judged

    def is_judged(self) -> NDArray[np.bool_]:
        """Of each place in the window (T), whether it is judged here."""
        place_T = np.arange(self.start, self.stop)
        return (self.judged <= place_T) & (place_T < self.judged_stop)


@lru_cache(maxsize=4096)
def windows(num_tokens: int, *, room: int, stride: int | None = None) -> tuple[Window, ...]:
    """Windows of at most `room` tokens; a sequence that fits is one window, one without tokens none.

    By default they lie evenly, so that no token is left with little context. A `stride` fixes the distance
    from one to the next; it is lowered where windows would overlap too little.
    """
    assert room >= 1, room
    longest_step = room - int(room * OVERLAP)
    if num_tokens <= room:
        starts = [0] if num_tokens else []
    elif stride is None:
        num_steps = -(-(num_tokens - room) // longest_step)
        starts = [(num_tokens - room) * number // num_steps for number in range(num_steps + 1)]
    else:
        step = min(stride, longest_step)
        starts = [step * number for number in range(1 + -(-(num_tokens - room) // step))]
    stops = [min(start + room, num_tokens) for start in starts]
    borders = _borders(starts, stops)
    return tuple(
        Window(start, stop, borders[number], borders[number + 1])
        for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    )


def _borders(starts: Sequence[int], stops: Sequence[int]) -> list[int]:
    """Where each window's judged tokens begin, and the end of the last one's."""
    num_tokens = max(stops, default=0)
    most_T, best_T = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int64)
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        before_T = np.arange(stop - start)
        # As in the original: of equal contexts that in the longer window counts, then the first.
        context_T = np.minimum(before_T, before_T[::-1]) + 0.01 * (stop - start)
        is_more_T = context_T > most_T[start:stop]
        most_T[start:stop][is_more_T] = context_T[is_more_T]
        best_T[start:stop][is_more_T] = number
    # The farther into the sequence, the later the best window: what each judges is in one piece.
    borders: list[int] = np.searchsorted(best_T, np.arange(len(starts) + 1)).tolist()
    return borders


def word_windows(lengths: Sequence[int], *, room: int) -> list[Window]:
    """Cut between words, which have `lengths` tokens each, so that each window fits; places are words.

    Two windows share words, a quarter of the room if possible. The first half of those is judged in the first
    window, the other half in the second, so that a word has neighbours on both sides wherever there are some.
    """
    assert max(lengths) <= room
    ends = np.cumsum(lengths)
    starts = ends - lengths
    found: list[Window] = []
    first = judged = 0
    while judged < len(lengths):
        stop = int(np.searchsorted(ends, starts[first] + room, side="right"))
        following = judged_stop = stop
        if stop < len(lengths):
            # As many words as the shared part holds, and such that the next word fits in behind them.
            shared_from = max(ends[stop - 1] - int(OVERLAP * room), ends[stop] - room)
            following = max(first + 1, int(np.searchsorted(starts, shared_from)))
            judged_stop = (following + stop + 1) // 2
        found.append(Window(first, stop, judged, judged_stop))
        first, judged = following, judged_stop
    return found
