import os
import signal
import subprocess
import sys
import time

import pytest

from electra.train import signals
from electra.train.signals import Request, Requests, supervise


@pytest.mark.parametrize(
    ("number", "request_"),
    [(signal.SIGTERM, Request.STOP), (signal.SIGINT, Request.STOP), (signal.SIGUSR1, Request.SAVE)],
)
def test_signals_are_requests_while_they_are_heard(tmp_path, number, request_):
    requests, before = Requests(tmp_path / "now"), signal.getsignal(number)
    with requests.heard():
        assert requests.look() is Request.NONE
        signal.raise_signal(number)
        assert requests.look() is request_
        assert requests.name == signal.Signals(number).name
    assert signal.getsignal(number) is before


def test_a_save_is_answered_once_and_a_stop_stays(tmp_path):
    requests = Requests(tmp_path / "now")
    with requests.heard():
        signal.raise_signal(signal.SIGUSR1)
        assert [requests.look(), requests.look()] == [Request.SAVE, Request.NONE]
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        assert [requests.look(), requests.look()] == [Request.STOP, Request.STOP]


def test_the_file_is_a_request_and_is_removed(tmp_path):
    (tmp_path / "now").touch()
    requests = Requests(tmp_path / "now")
    assert [requests.look(), requests.look()] == [Request.SAVE, Request.NONE]
    assert not (tmp_path / "now").exists()


def test_a_second_interrupt_ends_at_once_but_an_echo_of_the_first_does_not(tmp_path, monkeypatch):
    requests = Requests(tmp_path / "now")
    with requests.heard():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(requests, "_impatient", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_process_that_gets_little_of_its_core_is_not_idle():
    before, core = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    neighbour = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        neighbour.stdout.readline()
        begun, used, asked_for = time.monotonic(), time.process_time(), signals._seconds_asked_for()
        # Until it is seen to share the core.
        while (seconds := time.monotonic() - begun) < 0.5 or time.process_time() - used > 0.7 * seconds:
            pass
        assert signals._seconds_asked_for() - asked_for > 0.8 * seconds
    finally:
        neighbour.kill()
        neighbour.communicate()
        os.sched_setaffinity(0, before)


# Counts its starts in a file, and ends with the next of the given exit codes.
CRASHING = """
import sys
from pathlib import Path
path, codes = Path(sys.argv[1]), sys.argv[2].split(",")
starts = int(path.read_text()) if path.exists() else 0
path.write_text(str(starts + 1))
sys.exit(int(codes[starts]))
"""


@pytest.mark.parametrize(
    ("codes", "max_restarts", "code", "starts"),
    [
        ("0", 3, 0, 1),
        ("1,1,0", 3, 0, 3),
        ("2,0", 3, 2, 1),
        ("1,1,1,1", 2, 1, 3),
    ],
    ids=["no crash", "crashes", "an end", "too many"],
)
def test_it_starts_again_after_crashes_only(tmp_path, capfd, codes, max_restarts, code, starts):
    command = [sys.executable, "-c", CRASHING, str(tmp_path / "starts"), codes]
    assert supervise(command, max_restarts=max_restarts, ends=(0, 2), first_pause=0.01) == code
    assert int((tmp_path / "starts").read_text()) == starts
    assert capfd.readouterr().err.count("restart") == starts - 1


def test_it_gives_the_signals_back():
    before = signal.getsignal(signal.SIGTERM)
    supervise([sys.executable, "-c", ""], max_restarts=1, ends=(0,))
    assert signal.getsignal(signal.SIGTERM) is before
