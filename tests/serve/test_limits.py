import asyncio
import json
import math

import pytest

from electra.errors import InputError
from electra.serve import limits
from electra.serve.limits import AdmissionMiddleware, Limits


@pytest.mark.parametrize("key", ["queue_size", "max_batch", "deadline", "max_body", "drain_seconds"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_a_bound_is_more_than_nothing(key, value):
    with pytest.raises(InputError, match=rf"{key}.*{value}"):
        Limits(**{key: value})


def test_bodies_under_way_are_bounded_too():
    assert Limits(queue_size=3).max_bodies == 12


# Requests

KEY = "a-secret-key"


class Client:
    """Sends messages as a server would pass them on, with pauses, and keeps what comes back."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.num_received = 0
        self.sent = []

    async def receive(self):
        self.num_received += 1
        if not self.messages:
            await asyncio.Event().wait()
        message = self.messages.pop(0)
        if isinstance(message, float):
            await asyncio.sleep(message)
            return await self.receive()
        return message

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message["body"] for message in self.sent[1:])


def chunk(body, *, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def echo(scope, receive, send):
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def scope_of(path="/detect", **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "headers": pairs}


def is_public(path):
    return path in ("/", "/health/live")


def pass_through(client, *, app=echo, key=None, scope=None, **limits):
    admission = AdmissionMiddleware(app, limits=Limits(**limits), key=key, is_public=is_public)
    asyncio.run(asyncio.wait_for(admission(scope or scope_of(), client.receive, client.send), 30))


@pytest.fixture(autouse=True)
def short_linger(monkeypatch):
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.05)


def test_a_whole_body_reaches_the_app():
    client = Client(chunk(b"one ", more=True), chunk(b"two"))
    pass_through(client)
    assert (client.status, client.body) == (200, b"one two")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"x_api_key": KEY},
        {"authorization": "Basic abc", "x_api_key": KEY},
    ],
)
def test_the_right_key_opens(headers):
    client = Client(chunk(b"hello"))
    pass_through(client, key=KEY, scope=scope_of(**headers))
    assert client.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"x_api_key": "wrong"},
        {"x_api_key": f"{KEY}é"},
    ],
)
def test_a_wrong_key_is_refused_before_the_body_is_asked_for(headers):
    class Unread(Client):
        async def receive(self):
            assert self.sent, "the body was read before the answer"
            return await super().receive()

    client = Unread(chunk(b"hello"))
    pass_through(client, key=KEY, scope=scope_of(**headers))
    assert client.status == 401
    assert json.loads(client.body)["error"]["code"] == "unauthorized"
    assert (b"connection", b"close") in client.sent[0]["headers"]


def test_what_is_open_needs_no_key():
    client = Client(chunk(b""))
    pass_through(client, key=KEY, scope=scope_of("/health/live"))
    assert client.status == 200


def test_a_body_that_is_declared_too_large_is_refused_unread():
    client = Client()
    pass_through(client, max_body=10, scope=scope_of(content_length="11"))
    assert client.status == 413


@pytest.mark.parametrize("declared", [{}, {"content_length": "3"}, {"content_length": "²"}])
def test_a_body_that_becomes_too_large_is_refused(declared):
    client = Client(*(chunk(b"12345", more=True) for _ in range(3)), chunk(b""))
    pass_through(client, max_body=10, scope=scope_of(**declared))
    assert client.status == 413


def test_a_body_at_the_limit_is_taken():
    client = Client(chunk(b"12345", more=True), chunk(b"67890"))
    pass_through(client, max_body=10, scope=scope_of(content_length="10"))
    assert client.body == b"1234567890"


@pytest.mark.parametrize(
    ("pauses", "limits"),
    [
        ([60.0], {"chunk_seconds": 0.05}),
        ([0.04] * 50, {"chunk_seconds": 10.0, "body_seconds": 0.1}),
    ],
    ids=["one pause", "drop by drop"],
)
def test_a_slow_body_is_refused(pauses, limits):
    messages = [part for pause in pauses for part in (pause, chunk(b"x", more=True))]
    client = Client(*messages, chunk(b""))
    pass_through(client, **limits)
    assert client.status == 408


def test_after_a_refusal_the_rest_is_taken_and_thrown_away():
    client = Client(*(chunk(b"x" * 100, more=True) for _ in range(20)), chunk(b""))
    pass_through(client, max_body=10)
    assert client.status == 413
    assert not client.messages
    assert not client.sent[-1]["more_body"]


def test_a_client_that_leaves_in_the_middle_gets_nothing():
    client = Client(chunk(b"half", more=True), GONE)
    pass_through(client)
    assert client.sent == []


def test_the_app_is_stopped_when_the_client_leaves():
    ended = []

    async def forever(scope, receive, send):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    pass_through(Client(chunk(b"hello"), 0.01, GONE), app=forever)
    assert ended


def test_the_app_can_hear_of_the_end():
    heard = []

    async def listening(scope, receive, send):
        heard.extend([await receive(), await receive()])

    pass_through(Client(chunk(b"hello"), GONE), app=listening)
    assert heard[0]["body"] == b"hello"


def test_errors_of_the_app_are_passed_on():
    async def broken(scope, receive, send):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        pass_through(Client(chunk(b"hello")), app=broken)


def test_too_many_bodies_at_a_time_are_refused_but_health_is_not():
    async def scenario():
        admit = AdmissionMiddleware(echo, limits=Limits(queue_size=1), is_public=is_public)
        slow = [Client(chunk(b"x", more=True), 0.2, chunk(b"")) for _ in range(4)]
        tasks = [asyncio.create_task(admit(scope_of(), client.receive, client.send)) for client in slow]
        await asyncio.sleep(0.05)
        refused, healthy = Client(chunk(b"")), Client(chunk(b""))
        await admit(scope_of(), refused.receive, refused.send)
        await admit(scope_of("/health/live"), healthy.receive, healthy.send)
        await asyncio.gather(*tasks)
        later = Client(chunk(b""))
        await admit(scope_of(), later.receive, later.send)
        assert [client.status for client in (*slow, refused, healthy, later)] == [200] * 4 + [503, 200, 200]

    asyncio.run(scenario())


def test_draining_admits_nobody_but_serves_those_inside():
    async def scenario():
        draining = asyncio.Event()
        admit = AdmissionMiddleware(echo, limits=Limits(), is_public=is_public, is_draining=draining.is_set)
        inside, late, healthy = Client(0.1, chunk(b"in")), Client(chunk(b"late")), Client(chunk(b""))
        task = asyncio.create_task(admit(scope_of(), inside.receive, inside.send))
        await asyncio.sleep(0)
        draining.set()
        await admit(scope_of(), late.receive, late.send)
        await admit(scope_of("/health/live"), healthy.receive, healthy.send)
        await task
        assert (inside.status, inside.body) == (200, b"in")
        assert (late.status, healthy.status) == (503, 200)

    asyncio.run(scenario())
