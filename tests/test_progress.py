import sys

import pytest
from rich.console import Console

from electra import progress
from electra.progress import LiveLine, Progress


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Clock()
    monkeypatch.setattr(progress, "time", time)
    return time


@pytest.fixture
def terminal(monkeypatch):
    def console(*, stderr):
        return Console(file=sys.stderr, force_terminal=True, width=100, _environ={})

    monkeypatch.setattr("rich.console.Console", console)


def test_without_a_terminal_few_lines_are_shown_and_all_that_is_said(capsys, time):
    with LiveLine() as line:
        for step in range(50):
            line.show(f"step {step}")
        line.say("saved")
        time.now += 9.9
        line.show("too early")
        time.now += 0.1
        line.show("step 99")
    assert capsys.readouterr().err == "step 0\nsaved\nstep 99\n"


def test_a_silent_line_says_nothing(capsys, terminal):
    with LiveLine(silent=True) as line:
        line.show("step")
        line.say("saved")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_line_that_changes_and_what_is_said_stays(capsys, terminal, time):
    with LiveLine() as line:
        line.show("step 1")
        line.show("too early")
        time.now += 0.1
        line.show("step [bold]2[/bold]")
        line.say("saved [step 2]")
    shown = capsys.readouterr().err
    assert "too early" not in shown
    assert "step [bold]2[/bold]" in shown
    assert "saved [step 2]\n" in shown


def test_a_job_shows_share_rate_and_time_left_in_a_log(capsys, time):
    with Progress("rows", total=200, unit="MB") as job:
        time.now += 5
        job.update(40)
        assert capsys.readouterr().err == "", "what is over in a moment needs no line"
        time.now += 15
        job.update(50)
    assert capsys.readouterr().err == "rows  25%  50/200 MB  2.5 MB/s  ETA 1:00\n"


def test_a_job_whose_end_is_unknown_shows_no_share(capsys, time):
    with Progress("passages", total=0, unit="passages") as job:
        time.now += 10
        job.update(2000)
    assert capsys.readouterr().err == "passages  2,000 passages  200.0 passages/s\n"


def test_a_job_in_a_terminal_has_a_bar(capsys, terminal, time):
    with Progress("rows", total=200, unit="MB") as job:
        time.now += 2
        job.update(100)
    shown = capsys.readouterr().err
    assert "━" in shown
    assert "50%  100/200 MB  50.0 MB/s  ETA 0:02" in shown


def test_nothing_is_drawn_before_the_first_line(capsys, terminal):
    with LiveLine() as line:
        line.say("reading")
    assert "━" not in capsys.readouterr().err


def test_a_line_longer_than_the_terminal_is_cut(capsys, terminal):
    with LiveLine() as line:
        line.show("step " + "word " * 100, done=0.5)
    shown = capsys.readouterr().err
    assert "…" in shown
    assert "word " * 20 not in shown
