"""Sockets as clients use them -> HTTP connections that end in time, and no more of them than there is room.

uvicorn waits for ever for the head of a request and for a client that does not take its answer, and accepts
connections until the process may open no more files. Here,

the head of a request       has to arrive in time (`HEAD_SECONDS`)
an answer                   has to be taken in time (`Limits.answer_seconds`), or the connection is cut
a connection                is refused if the process has to keep its files for others (`most_connections`)
the log                     gets a line about any of it once a minute
"""

import asyncio
import errno
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""In which the head of a request has to arrive."""
QUIET_SECONDS = 60.0
"""For which the log does not repeat itself."""
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
"""The answer to a connection that there is no room for."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` after which asyncio tries again."""


class OnceAMinute(logging.Filter):
    """Lets each message through once a minute: clients must not be able to fill a disk with a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._quiet_until: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; a traceback tells of a bug, and always is."""
        now = self._clock()
        # The format without its values, so that there are only as many as the program has.
        if not record.exc_info and now < self._quiet_until.get(record.msg, now):
            return False
        self._quiet_until[record.msg] = now + QUIET_SECONDS
        return True


once_a_minute = OnceAMinute()
for _name in (__name__, "uvicorn.error"):
    logging.getLogger(_name).addFilter(once_a_minute)


def most_connections(wanted: int) -> int:
    """How many connections to take: at most half of the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


def backlog_for(max_connections: int) -> int:
    """Connections that the system holds ready: asyncio accepts that many before it looks at the first."""
    return max(1, max_connections // 4)


def note_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong outside of any request; asyncio writes a traceback for each failed `accept`."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        logger.warning("cannot accept connections: %s", error.strerror)
    else:
        loop.default_exception_handler(context)


class Clock:
    """Calls a function after some seconds, unless it is stopped before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, function: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._function = function
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start it; one that runs already goes on."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._function)

    def stop(self) -> None:
        """Stop it if it runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedProtocol(H11Protocol):
    """HTTP on a connection that ends if its client takes too long, or if there are too many."""

    def __init__(self, *, answer_seconds: float, max_connections: int, **given: Any) -> None:
        super().__init__(**given)
        self._max_connections = max_connections
        self._head = Clock(self.loop, HEAD_SECONDS, self.timeout_keep_alive_handler)
        self._answer = Clock(self.loop, answer_seconds, lambda: self.transport.abort())

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, if there is room."""
        super().connection_made(transport)
        # So that the clock runs from the first byte that the client does not take. By default a protocol
        # hears of more than 64 kB only, and a connection that it closes stays open until they are taken.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self._max_connections:
            logger.warning("%d connections are open, and more are refused", self._max_connections)
            transport.write(FULL)
            transport.close()
        else:
            self._head.start()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when the head is whole; start it with the first byte of the next one."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._head.start()
        else:
            self._head.stop()

    def pause_writing(self) -> None:
        """Start the clock: the client does not take all there is."""
        super().pause_writing()
        self._answer.start()

    def resume_writing(self) -> None:
        """Stop it: everything is taken."""
        super().resume_writing()
        self._answer.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both clocks."""
        self._head.stop()
        self._answer.stop()
        super().connection_lost(exc)
