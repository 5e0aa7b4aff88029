"""Stores that say less than S3 does, such as servers of the web, and objects with names that no file has."""

import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from electra import cli
from electra.errors import InputError
from electra.store import cache, remote, working

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp", reason="fsspec reads the web through it")
DAY = 1_700_000_000


class Web:
    """Files on a server, and what it says of them."""

    def __init__(self):
        self.files, self.asked = {}, []
        self.says_size, self.says_parts, self.headers = True, True, {}

    @contextmanager
    def serving(self):
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.answer()

            def do_GET(self):
                web.asked.append(self.path)
                self.answer()

            def answer(self):
                content = web.files.get(self.path)
                self.send_response(404 if content is None else 206 if "Range" in self.headers else 200)
                content = content or b""
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "text/plain")
                if web.says_parts and "Range" in self.headers:
                    first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                    content = content[int(first) : int(last) + 1]
                for name, value in web.headers.items():
                    self.send_header(name, value)
                if web.says_size:
                    self.send_header("Content-Length", str(len(content)))
                else:
                    self.send_header("Transfer-Encoding", "chunked")
                    content = b"%x\r\n%b\r\n" % (len(content), content) * bool(content) + b"0\r\n\r\n"
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def web():
    found = Web()
    with found.serving() as found.url:
        yield found


def forget():
    """As if this process had ended and another begun."""
    for entry in cache._held.values():
        entry.end_use()
    cache._held.clear()


def read(url):
    """What a command that begins now finds."""
    forget()
    (listed,) = remote.find(url)
    with cache.open_file(url, size=listed.bytes, modified=listed.modified) as file:
        opened = file.read()
    fetched = cache.fetch(url).read_bytes()
    assert opened == fetched
    return fetched


def test_an_object_without_a_size_is_refused_and_not_taken_for_empty(web, tmp_path, capsys):
    web.files["/a.txt"], web.says_size = b"a document\n", False
    url = f"{web.url}/a.txt"
    for look in (remote.find, cache.fetch, lambda url: remote.Remote(url).look("")):
        with pytest.raises(InputError, match=rf"^{url}: .*how large.*download"):
            look(url)
    command = ["prepare", f"--corpus={url}", f"--out={tmp_path / 'data'}", "--vocab_size=300"]
    assert cli.main(command) == cli.BAD_INPUT
    assert f"{url}: its server does not say how large it is" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_last_modified_tells_whether_a_file_is_another(web):
    web.files["/a.txt"], web.headers = b"before", {"Last-Modified": formatdate(DAY, usegmt=True)}
    url = f"{web.url}/a.txt"
    assert read(url) == b"before"
    assert remote.Remote(url).look("").modified == DAY * 10**9
    # Of the same size.
    web.files["/a.txt"], web.headers = b"after!", {"Last-Modified": formatdate(DAY + 1, usegmt=True)}
    assert read(url) == b"after!"


def test_so_does_an_etag(web):
    web.files["/a.txt"], web.headers = b"before", {"ETag": '"1"'}
    assert read(f"{web.url}/a.txt") == b"before"
    web.files["/a.txt"], web.headers = b"after!", {"ETag": '"2"'}
    assert read(f"{web.url}/a.txt") == b"after!"


@pytest.mark.parametrize(
    "headers", [{"ETag": '"1"'}, {"Last-Modified": formatdate(DAY, usegmt=True)}], ids=list
)
def test_what_is_the_same_is_taken_from_the_cache(web, monkeypatch, headers):
    web.files["/a.txt"], web.headers = b"content", headers
    read(f"{web.url}/a.txt")
    monkeypatch.setattr(remote.Remote, "read", None)
    assert read(f"{web.url}/a.txt") == b"content"


