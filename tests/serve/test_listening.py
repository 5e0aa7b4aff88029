import socket
import threading
import time

import pytest

from electra.errors import InputError
from electra.prediction.load import load
from electra.serve import listening
from electra.serve.app import build_app
from electra.serve.limits import Limits
from electra.serve.listening import listen, url_of
from running import ask, connect, read_answer, serving

HEAD = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def url(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "HEAD_SECONDS", 0.3)
        with serving(build_app(load(run), limits=Limits())) as address:
            yield address


def test_a_free_port_is_taken_and_told():
    with listen("127.0.0.1", 0) as first, listen("localhost", 0) as second:
        assert url_of(first).startswith("http://127.0.0.1:")
        assert url_of(first) != url_of(second)


def test_addresses_of_both_kinds_are_written_as_they_must_be():
    try:
        listened = listen("::1", 0)
    except InputError:
        pytest.skip("this machine has no IPv6")
    with listened:
        assert url_of(listened).startswith("http://[::1]:")


@pytest.mark.parametrize("host", ["no such host", "a" * 100, "192.0.2.1"])
def test_an_address_that_is_not_ours_is_named(host):
    with pytest.raises(InputError, match=f"cannot listen on {host}, port 0"):
        listen(host, 0)


def test_silence_is_not_waited_for(url):
    with connect(url) as connection:
        assert connection.recv(1) == b""


def test_nor_is_a_head_that_comes_drop_by_drop(url):
    with connect(url) as connection:
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


def test_a_connection_serves_many_requests_with_pauses(url):
    with connect(url) as connection:
        for _ in range(3):
            connection.sendall(HEAD)
            assert read_answer(connection).status == 200
            # Longer than a head may take, in which nothing is awaited but the next request.
            time.sleep(0.4)


def test_what_is_no_http_is_told_so(url):
    with connect(url) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_answer(connection).status == 400
    assert ask(url, "/health/live").status == 200


def test_a_half_closed_connection_does_no_harm(url):
    with connect(url) as connection:
        connection.sendall(b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1000)
    assert ask(url, "/health/live").status == 200
