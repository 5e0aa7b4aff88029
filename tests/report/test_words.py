import pytest

from electra.report.markup import duration, percent, short


@pytest.mark.parametrize(
    ("value", "words"),
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
def test_short_numbers(value, words):
    assert short(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
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
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_percent():
    assert (percent(0.1234), percent(None)) == ("12.3%", "–")
