"""Contestants -> the seconds of their steps, taken turn by turn in processes of their own.

A process each, so that none profits from another's allocator or caches; turn by turn, so that all meet the
same noise of the machine.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from electra.bench.peak import Peak, best_of, measure_peak
from electra.bench.processes import ELECTRA, own_peak, run
from electra.errors import InputError
from electra.train import devices
from electra.train.budget import Budget
from electra.train.distributed import World
from electra.train.hardware import Product
from electra.train.loop import LoopConfig, Problem, training_steps
from electra.train.schedule import ScheduleConfig
from electra.train.state import TrainState

Step = Callable[[], object]
"""What is timed: a step of training, or a pass over all of the data."""

Command = Callable[[str], Sequence[str]]
"""A contestant -> the words after `electra` that let it take its turn."""

Value = TypeVar("Value")

WARMUP_STEPS = 3
_LEAST_STEPS, _LONGEST_TURN = 3, 40.0
"""Timed steps of a turn, and the seconds after which it ends with fewer than were asked for."""


class Turn(NamedTuple):
    """What a contestant tells of its turn."""

    seconds: list[float]
    """Of each step."""
    memory: int | None = None
    """The most bytes that it held at once; None if that is not known, or not to be compared."""
    libraries: int | None = None
    """Bytes that it held before the work began."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Who takes part, and what is known of the work that all of them do."""

    title: str
    contestants: tuple[str, ...]
    ours: tuple[str, ...] = ("ours",)
    """Those of them that the others are compared with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Who would take part, and why not."""
    step: str = "step"
    """What is timed, such as a step, or a pass over all data."""
    unit: str
    """What is counted, such as tokens."""
    units_per_step: float
    flops_per_step: float | None = None
    """Of the work that cannot be avoided; None if it is not counted."""
    products: tuple[Product, ...] = ()
    """Matrix products of the work, in which the machine's peak is looked for."""
    repeats: int


def measure(contest: Contest, command: Command) -> dict[str, Any]:
    """All turns of all contestants, and the machine's peak before each round."""
    turns: dict[str, list[Turn]] = {name: [] for name in contest.contestants}
    peaks: list[Peak] = []
    for number in range(1, contest.repeats + 1):
        peaks.append(measure_peak(contest.products))
        for name in contest.contestants:
            say(f"{contest.title}: round {number} of {contest.repeats}, {name}")
            turns[name].append(take(command(name), name=name))
    seconds = {name: [second for turn in taken for second in turn.seconds] for name, taken in turns.items()}
    memory = {name: max(turn.memory or 0 for turn in taken) or None for name, taken in turns.items()}
    return {
        **asdict(contest),
        "machine": devices.describe_machine(),
        "peak": best_of(peaks),
        "peaks": peaks,
        "seconds": seconds,
        "memory": memory,
    }


def take(words: Sequence[str], *, name: str, launcher: Sequence[str] = ELECTRA) -> Turn:
    """Let a contestant take its turn."""
    # Libraries print what they like before.
    return Turn(**json.loads(run([*launcher, *words], name=name).output.splitlines()[-1]))


def chosen(ways: Mapping[str, Value], name: str) -> Value:
    """The way of a contestant."""
    if name not in ways:
        raise InputError(f"contestant is {name}, expected one of {', '.join(ways)}")
    return ways[name]


def say(line: str) -> None:
    """Show that it goes on."""
    print(f"  {line}", file=sys.stderr, flush=True)


def engine_step(
    state: TrainState, problem: Problem, *, learning_rate: float, clip_norm: float, world: World | None = None
) -> Step:
    """A step of our own engine, on this machine's processor."""
    device, world = torch.device("cpu"), world or World()
    loop = LoopConfig(
        schedule=ScheduleConfig(learning_rate=learning_rate, warmup_steps=0),
        clip_norm=clip_norm,
        budget=Budget(steps=10_000, seconds=None, tokens=None),
        device=device,
        precision=devices.choose_precision("auto", device, world),
    )
    steps = training_steps(state, problem, loop, world)
    return lambda: next(steps)


def time_steps(step: Step, *, count: int, warmup: int = WARMUP_STEPS) -> Turn:
    """Seconds of each step, after some that are not counted, while memory is still being fetched.

    A contestant that this machine is very slow with (bf16 without the instructions for it) takes fewer steps.
    """
    for _ in range(warmup):
        step()
    seconds: list[float] = []
    while len(seconds) < count and (len(seconds) < _LEAST_STEPS or sum(seconds) < _LONGEST_TURN):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return Turn(seconds, own_peak())
