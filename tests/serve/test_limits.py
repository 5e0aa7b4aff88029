import math

import pytest

from electra.errors import InputError
from electra.serve.limits import Limits, pair_cost


@pytest.mark.parametrize("key", ["queue_size", "max_batch", "deadline", "max_body", "drain_seconds"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_a_bound_is_more_than_nothing(key, value):
    with pytest.raises(InputError, match=rf"{key} is {value}, expected a number above 0"):
        Limits(**{key: value})


def test_bodies_under_way_are_bounded_too():
    assert Limits(queue_size=3).max_bodies == 12


def test_two_long_texts_cost_more_than_their_characters():
    short, long = "a" * 10, "a" * 1_000
    assert pair_cost([short, short], [short, long], row_length=100) == 20 + 1_010
    assert pair_cost([long], [long], row_length=100) == 20_000
