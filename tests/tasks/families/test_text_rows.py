import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.tasks.families.family import TextExample, check_finite, kept_tokens, sequence


class Specials:
    cls_id, sep_id = 101, 102


def ids(*values):
    return np.array(values, np.uint32)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_longer_text_loses_one_token_at_a_time(first, second, room):
    expected = [first, second]
    while sum(expected) > room:
        expected[0 if expected[0] > expected[1] else 1] -= 1
    assert kept_tokens(first, second, room) == tuple(expected)


def test_a_pair():
    row, types = sequence(ids(5, 6), ids(7), Specials, max_length=9)
    assert row.tolist() == [101, 5, 6, 102, 7, 102]
    assert types.tolist() == [0, 0, 0, 0, 1, 1]
    assert (row.dtype, types.dtype) == (np.uint32, np.uint8)


def test_a_pair_that_is_cut():
    row, types = sequence(ids(1, 2, 3, 4), ids(5, 6, 7), Specials, max_length=7)
    assert row.tolist() == [101, 1, 2, 102, 5, 6, 102]
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_one_text_is_cut_at_its_end():
    row, types = sequence(ids(1, 2, 3, 4), ids(), Specials, max_length=5)
    assert row.tolist() == [101, 1, 2, 3, 102]
    assert not types.any()


def test_an_answer_that_is_not_a_number_is_refused_with_its_example():
    examples = [TextExample(id=str(line), where=f"dev.tsv:{line}", text="a") for line in (1, 2)]
    good = np.array([0.5, 0.5], np.float32)
    check_finite(examples, [good, good])
    with pytest.raises(InputError, match=r"dev\.tsv:2.*nan.*learning rate"):
        check_finite(examples, [good, good * np.nan])
