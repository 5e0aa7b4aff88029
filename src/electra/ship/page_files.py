"""The files of the page -> answers; and headers that let a browser do what the page needs, and no more."""

from importlib import resources

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing from another place, nothing inline, in nobody's frame.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of each answer that does not say otherwise."""


def read_page() -> dict[str, Response]:
    """Path -> file of the page; empty if this installation has no page."""
    folder = resources.files("electra.ship") / "page"
    if not folder.is_dir():
        return {}
    found = {}
    for file in folder.iterdir():
        media_type = MEDIA_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            # Asked for again each time, so that a new version is not mixed with an old one.
            headers = {"Cache-Control": "no-cache"}
            path = "/" if file.name == INDEX else f"/{file.name}"
            found[path] = Response(file.read_bytes(), media_type=media_type, headers=headers)
    return found


class WithHeaders:
    """An app with the headers above in each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
