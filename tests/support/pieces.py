"""Pieces of work for a cluster, importable on its nodes."""

import os
import signal
import sys
from pathlib import Path

from electra.errors import InputError


def double(number: int) -> int:
    return 2 * number


def doubled_with(number: int, shared: dict[str, int]) -> int:
    return 2 * number + shared["more"]


def where(_number: int) -> tuple[int, str]:
    return os.getpid(), str(Path("/proc/self/fd/2").resolve())


def refuse(number: int) -> int:
    if number == 3:
        raise InputError("corpus.txt:3: not a number; write one")
    return number


def fail(number: int) -> float:
    return 1 / (number - 2)


def die_once(number: int, folder: str) -> int:
    """The first worker that gets number 2 is killed, as by the system for lack of memory."""
    mark = Path(folder) / "died"
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number: int) -> int:
    if number == 1:
        print("the last thing that it said", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return number
