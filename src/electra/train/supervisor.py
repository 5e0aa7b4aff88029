"""A command that may crash -> the same command again, after a pause, until it ends by itself."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

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
