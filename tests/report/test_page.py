import json
import re

import pytest

from electra.report.page import page, run_facts, terminal_table
from electra.report.runs import BY_KEY, read_runs
from electra.report.samples import outcome

EVIL = "<script>alert(1)</script>\"'&"


@pytest.mark.slow
def test_a_whole_page_is_well_formed_and_needs_nothing_else(make_run, read_html):
    html = page(read_runs([make_run(steps=1000, keep={"step", *BY_KEY})]))
    parsed = read_html(html)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert all(link.startswith("#") for link in parsed.links)
    assert not re.search(r"https?:|<script|url\((?!#)|@import", html)
    text = " ".join(parsed.words)
    for words in ("Discriminator AUC", "Gradient norm", "Learning rate", "Throughput", "above 1.0%"):
        assert words in text
    assert "rolled back" in text
    assert "mask_prob" in text
    assert "gemm_peak" in text


def test_everything_from_outside_is_escaped(make_run, read_html):
    folder = make_run(EVIL.replace("/", ""), steps=20, keep={"step"})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "event", "step": 5, "event": EVIL, "message": EVIL}) + "\n")
        file.write(json.dumps({"kind": "train", "step": 30, "metrics": {EVIL: 1.0}}) + "\n")
    row = {key: [EVIL, "a"] for key in ("original", "masked", "corrupted")}
    row |= {"replaced": [1, 0], "suspicion": [0.9, 0.2], "corrupted": ["b", EVIL]}
    (folder / "samples.jsonl").write_text(json.dumps({"step": 5, "rows": [row]}))
    (folder / "config.yaml").write_text(json.dumps({EVIL: EVIL, "model": {"size": EVIL}}))
    (folder / "environment.json").write_text(json.dumps({EVIL: [EVIL]}))
    html = page(read_runs([folder, folder]))
    assert "<script" not in html
    parsed = read_html(html)
    assert EVIL in " ".join(parsed.words)


def test_several_runs_are_laid_over_one_another_on_four_axes(make_run):
    keep = {"step", "tokens", "flops", "seconds", "loss"}
    runs = [make_run("a", steps=100, keep=keep), make_run("b", steps=90, learning_rate=1e-3, keep=keep)]
    html = page(read_runs(runs))
    for axis in ("step", "tokens", "flops", "seconds"):
        (grid,) = re.findall(rf'<div class="plots against-{axis}">.*?</div>', html, flags=re.DOTALL)
        assert "var(--run0)" in grid
        assert "var(--run1)" in grid
    (differing,) = re.findall(r'<section id="config">.*?</table>', html, flags=re.DOTALL)
    assert "train.learning_rate" in differing
    assert "mask_prob" not in differing


@pytest.mark.parametrize("file", ["config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl"])
def test_each_file_may_be_missing(make_run, file, read_html):
    folder = make_run(steps=20, keep={"step", "loss"})
    (folder / file).unlink()
    html = page(read_runs([folder]))
    read_html(html)
    assert re.search(rf"{file}\b.*missing", html)


def test_a_run_without_a_step_says_so(tmp_path):
    (tmp_path / "config.yaml").write_text("objective: electra\n")
    html = page(read_runs([tmp_path]))
    assert "<figure" not in html
    assert html.count('class="quiet"') >= 2


def test_an_objective_without_discriminator(make_run):
    folder = make_run(steps=1000, keep={"step", "loss", "mlm_accuracy"})
    row = {"original": ["a", "b"], "masked": ["a", "[MASK]"]}
    (folder / "samples.jsonl").write_text(json.dumps({"step": 5, "rows": [row]}))
    html = page(read_runs([folder]))
    assert "Discriminator" not in html
    assert "Generator accuracy" in html
    assert 'class="mask" title="b">[MASK]<' in html


@pytest.mark.parametrize(
    ("replaced", "suspicion", "name"),
    [(True, 0.9, "caught"), (True, 0.1, "missed"), (False, 0.9, "alarm"), (False, 0.1, "fine")],
)
def test_the_four_outcomes_of_a_token(replaced, suspicion, name):
    assert outcome(replaced=replaced, suspicion=suspicion).class_ == name


def test_samples_show_the_verdict_with_and_without_colour(make_run):
    folder = make_run(steps=20, keep={"step", "loss"})
    row = {"original": list("abcd"), "masked": list("a_cd"), "corrupted": list("xycd")}
    row |= {"replaced": [1, 1, 0, 0], "suspicion": [0.9, 0.1, 0.8, 0.0]}
    (folder / "samples.jsonl").write_text(json.dumps({"step": 7, "rows": [row]}))
    html = page(read_runs([folder]))
    for shown in (
        'caught" title="was “a”, 90.0%',
        ">x✓<",
        ">y✗<",
        ">c?<",
        "1 of 2 replaced tokens noticed, 1 false",
    ):
        assert shown in html


def test_facts_of_a_run(make_run):
    state = run_facts(read_runs([make_run(steps=1000)])[0])
    assert state["steps"] == "1,000"
    assert state["tokens"] == "4.1M"
    assert state["time"] == "22 min 1 s"
    assert state["objective"] == "electra"


def test_an_unfinished_run_says_how_far_it_is(make_run):
    folder = make_run(steps=1000)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("steps: 1000", "steps: 5000"))
    assert run_facts(read_runs([folder])[0])["steps"] == "1,000 of 5,000"


def test_the_terminal_table_has_a_column_for_each_run(make_run):
    runs = read_runs([make_run("first", steps=20), make_run("second", steps=30)])
    head, *rows = terminal_table(runs).splitlines()
    assert head.split() == ["first", "second"]
    assert ["steps", "20", "30"] in [row.split() for row in rows]


def test_without_matplotlib_only_the_curves_are_missing(make_run, monkeypatch, read_html):
    monkeypatch.setattr("electra.report.page.find_spec", lambda name: None)
    html = page(read_runs([make_run(steps=20)]))
    assert "electra[report]" in " ".join(read_html(html).words)
    assert "<figure" not in html
