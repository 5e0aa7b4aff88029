"""A command -> what it prints, how long it takes, and how much memory it and all below it hold."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from electra.errors import InputError

ELECTRA = (sys.executable, "-m", "electra")
"""Our own command, in the Python that runs now."""

_SAMPLE_SECONDS = 0.05


class Ran(NamedTuple):
    """A command that has ended well."""

    output: str
    seconds: float
    memory: int | None
    """The most bytes that it and all below it held at once; None where the system does not tell."""


def run(words: Sequence[str], *, name: str) -> Ran:
    """Run a command to its end; what it says on stderr is a person's to read."""
    begun = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            with MemoryWatch(process.pid) as watch:
                output, _ = process.communicate()
        except BaseException:
            # Politely, so that it can end what it has started itself.
            process.terminate()
            process.wait()
            raise
    seconds = time.perf_counter() - begun
    if process.returncode:
        raise InputError(f"{name} ended with exit code {process.returncode}: what it said stands above")
    return Ran(output, seconds, watch.most)


class MemoryWatch:
    """Looks at a process and all below it from time to time; pages that they share count for each."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most = pid, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def most(self) -> int | None:
        """Bytes that they held together, when it was most."""
        return self._most or None

    def _look(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            now = sum(_status(process, "VmRSS") for process in (self._pid, *descendants(self._pid)))
            self._most = max(self._most, now)


def descendants(pid: int) -> Iterator[int]:
    """The processes below one."""
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def own_memory() -> int | None:
    """Bytes that this process holds."""
    return _status("self", "VmRSS") or None


def own_peak() -> int | None:
    """The most bytes that this process has held since it began.

    Not what `getrusage` says, which counts what the parent held when it started us.
    """
    return _status("self", "VmHWM") or None


def _status(process: int | str, key: str) -> int:
    """A number of /proc; 0 of a process that is gone, and where there is no such folder."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
