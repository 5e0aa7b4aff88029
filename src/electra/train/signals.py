"""SIGTERM, SIGINT, SIGUSR1 or a file `checkpoint_now` -> what a run is asked for, looked at between steps.

A command that may crash -> the same command again, after a pause, until it ends by itself.
"""

import enum
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PATIENCE_SECONDS = 2.0


class Request(enum.IntEnum):
    """Ordered: of several, the largest counts."""

    NONE = 0
    SAVE = 1
    """Save and go on: SIGUSR1, or the file."""
    STOP = 2
    """Save and end: SIGTERM, Ctrl-C."""


class Requests:
    """What was asked for since the last look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pending = Request.NONE
        self._impatient = 0.0
        self.name = ""
        """What asked last, for a person."""

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Signals are requests while this lasts; a second Ctrl-C ends the program at once."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def look(self) -> Request:
        """The pending request; a stop stays pending, a save is taken."""
        if self._pending is Request.NONE and self._file.exists():
            self._file.unlink(missing_ok=True)
            self.name = self._file.name
            return Request.SAVE
        found = self._pending
        if found is Request.SAVE:
            self._pending = Request.NONE
        return found

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        # torchrun passes Ctrl-C on to processes that had it from the terminal: only a later one is a second.
        if self._pending is Request.STOP and number == signal.SIGINT and time.monotonic() > self._impatient:
            raise KeyboardInterrupt("at the second signal, without saving")
        self._impatient = time.monotonic() + _PATIENCE_SECONDS
        self.name = signal.Signals(number).name
        self._pending = max(self._pending, Request.SAVE if number == signal.SIGUSR1 else Request.STOP)


_LONGEST_PAUSE = 60.0


def supervise(
    command: Sequence[str], *, max_restarts: int, ends: Sequence[int], first_pause: float = 1.0
) -> int:
    """Run a command to one of the exit codes that are ends, starting it again after others.

    The pause doubles each time: what crashed for lack of memory needs a moment.
    """
    for restarts in range(max_restarts + 1):
        # In a session of its own, so that Ctrl-C reaches it once: from here.
        child = subprocess.Popen(command, start_new_session=True)
        with _signals_passed_on(child) as passed:
            code = child.wait()
        if code in ends or signal.SIGTERM in passed or signal.SIGINT in passed or restarts == max_restarts:
            break
        pause = min(_LONGEST_PAUSE, first_pause * 2**restarts)
        print(
            f"electra: ended with code {code}; restart {restarts + 1} of {max_restarts} in {pause:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(pause)
    return code


@contextmanager
def _signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """What asks this process to save or stop asks the child; which it was is in the list."""
    passed: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        passed.append(number)
        child.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