@pytest.mark.parametrize(
    "headers", [{}, {"Last-Modified": "long, long ago"}, {"Last-Modified": "yesterday"}], ids=str
)
def test_what_has_neither_tag_nor_time_is_never_taken_from_the_cache(web, monkeypatch, headers):
    web.files["/a.txt"], web.headers = b"before, in parts", headers
    url = f"{web.url}/a.txt"
    assert read(url) == b"before, in parts"
    web.files["/a.txt"] = b"later, in pieces"
    assert read(url) == b"later, in pieces"
    # Nor what is left of a download.
    monkeypatch.setattr(cache, "_PIECE_BYTES", 5)
    whole_read = remote.Remote.read

    def fails(self, name, start, end):
        if start >= 5:
            raise InputError("the network is gone")
        return whole_read(self, name, start, end)

    monkeypatch.setattr(remote.Remote, "read", fails)
    with pytest.raises(InputError, match="network"):
        read(url)
    monkeypatch.setattr(remote.Remote, "read", whole_read)
    web.files["/a.txt"] = b"afterwards again"
    assert read(url) == b"afterwards again"


@pytest.mark.parametrize("key", ["blob_id", "modificationTime", "modify"])
def test_so_do_the_hub_hadoop_and_ftp_in_their_own_words(key):
    versions = [remote._stored("x://b/a", {"size": 3, key: value}).version for value in ("1", "1", "2")]
    assert versions[0] == versions[1] != versions[2]


def test_a_pattern_finds_files_of_the_web_with_their_sizes(web):
    """Its lists are pages, which do not say them."""
    web.headers = {"Last-Modified": formatdate(DAY, usegmt=True)}
    web.files = {"/texts/a.txt": b"one", "/texts/b.txt": b"three"}
    page = b'<a href="a.txt">a.txt</a> <a href="b.txt">b.txt</a>'
    web.files |= {"/texts/": page, "/texts": page}
    assert [stored.bytes for stored in remote.find(f"{web.url}/texts/*.txt")] == [3, 5]


def test_a_server_that_gives_no_parts(web, monkeypatch):
    web.files["/a.txt"], web.says_parts = b"0123456789", False
    assert read(f"{web.url}/a.txt") == b"0123456789"
    monkeypatch.setattr(cache, "_PIECE_BYTES", 4)
    with pytest.raises(InputError, match=r"/a\.txt: .*no parts.*download"):
        read(f"{web.url}/a.txt")


def test_nothing_is_written_where_nobody_could_tell_what_is_new(monkeypatch):
    system = fsspec.filesystem("memory")
    info = system.info
    monkeypatch.setattr(type(system), "info", lambda self, path, **_: {**info(path), "created": None})

    def upload():
        with working.working_copy("memory://timeless/run") as folder:
            folder.mkdir()
            (folder / "a").write_bytes(b"1")

    with pytest.raises(InputError, match="neither ETag nor time"):
        upload()


def put(bucket, name):
    """Past pipe_file, which would tidy up the name."""
    from fsspec.implementations.memory import MemoryFile

    system, path = fsspec.filesystem("memory"), f"/{bucket}/run/{name}"
    system.store[path] = MemoryFile(system, path, b"content")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "sub/\udcff.txt", "./a", "..", "a/../../b"], ids=ascii)
def test_names_that_no_file_can_have_are_refused_by_name(name):
    bucket = f"names{abs(hash(name))}"
    put(bucket, name)
    try:
        with pytest.raises(InputError, match=rf"memory://{bucket}/run") as caught:
            cache.fetch(f"memory://{bucket}/run")
        assert ascii(name)[1:-1] in str(caught.value)
        with (
            pytest.raises(InputError, match="no file can have"),
            cache.open_file(f"memory://{bucket}/{name}"),
        ):
            pass
    finally:
        # Other tests list all that is in memory.
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("end", ["..", ".", "run/..", "run/../", "../run", "a\0b", "\ud800"], ids=ascii)
def test_a_url_that_leads_elsewhere_is_refused(end):
    for act in (remote.Remote, cache.fetch, remote.find, lambda url: cache.Entry.of("read", url)):
        with pytest.raises(InputError, match="no file can have"):
            act(f"memory://bucket/{end}")
