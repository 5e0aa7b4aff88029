import json

import pytest

from electra.report.minimal_pairs import FILE
from electra.report.page import page, run_facts, terminal_table
from electra.report.runs import read_runs


def scored(folder, accuracy, *, sha="a", methods=("detection",)):
    content = {
        "accuracy": dict.fromkeys(methods, accuracy),
        "pairs": 1200,
        "data_sha256": sha,
        "phenomena": {
            "<b>agreement</b>": {"accuracy": dict.fromkeys(methods, accuracy + 0.1)},
            "islands": {"accuracy": dict.fromkeys(methods, accuracy - 0.1)},
        },
    }
    (folder / FILE).write_text(json.dumps(content))
    return folder


def words(html, read_html):
    return " ".join(read_html(html).words)


def test_a_scored_run_has_a_fact_and_a_table(make_run, read_html):
    folder = scored(
        make_run(steps=20, keep={"step", "loss"}), 0.625, methods=("detection", "pseudo_likelihood")
    )
    runs = read_runs([folder])
    facts = run_facts(runs[0])
    assert facts["minimal pairs by detection"] == "62.5%"
    assert facts["minimal pairs by pseudo likelihood"] == "62.5%"
    assert list(facts)[-1] == "health"
    html = page(runs)
    assert "<b>agreement" not in html
    text = words(html, read_html)
    for part in ("Minimal pairs", "<b>agreement</b>", "72.5%", "islands", "52.5%", "1,200 pairs"):
        assert part in text


def test_several_runs_are_side_by_side(make_run, read_html):
    keep = {"step", "loss"}
    one = scored(make_run("one", steps=20, keep=keep), 0.7)
    other = scored(make_run("other", steps=20, keep=keep), 0.6, sha="b")
    nothing = make_run("nothing", steps=20, keep=keep)
    runs = read_runs([one, nothing, other])
    (line,) = (row for row in terminal_table(runs).splitlines() if "minimal pairs" in row)
    assert line.split()[-3:] == ["70.0%", "–", "60.0%"]
    text = words(page(runs), read_html)
    assert "not scored on the same pairs" in text
    assert "Not scored: nothing." in text


def test_a_run_that_was_not_scored_says_nothing_of_it(make_run):
    runs = read_runs([make_run(steps=20, keep={"step", "loss"})])
    assert runs[0].minimal_pairs is None
    assert "inimal pairs" not in page(runs) + terminal_table(runs)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"accuracy": {"detection": "high"}, "phenomena": {}}'])
def test_a_file_that_is_not_as_it_should_be_is_a_note(make_run, content):
    folder = make_run(steps=20, keep={"step", "loss"})
    (folder / FILE).write_text(content)
    (run,) = read_runs([folder])
    assert run.minimal_pairs is None
    assert [note for note in run.notes if FILE in note]
    page([run])
