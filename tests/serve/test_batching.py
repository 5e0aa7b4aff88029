import asyncio
import contextlib
import threading
import time

import pytest

from electra.prediction.windows import wanted
from electra.serve.batching import Batcher, Call
from electra.serve.errors import ApiError
from electra.serve.limits import Limits


def call_of(*texts, ability="detect", **options):
    return Call(ability=ability, columns={"texts": list(texts)}, options=options, cost=sum(map(len, texts)))


class Slow:
    """A model that computes when it is told to, and remembers what."""

    def __init__(self):
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.seen = []

    def __call__(self, call):
        self.seen.append(call)
        self.has_begun.set()
        assert self.may_go.wait(30)
        if "bad" in call.columns["texts"]:
            raise ValueError("a bad text")
        return [text.upper() for text in call.columns["texts"]]

    @property
    def batches(self):
        return [call.columns["texts"] for call in self.seen]


def run(scenario, **limits):
    """`scenario(batcher, model, submit)` in an event loop; `submit` starts a call and lets it get in line."""

    async def whole():
        model = Slow()
        batcher = Batcher(model, Limits(**limits))

        async def submit(*texts, **options):
            task = asyncio.create_task(batcher.submit(call_of(*texts, **options)))
            await asyncio.sleep(0)
            return task

        async with batcher.running():
            try:
                await asyncio.wait_for(scenario(batcher, model, submit), 30)
            finally:
                model.may_go.set()

    asyncio.run(whole())


async def begun(model):
    await asyncio.to_thread(model.has_begun.wait, 30)


def test_what_waits_is_computed_together_and_divided():
    async def scenario(batcher, model, submit):
        first = await submit("a")
        await begun(model)
        others = [await submit("b", "c"), await submit("d"), await submit()]
        assert batcher.num_waiting == 3
        model.may_go.set()
        assert await first == ["A"]
        assert await asyncio.gather(*others) == [["B", "C"], ["D"], []]
        assert model.batches == [["a"], ["b", "c", "d"]]

    run(scenario)


def test_only_what_is_of_one_kind_goes_together_and_the_oldest_comes_first():
    async def scenario(batcher, model, submit):
        await submit("first")
        await begun(model)
        tasks = [await submit(text, top=top) for text, top in (("a", 1), ("b", 2), ("c", 1), ("d", 2))]
        model.may_go.set()
        assert await asyncio.gather(*tasks) == [["A"], ["B"], ["C"], ["D"]]
        assert model.batches == [["first"], ["a", "c"], ["b", "d"]]
        assert model.seen[1].options == {"top": 1}
        assert model.seen[1].cost == 2

    run(scenario)


@pytest.mark.parametrize(
    ("limits", "texts", "expected"),
    [
        ({"max_batch": 2}, ["a", "b", "c"], [["a", "b"], ["c"]]),
        ({"max_characters": 4}, ["aaa", "b", "c"], [["aaa", "b"], ["c"]]),
        ({"max_characters": 2}, ["aaa", "b", "c"], [["aaa"], ["b", "c"]]),
    ],
)
def test_a_batch_is_bounded(limits, texts, expected):
    async def scenario(batcher, model, submit):
        await submit("first")
        await begun(model)
        tasks = [await submit(text) for text in texts]
        model.may_go.set()
        await asyncio.gather(*tasks)
        assert model.batches[1:] == expected

    run(scenario, **limits)


def test_a_full_queue_refuses_at_once():
    async def scenario(batcher, model, submit):
        tasks = [await submit("first")]
        await begun(model)
        tasks += [await submit("a"), await submit("b")]
        with pytest.raises(ApiError) as caught:
            await batcher.submit(call_of("c"))
        assert caught.value.status_code == 503
        model.may_go.set()
        assert await asyncio.gather(*tasks) == [["FIRST"], ["A"], ["B"]]
        assert await batcher.submit(call_of("d")) == ["D"]

    run(scenario, queue_size=2)


def test_what_could_not_be_done_in_time_is_refused_at_once():
    """Or, under load, all would wait until it is too late for them, and nobody would be answered."""

    async def scenario(batcher, model, submit):
        first = await submit("x" * 10)
        await begun(model)
        await asyncio.sleep(0.2)
        model.may_go.set()
        await first
        # From now on, 10 characters are known to take 0.2 s or more.
        model.may_go.clear()
        model.has_begun.clear()
        alone = await submit("y" * 1000)
        await begun(model)
        with pytest.raises(ApiError, match="s are waiting already: try again") as refused:
            await batcher.submit(call_of("z"))
        assert refused.value.status_code == 503
        model.may_go.set()
        assert await alone == ["Y" * 1000]

    run(scenario, deadline=20)


