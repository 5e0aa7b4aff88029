"""The files of a run; trackers, with modules in place of trackio and wandb; TensorBoard, read by itself."""

import json
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from electra.errors import InputError
from electra.train.log import JsonLines, RunLog, TensorBoard, Trackers, headline

CONFIG = {"seed": 1, "train": {"steps": 9}}


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


@pytest.mark.parametrize(
    "line",
    [b"\0\0\0", b'{"step": 3, "kind', b"[]", b"{}", b"\xff\xfe", b'{"step": "x"}', b"", b"[" * 100_000],
    ids=["zeros", "torn", "a list", "no step", "no text", "a step that is none", "nothing", "deep"],
)
def test_a_line_that_is_no_record_is_removed_and_its_number_told(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n{"step": 3}\n')
    lines = JsonLines(path)
    assert lines.cut(lambda record: record["step"] <= 2) == [2]
    assert [record["step"] for record in lines_of(path)] == [1, 2]
    assert lines.cut(lambda record: True) == []


def test_cutting_a_file_that_is_not_there_does_nothing(tmp_path):
    assert JsonLines(tmp_path / "m.jsonl").cut(lambda record: True) == []
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
    assert headline(metrics, {"auc": "AUC", "absent": "none"}) == "loss 1.235  AUC 0.500"


class Recorder:
    """Remembers calls; raises at those that are named as failing."""

    def __init__(self):
        self.calls = []
        self.failing = ()

    def __call__(self, name):
        def call(*arguments, **options):
            self.calls.append((name, *arguments, options))
            if name in self.failing:
                raise ConnectionError(f"no {name}")
            return SimpleNamespace(
                log=self("run.log"), finish=self("run.finish"), define_metric=self("run.define_metric")
            )

        return call

    def of(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    for name in ("trackio", "wandb"):
        module = ModuleType(name)
        for function in ("init", "log", "finish"):
            setattr(module, function, recorder(f"{name}.{function}"))
        monkeypatch.setitem(sys.modules, name, module)
    return recorder


@pytest.fixture
def run(tmp_path, problems):
    """One sitting: opened after a step, some lines, closed."""

    def sit(*names, step=0, lines=3):
        (tmp_path / "run").mkdir(exist_ok=True)
        trackers = Trackers(tmp_path / "run", names, on_problem=problems.append)
        trackers.open(CONFIG, step=step)
        for number in range(step + 1, step + lines + 1):
            trackers.write(line(number))
        trackers.close()

    return sit


def line(step, **metrics):
    return {
        "kind": "train",
        "step": step,
        "tokens": 7 * step,
        "loss": 1 / step,
        "mfu": None,
        "metrics": {"auc": 0.5, "precision": float("nan"), **metrics},
    }


def numbers(step):
    return {"train/auc": 0.5, "train/tokens": 7 * step, "train/loss": 1 / step}


def test_trackio_is_told_config_and_numbers(recorder, run, problems):
    run("trackio")
    ((options,),) = recorder.of("trackio.init")
    assert (options["project"], options["config"], options["resume"]) == ("electra", CONFIG, "allow")
    assert recorder.of("trackio.log") == [(numbers(step), {"step": step}) for step in (1, 2, 3)]
    assert recorder.of("trackio.finish") == [({},)]
    assert problems == []


def test_wandb_is_told_config_and_numbers(recorder, run, tmp_path, problems, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    run("wandb")
    ((options,),) = recorder.of("wandb.init")
    assert (options["project"], options["name"], options["config"]) == ("electra", "run", CONFIG)
    assert (options["dir"], options["resume"]) == (str(tmp_path / "run"), "allow")
    # Its own counter of steps would drop what is written again after going back.
    assert recorder.of("run.define_metric") == [("*", {"step_metric": "step"})]
    assert recorder.of("run.log") == [({"step": step, **numbers(step)}, {}) for step in (1, 2, 3)]
    assert recorder.of("run.finish") == [({},)]
    assert problems == []


def test_wandbs_own_settings_hold(recorder, run, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    run("wandb")
    ((options,),) = recorder.of("wandb.init")
    assert options["project"] == "mine"
    assert "mode" not in options


def test_a_run_that_is_continued_stays_the_same_run_and_another_is_another(recorder, run, tmp_path):
    run("trackio", "wandb")
    run("trackio", "wandb", step=3)
    (tmp_path / "run").rename(tmp_path / "first")
    run("trackio", "wandb")
    ids = [options["id"] for (options,) in recorder.of("wandb.init")]
    names = [options["name"] for (options,) in recorder.of("trackio.init")]
    assert ids[0] == ids[1] != ids[2]
    assert names == [f"run-{identity}" for identity in ids]


@pytest.mark.parametrize("failing", ["trackio.init", "trackio.log", "trackio.finish"])
def test_one_that_fails_is_left_out_with_one_warning_and_the_others_go_on(recorder, run, problems, failing):
    recorder.failing = (failing,)
    run("trackio", "wandb")
    assert len(problems) == 1
    assert problems[0].startswith("trackio")
    assert f"ConnectionError: no {failing}" in problems[0]
    assert len(recorder.of(failing)) == 1
    assert len(recorder.of("run.log")) == 3
    assert len(recorder.of("run.finish")) == 1


def test_without_tensorboard_a_run_is_silent_about_it_unless_it_was_asked_for(
    run, tmp_path, problems, monkeypatch
):
    monkeypatch.setattr("electra.train.log.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    run()
    assert problems == []
    assert not (tmp_path / "run" / "tensorboard").exists()
    with pytest.raises(InputError, match=r"electra\[tensorboard\]"):
        run("tensorboard")


def test_tensorboard_is_written_where_it_is_installed_and_may_fail_too(run, tmp_path, problems):
    run(lines=2)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    assert not (tmp_path / "run" / "trackers.json").exists()
    (tmp_path / "run" / "tensorboard").rename(tmp_path / "moved")
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    run(lines=2)
    assert len(problems) == 1
    assert problems[0].startswith("tensorboard")


def test_what_is_not_installed_is_said_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"wandb.*electra\[wandb\]"):
        Trackers(tmp_path, ["wandb"], on_problem=print)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def sitting(tmp_path):
    """Begin a sitting of a run after a step."""
    opened = []

    def begin(step=0) -> TensorBoard:
        opened.append(TensorBoard(tmp_path, CONFIG))
        opened[-1].go_back(step)
        return opened[-1]

    yield begin
    for tracker in opened:
        tracker.close()


def curve(folder, tag="train/loss"):
    reader = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def write(files, steps, sign=1.0, tag="train/loss"):
    for step in steps:
        files.write({tag: sign * step}, step=step)


def test_tensorboard_reads_every_number_at_its_step(sitting, tmp_path):
    files = sitting()
    files.write({"train/loss": 1.5, "train/größe": -(2.0**-149)}, step=1)
    files.write({"train/loss": 0.25, "train/flops": 1e22}, step=2**40)
    files.close()
    assert curve(tmp_path) == [(1, 1.5), (2**40, 0.25)]
    assert curve(tmp_path, "train/größe") == [(1, -(2.0**-149))]
    assert curve(tmp_path, "train/flops") == [(2**40, pytest.approx(1e22))]


def test_a_record_is_readable_as_soon_as_it_is_written(sitting, tmp_path):
    write(sitting(), [1, 2])
    assert curve(tmp_path) == [(1, 1), (2, 2)]


def test_a_run_that_is_continued_has_no_trace_of_steps_taken_again(sitting, tmp_path):
    write(sitting(), range(1, 11))
    for number in range(1, 4):
        write(sitting(7), [8, 9], sign=-number)
    expected = [(step, float(step)) for step in range(1, 8)]
    assert curve(tmp_path) == [*expected, (8, -24), (9, -27)]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 4


def test_files_of_the_old_writer_come_before_those_of_the_new_one(sitting, tmp_path):
    write(sitting(), range(1, 11))
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.rename(path.with_name("events.out.tfevents.000001"))
    write(sitting(7), [8], sign=-1)
    assert curve(tmp_path) == [*((step, float(step)) for step in range(1, 8)), (8, -8)]


def test_tags_that_are_not_written_again_lose_what_does_not_count_too(sitting, tmp_path):
    write(sitting(), range(1, 11), tag="valid/loss")
    write(sitting(4), [5])
    assert [step for step, _ in curve(tmp_path, "valid/loss")] == [1, 2, 3, 4]


def test_going_back_within_a_sitting_is_the_same(sitting, tmp_path):
    files = sitting()
    write(files, range(1, 9))
    files.go_back(4)
    write(files, [5, 6], sign=-1)
    assert curve(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, -5), (6, -6)]


def test_a_file_torn_by_a_crash_does_not_hide_what_comes_after(sitting, tmp_path):
    write(sitting(), range(1, 6))
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    write(sitting(3), [4, 5], sign=-1)
    assert curve(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, -4), (5, -5)]


def test_a_sitting_that_measures_nothing_leaves_no_file(sitting, tmp_path):
    sitting(5).close()
    assert not (tmp_path / "tensorboard").exists()
