"""Signals and the file `checkpoint_now` -> requests to save or stop, which a run answers between steps.

`supervise` is the other side: a command that may crash -> the same command again, until it ends by itself.
`ending_if_stuck` is for one of several processes: Python does not get to a signal while it waits for another
process, and that one may never answer.
"""

import enum
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from electra.errors import INTERRUPTED

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_PATIENCE_SECONDS = 2.0
STUCK_SECONDS = 10.0
"""How long a process that is asked to stop may neither compute nor save before it is ended."""
_LOOK_SECONDS = 0.5
_IDLE_SHARE = 0.2
"""Of a core's time: a process that asks for less does nothing but wait, also if it looks every few
milliseconds whether it may go on."""


class Request(enum.IntEnum):
    """What a run is asked to do. Ordered: of several requests, the largest counts."""

    NONE = 0
    SAVE = 1
    """Save and continue: SIGUSR1, or the file."""
    STOP = 2
    """Save and exit: SIGTERM, Ctrl-C."""


class Requests:
    """Collects requests until the run looks at them between two steps."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pending = Request.NONE
        self._impatient = 0.0
        self.name = ""
        """The signal or file that asked last."""

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Turn signals into requests while this lasts; a second Ctrl-C ends the program at once.

        Python lets only the main thread do that. A run in another thread can still be asked by the file.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with handled_by(self._hear):
            yield

    def look(self) -> Request:
        """The pending request; a save is answered by looking at it, a stop stays pending."""
        if self._pending is Request.NONE and self._file.exists():
            self._file.unlink(missing_ok=True)
            self.name = self._file.name
            return Request.SAVE
        found = self._pending
        if found is Request.SAVE:
            self._pending = Request.NONE
        return found

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        # torchrun forwards Ctrl-C to processes that got it from the terminal already: only a later one counts
        # as the second.
        if self._pending is Request.STOP and number == signal.SIGINT and time.monotonic() > self._impatient:
            raise KeyboardInterrupt("at the second signal, without saving")
        self._impatient = time.monotonic() + _PATIENCE_SECONDS
        self.name = signal.Signals(number).name
        self._pending = max(self._pending, Request.SAVE if number == signal.SIGUSR1 else Request.STOP)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that ask a run for something, and leave them as they were."""
    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None: set by a program that is not Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


@contextmanager
def ending_if_stuck(
    is_saving: Callable[[], bool] = lambda: False, *, patience: float | None = None
) -> Iterator[None]:
    """While this lasts, end the process if it is asked to stop and then does nothing but wait.

    The last checkpoint is kept; what came after it is lost, as with a signal that nobody can ignore. With a
    patience of 0 it ends at once, for a wait in which nothing can be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    # The system's own handler writes the number of a signal there at once, whatever Python is waiting for.
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(target=_watch, args=(heard, is_saving, patience), daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        told.close()
        watch.join()
        heard.close()


def _watch(heard: socket.socket, is_saving: Callable[[], bool], patience: float | None) -> None:
    """Wait for a request to stop, then for the end, and end the process if it stands still on the way."""
    asked, idle = "", 0.0
    patience = STUCK_SECONDS if patience is None else patience
    while True:
        asked_for = _seconds_asked_for()
        if select.select([heard], [], [], _LOOK_SECONDS if asked else None)[0]:
            numbers = heard.recv(64)
            if not numbers:
                return
            stops = [number for number in numbers if number in (signal.SIGTERM, signal.SIGINT)]
            asked = signal.Signals(stops[0]).name if stops else asked
        else:
            is_idle = _seconds_asked_for() - asked_for < _IDLE_SHARE * _LOOK_SECONDS and not is_saving()
            idle = idle + _LOOK_SECONDS if is_idle else 0.0
        if asked and idle >= patience:
            print(
                f"electra: {asked}: ended without saving, as another process does not answer; run the same "
                "command again to resume from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            os._exit(INTERRUPTED)


def _seconds_asked_for() -> float:
    """Time of a core that this process had or stood in line for: beside busy neighbours it may get little."""
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            waited += int(thread.read_text().split()[1])
    return time.process_time() + waited / 1e9


_LONGEST_PAUSE = 60.0


def supervise(
    command: Sequence[str], *, max_restarts: int, ends: Sequence[int], first_pause: float = 1.0
) -> int:
    """Run a command until it exits with one of the codes in `ends`, and restart it after any other.

    The pause doubles each time, because a crash for lack of memory needs time to pass. Returns the last code.
    """
    assert max_restarts >= 0, f"max_restarts is {max_restarts}"
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
    """Forward requests to save or stop to the child, and record their signals in the list."""
    passed: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        passed.append(number)
        child.send_signal(number)

    with handled_by(pass_on):
        yield passed