@pytest.mark.slow
def test_what_is_too_late_is_refused_and_not_computed():
    async def scenario(batcher, model, submit):
        tasks = [await submit("first"), await submit("late")]
        for task in tasks:
            with pytest.raises(ApiError) as caught:
                await task
            assert caught.value.status_code == 503
        assert batcher.num_waiting == 0
        model.may_go.set()
        assert await batcher.submit(call_of("next")) == ["NEXT"]
        assert ["late"] not in model.batches

    # Also for what is in time, on a busy machine.
    run(scenario, deadline=3, max_batch=1)


def test_who_goes_away_is_not_computed():
    async def scenario(batcher, model, submit):
        first = await submit("first")
        await begun(model)
        gone, stays = await submit("gone"), await submit("stays")
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        assert batcher.num_waiting == 1
        model.may_go.set()
        assert await asyncio.gather(first, stays) == [["FIRST"], ["STAYS"]]
        assert model.batches == [["first"], ["stays"]]

    run(scenario)


@pytest.mark.parametrize("leave", [pytest.param("deadline", marks=pytest.mark.slow), "cancel"])
def test_the_model_stops_when_nobody_waits_any_more(leave):
    """Otherwise, as many slow requests as batches are computed at once occupy the server."""
    begun, stopped = threading.Event(), threading.Event()

    def compute(call):
        if call.columns["texts"] != ["endless"]:
            return call.columns["texts"]
        try:
            begun.set()
            for _ in wanted(range(3_000)):
                time.sleep(0.01)
        finally:
            stopped.set()
        return ["end"]

    async def whole():
        batcher = Batcher(compute, Limits(deadline=3.0 if leave == "deadline" else 30.0))
        async with batcher.running():
            slow = asyncio.create_task(batcher.submit(call_of("endless")))
            assert await asyncio.to_thread(begun.wait, 30)
            if leave == "cancel":
                slow.cancel()
            with pytest.raises((ApiError, asyncio.CancelledError)):
                await slow
            assert await asyncio.to_thread(stopped.wait, 10)
            assert await batcher.submit(call_of("next")) == ["next"]

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_the_model_goes_on_for_those_who_still_wait():
    async def scenario(batcher, model, submit):
        await submit("first")
        await begun(model)
        gone, stays = await submit("a"), await submit("b")
        model.may_go.clear()
        model.has_begun.clear()
        gone.cancel()
        model.may_go.set()
        assert await stays == ["B"]

    run(scenario)


def test_one_bad_call_does_not_spoil_those_beside_it():
    async def scenario(batcher, model, submit):
        await submit("first")
        await begun(model)
        tasks = [await submit("a"), await submit("bad"), await submit("c")]
        model.may_go.set()
        good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
        assert (good, also_good) == (["A"], ["C"])
        assert isinstance(bad, ValueError)
        assert batcher.is_running

    run(scenario)


@pytest.mark.parametrize("error", [StopIteration, TimeoutError, MemoryError, RecursionError])
def test_no_error_of_the_model_ends_the_work(error):
    async def whole():
        answers = iter([error("odd"), ["fine"]])

        def compute(_):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        batcher = Batcher(compute, Limits())
        async with batcher.running():
            with pytest.raises((error, RuntimeError, ApiError)):
                await batcher.submit(call_of("a"))
            assert batcher.is_running
            assert await batcher.submit(call_of("b")) == ["fine"]
        assert not batcher.is_running

    asyncio.run(whole())


def test_two_batches_at_once_take_from_one_queue():
    async def whole():
        together = threading.Barrier(2)
        batches = []

        def compute(call):
            batches.append(call.columns["texts"])
            together.wait(30)
            return call.columns["texts"]

        batcher = Batcher(compute, Limits(), at_once=2)
        async with batcher.running():
            first = asyncio.create_task(batcher.submit(call_of("a")))
            while not batches:
                await asyncio.sleep(0.001)
            assert await asyncio.wait_for(batcher.submit(call_of("b")), 30) == ["b"]
            assert await first == ["a"]
            assert batcher.is_running
        assert sorted(batches) == [["a"], ["b"]]

    asyncio.run(whole())


def test_each_batch_is_reported():
    async def whole():
        told = []
        batcher = Batcher(lambda call: call.columns["texts"], Limits(), on_batch=told.append)
        async with batcher.running():
            await batcher.submit(call_of("a", "b", ability="embed"))
        assert [(call.ability, call.size) for call in told] == [("embed", 2)]

    asyncio.run(whole())
