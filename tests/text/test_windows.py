from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.text.windows import OVERLAP, windows, word_windows

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


@pytest.mark.slow
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


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(1, 60), st.integers(1, 80))
def test_windows_at_a_stride_judge_each_token_where_the_original_does(num_tokens, room, stride):
    found = windows(num_tokens, room=room, stride=stride)
    judged = [token for window in found for token in range(window.judged, window.judged_stop)]
    assert judged == list(range(num_tokens))
    for window, following in pairwise(found):
        assert following.start - window.start <= stride
        assert window.stop - following.start >= int(room * OVERLAP)
    for number, window in enumerate(found):
        assert window.stop - window.start <= room
        for token, is_judged in zip(range(window.start, window.stop), window.is_judged(), strict=True):
            # Most context on the poorer side; of equal ones the longer window, then the first.
            ranks = [
                (min(token - w.start, w.stop - 1 - token) + 0.01 * (w.stop - w.start), -rank)
                for rank, w in enumerate(found)
                if w.start <= token < w.stop
            ]
            assert is_judged == (max(ranks)[1] == -number)


@given(lengths=st.lists(st.integers(1, 10), min_size=1, max_size=60), room=st.integers(10, 30))
def test_windows_between_words_fit_and_judge_every_word_once(lengths, room):
    found = word_windows(lengths, room=room)
    judged = [word for window in found for word in range(window.judged, window.judged_stop)]
    assert judged == list(range(len(lengths)))
    for window in found:
        assert window.start <= window.judged < window.judged_stop <= window.stop
        assert sum(lengths[window.start : window.stop]) <= room
    if sum(lengths) <= room:
        assert len(found) == 1


def test_words_near_a_cut_see_both_neighbours():
    first, second, *_ = word_windows([1] * 100, room=40)
    # A quarter of the row is shared, half of that judged on each side.
    assert first == (0, 40, 0, 35)
    assert second == (30, 70, 35, 65)
