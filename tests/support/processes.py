"""Processes that tests start: none of them outlives its test, nor does what they have started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

_started: list[subprocess.Popen[Any]] = []


def start(command: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen` of a process that ends with the test at the latest."""
    process = subprocess.Popen([*map(str, command)], start_new_session=True, **options)
    _started.append(process)
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that has a session of its own, and all in its group; its pipes are closed."""
    with process, contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    while _started:
        end(_started.pop())
