"""Items of work -> results in order, and micro-batches -> gradients: on a CPU, each core by itself.

Cores that share an operation wait for each other after it, some hundred times in a step. With small models
that costs more than the work itself, and beside a busy neighbour all of them wait for the one that has lost
its core. So each core gets work of its own, and they wait for each other once:

spread       batches to predict -> their results, one batch for each core at a time
gradients    the micro-batches of a step -> losses; each core runs the model forward and backward on its own
             micro-batches, on the same weights (`replica`), and the gradients are added up at the end

What is added to what is decided by the number of cores, not by who is ready first: the same number gives the
same bits. It is a choice that a run makes when it begins, and keeps (`fastest_way`).
"""

import copy
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from electra.model.dropout import own_dropout

Item = TypeVar("Item")
Result = TypeVar("Result")

_STARTING = threading.Lock()
"""Held while a thread gets a core of its own: one that first asks torch for its number then would get 1."""


def num_cores(device: torch.device) -> int:
    """How many cores may have work of their own: as many as torch may use."""
    # Several processes must call a model that they share in one order.
    is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    with _STARTING:
        return 1 if device.type != "cpu" or is_shared else torch.get_num_threads()


def spread(compute: Callable[[Item], Result], items: Iterable[Item], *, cores: int) -> Iterator[Result]:
    """The result of each item, in order; at most one per core is computed before the caller asks for it.

    The only item of a sequence is computed here, by all cores together. Of anything else than a sequence,
    items are taken as cores become free, and each is computed by one.
    """
    if cores == 1 or (isinstance(items, Sequence) and len(items) == 1):
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
    """The same under this thread's autocast, which other threads do not inherit."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def computed(item: Item) -> Result:
        with torch.autocast("cpu", dtype, enabled=enabled):
            return compute(item)

    return computed


def use_one_core() -> None:
    """Let this thread compute with one core; all others keep what they have.

    A thread that computes beside the one that trains needs it: torch gives each of them helpers on all cores,
    which go on waiting for work after every operation, and take the cores from those who have some.
    """
    with _STARTING:
        # A thread adopts the global number when it first asks for it, which would undo the next line later.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # That has set the global number too, which another thread can put back without changing this one.
        restoring = threading.Thread(target=torch.set_num_threads, args=(threads,))
        restoring.start()
        restoring.join()


@functools.cache
def _pool(cores: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each."""
    return ThreadPoolExecutor(max_workers=cores, thread_name_prefix="core", initializer=use_one_core)


if hasattr(os, "register_at_fork"):
    # A forked child inherits the pool, but none of its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def gradients(
    module: nn.Module,
    parts: Sequence[Item],
    backward: Callable[[Item, nn.Module], Result],
    *,
    cores: int,
) -> list[Result]:
    """The result of each part; the sum of the gradients of all is then in the module's weights.

    `backward(part, module)` runs a part forward and backward. Its module is `module` or a replica of it.
    """
    lanes = [parts[first::cores] for first in range(min(cores, len(parts)))]
    models = [module, *(replica(module) for _ in lanes[1:])]

    def work(lane: int) -> list[Result]:
        with own_dropout():
            return [backward(part, models[lane]) for part in lanes[lane]]

    by_lane = list(spread(work, range(len(lanes)), cores=cores))
    for model in models[1:]:
        add_gradients(module, model)
    return [by_lane[number % len(lanes)][number // len(lanes)] for number in range(len(parts))]


def replica(module: nn.Module) -> nn.Module:
    """The module as it is, on the same weights and buffers, but with gradients of its own.

    It takes well below a millisecond, so that it can be made anew for every step: whatever the module has
    been told since the last one, the replica knows it, too.
    """
    return _replica(module, {}, {})


def _replica(module: nn.Module, models: dict[int, nn.Module], weights: dict[int, Tensor]) -> nn.Module:
    # What stands in several places, such as embeddings that two encoders share, is one thing in the replica.
    if id(module) in models:
        return models[id(module)]
    made = models[id(module)] = copy.copy(module)
    for weight in module._parameters.values():
        if weight is not None and id(weight) not in weights:
            weights[id(weight)] = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
    # Not in place: a copy has the dictionaries of the original.
    vars(made)["_parameters"] = {
        name: None if weight is None else weights[id(weight)] for name, weight in module._parameters.items()
    }
    vars(made)["_modules"] = {
        name: None if part is None else _replica(part, models, weights)
        for name, part in module._modules.items()
    }
    return made


@torch.no_grad()
def add_gradients(module: nn.Module, other: nn.Module) -> None:
    """Add the gradients of a replica to those of its module."""
    pairs = [
        (weight, another.grad)
        for weight, another in zip(module.parameters(), other.parameters(), strict=True)
        if another.grad is not None
    ]
    for weight, gradient in pairs:
        if weight.grad is None:
            weight.grad = gradient
    both = [(weight.grad, gradient) for weight, gradient in pairs if weight.grad is not gradient]
    if both:
        mine, others = zip(*both, strict=True)
        torch._foreach_add_(mine, others)


_LONG_ENOUGH = 2.0
"""Seconds from which on operations are so large that waiting after each of them costs little."""
_ENOUGH, _FEWEST, _MOST = 1.5, 2, 12
"""Seconds of steps after which the fastest ones tell, but no fewer and no more of each way than these: small
steps are soon disturbed, and a thread's first ones are slow, as the system gives it memory."""
_TOLERANCE = 1.1
"""How much slower cores with rows of their own may be in a quiet moment: busy neighbours cost them less."""


def fastest_way(seconds: Callable[[int], float], *, cores: int) -> int:
    """How many cores should have rows of their own: all of them, or one, so that all share each operation.

    `seconds(number)` takes a step of the model in that way -> the time it took.
    """
    # The first step of each way finds cold caches, and memory that the system has not given out yet.
    if seconds(1) > _LONG_ENOUGH:
        return 1
    seconds(cores)
    together, apart = [seconds(1)], [seconds(cores)]
    while len(apart) < _FEWEST or (len(apart) < _MOST and sum(together + apart) < _ENOUGH):
        together.append(seconds(1))
        apart.append(seconds(cores))
    return cores if min(apart) < _TOLERANCE * min(together) else 1


def timed(work: Callable[[], object]) -> float:
    """How long some work takes."""
    before = time.perf_counter()
    work()
    return time.perf_counter() - before
