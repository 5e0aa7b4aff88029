"""Batches -> what a model makes of them, in their order; on a CPU each core has a batch of its own.

Cores that share a batch wait for each other after every operation, some hundred times a batch: with texts as
short as sentences they took 1.15 times as long (small's shape, two cores; docs/log.md).

A model and rows -> outputs, predictions and scores, in the order of what was asked.

The caller chooses the precision: under autocast all of it runs in that.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from electra.tasks.batches import PREDICTION_TOKENS, collate, prediction_batches, unit_lengths, units_of
from electra.tasks.families.family import Example, Prediction, TaskRow
from electra.tasks.model import Judged, TaskModel
from electra.text.tokenizer import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")

CORE_TOKENS = 2048
"""Of a batch that one core computes: no faster with more or, down to 512, with fewer."""
LEAST_TOKENS = 256
"""Of a batch that is worth a core of its own: a few sentences are ready sooner if the cores share them."""

_STARTING = threading.Lock()
"""While a pool starts, a thread that asks for its number of cores for the first time would be told of one."""


def spread_rows(
    compute: Callable[[list[int]], Result],
    rows: Sequence[TaskRow],
    *,
    device: torch.device,
    max_tokens: int,
) -> Iterator[Result]:
    """What is made of each batch, given as the places of its rows; the longest rows come first."""
    cores = num_cores(device)
    batches = core_batches(rows, cores=cores, max_tokens=max_tokens)
    return spread(compute, batches, cores=cores)


def core_batches(rows: Sequence[TaskRow], *, cores: int, max_tokens: int) -> list[list[int]]:
    """The places of each batch's rows: where there are few rows, one batch for each core."""
    if cores == 1:
        return list(prediction_batches(rows, max_tokens=max_tokens))
    size = min(max_tokens, CORE_TOKENS)
    total = sum(len(row.input_ids) for row in rows)
    if LEAST_TOKENS < total <= cores * size:
        shares = even_shares(rows, count=min(cores, -(-total // LEAST_TOKENS)))
        if all(
            len(share) * max(len(rows[place].input_ids) for place in share) <= max_tokens for share in shares
        ):
            return shares
    return list(prediction_batches(rows, max_tokens=size))


def even_shares(rows: Sequence[TaskRow], *, count: int) -> list[list[int]]:
    """The places of rows of like length, the longest first; all shares have about as many tokens."""
    # Padding does not count: where there is much of it, layers compute on the text alone.
    units = units_of(rows)
    shares: list[list[int]] = [[] for _ in range(count)]
    total, done = sum(len(row.input_ids) for row in rows), 0
    for index in np.argsort(-unit_lengths(rows, units), kind="stable"):
        shares[done * count // total] += units[index]
        done += sum(len(rows[place].input_ids) for place in units[index])
    return [share for share in shares if share]


def num_cores(device: torch.device) -> int:
    """How many batches may be computed at a time in this thread: a core of torch's for each."""
    # Several processes must call a model that they share in one order.
    is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    with _STARTING:
        return 1 if device.type != "cpu" or is_shared else torch.get_num_threads()


def spread(compute: Callable[[Item], Result], items: Sequence[Item], *, cores: int) -> Iterator[Result]:
    """What is made of each item; no more than one for each core is made ahead of who takes them."""
    if cores == 1 or len(items) == 1:
        yield from map(compute, items)
        return
    with _STARTING:
        pool = _pool(cores)
    compute = _as_in_this_thread(compute)
    ahead: deque[Future[Result]] = deque()
    try:
        for item in items:
            ahead.append(pool.submit(compute, item))
            if len(ahead) > cores:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


def _as_in_this_thread(compute: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """The same with this thread's precision, since each thread has its own."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def computed(item: Item) -> Result:
        with torch.autocast("cpu", dtype, enabled=enabled):
            return compute(item)

    return computed


@functools.cache
def _pool(cores: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each."""
    is_ready = threading.Barrier(cores)

    def be_one_of_them() -> None:
        # A thread takes over everybody's number when it first asks for it, and would do so later.
        torch.get_num_threads()
        torch.set_num_threads(1)
        is_ready.wait()

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(max_workers=cores, thread_name_prefix="core")
    # All start now: who sets the number in one thread sets it for all that start later.
    for future in [pool.submit(be_one_of_them) for _ in range(cores)]:
        future.result()
    torch.set_num_threads(threads)
    return pool


if hasattr(os, "register_at_fork"):
    # A child has the pool, and none of its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


class Places(NamedTuple):
    """A batch that was judged."""

    places: list[int]
    """Of its rows in the list of all rows."""
    judged: Judged


def judged_batches(
    model: TaskModel,
    task: str,
    rows: Sequence[TaskRow],
    *,
    pad_id: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> Iterator[Places]:
    """One batch after the other, of rows of like length, where the model's weights are."""
    device = next(model.parameters()).device

    # Not around the whole loop: between two batches the caller is at work.
    @torch.no_grad()
    def judge(places: list[int]) -> Places:
        batch = collate([rows[place] for place in places], pad_id=pad_id, device=device)
        return Places(places, model(batch, task))

    yield from spread_rows(judge, rows, device=device, max_tokens=max_tokens)


def outputs_of(
    model: TaskModel,
    task: str,
    rows: Sequence[TaskRow],
    *,
    pad_id: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> list[Any]:
    """What the head says of each row."""
    model.eval()
    outputs: list[Any] = [None] * len(rows)
    for places, judged in judged_batches(model, task, rows, pad_id=pad_id, max_tokens=max_tokens):
        for place, output in zip(places, judged.outputs, strict=True):
            outputs[place] = output
    return outputs


def predict(
    model: TaskModel,
    task: str,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> list[Prediction]:
    """What the model says of each example."""
    family = model.families[task]
    rows = family.rows(examples, tokenizer, max_length=max_length)
    outputs = outputs_of(model, task, rows, pad_id=tokenizer.pad_id, max_tokens=max_tokens)
    return family.predictions(examples, rows, outputs)
