"""Calls that come one by one -> calls of the model for many texts, a few at a time, and their answers.

All bookkeeping happens in the event loop and needs no locks; only the model computes in threads. While it
does, calls gather. The oldest of them decides what comes next, and all of its kind go along: the batch grows
with the load by itself, and nobody waits for a batch to fill.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from electra.serve.errors import RefusalError
from electra.serve.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Call:
    """A method of the model, and what to give it."""

    ability: str
    columns: dict[str, list[Any]]
    """Lists of one length, such as texts and pairs."""
    options: dict[str, Any]
    cost: int
    """Characters to read."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls that are equal in this can be computed together."""
        return (self.ability, *self.columns, *self.options.items())

    @property
    def size(self) -> int:
        """How many texts, or pairs of them."""
        return len(next(iter(self.columns.values())))


@dataclass(eq=False)
class _Job:
    """A call that waits. Its outcome is answers, or the error that the model ended with."""

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
        """`compute`: a call -> an answer for each of its texts; `on_batch` hears of each call that worked.

        With two `at_once`, one batch keeps the cores busy while texts of the other become tokens, and its
        answers JSON.
        """
        self._compute = compute
        self._limits = limits
        self._at_once = at_once
        self._on_batch = on_batch
        # In the order of arrival; a dict, since those who give up leave from the middle.
        self._waiting: dict[_Job, None] = {}
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    @property
    def num_waiting(self) -> int:
        """Calls in the queue, those that are being computed not among them."""
        return len(self._waiting)

    @property
    def is_running(self) -> bool:
        """Whether somebody works on the queue."""
        return bool(self._workers) and not any(worker.done() for worker in self._workers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work on the queue for as long as this lasts."""
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
        """One answer for each text, in time, or a refusal."""
        if self.num_waiting >= self._limits.queue_size:
            raise RefusalError(503, f"{self._limits.queue_size} requests wait already: ask again")
        job = _Job(call)
        self._waiting[job] = None
        self._arrived.set()
        try:
            async with asyncio.timeout(self._limits.deadline):
                outcome = await job.outcome
        except TimeoutError:
            raise RefusalError(
                503,
                f"there was no answer within {self._limits.deadline:g} s: ask again, or with shorter texts",
            ) from None
        finally:
            # Whoever ran out of time, or went away, is not computed any more.
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
            outcomes = await loop.run_in_executor(threads, self._outcomes, [job.call for job in group])
            for job, outcome in zip(group, outcomes, strict=True):
                if not job.outcome.done():
                    job.outcome.set_result(outcome)

    def _take(self) -> list[_Job]:
        """The oldest job, and those of its kind that fit beside it."""
        group: list[_Job] = []
        size = cost = 0
        for job in list(self._waiting):
            call = job.call
            if job.outcome.done() or (group and call.kind != group[0].call.kind):
                continue
            # The work of a group is bounded as that of a request, and so is the time that others wait for it.
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

    def _outcomes(self, calls: Sequence[Call]) -> list[list[Any] | Exception]:
        """In the thread: compute all calls as one and divide the answers."""
        try:
            together = merged(calls)
            answers = self._compute(together)
            assert len(answers) == together.size, "the model must answer for each text"
            self._on_batch(together)
        except Exception as error:
            # One request must not spoil those beside it.
            return [error] if len(calls) == 1 else [self._outcomes([call])[0] for call in calls]
        rest = iter(answers)
        return [[next(rest) for _ in range(call.size)] for call in calls]


def merged(calls: Sequence[Call]) -> Call:
    """Calls of one kind as one."""
    first = calls[0]
    assert all(call.kind == first.kind for call in calls)
    columns = {name: [value for call in calls for value in call.columns[name]] for name in first.columns}
    return Call(
        ability=first.ability, columns=columns, options=first.options, cost=sum(call.cost for call in calls)
    )
