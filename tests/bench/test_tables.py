import pytest

from electra.bench.tables import contest_table, growth_tables, memory_ratio, point_on, quality_tables


def test_medians_ratios_and_shares_of_the_peak(contest_result):
    ours, plain = (line.split() for line in contest_table(contest_result).splitlines()[-2:])
    assert ours[:2] == ["ours", "1.000"]
    assert ours[-6:] == ["4,096", "50%", "1.20", "GB", "1.00", "x"]
    assert plain[-4:] == ["17%", "–", "3.00", "x"]


def test_the_peak_stands_above_the_table(contest_result):
    assert contest_table(contest_result).splitlines()[2].startswith("peak here: 100 GFLOP/s")


def test_processor_and_precision_are_told(contest_result, neighbours_result, growth_result):
    machine = "a processor (avx2), 2 cores, 2 threads"
    assert contest_table(contest_result).splitlines()[1] == machine
    assert "precision" not in contest_table(contest_result)
    _, ours, plain = contest_table(neighbours_result).split("\n\n")[1].splitlines()
    assert [ours.split()[1], plain.split()[1]] == ["bf16", "fp32"]
    assert growth_tables(growth_result).splitlines()[1] == f"{machine}, bf16"


@pytest.mark.parametrize("missing", ["machine", "precision", "beside"])
def test_figures_that_were_written_before_have_tables_as_well(missing, contest_result):
    del contest_result[missing]
    assert contest_table(contest_result).splitlines()[-1].endswith("3.00 x")


def test_beside_neighbours_each_has_a_share_of_its_speed_and_a_ratio(neighbours_result):
    heading, ours, plain = contest_table(neighbours_result).splitlines()[-3:]
    assert heading.split("   ")[-3:] == ["beside 1", "(min - max)", "ours is"]
    assert ours.split() == ["ours", "4,096", "50%", "(40%", "-", "60%)", "1.00", "x"]
    assert plain.split() == ["plain", "1,365", "25%", "(40%", "-", "60%)", "6.00", "x"]


def test_work_that_is_not_counted_has_no_share_of_the_peak(contest_result):
    ours = contest_table({**contest_result, "flops_per_step": None}).splitlines()[-2].split()
    assert ours[-5:] == ["–", "1.20", "GB", "1.00", "x"]


def test_each_of_ours_is_compared_with_all(contest_result):
    several = {**contest_result, "ours": ["ours", "plain"]}
    head, ours, plain = contest_table(several).splitlines()[-3:]
    assert head.endswith("ours is   plain is")
    assert ours.split()[-4:] == ["1.00", "x", "0.33", "x"]
    assert plain.split()[-4:] == ["3.00", "x", "1.00", "x"]


def test_who_is_left_out_is_told(contest_result):
    lines = contest_table({**contest_result, "left_out": {"trainer": "no accelerate"}}).splitlines()
    assert lines[-1] == "  trainer is left out: no accelerate"


def test_growth_has_a_table_for_each_axis(growth_result):
    lines = growth_tables(growth_result).splitlines()
    first = lines.index(next(line for line in lines if line.startswith("  seq_length")))
    short, long = (line.split() for line in lines[first + 1 : first + 3])
    assert " ".join(short) == "128 0.300 (0.200 - 0.400) 3,413 50% 1.00 GB 0.40 GB 0.50 GB 1.20"
    assert long[0] == "256"
    assert long[-1] == "3.20"
    tiny, small = (line.split() for line in lines[first + 5 : first + 7])
    assert [tiny[0], tiny[-1]] == ["tiny", "0.20"]
    assert small[1:] == short[1:]
    assert lines[-1].endswith("tiny 3.0 s")


def test_an_axis_changes_one_value_only(growth_result):
    assert point_on(growth_result, "seq_length", 128) is point_on(growth_result, "size", "small")


def test_where_memory_is_not_known_there_is_no_ratio(growth_result):
    point = {**growth_result["points"][0], "memory": None, "libraries": None}
    assert memory_ratio(point) is None
    assert memory_ratio(growth_result["points"][0]) == pytest.approx(1.2)


def test_quality_has_a_table_for_each_budget_with_the_spread_of_seeds(quality_result):
    head, first, second = quality_tables(quality_result).split("\n\n")
    assert "a processor (avx2), 2 cores, 2 threads, bf16" in head
    columns, random, linear, mlm, minutes = first.splitlines()
    assert columns.split()[:3] == ["3m", "conll2000", "sst2"]
    assert "73.0 (72.0 - 74.0)" in random
    assert linear.split()[2:4] == ["87.0", "77.4"]
    assert "80.5 (80.0 - 81.0)" in mlm
    assert mlm.split()[-2:] == ["2M", "11,111"]
    # A masked language model does not detect.
    assert mlm.count("–") == 1
    assert "82.5 (82.0 - 83.0)" in minutes
    # The rows without pre-training are the same at every budget; a row may not have come so far yet.
    assert second.splitlines()[1].split() == random.split()
    assert second.splitlines()[-1].split() == ["minutes", *"––––"]
