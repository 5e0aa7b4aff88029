"""Our pre-training step at several sizes -> how its time and memory grow.

Starting from a base, one value at a time is changed: tokens per row, rows per step, vocabulary, model,
processes. Each point runs in its own process, or in several that `torchrun` joins, and takes some steps with
the engine of `electra pretrain`. Its memory is compared with the least it needs: weights, gradients,
optimizer, and what a forward pass must keep for its backward pass.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from electra.bench import pretraining
from electra.bench.pretraining import PretrainBenchConfig
from electra.bench.turns import (
    ELECTRA,
    Turn,
    describe_machine,
    encoder_products,
    measure_peak,
    own_memory,
    run_command,
    say,
    take,
    time_steps,
)
from electra.errors import InputError
from electra.model.cost import Memory, training_memory
from electra.pretraining.cost import count_parameters, encoders_of
from electra.train import devices
from electra.train.distributed import World

Size = Literal["tiny", "small", "base"]


@dataclass(frozen=True, kw_only=True)
class GrowthBenchConfig:
    """Time and memory of the pre-training step: the base, and the values to try."""

    size: Size = "small"
    """Model size of the base."""
    batch_size: int = 8
    """Rows per step of the base."""
    seq_length: int = 128
    """Tokens per row of the base."""
    vocab_size: int = 30522
    """Vocabulary size of the base."""
    sizes: list[Size] = field(default_factory=lambda: ["tiny", "small", "base"])
    """Model sizes to try."""
    batch_sizes: list[int] = field(default_factory=lambda: [8, 16, 32, 64])
    """Rows per step to try."""
    seq_lengths: list[int] = field(default_factory=lambda: [128, 256, 512])
    """Tokens per row to try."""
    vocab_sizes: list[int] = field(default_factory=lambda: [8192, 30522, 65536])
    """Vocabulary sizes to try."""
    processes: list[int] = field(default_factory=lambda: [1, 2])
    """Numbers of processes to try."""
    steps: int = 3
    """Timed steps per point, after the warm-up."""

    def __post_init__(self) -> None:
        for key, value in dataclasses.asdict(self).items():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and number < 1:
                    raise InputError(f"growth.{key} has {number}, expected 1 or more")
        for number in self.processes:
            if self.batch_size % number:
                raise InputError(
                    f"growth.batch_size is {self.batch_size}, which {number} processes cannot share equally"
                )


@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination of values, measured once."""

    size: Size
    batch_size: int
    seq_length: int
    vocab_size: int
    processes: int = 1

    def step(self, *, steps: int) -> PretrainBenchConfig:
        """Its settings for the pre-training contest."""
        values = dataclasses.asdict(self)
        del values["processes"]
        return PretrainBenchConfig(**values, steps=steps)

    def words(self) -> list[str]:
        """The options that make it the base of a process."""
        values = dataclasses.asdict(self)
        del values["processes"]
        return [f"--growth.{key}={value}" for key, value in values.items()]


def base_of(settings: GrowthBenchConfig) -> Point:
    """The point that all others differ from in one value."""
    return Point(
        size=settings.size,
        batch_size=settings.batch_size,
        seq_length=settings.seq_length,
        vocab_size=settings.vocab_size,
    )


def growth_axes(settings: GrowthBenchConfig) -> dict[str, Sequence[Any]]:
    """Each axis -> the values to try on it."""
    return {
        "seq_length": settings.seq_lengths,
        "batch_size": settings.batch_sizes,
        "vocab_size": settings.vocab_sizes,
        "size": settings.sizes,
        "processes": settings.processes,
    }


def points_of(settings: GrowthBenchConfig) -> list[Point]:
    """All points, each once."""
    base = base_of(settings)
    found = [
        dataclasses.replace(base, **{axis: value})
        for axis, values in growth_axes(settings).items()
        for value in values
    ]
    return list(dict.fromkeys(found))


