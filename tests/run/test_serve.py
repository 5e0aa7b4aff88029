import contextlib
import functools
import json
import re
import signal
import socket
import subprocess
import sys

import pytest

from electra import cli
from electra.errors import InputError
from electra.run.serve import ServeConfig, hosts_of, main, read_key
from electra.serve.app import Server
from running import ask, connect, read_answer, wait_until

START = "import sys; from electra import cli; sys.exit(cli.main(sys.argv[1:]))"


@pytest.mark.slow
def test_what_is_under_way_is_answered_before_the_end(whole, tmp_path):
    (tmp_path / "key").write_text("abc-123\n")
    words = ["serve", "--model", str(whole), "--port", "0", "--api_key_file", str(tmp_path / "key")]
    command = [sys.executable, "-c", START, *words]
    body = json.dumps({"texts": ["hello"]}).encode()
    head = (
        "POST /detect HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer abc-123\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[0]
            wait_until(lambda: ask(url, "/health/ready").status == 200)
            assert ask(url, "/model").status == 401
            with connect(url) as connection:
                connection.sendall(head.encode() + body[:5])
                # So that the first part has been read when the signal comes.
                assert ask(url, "/health/live").status == 200
                process.send_signal(signal.SIGTERM)
                wait_until(lambda: is_refused(url))
                assert process.poll() is None
                connection.sendall(body[5:])
                answer = read_answer(connection)
            assert process.wait(60) == cli.OK
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert answer.status == 200
    assert answer.content["results"][0]["text"] == "hello"


def is_refused(url):
    """Whether nobody accepts connections any more."""
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.contextmanager
def command(model, *words, files=None):
    """`electra serve` as a process that is ready, and its address; `files` limits how many it may open."""
    line = [sys.executable, "-c", START, "serve", "--model", str(model), "--port", "0", *words]
    limited = None if files is None else functools.partial(limit_files, files)
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, preexec_fn=limited) as process:
        try:
            url = process.stdout.readline().split()[0]
            wait_until(lambda: ask(url, "/health/ready").status == 200)
            yield process, url
        finally:
            process.kill()


def limit_files(number):
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


HALF = b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@contextlib.contextmanager
def waiting_for_the_rest(model, *, drain_seconds):
    """The same, with a request under way that never becomes whole."""
    words = ["--body_seconds", "60", "--chunk_seconds", "60", "--drain_seconds", drain_seconds]
    with command(model, *words) as (process, url), connect(url) as connection:
        connection.sendall(HALF)
        assert ask(url, "/health/live").status == 200
        yield process, url


@pytest.mark.slow
def test_a_second_interrupt_ends_it_at_once_with_a_line(whole):
    with waiting_for_the_rest(whole, drain_seconds="60") as (process, url):
        process.send_signal(signal.SIGINT)
        wait_until(lambda: is_refused(url))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == cli.INTERRUPTED
        (line,) = process.stderr.read().splitlines()
    assert line.startswith("electra: interrupted")


@pytest.mark.slow
def test_who_is_not_done_when_it_has_to_end_is_cut_off_without_a_traceback(whole):
    with waiting_for_the_rest(whole, drain_seconds="0.5") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == cli.OK
        (line,) = process.stderr.read().splitlines()
        assert "1 connections are cut" in line


@pytest.mark.slow
def test_more_connections_than_files_fill_no_log(whole):
    def is_live():
        try:
            return ask(url, "/health/live").status == 200
        except ConnectionError:
            # Closed before it had sent all.
            return False

    with command(whole, "--body_seconds", "60", "--chunk_seconds", "60", files=64) as (process, url):
        with contextlib.ExitStack() as stack:
            for _ in range(70):
                connection = stack.enter_context(connect(url))
                with contextlib.suppress(ConnectionError):
                    connection.sendall(HALF)
            assert not is_live()
        wait_until(is_live)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == cli.OK
        (line,) = process.stderr.read().splitlines()
    assert "32 connections are open" in line


