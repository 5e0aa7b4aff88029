"""Worker processes that leave Ctrl-C to the process that started them, and end with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_sentinel
from typing import Any


class Workers(ProcessPoolExecutor):
    """A pool of processes for Python's work.

    Spawned, since a forked child of a process with threads, torch's among them, may hang.
    """

    def __init__(self, count: int, begin: Callable[[], object] | None = None) -> None:
        super().__init__(count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(begin,))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        # It may start a process, which inherits what is held back: Ctrl-C reaches the whole group,
        # and one that is still importing would answer with a traceback.
        with _held_back(signal.SIGINT):
            return super().submit(function, *arguments, **named)


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """A signal waits until this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(begin: Callable[[], object] | None) -> None:
    # What comes from here on is the parent's to answer too: a worker finishes its part.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _exit_with_parent() -> None:
    """Without this, a worker would wait for work forever after the parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_sentinel([parent.sentinel])
    os._exit(1)
