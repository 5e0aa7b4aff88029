"""Requests and batches as they happen -> figures for Prometheus."""

import time
from collections.abc import Callable, Collection

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra.serve.batching import Call

CLIENT_GONE = 499
"""The code of a request whose client did not wait for the answer, as in nginx."""
OTHER = "other"
"""The route of all unknown paths and of the page's files: clients must not be able to add series."""
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
            "electra_batch_texts", "Texts in a batch.", buckets=TEXTS, registry=registry
        )
        waiting = Gauge("electra_queue_length", "Requests that wait for the model.", registry=registry)
        waiting.set_function(num_waiting)

    def count_batch(self, call: Call) -> None:
        """Record that the model has computed a batch."""
        self.texts.labels(call.ability).inc(call.size)
        self.batch_texts.observe(call.size)

    def response(self) -> Response:
        """All figures in the format of Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class MetricsMiddleware:
    """Counts and times the requests of an app."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, routes: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and record its outcome."""
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
        except Exception:
            # FastAPI answers it further out.
            code = 500
            raise
        finally:
            route = scope["path"] if scope["path"] in self._routes else OTHER
            self._metrics.requests.labels(route, code).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)
