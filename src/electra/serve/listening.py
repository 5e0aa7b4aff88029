"""An address and an app -> a server that waits for nobody forever, and stops politely."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from electra.errors import InputError
from electra.serve.app import Application

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HEAD_SECONDS = 10.0
"""In which the head of a request has to arrive. That of its body is a limit of the app."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot listen on {host}, port {port}: {why}. Choose another --host or --port; --port 0 takes a "
            "free one"
        ) from error


def url_of(listening: socket.socket) -> str:
    """Where to reach it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class PunctualProtocol(H11Protocol):
    """Closes a connection on which no request comes, or only drop by drop: uvicorn would wait forever."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The time for the first head begins."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some of a request: its time ends with its head, and that of another begins with its first byte."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(uvicorn.Server):
    """One that tells the app to drain, and is content when it was asked to stop."""

    def __init__(self, application: Application, *, drain_seconds: float) -> None:
        self._application = application
        super().__init__(
            uvicorn.Config(
                application,
                http=PunctualProtocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, round(drain_seconds)),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does it, but a signal is not raised again at the end: the drain is its whole effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop accepting, and answer what was accepted; a second Ctrl-C does not wait for that."""
        self._application.drain()
        super().handle_exit(sig, frame)
