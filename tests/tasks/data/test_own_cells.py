import math

import pytest

from electra.errors import InputError
from electra.tasks.data.columns import Cells, are_decimal, in_order, quoted


def cell(value):
    return Cells("a.csv:7", {"x": value})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a", "a"),
        (" a b ", "a b"),
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (True, "true"),
        ("1.0", "1.0"),
        (0, "0"),
    ],
)
def test_the_same_class_has_the_same_name_in_every_format(value, name):
    assert cell(value).name("x") == name


@pytest.mark.parametrize("value", [None, "", "  ", math.nan, []])
def test_what_is_missing_is_seen_in_every_format(value):
    assert cell(value).is_missing("x")
    assert cell(value).has_no_text("x")
    assert cell(value).values("x") == []


@pytest.mark.parametrize("value", [0, False, "0", " a ", ["a"], {"a": 1}])
def test_what_is_there_is_not_missing(value):
    assert not cell(value).is_missing("x")
    assert not cell(value).has_no_text("x")


@pytest.mark.parametrize("value", [["a", ""], ["a", None], [" "]])
def test_a_blank_text_of_several_is_seen(value):
    assert cell(value).has_no_text("x")
    assert not cell(value).is_missing("x")


def test_a_column_that_is_not_there_is_missing_and_has_no_value():
    assert cell(1).is_missing("y")
    with pytest.raises(InputError, match=r"a\.csv:7: .*'X '.*'x'"):
        cell(1).value("X ")


def test_words_are_a_list_or_separated():
    assert cell("a  b\tc").words("x") == ("a", "b", "c")
    assert cell(["a b", "c", 3]).words("x") == ("a b", "c", "3")
    assert cell("a b| c").words("x", separator="|") == ("a b", "c")
    assert cell("").words("x") == cell(None).words("x") == ()
    assert cell(3).words("x", separator="|") == ("3",)


@pytest.mark.parametrize("value", ["['a', 'b']", '["a", "b"]'])
def test_a_list_that_was_written_as_text_is_refused(value):
    with pytest.raises(InputError, match=r"a\.csv:7: 'x'.*list"):
        cell(value).words("x")


@pytest.mark.parametrize(
    ("value", "number"), [("3.5", 3.5), (3, 3.0), (-0.5, -0.5), (" 2 ", 2.0), ("1e3", 1000)]
)
def test_numbers_are_read(value, number):
    assert cell(value).number("x") == number


@pytest.mark.parametrize("value", ["", "3,5", "nan", math.nan, math.inf, "inf", None, True, [1.0], "good"])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(InputError, match=r"a\.csv:7: 'x'.*number"):
        cell(value).number("x")


@pytest.mark.parametrize("value", [["a"], {"a": 1}, b"a"])
def test_what_is_no_single_text_is_refused(value):
    with pytest.raises(InputError, match=r"a\.csv:7: 'x'.*text"):
        cell(value).text("x")


def test_a_text_is_kept_as_it_is():
    assert cell("  a\nb ").text("x") == "  a\nb "
    assert cell(12).text("x") == "12"


def test_numbers_are_sorted_as_numbers():
    assert in_order(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert in_order(["10", "9", "b"]) == ("10", "9", "b")


def test_decimal_names():
    assert are_decimal(["0.5", "1"])
    assert not are_decimal(["1.0", "2"])
    assert not are_decimal(["0.5", "a"])
    assert not are_decimal(["0.5", "nan"])


def test_long_lists_are_cut():
    assert quoted([str(number) for number in range(25)]).endswith("'19' and 5 more")
