"""Contestants -> the seconds of their steps, taken turn by turn in processes of their own -> a table.

A process each, so that none profits from another's allocator or caches; turn by turn, so that all meet the
same noise of the machine.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from electra.train import devices
from electra.train.budget import Budget
from electra.train.distributed import World
from electra.train.loop import LoopConfig, Problem, training_steps
from electra.train.schedule import ScheduleConfig
from electra.train.state import TrainState

Step = Callable[[], object]

WARMUP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Who takes part, and what is known of the work that all of them do."""

    title: str
    contestants: tuple[str, ...]
    """The first of them is ours: the others' times are told as multiples of it."""
    unit: str
    """What is counted, such as tokens."""
    units_per_step: float
    flops_per_step: float | None
    """Of the work that cannot be avoided; None if it is not counted."""
    repeats: int


def measure(contest: Contest, command: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    """Seconds of every step of every contestant, and the machine's peak before each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contest.contestants}
    device, peaks = torch.device("cpu"), []
    precision = devices.choose_precision("auto", device, World())
    for _ in range(contest.repeats):
        peaks.append(devices.gemm_speed(device, precision, seconds=1.0))
        for name in contest.contestants:
            words = [sys.executable, "-m", "electra", "bench", *command(name)]
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
            seconds[name] += json.loads(done.stdout)
    return {
        "title": contest.title,
        "machine": devices.describe_machine(),
        "precision": precision,
        "peak": max(peaks),
        "peaks": peaks,
        "unit": contest.unit,
        "units_per_step": contest.units_per_step,
        "flops_per_step": contest.flops_per_step,
        "seconds": seconds,
    }


def engine_step(state: TrainState, problem: Problem, *, learning_rate: float, clip_norm: float) -> Step:
    """A step of our own engine, on this machine's processor."""
    device, world = torch.device("cpu"), World()
    loop = LoopConfig(
        schedule=ScheduleConfig(learning_rate=learning_rate, warmup_steps=0),
        clip_norm=clip_norm,
        budget=Budget(steps=10_000, seconds=None, tokens=None),
        device=device,
        precision=devices.choose_precision("auto", device, world),
    )
    steps = training_steps(state, problem, loop, world)
    return lambda: next(steps)


def time_steps(step: Step, *, count: int) -> list[float]:
    """Seconds of each step, after some that are not counted, while memory is still being fetched."""
    for _ in range(WARMUP_STEPS):
        step()
    seconds = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return seconds


def table(result: Mapping[str, Any]) -> str:
    """Medians, spread, ratios and share of the peak, for a person."""
    medians = {name: statistics.median(steps) for name, steps in result["seconds"].items()}
    ours, flops = next(iter(medians.values())), result["flops_per_step"]
    lines = [
        f"{result['title']}; peak here: {result['peak'] / 1e9:.0f} GFLOP/s in {result['precision']}",
        "",
        f"  {'':<12} {'s/step':>7}   (min - max)     {result['unit'] + '/s':>10}   of peak   ours is",
    ]
    for name, median in medians.items():
        steps = result["seconds"][name]
        share = f"{flops / median / result['peak']:6.0%}" if flops else "     –"
        lines.append(
            f"  {name:<12} {median:7.3f}   ({min(steps):.3f} - {max(steps):.3f})  "
            f"{result['units_per_step'] / median:9,.0f}   {share}   {median / ours:5.2f} x"
        )
    return "\n".join(lines)