def measure_growth(
    settings: GrowthBenchConfig, folder: Path, command: Callable[[Path], Sequence[str]]
) -> dict[str, Any]:
    """Measure all points; `command` gives the arguments of `electra` that measure its base on a dataset."""
    base, points = base_of(settings), points_of(settings)
    encoder = pretraining.sizes(base.step(steps=1))[1]
    machine_peak = measure_peak(encoder_products(encoder, tokens=base.batch_size * base.seq_length))
    measured = []
    for number, point in enumerate(points, start=1):
        say(f"growth: point {number} of {len(points)}, {described(point)}")
        data = write_data(folder, point, steps=settings.steps)
        words = [*command(data), *point.words()]
        turn = take(words, name=described(point), launcher=launcher(point.processes))
        measured.append({**dataclasses.asdict(point), **turn._asdict(), **point_facts(point)})
    return {
        "title": f"growth of the pre-training step from {described(base)}",
        "machine": describe_machine(),
        "peak": machine_peak,
        "base": dataclasses.asdict(base),
        "axes": growth_axes(settings),
        "points": measured,
        "start_up": dict(start_ups(settings, folder)),
    }


def take_turn(settings: GrowthBenchConfig, name: str, folder: Path) -> Turn | None:
    """Measure the base in this process and those beside it; only the first one reports."""
    world = World.from_environment()
    with world.joined(torch.device("cpu")):
        step = base_of(settings).step(steps=settings.steps)
        libraries = own_memory()
        turn = time_steps(pretraining.our_step(step, folder, world), count=settings.steps)
    return turn._replace(libraries=libraries) if world.writes else None


def launcher(processes: int) -> Sequence[str]:
    """What starts our command in one or several processes."""
    if processes == 1:
        return ELECTRA
    together = ("--standalone", f"--nproc-per-node={processes}")
    return (sys.executable, "-m", "torch.distributed.run", *together, "-m", "electra")


def write_data(folder: Path, point: Point, *, steps: int) -> Path:
    """Write the dataset of a point: random rows, and a vocabulary of the right size."""
    data = folder / f"{point.seq_length}-{point.vocab_size}-{point.batch_size}"
    if not data.exists():
        pretraining.write_random_data(data, point.step(steps=steps))
    return data


def start_ups(settings: GrowthBenchConfig, folder: Path) -> Iterator[tuple[str, float]]:
    """Model size -> seconds of a command that starts, takes its first step and exits without writing."""
    for size in settings.sizes:
        say(f"growth: start-up, {size}")
        point = dataclasses.replace(base_of(settings), size=size)
        data = write_data(folder, point, steps=settings.steps)
        options = [f"--model.size={size}", f"--train.batch_size={point.batch_size}", "--dry_run=true"]
        yield (
            size,
            run_command([*ELECTRA, "pretrain", f"--data={data}", *options], name="electra pretrain").seconds,
        )


def point_facts(point: Point) -> dict[str, Any]:
    """What can be computed about a point without measuring it."""
    step = point.step(steps=1)
    memory = needed_memory(point)
    return {
        "tokens": point.batch_size * point.seq_length,
        "flops_per_step": pretraining.flops_per_step(step),
        "needed": {**dataclasses.asdict(memory), "total": memory.total},
    }


def needed_memory(point: Point) -> Memory:
    """The least memory that each process needs."""
    objective, encoder = pretraining.sizes(point.step(steps=1))
    precision = devices.choose_precision("auto", torch.device("cpu"), World())
    return training_memory(
        encoders_of(objective, encoder),
        parameters=sum(count_parameters(objective, encoder, length=point.seq_length).values()),
        rows=point.batch_size // point.processes,
        length=point.seq_length,
        mask_prob=objective.masking.mask_prob,
        number_size=4 if precision == "fp32" else 2,
        attention="plain",
    )


def described(point: Point) -> str:
    """A line of text."""
    together = f", {point.processes} processes" if point.processes > 1 else ""
    rows = f"{point.batch_size} x {point.seq_length} tokens"
    return f"ELECTRA-{point.size}, {rows}, vocabulary {point.vocab_size:,}{together}"
