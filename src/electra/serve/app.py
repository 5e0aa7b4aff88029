"""A loaded model -> an ASGI app: a JSON API with the model's abilities, health, metrics, and the page.

    application = build_app(electra.load("RUN"), limits=Limits(), key="secret")

From the outside in: headers and figures (`page_files`, `metrics`), key and body (`gate`), routes (here),
fields of the body (`requests`), queue (`batching`), model.
"""

import asyncio
import contextlib
import inspect
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pydantic_core
from fastapi import FastAPI, Request, Response, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import create_model
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from electra import __version__
from electra.errors import InputError
from electra.prediction.model import Model
from electra.serve.batching import Batcher, Call
from electra.serve.errors import (
    RefusalError,
    answer_failure,
    answer_refusal,
    answer_unrouted,
    documented,
    internal,
)
from electra.serve.limits import Gate, Limits
from electra.serve.observing import Measured, Metrics, WithHeaders, read_page
from electra.serve.requests import (
    REQUESTS,
    RESULTS,
    Health,
    ModelFacts,
    RequestLimits,
    body_schema,
    read_call,
)

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed", "draining"]
NOT_READY: dict[State, str] = {
    "loading": "the model reads its first text: ask again",
    "failed": "the model cannot be used: the server's log tells why",
    "draining": "the server is about to stop: ask again later",
}
JSON = "application/json"
LIVE, READY = "/health/live", "/health/ready"
ANYWHERE = (401, 408, 413, 500, 503)
"""Refusals that any path may answer with."""
BATCHES_AT_ONCE = 2
PARTS = ("final", "discriminator", "generator")
"""Folders that are named for what they are in a run, not for the model."""


