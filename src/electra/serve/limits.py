"""Requests as they come -> those that keep to the limits of the server.

uvicorn bounds neither the size of a body nor the time that a client takes to send it. So a request meets one
guard after the other:

`connections.BoundedProtocol`    its connection: how many there are, its head, and whether answers are taken
`AdmissionMiddleware`            host and key, then the size and the time of its body, before the app sees any
`requests.make_call`             the texts of its fields
`batching.Batcher`               the length of the queue, and the time until the answer
"""

import asyncio
import contextlib
import dataclasses
import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra.errors import InputError
from electra.serve.errors import ApiError, error_response
from electra.serve.hosts import Hosts

LINGER_SECONDS = 2.0
"""For how long the rest of a refused body is read and thrown away."""
BODIES_PER_PLACE = 4
"""Bodies that may be arriving at the same time, for each place in the queue."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server: whatever clients do, its memory and its time for each of them are bounded."""

    queue_size: int = 32
    """Requests that may wait for the model; the next one is answered 503."""
    max_batch: int = 64
    """Texts up to which waiting requests of one kind are computed together; a larger one runs alone."""
    deadline: float = 10.0
    """Seconds for a request, including its time in the queue; after that it is answered 503."""
    max_texts: int = 128
    """Texts in a request."""
    max_characters: int = 50_000
    """Characters of all texts in a request; two long texts of a pair count as often as they are read."""
    max_options: int = 64
    """Options that a pre-trained model is to choose from; each is read with each text."""
    max_option_characters: int = 200
    """Characters of an option, and of the template that it stands in."""
    max_body: int = 1_000_000
    """Bytes in the body of a request."""
    body_seconds: float = 10.0
    """Seconds in which the whole body has to arrive."""
    chunk_seconds: float = 5.0
    """Seconds in which the next part of the body has to arrive."""
    answer_seconds: float = 20.0
    """Seconds in which a client has to take an answer; after that the connection is cut."""
    max_connections: int = 512
    """Connections at the same time, if the process may open twice as many files; the next one is refused."""
    drain_seconds: float = 30.0
    """Seconds for answering open requests when the server is asked to stop."""

    def __post_init__(self) -> None:
        for key in dataclasses.fields(Limits):
            value = getattr(self, key.name)
            if not 0 < value < math.inf:
                raise InputError(f"{key.name} is {value}, expected a number above 0")

    @property
    def max_bodies(self) -> int:
        """Bodies that may be arriving at the same time: they take no place in the queue, but memory."""
        return BODIES_PER_PLACE * self.queue_size


class ClientGoneError(Exception):
    """The client closed the connection before its request was whole: there is nobody to answer."""


class AdmissionMiddleware:
    """Reads a request and passes it on to `app` if it has a host, the key and a body as they should be.

    Plain ASGI in front of FastAPI, which reads the whole body before it checks anything: here the key is
    compared before the body is read, and the body is counted and timed while it arrives. A request is
    cancelled when its client leaves.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        key: str | None = None,
        hosts: Hosts | None = None,
        is_public: Callable[[str], bool] = lambda path: False,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_public`: whether a path is served without the key, and while the server is busy or stopping."""
        self._app = app
        self._limits = limits
        self._key = None if key is None else key.encode()
        self._hosts = hosts or Hosts()
        self._is_public = is_public
        self._is_draining = is_draining
        self._num_bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._hosts.check(headers)
            if not self._is_public(scope["path"]):
                self._check_key(headers)
                self._check_capacity()
            body = await self._read_body(scope, receive)
        except ApiError as error:
            await refuse(error, scope, receive, send)
        except ClientGoneError:
            return
        else:
            await answer_unless_gone(self._app, body, scope, receive, send)

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # In constant time, whatever was given. Headers are bytes that were decoded as Latin-1.
        if not hmac.compare_digest(given.encode("latin-1"), self._key):
            raise ApiError(
                401, "the key is missing or wrong: send `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )

    def _check_capacity(self) -> None:
        if self._is_draining():
            raise ApiError(503, "the server is about to stop: try again later")
        if self._num_bodies >= self._limits.max_bodies:
            raise ApiError(503, "too many requests are arriving at the same time: try again")

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        declared = Headers(scope=scope).get("content-length", "0")
        self._check_size(int(declared) if declared.isdecimal() else 0)
        self._num_bodies += 1
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._receive_all(receive)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive in time: {self._limits.body_seconds:g} s for all of it, "
                f"{self._limits.chunk_seconds:g} s for the next part",
            ) from None
        finally:
            self._num_bodies -= 1

    async def _receive_all(self, receive: Receive) -> bytes:
        body = bytearray()
        more = True
        while more:
            async with asyncio.timeout(self._limits.chunk_seconds):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            body += message.get("body", b"")
            self._check_size(len(body))
            more = message.get("more_body", False)
        return bytes(body)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body:
            raise ApiError(
                413, f"the body may have {self._limits.max_body:,} bytes: send fewer texts in a request"
            )


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that was not read to its end, and close the connection.

    Many clients do not listen before they have sent everything. Closing at once would reset the connection,
    and they would never see why; so the rest of the body is read for a moment and thrown away.
    """

    async def send_and_linger(message: Message) -> None:
        if message["type"] != "http.response.body":
            await send(message)
            return
        await send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    response = error_response(error)
    response.headers["Connection"] = "close"
    await response(scope, receive, send_and_linger)


async def answer_unless_gone(app: ASGIApp, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the app answer a request, and cancel it if the client closes the connection first."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    # After a whole body there is nothing left to receive except the end of the connection.
    leaving = asyncio.ensure_future(receive())

    async def replay() -> Message:
        return whole.pop() if whole else await asyncio.shield(leaving)

    answering = asyncio.ensure_future(app(scope, replay, send))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        answering.cancel()
        # The app may have to clean up, and its errors are the caller's.
        await asyncio.wait((answering,))
    if not answering.cancelled():
        answering.result()
