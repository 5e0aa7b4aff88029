import json
import math
import statistics

import pytest

from electra import files
from electra.tasks import results
from electra.tasks.families.family import Score


def scores(*values):
    return [Score(value, "" if math.isfinite(value) else "all labels are equal") for value in values]


def test_median_mean_and_spread_of_every_value():
    result = results.over_seeds(scores(0.9, 0.1, 0.5))
    assert result["values"] == [0.9, 0.1, 0.5]
    assert result["median"] == 0.5
    assert result["mean"] == pytest.approx(0.5)
    assert result["std"] == pytest.approx(statistics.stdev([0.9, 0.1, 0.5]))
    assert result["undefined"] == []


def test_one_seed_has_no_spread():
    result = results.over_seeds(scores(0.7))
    assert (result["median"], result["mean"], result["std"]) == (0.7, 0.7, None)


def test_an_undefined_seed_counts_as_the_worst_and_is_told():
    result = results.over_seeds(scores(math.nan, 0.2, 0.6))
    assert result["values"] == [None, 0.2, 0.6]
    assert result["median"] == 0.2
    assert result["mean"] is None
    assert result["std"] is None
    assert result["undefined"] == ["all labels are equal"]
    assert json.loads(files.to_json(result)) == result


@pytest.mark.parametrize("values", [[None], [None, None, 0.9], [None, 0.9]])
def test_a_median_among_undefined_seeds_is_undefined(values):
    assert results.median(values) is None


@pytest.mark.parametrize(
    ("values", "position"),
    [([0.5], 0), ([0.9, 0.1, 0.5], 2), ([0.4, 0.3], 1), ([None, 0.3, 0.2], 2), ([0.5, 0.5, 0.5, 0.5], 1)],
)
def test_the_median_seed_is_in_the_middle_never_the_best(values, position):
    assert results.median_seed(values) == position


def test_the_table_shows_every_seed_in_percent_and_never_the_best_as_the_score():
    splits = {
        "dev": {"scores": results.scores_over_seeds([{"mcc": score} for score in scores(0.9, 0.1, 0.5)])}
    }
    table = results.score_table(splits, main_score="mcc")
    line = table.splitlines()[1].split()
    assert line[:4] == ["dev", "mcc", "*", "50.00"]
    assert line[-3:] == ["90.00", "10.00", "50.00"]


def test_the_table_says_what_is_partial_and_what_is_undefined():
    entry = {"scores": {"mcc": results.over_seeds(scores(math.nan))}, "limit": 20}
    table = results.score_table({"dev": entry}, main_score="mcc")
    assert "dev (20 examples only)" in table
    assert "undefined: all labels are equal" in table


NAMES = ("cola", "sst2", "wnli")


def test_glue_averages_the_same_tasks_in_both_rows():
    table = results.glue_table({"cola": 0.5, "wnli": 0.9}, size="small", names=NAMES)
    header, ours, theirs, *rest = table.splitlines()
    assert header.split() == [*NAMES, "average"]
    assert ours.split()[-4:] == ["50.00", "-", "90.00", "50.00"]
    assert theirs.split()[-4:] == ["57.00", "91.20", "-", "57.00"]
    assert "average over cola" in rest[0]
    assert "not the GLUE average: sst2" in rest[1]


def test_glue_without_wnli_counts_as_the_papers_average():
    table = results.glue_table({"cola": 0.5, "sst2": 0.9, "wnli": 0.1}, size="base", names=NAMES)
    assert table.splitlines()[1].endswith("70.00")
    assert "missing" not in table


def test_an_undefined_task_leaves_the_average_undefined():
    table = results.glue_table({"cola": None, "sst2": 0.9}, size="base", names=NAMES)
    assert table.splitlines()[1].endswith("-")
