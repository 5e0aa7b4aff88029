import re

import pytest

from electra import show


def test_a_mapping_is_a_table_of_two_columns():
    assert show.table({"model": "runs/small", "step": 1200}) == "  model  runs/small\n  step   1200"


def test_rows_are_aligned_and_numbers_to_the_right():
    rows = [("", "s/step", "memory"), ("ours", "1.5", "–"), ("theirs", "12.25", "1 GB")]
    assert show.table(rows, numbers=True, gap=3).splitlines() == [
        "           s/step   memory",
        "  ours        1.5        –",
        "  theirs    12.25     1 GB",
    ]
    assert show.table(rows, indent=0).splitlines()[1] == "ours    1.5     –"


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), ("abcd", "a, b and 2 more"), ({"x": 1}, "x")],
)
def test_only_so_many_names_are_listed(names, text):
    assert show.listed(names, most=2) == text


@pytest.mark.parametrize(
    ("word", "offered"),
    [("stepz", ["'steps'"]), ("STEPS", ["'steps'"]), ("xyz", [])],
)
def test_the_nearest_known_word_is_offered(word, offered):
    hint = show.did_you_mean(word, ["seed", "steps"])
    assert re.findall("'.*?'", hint) == offered
    assert bool(hint) == bool(offered)


def test_the_nearest_word_keeps_its_own_case():
    assert "'Label'" in show.did_you_mean("label", ["Label", "Text"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.1234, "0.123"),
        (5e-4, "5.00e-4"),
        (12.34, "12.3"),
        (1000, "1k"),
        (16_384_000, "16.4M"),
        (1.2937e18, "1.29e18"),
        (-2500, "-2.5k"),
    ],
)
def test_short_numbers(value, text):
    assert show.short(value) == text


def test_shares_and_sizes():
    assert (show.percent(0.1234), show.percent(None)) == ("12.3%", "–")
    assert (show.megabytes(12_345_678), show.megabytes(None)) == ("12.3 MB", "–")
    assert (show.gigabytes(1_234_567_890), show.gigabytes(None)) == ("1.23 GB", "–")


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "0:07"), (754, "12:34"), (3723, "1:02:03"), (59.6, "1:00")]
)
def test_times_are_read_like_a_clock(seconds, text):
    assert show.clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (3.21, "3.2 s"),
        (59, "59 s"),
        (65, "1 min 5 s"),
        (3600, "1 h"),
        (3599.9, "1 h"),
        (356400, "4 d 3 h"),
    ],
)
def test_durations(seconds, text):
    assert show.duration(seconds) == text
