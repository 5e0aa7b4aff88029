"""Calls that arrive one by one -> calls of the model with the texts of many -> the results of each.

All bookkeeping happens in the event loop and needs no locks; only the model runs in threads. Calls gather
while it computes. Then the oldest one decides what is computed next, and others of its kind join it: batches
grow with the load by themselves, and no call waits for a batch to fill.

A queue of old calls is worth nothing: when each has waited until just before its deadline, the model works on
what will be too late, and nobody is answered. So a call is refused at once if what is ahead of it would take
too long, at the speed of the last batches.

The time of a call is bounded twice: a request may ask for so much work (`requests.make_call`), and when
nobody waits for a call any more, because of the deadline or because clients have left, the model stops after
the batch of rows at hand (`computing_while`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from electra.prediction.windows import AbandonedError, computing_while
from electra.serve.errors import ApiError
from electra.serve.limits import Limits

IN_TIME = 0.7
"""Share of the deadline that a call and those ahead may be expected to take: speeds vary."""
NEW_SHARE = 0.3
"""Of the last batch, in what is known of the model's speed."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A method of the model and its arguments."""

    ability: str
    columns: dict[str, list[Any]]
    """Lists of the same length, such as texts and pairs."""
    options: dict[str, Any]
    cost: int
    """Characters to read."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls of the same kind can be computed together."""
        return (self.ability, *self.columns, *self.options.items())

    @property
    def size(self) -> int:
        """Number of texts, or of pairs of texts."""
        return len(next(iter(self.columns.values())))


@dataclass(eq=False)
class _Job:
    """A call in the queue. Its outcome is the results, or the error that the model raised."""

    call: Call
    outcome: asyncio.Future[list[Any] | Exception] = field(default_factory=asyncio.Future)


class Batcher:
    """A bounded queue in front of the model."""

    def __init__(
        self,
        compute: Callable[[Call], list[Any]],
        limits: Limits,
        *,
        at_once: int = 1,
        on_batch: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """`compute`: a call -> one result for each text. `on_batch` is called after each batch that worked.

        With two batches `at_once`, one keeps the cores busy while the texts of the other become tokens and
        its results become JSON.
        """
        self._compute = compute
        self._limits = limits
        self._at_once = at_once
        self._on_batch = on_batch
        # In the order of arrival; a dict, because jobs that give up leave from the middle.
        self._waiting: dict[_Job, None] = {}
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._computing: list[int] = []
        """Costs of the batches under way."""
        self._seconds_per_cost = 0.0

    @property
    def num_waiting(self) -> int:
        """Calls in the queue, without those that are being computed."""
        return len(self._waiting)

    @property
    def is_running(self) -> bool:
        """Whether all workers are alive."""
        return bool(self._workers) and not any(worker.done() for worker in self._workers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute what is in the queue for as long as this lasts."""
        threads = ThreadPoolExecutor(max_workers=self._at_once, thread_name_prefix="model")
        self._workers = [asyncio.create_task(self._work(threads)) for _ in range(self._at_once)]
        try:
            yield
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.wait(self._workers)
            threads.shutdown(wait=False, cancel_futures=True)

    async def submit(self, call: Call) -> list[Any]:
        """One result for each text before the deadline, or `ApiError` 503."""
        if self.num_waiting >= self._limits.queue_size:
            raise ApiError(503, f"{self._limits.queue_size} requests are waiting already: try again")
        ahead = sum(self._computing) + sum(job.call.cost for job in self._waiting)
        seconds = (ahead + call.cost) * self._seconds_per_cost
        # One that finds nobody is always let in, or a bad moment would be the last thing that is known.
        if ahead and seconds > IN_TIME * self._limits.deadline:
            raise ApiError(503, f"requests of about {seconds:.0f} s are waiting already: try again")
        job = _Job(call)
        self._waiting[job] = None
        self._arrived.set()
        try:
            async with asyncio.timeout(self._limits.deadline):
                outcome = await job.outcome
        except TimeoutError:
            raise ApiError(
                503,
                f"no result within {self._limits.deadline:g} s: try again, or send shorter texts",
            ) from None
        finally:
            # A client that ran out of time or went away is not computed any more.
            self._waiting.pop(job, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _work(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            group = self._take()
            if not group:
                self._arrived.clear()
                continue
            cost = max(1, sum(job.call.cost for job in group))
            self._computing.append(cost)
            beside, began = len(self._computing), loop.time()
            try:
                outcomes = await loop.run_in_executor(threads, self._outcomes, group)
            finally:
                self._computing.remove(cost)
            self._note_speed((loop.time() - began) / beside / cost)
            for job, outcome in zip(group, outcomes, strict=True):
                if not job.outcome.done():
                    job.outcome.set_result(outcome)

    def _note_speed(self, seconds_per_cost: float) -> None:
        """What a batch took, which shared the cores with those beside it; a batch given up counts, too."""
        known = self._seconds_per_cost or seconds_per_cost
        self._seconds_per_cost = (1 - NEW_SHARE) * known + NEW_SHARE * seconds_per_cost

    def _take(self) -> list[_Job]:
        """The oldest job, and others of its kind that fit into the batch."""
        group: list[_Job] = []
        size = cost = 0
        for job in list(self._waiting):
            call = job.call
            if job.outcome.done() or (group and call.kind != group[0].call.kind):
                continue
            # A group is as bounded as a request, and so is the time that others wait for it.
            is_full = (
                size + call.size > self._limits.max_batch or cost + call.cost > self._limits.max_characters
            )
            if group and is_full:
                break
            group.append(job)
            size, cost = size + call.size, cost + call.cost
        for job in group:
            del self._waiting[job]
        return group

    def _outcomes(self, group: Sequence[_Job]) -> list[list[Any] | Exception]:
        """In a thread: compute all calls as one and divide the results."""
        try:
            together = merged([job.call for job in group])
            # An outcome that is there already is the end of the wait, by the deadline or by the client.
            with computing_while(lambda: not all(job.outcome.done() for job in group)):
                results = self._compute(together)
            assert len(results) == together.size, "the model must return one result for each text"
            self._on_batch(together)
        except AbandonedError as error:
            return [error] * len(group)
        except Exception as error:
            # One bad call must not spoil those that were computed with it.
            return [error] if len(group) == 1 else [self._outcomes([job])[0] for job in group]
        rest = iter(results)
        return [[next(rest) for _ in range(job.call.size)] for job in group]


def merged(calls: Sequence[Call]) -> Call:
    """Calls of the same kind as one call."""
    first = calls[0]
    assert all(call.kind == first.kind for call in calls)
    columns = {name: [value for call in calls for value in call.columns[name]] for name in first.columns}
    return Call(
        ability=first.ability, columns=columns, options=first.options, cost=sum(call.cost for call in calls)
    )
