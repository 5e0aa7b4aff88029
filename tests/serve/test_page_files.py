import asyncio

from electra.serve import observing
from electra.serve.observing import WithHeaders, read_page


def test_the_page_is_read_with_its_types():
    page = read_page()
    assert page["/"].media_type == "text/html"
    assert {response.media_type for response in page.values()} <= set(observing.MEDIA_TYPES.values())
    assert all(response.body for response in page.values())


def test_no_page_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(observing.resources, "files", lambda _: tmp_path)
    assert read_page() == {}


def test_only_files_of_a_page_are_served(monkeypatch, tmp_path):
    (tmp_path / "page").mkdir()
    for name in ("index.html", "page.js", "notes.txt", "page.js.orig"):
        (tmp_path / "page" / name).write_text("x")
    monkeypatch.setattr(observing.resources, "files", lambda _: tmp_path)
    assert set(read_page()) == {"/", "/page.js"}


def test_headers_are_set_where_they_are_not():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "headers": [(b"cache-control", b"no-cache")]})
        await send({"type": "http.response.body", "body": b""})

    async def keep(message):
        sent.append(message)

    asyncio.run(WithHeaders(app)({"type": "http"}, None, keep))
    headers = dict(sent[0]["headers"])
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"content-security-policy"].startswith(b"default-src 'self'")
    assert headers[b"x-content-type-options"] == b"nosniff"
