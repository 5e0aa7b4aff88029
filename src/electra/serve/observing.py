"""Requests and batches as they happen -> figures for Prometheus.

The files of the page -> answers; and headers that let a browser do what the page needs, and no more.
"""

import time
from collections.abc import Callable, Collection
from importlib import resources

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra.serve.batching import Call

CLIENT_GONE = 499
"""The code that counts a request whose client did not wait for the answer, as nginx does it."""
OTHER = "other"
"""The route that counts all unknown paths: a client must not be able to add series."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The figures of one server."""

    def __init__(self, *, num_waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "electra_requests", "Requests that ended.", ["route", "code"], registry=registry
        )
        self.seconds = Histogram(
            "electra_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.texts = Counter("electra_texts", "Texts that were computed.", ["ability"], registry=registry)
        self.batch_texts = Histogram(
            "electra_batch_texts", "Texts of a batch.", buckets=TEXTS, registry=registry
        )
        waiting = Gauge("electra_queue_length", "Requests that wait for the model.", registry=registry)
        waiting.set_function(num_waiting)

    def count_batch(self, call: Call) -> None:
        """Note that the model has computed a batch."""
        self.texts.labels(call.ability).inc(call.size)
        self.batch_texts.observe(call.size)

    def response(self) -> Response:
        """All figures as Prometheus reads them."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class Measured:
    """An app whose requests are counted and timed."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, routes: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and note how that went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        code, start = CLIENT_GONE, time.perf_counter()

        async def note_code(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_code)
        finally:
            route = scope["path"] if scope["path"] in self._routes else OTHER
            self._metrics.requests.labels(route, code).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)


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
    folder = resources.files("electra.serve") / "page"
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
