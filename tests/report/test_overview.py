from electra.report.page import facts, terminal_table
from electra.report.runs import read_runs


def test_facts_of_a_run(make_run):
    state = facts(read_runs([make_run(steps=1000)])[0])
    assert state["steps"] == "1,000"
    assert state["tokens"] == "4.1M"
    assert state["time"] == "22 min 1 s"
    assert state["objective"] == "electra"


def test_an_unfinished_run_says_how_far_it_is(make_run):
    folder = make_run(steps=1000)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("steps: 1000", "steps: 5000"))
    assert facts(read_runs([folder])[0])["steps"] == "1,000 of 5,000"


def test_the_terminal_table_has_a_column_for_each_run(make_run):
    runs = read_runs([make_run("first", steps=20), make_run("second", steps=30)])
    head, *rows = terminal_table(runs).splitlines()
    assert head.split() == ["first", "second"]
    assert ["steps", "20", "30"] in [row.split() for row in rows]
