"""Trackers, with modules in place of trackio and wandb: what they are told, and what their failures do."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from electra.errors import InputError
from electra.train.log import Trackers

CONFIG = {"seed": 1, "train": {"steps": 9}}


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
    assert problems[0].startswith("trackio failed and is left out from here on (ConnectionError: no trackio.")
    assert len(recorder.of(failing)) == 1
    assert len(recorder.of("run.log")) == 3
    assert len(recorder.of("run.finish")) == 1


def test_tensorboard_is_always_written_and_may_fail_too(run, tmp_path, problems):
    run(lines=2)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    assert not (tmp_path / "run" / "trackers.json").exists()
    (tmp_path / "run" / "tensorboard").rename(tmp_path / "moved")
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    run(lines=2)
    assert len(problems) == 1
    assert "tensorboard failed" in problems[0]


def test_what_is_not_installed_is_said_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"wandb is not installed: pip install 'electra\[wandb\]'"):
        Trackers(tmp_path, ["wandb"], on_problem=print)
    assert not list(tmp_path.iterdir())
