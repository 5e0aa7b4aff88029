"""Clients on real sockets that are slow, silent, too many, or do not listen."""

import asyncio
import errno
import logging
import socket
import threading
import time

import pytest
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from electra.prediction.load import load
from electra.serve import connections
from electra.serve.app import build_app
from electra.serve.connections import OnceAMinute, backlog_for, most_connections, note_loop_error
from electra.serve.limits import Limits
from running import ask, connect, read_answer, serving, wait_until

HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


# Heads


@pytest.fixture(scope="module")
def model(run):
    return load(run)


@pytest.fixture(scope="module")
def url(model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_SECONDS", 120.0)
        with serving(build_app(model, limits=Limits())) as address:
            yield address


@pytest.fixture
def impatient(url, monkeypatch):
    """The same server, for those who are to get no answer."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    return url


def test_silence_is_not_waited_for(impatient):
    with connect(impatient) as connection:
        assert connection.recv(1) == b""


def test_nor_is_a_head_that_comes_drop_by_drop(impatient):
    with connect(impatient) as connection:
        is_over = threading.Event()

        def drip():
            for byte in HEAD * 100:
                if is_over.wait(0.05):
                    return
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            received = connection.recv(1)
        except ConnectionResetError:
            received = b""
        finally:
            is_over.set()
            thread.join()
    assert received == b""


@pytest.mark.slow
def test_a_connection_serves_many_requests_with_pauses(url, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)
    with connect(url) as connection:
        for pause in (0.0, 2.5, 2.5):
            # Longer than a head may take, in which nothing is awaited but the next request.
            time.sleep(pause)
            connection.sendall(HEAD)
            assert read_answer(connection).status == 200


def test_what_is_no_http_is_told_so(url):
    with connect(url) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_answer(connection).status == 400
    assert ask(url, "/health/live").status == 200


def test_a_half_closed_connection_does_no_harm(url):
    with connect(url) as connection:
        connection.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1000)
    assert ask(url, "/health/live").status == 200


# Answers


@pytest.fixture
def lost(monkeypatch):
    """The connections that ended; each has room for a few kB on its way to the client."""
    found = []
    made, ended = H11Protocol.connection_made, H11Protocol.connection_lost

    def note_made(protocol, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    def note_ended(protocol, error):
        found.append(protocol)
        ended(protocol, error)

    monkeypatch.setattr(H11Protocol, "connection_made", note_made)
    monkeypatch.setattr(H11Protocol, "connection_lost", note_ended)
    return found


def app_with_answer(model, size, **limits):
    """An app with a path whose answer has so many bytes."""
    app = build_app(model, limits=Limits(**limits))

    @app.get("/large")
    async def large():
        return Response(b"x" * size)

    return app


def ask_without_listening(url):
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    connection.sendall(HEAD.replace(b"/health/live", b"/large"))
    return connection


# Of the first, the server holds less than makes asyncio tell a protocol by default.
@pytest.mark.parametrize("size", [60_000, 4_000_000])
@pytest.mark.parametrize("is_dripping", [False, True], ids=["never", "drop by drop"])
def test_an_answer_that_is_not_taken_ends_the_connection(model, lost, size, is_dripping):
    with serving(app_with_answer(model, size, answer_seconds=0.3)) as url:
        with ask_without_listening(url) as connection:
            assert connection.recv(1) == b"H"

            def is_lost():
                # What has arrived by then can be read after the end, too.
                return lost or (is_dripping and not connection.recv(1))

            wait_until(is_lost)
        assert ask(url, "/health/live").status == 200


def test_an_answer_that_is_taken_late_but_in_time_is_whole(model, lost):
    app = app_with_answer(model, 300_000, answer_seconds=30.0)
    with serving(app) as url, ask_without_listening(url) as connection:
        assert connection.recv(1, socket.MSG_PEEK) == b"H"
        assert len(read_answer(connection).body) == 300_000
        connection.sendall(HEAD)
        assert read_answer(connection).status == 200


# Number


def test_too_many_connections_are_refused_until_one_ends(model, caplog, monkeypatch):
    monkeypatch.setattr(connections.once_a_minute, "_quiet_until", {})
    with serving(build_app(model, limits=Limits(max_connections=2))) as url:
        with connect(url) as first, connect(url) as second:
            for connection in (first, second):
                connection.sendall(HEAD)
                assert read_answer(connection).status == 200
            for _ in range(3):
                with connect(url) as third:
                    refused = read_answer(third)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            first.sendall(HEAD)
            assert read_answer(first).status == 200
        wait_until(lambda: ask(url, "/health/live").status == 200)
    assert len([record for record in caplog.records if record.name == connections.__name__]) == 1


@pytest.mark.parametrize(("soft", "expected"), [(64, 32), (1024, 500), (1, 1), (-1, 500)])
def test_connections_leave_files_to_open(monkeypatch, soft, expected):
    resource = pytest.importorskip("resource")
    assert resource.RLIM_INFINITY == -1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, -1))
    assert most_connections(500) == expected
    # What asyncio accepts before it counts is no more than what is left beside them.
    assert 1 <= backlog_for(expected) <= max(1, expected // 2)


def test_the_log_says_once_a_minute_that_nothing_can_be_accepted(caplog, monkeypatch):
    monkeypatch.setattr(connections.once_a_minute, "_quiet_until", {})
    loop = asyncio.new_event_loop()
    try:
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many open files")
            note_loop_error(loop, {"message": "socket.accept() out of system resource", "exception": error})
        (record,) = caplog.records
        assert "Too many open files" in record.message
        assert record.exc_info is None
        caplog.clear()
        note_loop_error(loop, {"message": "a bug", "exception": ValueError("odd")})
        assert caplog.records[0].exc_info
    finally:
        loop.close()


def test_a_message_is_repeated_after_a_minute_and_a_bug_at_once():
    now = 0.0
    quiet = OnceAMinute(clock=lambda: now)

    def passes(message, *values, exc_info=None):
        return quiet.filter(logging.LogRecord("", logging.WARNING, "", 1, message, values, exc_info))

    assert passes("%d are open", 3)
    assert not passes("%d are open", 4)
    assert passes("another")
    assert all(passes("a bug", exc_info=(ValueError, ValueError(), None)) for _ in range(2))
    now = 61.0
    assert passes("%d are open", 5)
