"""An app -> a real server on loopback, and clients for it."""

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from electra.serve.app import Server, listen, url_of

PATIENCE = 300.0
"""Seconds: tests share the machine."""


class Answer(NamedTuple):
    """What a server says."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        return self.content["error"]


def wait_until(condition) -> None:
    """Bounded waiting for what happens in another thread."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@contextlib.contextmanager
def serving(app):
    """Its address, while a thread serves it."""
    with listen("127.0.0.1", 0) as listening:
        url = url_of(listening)
        server = Server(app, drain_seconds=5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: app.state.service.status != "loading")
            yield url
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def ask(url: str, path: str, content: Any = None, *, method: str | None = None, **headers: str) -> Answer:
    """One request; `content` is sent as JSON, or as it is if it is bytes or made of chunks."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    with contextlib.closing(connection):
        is_raw = content is None or isinstance(content, bytes) or hasattr(content, "__next__")
        body = content if is_raw else json.dumps(content).encode()
        given = {"Content-Type": "application/json"} if body is not None else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, body=body, headers=given)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())


def connect(url: str) -> socket.socket:
    """For what no proper client would do."""
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)


def read_answer(connection: socket.socket) -> Answer:
    """The answer to what was sent by hand."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    found = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, found, response.read())
