import asyncio

import pytest

from electra.serve.batching import Call
from electra.serve.metrics import Metrics, MetricsMiddleware


def lines(metrics):
    found = dict(
        line.rsplit(" ", 1)
        for line in metrics.response().body.decode().splitlines()
        if not line.startswith("#")
    )
    return {name: float(value) for name, value in found.items()}


async def nothing():
    raise AssertionError("nobody receives here")


async def ignore(_):
    pass


def serve(app, metrics, path):
    measured = MetricsMiddleware(app, metrics=metrics, routes=["/detect"])
    asyncio.run(measured({"type": "http", "path": path}, nothing, ignore))


@pytest.fixture
def metrics():
    return Metrics(num_waiting=lambda: 7)


async def teapot(scope, receive, send):
    await send({"type": "http.response.start", "status": 418, "headers": []})


def test_requests_are_counted_by_route_and_code(metrics):
    for _ in range(3):
        serve(teapot, metrics, "/detect")
    found = lines(metrics)
    assert found['electra_requests_total{code="418",route="/detect"}'] == 3
    assert found['electra_request_seconds_count{route="/detect"}'] == 3


def test_no_client_adds_series(metrics):
    for number in range(5):
        serve(teapot, metrics, f"/{number}")
    assert lines(metrics)['electra_requests_total{code="418",route="other"}'] == 5


def test_a_client_that_left_and_a_failure_are_counted(metrics):
    async def silent(scope, receive, send):
        pass

    async def broken(scope, receive, send):
        raise RuntimeError

    serve(silent, metrics, "/detect")
    with pytest.raises(RuntimeError):
        serve(broken, metrics, "/detect")
    found = lines(metrics)
    assert found['electra_requests_total{code="499",route="/detect"}'] == 1
    assert found['electra_requests_total{code="500",route="/detect"}'] == 1


def test_batches_and_the_queue_are_measured(metrics):
    metrics.count_batch(Call(ability="embed", columns={"texts": ["a", "b", "c"]}, options={}, cost=3))
    found = lines(metrics)
    assert found['electra_texts_total{ability="embed"}'] == 3
    assert found['electra_batch_texts_bucket{le="2.0"}'] == 0
    assert found['electra_batch_texts_bucket{le="4.0"}'] == 1
    assert found["electra_queue_length"] == 7
    assert found["process_resident_memory_bytes"] > 0