class Application:
    """The app, and what its surroundings may ask of it."""

    def __init__(self, model: Model, *, limits: Limits, key: str | None = None) -> None:
        self.state: State = "loading"
        self._model = model
        self._limits = limits
        self._page = read_page()
        self._batcher = Batcher(
            self._compute,
            limits,
            at_once=BATCHES_AT_ONCE,
            on_batch=lambda call: self._metrics.count_batch(call),
        )
        self._metrics = Metrics(num_waiting=lambda: self._batcher.num_waiting)
        api = self._build_api(has_key=key is not None)
        self._gate = Gate(api, limits=limits, key=key, open_paths=(*self._page, LIVE, READY))
        routes = [route.path for route in api.routes if hasattr(route, "path")]
        self._outermost = WithHeaders(Measured(self._gate, self._metrics, routes=routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._outermost(scope, receive, send)

    def drain(self) -> None:
        """Take no more requests, and say so; those that were let in are answered."""
        self.state = "draining"
        self._gate.close(NOT_READY["draining"])

    def _build_api(self, *, has_key: bool) -> FastAPI:
        # FastAPI's own pages load scripts from elsewhere; the description itself is at /openapi.json.
        api = FastAPI(
            title="electra",
            version=__version__,
            description="Texts in, plain data out. All texts of a request are read, however long they are.",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self._lifespan,
            exception_handlers={
                RefusalError: answer_refusal,
                HTTPException: answer_unrouted,
                Exception: answer_failure,
            },
        )
        # The gate has compared it long before; this tells of it in the description.
        keys = [
            Security(HTTPBearer(auto_error=False)),
            Security(APIKeyHeader(name="X-API-Key", auto_error=False)),
        ]
        needed = keys if has_key else []
        for path in self._page:
            api.add_api_route(path, self._answer_page, include_in_schema=False)
        for path, endpoint in {LIVE: self._answer_live, READY: self._answer_ready}.items():
            name = path.strip("/").replace("/", "_")
            api.add_api_route(
                path, endpoint, operation_id=name, tags=["health"], responses=documented(*ANYWHERE)
            )
        api.add_api_route("/metrics", self._answer_metrics, include_in_schema=False)
        api.add_api_route(
            "/model",
            self._answer_facts,
            operation_id="model",
            tags=["model"],
            responses=documented(*ANYWHERE),
            dependencies=needed,
        )
        for ability in self._model.abilities:
            self._add_ability(api, ability, dependencies=needed)
        return api

    def _add_ability(self, api: FastAPI, ability: str, *, dependencies: list[Any]) -> None:
        async def answer(request: Request) -> Response:
            return await self._answer(ability, request)

        body = {"required": True, "content": {JSON: {"schema": body_schema(ability, self._limits)}}}
        api.add_api_route(
            f"/{ability}",
            answer,
            methods=["POST"],
            operation_id=ability,
            summary=ability.capitalize(),
            description=inspect.getdoc(getattr(Model, ability)) or "",
            tags=["abilities"],
            response_model=None,
            responses={
                200: {
                    "model": create_model(f"{ability.capitalize()}Answer", results=(RESULTS[ability], ...)),
                    "description": "One result for each text, in the same order.",
                },
                **documented(*ANYWHERE, 415, 422),
            },
            openapi_extra={"requestBody": body},
            dependencies=dependencies,
        )

    async def _answer(self, ability: str, request: Request) -> Response:
        # This also keeps other sites out: without asking first, a browser sends no JSON across sites.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise RefusalError(415, f"the content type must be {JSON}")
        tuned, reader = self._model.tuned, self._model.reader
        row_length = reader.max_length if tuned is None else tuned.max_length
        call = read_call(ability, await request.body(), self._limits, row_length=row_length)
        try:
            results = await self._batcher.submit(call)
        except RefusalError:
            raise
        except Exception as error:
            raise refusal_of(error, call) from error
        return Response(pydantic_core.to_json({"results": results}), media_type=JSON)

    def _compute(self, call: Call) -> list[Any]:
        answers: list[Any] = getattr(self._model, call.ability)(**call.columns, **call.options)
        return answers

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with self._batcher.running():
            warming_up = asyncio.create_task(self._warm_up())
            yield
            warming_up.cancel()

    async def _warm_up(self) -> None:
        """Compute the examples of the API: the first call is slow, and a damaged model shows itself."""
        outcome: State = "ready"
        try:
            for ability in self._model.abilities:
                (example,) = REQUESTS[ability].model_json_schema()["examples"]
                await asyncio.to_thread(getattr(self._model, ability), **example)
        except Exception:
            logger.exception("the model does not work")
            outcome = "failed"
        # It may have been told to stop meanwhile.
        if self.state == "loading":
            self.state = outcome

    async def _answer_live(self) -> Health:
        """Whether the server works at all."""
        if not self._batcher.is_running:
            raise RefusalError(503, "nothing is computed any more: start the server anew")
        return Health(status="live")

    async def _answer_ready(self) -> Health:
        """Whether requests should be sent here."""
        if self.state != "ready":
            raise RefusalError(503, NOT_READY[self.state])
        return Health(status="ready")

    async def _answer_facts(self) -> ModelFacts:
        """What the model can do, and how much of it in a request."""
        names = [part for part in Path(self._model.path).resolve().parts if part not in PARTS]
        limits = self._limits
        return ModelFacts(
            name=names[-1],
            abilities=list(self._model.abilities),
            labels=list(self._model.labels),
            max_length=self._model.reader.max_length,
            limits=RequestLimits(
                max_texts=limits.max_texts, max_characters=limits.max_characters, max_body=limits.max_body
            ),
        )

    async def _answer_metrics(self) -> Response:
        return self._metrics.response()

    async def _answer_page(self, request: Request) -> Response:
        return self._page[request.url.path]


def build_app(model: Model, *, limits: Limits, key: str | None = None) -> Application:
    """The app for a model; with a key, only those who send it are served."""
    return Application(model, limits=limits, key=key)


def refusal_of(error: Exception, call: Call) -> RefusalError:
    """What to tell of an error of the model: fields are checked before, but for what only it can judge."""
    named = re.match(r"((\w+)(?:\[\d+\])*) (?:is|has|holds) ", str(error))
    if isinstance(error, InputError) and named and named[2] in call.columns:
        return RefusalError(422, str(error), field=named[1])
    return internal(error, what=call.ability)
