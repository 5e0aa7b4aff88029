import json
import math

import pytest

from electra.train.log import JsonLines, RunLog, shown


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_no_number_becomes_null(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl")
    lines.write({"step": 1, "loss": math.nan, "metrics": {"auc": math.inf, "f1": 0.5}})
    assert (
        tmp_path / "m.jsonl"
    ).read_text() == '{"step": 1, "loss": null, "metrics": {"auc": null, "f1": 0.5}}\n'
    lines.close()


def test_lines_after_a_step_and_an_unfinished_one_are_cut(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = JsonLines(path)
    for step in range(5):
        lines.write({"step": step})
    lines.sync()
    with path.open("a") as file:
        file.write('{"step": 2, "torn')
    lines.cut(lambda record: record["step"] <= 2)
    lines.write({"step": 9})
    lines.close()
    assert [record["step"] for record in lines_of(path)] == [0, 1, 2, 9]


def test_cutting_a_file_that_is_not_there_does_nothing(tmp_path):
    JsonLines(tmp_path / "m.jsonl").cut(lambda record: True)
    assert not list(tmp_path.iterdir())


class Watched:
    """Trackers that remember what they are told."""

    def __init__(self):
        self.told = []

    def open(self, config, *, step):
        self.told.append(("open", config, step))

    def write(self, record):
        self.told.append(("write", record["kind"], record["step"]))

    def go_back(self, step):
        self.told.append(("go back", step))

    def close(self):
        self.told.append("close")


@pytest.fixture
def trackers():
    return Watched()


def test_numbers_go_to_the_file_and_to_trackers_what_happens_only_to_the_file(tmp_path, trackers):
    log = RunLog(tmp_path, trackers)
    log.open({"seed": 1}, step=0)
    log.measured("train", {"step": 1, "loss": 2.0, "metrics": {"auc": 0.5}})
    log.happened({"step": 1, "event": "saved", "message": "of step 1"})
    log.measured("valid", {"step": 1, "metrics": {"loss": 3.0}})
    log.sampled([{"original": ["a"]}], step=1)
    log.sync()
    log.close()
    assert lines_of(tmp_path / "metrics.jsonl") == [
        {"kind": "train", "step": 1, "loss": 2.0, "metrics": {"auc": 0.5}},
        {"kind": "event", "step": 1, "event": "saved", "message": "of step 1"},
        {"kind": "valid", "step": 1, "metrics": {"loss": 3.0}},
    ]
    assert lines_of(tmp_path / "samples.jsonl") == [{"step": 1, "rows": [{"original": ["a"]}]}]
    assert trackers.told == [("open", {"seed": 1}, 0), ("write", "train", 1), ("write", "valid", 1), "close"]


def test_going_back_forgets_what_will_be_written_again_and_only_that(tmp_path, trackers):
    log = RunLog(tmp_path, trackers)
    for step in (10, 20, 30):
        log.measured("train", {"step": step, "metrics": {}})
        log.measured("valid", {"step": step, "metrics": {}})
        log.sampled([], step=step)
    # Saved while the held-out rows of step 20 were looked at: that look will be repeated, the step will not.
    log.go_back(step=20, evaluated_step=10)
    log.close()
    kept = [(record["kind"], record["step"]) for record in lines_of(tmp_path / "metrics.jsonl")]
    assert kept == [("train", 10), ("valid", 10), ("train", 20)]
    assert [record["step"] for record in lines_of(tmp_path / "samples.jsonl")] == [10]
    assert trackers.told[-2:] == [("go back", 20), "close"]


def test_a_person_sees_the_loss_and_the_headlines_that_there_are():
    metrics = {"loss": 1.23456, "auc": 0.5, "other": 9.0}
    assert shown(metrics, {"auc": "AUC", "absent": "none"}) == "loss 1.235  AUC 0.500"