@pytest.mark.parametrize(
    ("words", "allowed", "takes_addresses"),
    [
        ({}, [], False),
        ({"allowed_hosts": ["a.example"]}, ["a.example"], False),
        ({"host": "0.0.0.0"}, [], True),
        ({"host": "box.example"}, ["box.example"], True),
        ({"api_key_file": "key"}, ["*"], False),
        ({"api_key_file": "key", "allowed_hosts": ["a.example"], "host": "0.0.0.0"}, ["a.example"], True),
    ],
)
def test_names_follow_from_the_address_and_the_key(words, allowed, takes_addresses):
    hosts = hosts_of(ServeConfig(**words))
    assert (set(hosts.allowed), hosts.takes_addresses) == ({*allowed}, takes_addresses)


@pytest.fixture
def served(monkeypatch):
    """The servers that would run; `main` comes back at once."""
    found = []
    monkeypatch.setattr(Server, "run", lambda server, sockets: found.append((server, sockets)))
    return found


def test_one_line_says_where_and_what(whole, served, capsys):
    main(["--model", str(whole), "--port", "0", "--queue_size", "3"])
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    assert re.fullmatch(
        r"http://127\.0\.0\.1:[1-9]\d+  can embed, detect, fill, corrupt.* in (fp32|bf16) .*", line
    )
    assert printed.err == ""
    ((server, sockets),) = served
    # All that it takes from clients leaves room for its own files.
    assert 0 < server.config.backlog < 512
    assert len(sockets) == 1


def test_the_precision_is_the_models_and_shown(whole, served, capsys):
    main(["--model", str(whole), "--port", "0", "--precision", "bf16"])
    assert " in bf16 (as asked for)" in capsys.readouterr().out
    ((server, _),) = served
    model = server.config.app.state.service.model
    assert (model.precision, model.discriminator.reader.precision) == ("bf16", "bf16")


def test_a_precision_of_another_engine_is_refused(run, export_once):
    folder, _ = export_once(run)
    with pytest.raises(InputError, match=r"precision is bf16.*ONNX"):
        main(["--model", str(folder), "--port", "0", "--engine", "onnx", "--precision", "bf16"])


def test_others_are_let_in_with_a_warning(whole, served, capsys):
    main(["--model", str(whole), "--port", "0", "--host", "0.0.0.0"])
    warning = capsys.readouterr().err
    assert "0.0.0.0" in warning
    assert "--api_key_file" in warning


def test_with_a_key_there_is_nothing_to_warn_of(whole, served, capsys, tmp_path):
    (tmp_path / "key").write_text("abc-123")
    main(["--model", str(whole), "--port=0", "--host=0.0.0.0", f"--api_key_file={tmp_path / 'key'}"])
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_an_input_error(whole):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"{port}.*--port 0"):
            main(["--model", str(whole), "--port", str(port)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--model"),
        (["--model", "nowhere", "--port", "0"], "nowhere"),
        (["--model", "m", "--port", "65536"], "port.*65536"),
        (["--model", "m", "--queue_size", "0"], r"queue_size.*\b0\b"),
        (["--model", "m", "--host", "no such host"], "no such host"),
        (["--model", "m", "--api_key_file", "nowhere"], "api_key_file"),
        (["--model", "m", "--engine", "abacus"], "engine"),
        (["--model", "m", "--precision", "fp8"], r"precision.*fp8"),
        (["--model", "m", "--allowed_hosts", "a.example", "http://b"], r"allowed_hosts.*http://b"),
    ],
)
def test_bad_settings_are_named(words, message):
    with pytest.raises(InputError, match=message):
        main(words)


@pytest.mark.parametrize("content", ["", " \n", "two words", "schlüssel", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(InputError, match="api_key_file"):
        read_key(tmp_path / "key")


@pytest.mark.slow
def test_a_missing_extra_is_named():
    without = f"import sys; sys.modules['uvicorn'] = None; {START}"
    found = subprocess.run(
        [sys.executable, "-c", without, "serve"], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == cli.BAD_INPUT
    assert "electra[serve]" in found.stderr
    assert "Traceback" not in found.stderr
