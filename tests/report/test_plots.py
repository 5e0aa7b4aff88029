import re
from xml.etree import ElementTree

import pytest

from electra.report.curves import AXES
from electra.report.plots import draw
from electra.report.runs import BY_KEY, Metric, read_runs

STEP, SECONDS = AXES[0], AXES[3]


def labels(svg):
    return re.findall(r">([^<>]+)</text>", svg)


def test_colours_come_from_the_page_and_ids_are_unique(make_run):
    runs = read_runs([make_run(steps=600)])
    first, second = (draw(BY_KEY["loss"], runs, STEP, key=key) for key in ("one", "two"))
    assert not re.search(r"#[0-9a-f]{6}\b", first), "a colour that does not follow light and dark"
    assert "var(--run0)" in first
    ids = [re.findall(r' id="([^"]*)"', svg) for svg in (first, second)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', first)) <= {
        pair for name in ids[0] for pair in ((name, ""), ("", name))
    }
    ElementTree.fromstring(first)


def test_the_same_run_gives_the_same_drawing(make_run):
    runs = read_runs([make_run(steps=100)])
    assert draw(BY_KEY["loss"], runs, STEP, key="k") == draw(BY_KEY["loss"], runs, STEP, key="k")


def test_raw_and_smoothed_are_both_drawn(make_run):
    svg = draw(BY_KEY["mlm_loss"], read_runs([make_run(steps=2000, events=[])]), STEP, key="k")
    lines = re.findall(r"<path d=\"[^\"]*\"[^>]*stroke: var\(--run0\)[^>]*>", svg)
    assert sum("stroke-opacity: 0.3" in line for line in lines) == 1
    assert sum("stroke-width: 1.7" in line for line in lines) == 1


def test_what_is_set_is_drawn_as_it_is(make_run):
    svg = draw(BY_KEY["learning_rate"], read_runs([make_run(steps=2000, events=[])]), STEP, key="k")
    assert "stroke-opacity: 0.3" not in svg
    assert "stroke-width: 1.7" in svg


def test_ticks_are_in_the_words_of_the_metric(make_run):
    runs = read_runs([make_run(steps=4000, events=[])])
    assert "40%" in labels(draw(BY_KEY["mlm_accuracy"], runs, STEP, key="k"))
    assert "0.0004" in labels(draw(BY_KEY["learning_rate"], runs, STEP, key="k"))
    assert any(label.endswith(" min") for label in labels(draw(BY_KEY["loss"], runs, SECONDS, key="k")))


def test_events_are_numbered_on_the_curve(make_run):
    svg = draw(BY_KEY["loss"], read_runs([make_run(steps=600)]), STEP, key="k")
    assert {"1", "2", "3", "4"} <= set(labels(svg))
    assert "var(--bad)" in svg


@pytest.mark.parametrize("text", ["", '{"kind": "train", "step": 1, "loss": null}\n'])
def test_nothing_measured_is_no_drawing(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert draw(BY_KEY["loss"], read_runs([tmp_path]), STEP, key="k") == ""


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e30])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_single_or_extreme_value_is_drawn(tmp_path, value, scale):
    (tmp_path / "metrics.jsonl").write_text(f'{{"kind": "train", "step": 0, "metrics": {{"x": {value}}}}}\n')
    metric = Metric(key="x", title="X", scale=scale)
    assert "var(--run0)" in draw(metric, read_runs([tmp_path]), STEP, key="k")
