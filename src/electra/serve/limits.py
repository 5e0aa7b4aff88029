"""How much a server takes on at a time -> one config; what it costs to read some texts.

Requests as they come from the network -> those with the right key and a whole, bounded body.

Pure ASGI: the key is compared before a byte of the body is read, the body is counted and timed while it
arrives, and a request whose client has gone is given up.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electra.errors import InputError
from electra.serve.errors import RefusalError

BODIES_PER_PLACE = 4
"""Bodies that may be under way at a time, for each place in the queue."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server: whatever clients do, its memory and its time for each of them have an end."""

    queue_size: int = 32
    """Requests that may wait for the model; one more is answered 503."""
    max_batch: int = 64
    """Texts that requests of one kind are computed together up to; a larger request is computed alone."""
    deadline: float = 10.0
    """Seconds for a request, its time in the queue included; after that the answer is 503."""
    max_texts: int = 128
    """Texts of a request."""
    max_characters: int = 50_000
    """Characters of all texts of a request; two long texts of a pair count as often as they are read."""
    max_body: int = 1_000_000
    """Bytes of a request's body."""
    body_seconds: float = 10.0
    """Seconds in which a body has to arrive."""
    chunk_seconds: float = 5.0
    """Seconds in which some more of a body has to arrive."""
    drain_seconds: float = 30.0
    """Seconds that requests get to be answered when the server is asked to stop."""

    def __post_init__(self) -> None:
        for key in dataclasses.fields(Limits):
            value = getattr(self, key.name)
            if not 0 < value < math.inf:
                raise InputError(f"{key.name} is {value}, expected a number above 0")

    @property
    def max_bodies(self) -> int:
        """Bodies that are received at a time: slow clients take no place in the queue, but memory."""
        return BODIES_PER_PLACE * self.queue_size


def pair_cost(first: Sequence[str], second: Sequence[str], *, row_length: int) -> int:
    """Characters that are read of pairs, roughly.

    If neither text of a pair fits into half a row, each window of one is read with each of the other.
    """
    return sum(
        max(len(a) + len(b), 2 * len(a) * len(b) // row_length) for a, b in zip(first, second, strict=True)
    )


LINGER_SECONDS = 2.0
"""How long a refused body is taken and thrown away."""


class ClientGoneError(Exception):
    """The connection was closed before the request was whole: there is nobody to answer."""


class Gate:
    """Lets a request through to `app` when it is whole."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, key: str | None, open_paths: Collection[str] = ()
    ) -> None:
        self._app = app
        self._limits = limits
        self._key = None if key is None else key.encode()
        self._open_paths = frozenset(open_paths)
        self._num_bodies = 0
        self._closed_because: str | None = None

    def close(self, because: str) -> None:
        """Let nobody in any more; health can still be asked for."""
        self._closed_because = because

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            self._check_open(scope)
            body = await self._body(scope, receive)
        except RefusalError as refusal:
            await refuse(refusal, scope, receive, send)
        except ClientGoneError:
            return
        else:
            await answer_unless_gone(self._app, body, scope, receive, send)

    def _check_open(self, scope: Scope) -> None:
        if self._closed_because is not None and scope["path"] not in self._open_paths:
            raise RefusalError(503, self._closed_because)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in self._open_paths:
            return
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Takes as long for a key that is nearly right. Headers are bytes that were read as Latin-1.
        if not hmac.compare_digest(given.encode("latin-1"), self._key):
            raise RefusalError(
                401, "the key is missing or wrong: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, if it is not too large, too slow, or one of too many."""
        declared = Headers(scope=scope).get("content-length", "0")
        self._check_size(int(declared) if declared.isdecimal() else 0)
        # What takes no key has no body worth waiting for, and has to work when all else is busy.
        if self._num_bodies >= self._limits.max_bodies and scope["path"] not in self._open_paths:
            raise RefusalError(503, "too many requests are arriving at the same time: ask again")
        self._num_bodies += 1
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._receive_all(receive)
        except TimeoutError:
            raise RefusalError(
                408,
                f"the body did not arrive: it may take {self._limits.body_seconds:g} s in all, and "
                f"{self._limits.chunk_seconds:g} s without a byte",
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
            raise RefusalError(
                413, f"the body may have {self._limits.max_body:,} bytes: send fewer texts at a time"
            )


async def refuse(refusal: RefusalError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that was not read to its end, and close the connection.

    Many clients listen only when they have sent all. To close at once would reset the connection, and they
    would never see why; so the rest is taken for a moment. Nothing of it is kept.
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

    response = refusal.response()
    response.headers["Connection"] = "close"
    await response(scope, receive, send_and_linger)


async def answer_unless_gone(app: ASGIApp, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the app answer a request, and stop it if the client closes the connection before."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    # After a whole body nothing can be received but the end of the connection.
    leaving = asyncio.ensure_future(receive())

    async def replay() -> Message:
        return whole.pop() if whole else await asyncio.shield(leaving)

    answering = asyncio.ensure_future(app(scope, replay, send))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        answering.cancel()
        # The app may have to clean up; and its errors are for the caller.
        await asyncio.wait((answering,))
    if not answering.cancelled():
        answering.result()
