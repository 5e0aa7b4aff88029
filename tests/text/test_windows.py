from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from electra.text.windows import OVERLAP, windows

sizes = st.tuples(st.integers(0, 700), st.integers(1, 130))


def context(window, token, num_tokens):
    """The tokens between a token and the nearer end of its window; the ends of a text cut nothing off."""
    before = token - window.start if window.start else num_tokens
    after = window.stop - 1 - token if window.stop < num_tokens else num_tokens
    return min(before, after)


@given(sizes)
def test_every_token_is_judged_once_and_in_order(size):
    num_tokens, room = size
    found = windows(num_tokens, room=room)
    judged = [token for window in found for token in range(window.judged, window.judged_stop)]
    assert judged == list(range(num_tokens))
    for window in found:
        assert 0 <= window.start <= window.judged < window.judged_stop <= window.stop <= num_tokens
        assert window.stop - window.start == min(room, num_tokens)


@given(sizes)
def test_a_token_is_judged_where_it_has_the_most_context(size):
    num_tokens, room = size
    found = windows(num_tokens, room=room)
    for window in found:
        for token in range(window.judged, window.judged_stop):
            others = [other for other in found if other.start <= token < other.stop]
            best = max(context(other, token, num_tokens) for other in others)
            assert context(window, token, num_tokens) == best


@given(sizes)
def test_neighbours_share_a_quarter_and_there_are_no_more_than_needed(size):
    num_tokens, room = size
    found = windows(num_tokens, room=room)
    for window, following in pairwise(found):
        assert window.stop - following.start >= int(room * OVERLAP)
    step = room - int(room * OVERLAP)
    assert len(found) == (num_tokens > 0) + max(0, -(-(num_tokens - room) // step))


def test_a_text_that_fits_is_one_window_and_an_empty_one_none():
    assert windows(5, room=5) == ((0, 5, 0, 5),)
    assert windows(6, room=5) == ((0, 5, 0, 3), (1, 6, 3, 6))
    assert windows(0, room=5) == ()
