"""A loaded model -> a server of a JSON API with the model's abilities, health, metrics and a web page.

    app = build_app(electra.load("RUN"), limits=Limits(), key="secret")
    with listen("127.0.0.1", 8000) as listening:
        Server(app, drain_seconds=30).run(sockets=[listening])

The way of a request: uvicorn (`Server`), its connection (`connections`), host (`hosts`), key and body
(`limits`), a route (here) with the fields of its body (`requests`), the queue (`batching`), the model
(`electra.prediction.model`).
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, cast

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic import create_model
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra import __version__
from electra.errors import INTERRUPTED, InputError
from electra.prediction.model import Model
from electra.serve.batching import Batcher, Call
from electra.serve.connections import BoundedProtocol, backlog_for, most_connections, note_loop_error
from electra.serve.errors import REASONS, ApiError, documented, error_response, internal_error
from electra.serve.hosts import Hosts
from electra.serve.limits import AdmissionMiddleware, Limits
from electra.serve.metrics import Metrics, MetricsMiddleware
from electra.serve.requests import (
    AbilityRequest,
    ModelFacts,
    RequestLimits,
    ServerHealth,
    bounds_schema,
    endpoint_of,
    explain_invalid,
    make_call,
)

logger = logging.getLogger(__name__)

Status = Literal["loading", "ready", "failed", "draining"]
NOT_READY: dict[Status, str] = {
    "loading": "the model is computing its first texts: try again",
    "failed": "the model does not work: see the server's log",
    "draining": "the server is about to stop: try again later",
}
BATCHES_AT_ONCE = 2
JSON = "application/json"
ANYWHERE = (401, 403, 408, 413, 421, 500, 503)
"""Errors that any path may answer with."""
LIVE, READY = "/health/live", "/health/ready"
PAGE = Path(__file__).with_name("page")
PARTS = ("final", "discriminator", "generator")
"""Folders that are named for their place in a run, not for the model."""
SECURITY_HEADERS = {
    # Nothing from another site, nothing inline, in nobody's frame.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 5
"""For requests to end after their connections were cut."""


class Service:
    """A model behind a queue, and whether it should get requests."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model = model
        self.limits = limits
        self.status: Status = "loading"
        self.metrics = Metrics(num_waiting=lambda: self.batcher.num_waiting)
        self.batcher = Batcher(
            self._compute, limits, at_once=BATCHES_AT_ONCE, on_batch=self.metrics.count_batch
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute what is in the queue for as long as this lasts."""
        async with self.batcher.running():
            warming_up = asyncio.create_task(self._warm_up())
            yield
            warming_up.cancel()

    def drain(self) -> None:
        """Take no more requests; those that were admitted are answered."""
        self.status = "draining"

    async def answer(self, ability: str, body: AbilityRequest) -> list[Any]:
        """One result for each text of a request."""
        tuned, reader = self.model.tuned, self.model.reader
        row_length = reader.max_length if tuned is None else tuned.max_length
        task = self.model.task_ability
        num_readings = tuned.family.num_readings if tuned and task and task.name == ability else 1
        call = make_call(ability, body, self.limits, row_length=row_length, num_readings=num_readings)
        try:
            return await self.batcher.submit(call)
        except ApiError:
            raise
        except InputError as error:
            # Fields are checked before, except for what only the model can judge: it names the field first.
            named = re.match(r"(\w+)(\[\d+\])*", str(error))
            if named and named[1] in (*call.columns, *call.options):
                raise ApiError(422, str(error), field=named[0]) from error
            raise internal_error(error, what=ability) from error
        except Exception as error:
            raise internal_error(error, what=ability) from error

    def _compute(self, call: Call) -> list[Any]:
        return self.model.ask(call.ability, **call.columns, **call.options)

    async def _warm_up(self) -> None:
        """Compute the API's examples: the first call is slow, and a damaged model shows itself."""
        outcome: Status = "ready"
        try:
            for ability in self.model.abilities:
                endpoint = endpoint_of(ability, is_tuned=self.model.tuned is not None)
                if endpoint.warms_up:
                    await asyncio.to_thread(self.model.ask, ability, **endpoint.example)
        except Exception:
            logger.exception("the model does not work")
            outcome = "failed"
        # It may have been told to stop meanwhile.
        if self.status == "loading":
            self.status = outcome


def build_app(model: Model, *, limits: Limits, key: str | None = None, hosts: Hosts | None = None) -> FastAPI:
    """The app for a model; with a key, only clients that send it are served.

    Unless other `hosts` are given, it answers to the names that this machine has for itself.
    """
    service = Service(model, limits)
    app = FastAPI(
        title="electra",
        version=__version__,
        description="Texts in, plain data out. Texts of any length are read to their end.",
        # FastAPI's own pages load scripts from other sites; the description itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lambda _: service.running(),
        exception_handlers={
            HTTPException: answer_http_error,
            RequestValidationError: answer_invalid_body,
            Exception: answer_failure,
        },
    )
    app.state.service = service
    # These put the key into the description. The middleware checks it, before the body is read and for
    # unknown paths too.
    keys = [Depends(HTTPBearer(auto_error=False)), Depends(APIKeyHeader(name="X-API-Key", auto_error=False))]
    needed = [] if key is None else keys
    app.include_router(public_routes)
    app.include_router(routes, dependencies=needed)
    for ability in model.abilities:
        add_ability(app, ability, service, dependencies=[*needed, Depends(require_json)])
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    # The last one is the outermost.
    app.add_middleware(
        AdmissionMiddleware,
        limits=limits,
        key=key,
        hosts=hosts,
        is_public=lambda path: path in ("/", LIVE, READY) or path.startswith("/page/"),
        is_draining=lambda: service.status == "draining",
    )
    app.add_middleware(
        MetricsMiddleware,
        metrics=service.metrics,
        routes=["/", LIVE, READY, "/metrics", "/model", *(f"/{ability}" for ability in model.abilities)],
    )
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(HeadMiddleware)
    return app


def add_ability(app: FastAPI, ability: str, service: Service, *, dependencies: list[Any]) -> None:
    """The route of an ability: a body like its model in, results like their model out."""
    endpoint = endpoint_of(ability, is_tuned=service.model.tuned is not None)

    async def answer(body: AbilityRequest) -> dict[str, Any]:
        return {"results": await service.answer(ability, body)}

    # FastAPI reads the model of the body from the annotation.
    answer.__annotations__["body"] = endpoint.request
    bounds = bounds_schema(endpoint, service.limits)
    app.add_api_route(
        f"/{ability}",
        answer,
        methods=["POST"],
        operation_id=ability,
        summary=ability.capitalize(),
        description=inspect.getdoc(getattr(Model, ability, endpoint.request)) or "",
        tags=["abilities"],
        response_model=create_model(f"{ability.capitalize()}Answer", results=(endpoint.results, ...)),
        response_description="One result for each text, in the same order.",
        responses=documented(*ANYWHERE, 415, 422),
        openapi_extra={"requestBody": {"content": {JSON: {"schema": bounds}}}},
        dependencies=dependencies,
    )


async def require_json(request: Request) -> None:
    """Refuse any other type: browsers then ask before they send a body from another site."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise ApiError(415, f"the content type must be {JSON}")


async def current_service(request: Request) -> Service:
    """The service of the app that got the request."""
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(current_service)]
public_routes = APIRouter()
routes = APIRouter()


@public_routes.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The web page; its scripts and styles are files in /page."""
    return FileResponse(PAGE / "index.html")


@public_routes.get(LIVE, operation_id="health_live", tags=["health"], responses=documented(*ANYWHERE))
async def live(service: CurrentService) -> ServerHealth:
    """Whether the server works at all."""
    if not service.batcher.is_running:
        raise ApiError(503, "the server computes nothing any more: restart it")
    return ServerHealth(status="live")


@public_routes.get(READY, operation_id="health_ready", tags=["health"], responses=documented(*ANYWHERE))
async def ready(service: CurrentService) -> ServerHealth:
    """Whether requests should be sent here."""
    if service.status != "ready":
        raise ApiError(503, NOT_READY[service.status])
    return ServerHealth(status="ready")


@routes.get("/model", operation_id="model", tags=["model"], responses=documented(*ANYWHERE))
async def facts(service: CurrentService) -> ModelFacts:
    """What the model can do, and how large a request may be."""
    model, limits = service.model, service.limits
    names = [part for part in Path(model.path).resolve().parts if part not in PARTS]
    return ModelFacts(
        name=names[-1],
        abilities=list(model.abilities),
        task=None if model.tuned is None else model.tuned.task,
        labels=list(model.labels),
        max_length=model.reader.max_length,
        precision=model.precision,
        precision_reason=model.precision_reason,
        limits=RequestLimits(
            max_texts=limits.max_texts, max_characters=limits.max_characters, max_body=limits.max_body
        ),
    )


@routes.get("/metrics", include_in_schema=False)
async def metrics(service: CurrentService) -> Response:
    """Figures for Prometheus."""
    return service.metrics.response()


async def answer_http_error(_: Request, error: Exception) -> Response:
    """What a route refused; or what FastAPI did: a path, a method, or a body that is no text."""
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error_response(error)
    if error.status_code == 400:
        message = "the body cannot be decoded: wrong encoding, too many levels, or a number that is too long"
        return error_response(ApiError(422, message, field="body"))
    response = error_response(ApiError(error.status_code, REASONS[error.status_code].description))
    response.headers.update(error.headers or {})
    return response


async def answer_invalid_body(_: Request, error: Exception) -> Response:
    """A body that does not fit the model of its route."""
    assert isinstance(error, RequestValidationError)
    return error_response(explain_invalid(error.errors()))


async def answer_failure(request: Request, error: Exception) -> Response:
    """A bug in this program. Starlette sends this answer from outside of all middleware."""
    response = error_response(internal_error(error, what=f"{request.method} {request.url.path}"))
    response.headers.update(SECURITY_HEADERS)
    return response


class HeadMiddleware:
    """Answers HEAD as GET is answered; uvicorn sends all of it but the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        # A copy: uvicorn looks at its own.
        is_head = scope.get("method") == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class SecurityHeadersMiddleware:
    """Tells browsers to do what the page needs, and no more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                # Only files have a tag. Browsers ask for them again each time, so that a new version of the
                # page is not mixed with an old one.
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
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
    """The address under which clients reach a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with our limits, which on a signal answers what it has admitted and then ends normally."""

    def __init__(self, app: FastAPI, *, drain_seconds: float) -> None:
        self._service: Service = app.state.service
        self._drain_seconds = drain_seconds
        limits = self._service.limits
        max_connections = most_connections(limits.max_connections)
        protocol = functools.partial(
            BoundedProtocol, answer_seconds=limits.answer_seconds, max_connections=max_connections
        )
        super().__init__(
            uvicorn.Config(
                app,
                # All that uvicorn does with it is to call it.
                http=cast(type[asyncio.Protocol], protocol),
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=backlog_for(max_connections),
                # Before that, `shutdown` has ended everything that is expected.
                timeout_graceful_shutdown=round(drain_seconds) + GRACE_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does it, but without raising the signal again at the end: draining is all it causes."""
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
        """Accept nothing more and answer what was accepted; a second Ctrl-C does not wait for that."""
        if self.should_exit and sig == signal.SIGINT:
            # There is nothing to save. A normal end would cancel every request, with a traceback for each,
            # and wait for the thread in which the model computes.
            print("electra: interrupted: at the second signal, requests were not answered", file=sys.stderr)
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        self._service.drain()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; a flood of connections does not become a flood of lines in the log."""
        asyncio.get_running_loop().set_exception_handler(note_loop_error)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; who is not answered in time is cut off.

        uvicorn would cancel such requests, with a traceback for each. A request whose connection is lost ends
        by itself.
        """
        cut = asyncio.get_running_loop().call_later(self._drain_seconds, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut_connections(self) -> None:
        connections = list(self.server_state.connections)
        logger.warning("%d connections are cut: their requests were not answered in time", len(connections))
        for connection in connections:
            connection.transport.abort()
