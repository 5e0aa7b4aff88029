"""SIGTERM, SIGINT, SIGUSR1 or a file `checkpoint_now` -> what a run is asked for, looked at between steps."""

import enum
import signal
import time
from collections.abc import Iterator
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
