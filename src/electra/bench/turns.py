"""Contestants that do the same work -> the seconds of their steps, their memory, and this machine's peak.

Every contestant runs in a process of its own, so that none profits from another's allocator or caches, and
they take turns, so that all meet the same noise of the machine. In this file: running a command and watching
its memory, neighbours that keep cores busy, the turns of a contest, the processor, and its peak (FLOP/s of
products in two precisions, bytes/s of a copy).
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.train import devices
from electra.train.devices import Precision, Product
from electra.train.distributed import World
from electra.train.engine import Engine
from electra.train.loop import Problem, training_steps
from electra.train.schedule import TrainConfig
from electra.train.state import TrainState

ELECTRA = (sys.executable, "-m", "electra")
"""Our own command, in the Python that runs now."""

_SAMPLE_SECONDS = 0.05


class Ran(NamedTuple):
    """A command that succeeded."""

    output: str
    seconds: float
    memory: int | None
    """Peak bytes of the command and its child processes; None where the system does not report them."""


def run_command(words: Sequence[str], *, name: str) -> Ran:
    """Run a command to its end; its stderr goes to the terminal."""
    begun = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            with MemoryWatch(process.pid) as watch:
                output, _ = process.communicate()
        except BaseException:
            # SIGTERM, so that it can end the processes it has started itself.
            process.terminate()
            process.wait()
            raise
    seconds = time.perf_counter() - begun
    if process.returncode:
        raise InputError(f"{name} ended with exit code {process.returncode}; its output is above")
    return Ran(output, seconds, watch.most)


class MemoryWatch:
    """Samples the memory of a process and its children; pages that they share count for each."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most = pid, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def most(self) -> int | None:
        """Peak of their bytes together; None if it is unknown."""
        return self._most or None

    def _look(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            now = sum(_status(process, "VmRSS") for process in (self._pid, *descendants(self._pid)))
            self._most = max(self._most, now)


def descendants(pid: int) -> Iterator[int]:
    """All processes below one."""
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def own_memory() -> int | None:
    """Bytes that this process holds."""
    return _status("self", "VmRSS") or None


def own_peak() -> int | None:
    """Peak bytes of this process.

    Not from `getrusage`, which also counts what the parent process held when it started this one.
    """
    return _status("self", "VmHWM") or None


def _status(process: int | str, key: str) -> int:
    """A number of /proc/PID/status in bytes; 0 if the process is gone or the system has no /proc."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


_LONGEST_COMPANY = 900.0
"""Seconds after which a neighbour ends by itself."""
_SPIN = """
import os, sys, time
end, parent = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
print(flush=True)
while time.monotonic() < end and os.getppid() == parent:
    total = 0
    for number in range(100_000):
        total += number * number
"""


@contextmanager
def busy_neighbours(number: int) -> Iterator[None]:
    """So many other processes that compute all the time, with one thread each."""
    with ExitStack() as stack:
        started = [stack.enter_context(_busy_neighbour()) for _ in range(number)]
        yield
        if any(process.poll() is not None for process in started):
            raise InputError(
                "a busy neighbour ended before the turn did, so that its figures are wrong: ask for fewer "
                "steps or a smaller model"
            )


@contextmanager
def _busy_neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """It ends with the context, however that ends; if this process is killed, it sees that and ends, too."""
    words = [sys.executable, "-I", "-c", _SPIN, str(_LONGEST_COMPANY), str(os.getpid())]
    # Ctrl-C in a terminal reaches it as well, and nobody needs its traceback.
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            # The line says that it has begun.
            if not process.stdout.readline():
                raise InputError("a busy neighbour did not start: run it again, or without neighbours")
            yield process
        finally:
            process.kill()


Step = Callable[[], object]
"""What is timed: a step of training, or a pass over all of the data."""


class Work(NamedTuple):
    """What a contestant does in its turn."""

    step: Step
    precision: str | None = None
    """Of its matrix products; None if there are none."""


Command = Callable[[str], Sequence[str]]
"""A contestant -> the words after `electra` that let it take its turn."""

Value = TypeVar("Value")

WARMUP_STEPS = 3
_LEAST_STEPS, _LONGEST_TURN = 3, 40.0
"""Timed steps of a turn, and the seconds after which it ends with fewer than were asked for."""


class Turn(NamedTuple):
    """What a contestant reports about its turn."""

    seconds: list[float]
    """Duration of each step."""
    memory: int | None = None
    """Peak bytes; None if they are unknown or not comparable."""
    libraries: int | None = None
    """Bytes that it held before the work began, mostly libraries."""
    precision: str | None = None
    """Of its matrix products; None if there are none."""


Peak = dict[str, float]
"""FLOP/s by precision, and bytes/s as `copy`."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The contestants, and the work that all of them do."""

    title: str
    contestants: tuple[str, ...]
    ours: tuple[str, ...] = ("ours",)
    """The contestants that are ours, which the others are compared with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Contestants that cannot take part -> why not."""
    step: str = "step"
    """What is timed: a step, or a pass over all data."""
    unit: str
    """What is counted, such as tokens."""
    units_per_step: float
    flops_per_step: float | None = None
    """FLOPs of the work that cannot be avoided; None if they are not counted."""
    products: tuple[Product, ...] = ()
    """Matrix products of the work, which the machine's peak is measured with."""
    repeats: int
    neighbours: tuple[int, ...] = ()
    """Numbers of busy processes that each round is repeated beside."""


def run_contest(contest: Contest, command: Command) -> dict[str, Any]:
    """Run all turns of all contestants, and measure the machine's peak before each round.

    Whoever interrupts it gets the figures of the rounds that are whole, if there is one.
    """
    rounds: list[_Round] = []
    interrupted = False
    try:
        # Kept one by one, as the next one may be interrupted.
        rounds.extend(_take_round(contest, command, number) for number in range(1, contest.repeats + 1))
    except KeyboardInterrupt:
        if not rounds:
            raise
        interrupted = True
        say(f"interrupted: the figures are those of {len(rounds)} of {contest.repeats} rounds")
    alone, *others = (
        figures({name: [one.turns[neighbours][name] for one in rounds] for name in contest.contestants})
        for neighbours in (0, *contest.neighbours)
    )
    peaks = [one.peak for one in rounds]
    return {
        **asdict(contest),
        "repeats": len(rounds),
        "interrupted": interrupted,
        "machine": describe_machine(),
        "peak": best_of(peaks),
        "peaks": peaks,
        **alone,
        "beside": {
            str(neighbours): {
                **found,
                "left": {name: ratio(alone, name, found, name) for name in contest.contestants},
            }
            for neighbours, found in zip(contest.neighbours, others, strict=True)
        },
    }


class _Round(NamedTuple):
    """A turn of every contestant, alone and beside each number of neighbours."""

    peak: Peak
    turns: dict[int, dict[str, Turn]]


def _take_round(contest: Contest, command: Command, number: int) -> _Round:
    peak = measure_peak(contest.products)
    turns: dict[int, dict[str, Turn]] = {}
    for neighbours in (0, *contest.neighbours):
        turns[neighbours] = {}
        for name in contest.contestants:
            beside = f" beside {neighbours}" if neighbours else ""
            say(f"{contest.title}: round {number} of {contest.repeats}, {name}{beside}")
            with busy_neighbours(neighbours):
                turns[neighbours][name] = take(command(name), name=name)
    return _Round(peak, turns)


def figures(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """What the turns of each contestant gave together: its steps, the median of each turn, its memory."""
    return {
        "seconds": {
            name: [second for turn in taken for second in turn.seconds] for name, taken in turns.items()
        },
        "rounds": {
            name: [statistics.median(turn.seconds) for turn in taken] for name, taken in turns.items()
        },
        "memory": {name: max(turn.memory or 0 for turn in taken) or None for name, taken in turns.items()},
        "precision": {
            # `auto` is measured, so it may be another one in another turn.
            name: " or ".join(sorted({turn.precision for turn in taken if turn.precision})) or None
            for name, taken in turns.items()
        },
    }


Ratio = dict[str, float]
"""`value` over all steps, the range from `min` to `max` that the rounds span, and the number of `rounds`."""


def ratio(some: Mapping[str, Any], name: str, others: Mapping[str, Any], other: str) -> Ratio:
    """The seconds of a contestant among some figures, as a multiple of those of one among others."""
    median = statistics.median
    of_rounds = [
        seconds / others_seconds
        for seconds, others_seconds in zip(some["rounds"][name], others["rounds"][other], strict=True)
    ]
    value = median(some["seconds"][name]) / median(others["seconds"][other])
    # Medians over all steps may lie beside those of every round.
    span = [value, *of_rounds]
    return {"value": value, "min": min(span), "max": max(span), "rounds": len(of_rounds)}


def take(words: Sequence[str], *, name: str, launcher: Sequence[str] = ELECTRA) -> Turn:
    """Let a contestant take its turn."""
    # Libraries may print anything before the last line.
    return Turn(**json.loads(run_command([*launcher, *words], name=name).output.splitlines()[-1]))


def chosen(ways: Mapping[str, Value], name: str) -> Value:
    """The entry of a contestant."""
    if name not in ways:
        raise InputError(f"contestant is {name}, expected one of {', '.join(ways)}")
    return ways[name]


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"  {line}", file=sys.stderr, flush=True)


def engine_work(engine: Engine, state: TrainState, problem: Problem) -> Work:
    """The steps of our own training loop."""
    steps = training_steps(state, problem, engine.loop(engine.train.budget), engine.world)
    return Work(lambda: next(steps), engine.precision)


def bench_engine(train: TrainConfig, world: World | None = None) -> Engine:
    """The engine on this machine's processor, in the precision that is fast there."""
    devices.set_up_allocator()
    return Engine.choose(train, world or World(), torch.device("cpu"))


def time_steps(work: Work, *, count: int, warmup: int = WARMUP_STEPS) -> Turn:
    """Time each step, after some warm-up steps.

    A contestant that is very slow on this machine (bf16 without instructions for it) takes fewer steps.
    """
    for _ in range(warmup):
        work.step()
    seconds: list[float] = []
    while len(seconds) < count and (len(seconds) < _LEAST_STEPS or sum(seconds) < _LONGEST_TURN):
        begun = time.perf_counter()
        work.step()
        seconds.append(time.perf_counter() - begun)
    return Turn(seconds, own_peak(), precision=work.precision)


_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def processor_flags() -> list[str]:
    """Those instructions of this processor that decide how fast a precision is."""
    try:
        found = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    except OSError:
        return []
    return [flag for flag in _FLAGS if flag in found]


def describe_machine() -> dict[str, Any]:
    """The facts about this machine without which figures mean little."""
    return {**devices.describe_machine(), "flags": processor_flags()}


def machine_line(machine: Mapping[str, Any], *more: str) -> str:
    """Processor, instructions, cores and threads as a line of text, and what else is to be said."""
    flags = " ".join(machine.get("flags", [])) or "flags unknown"
    cores, threads = machine["cores"], machine["threads"]
    return ", ".join([f"{machine['cpu']} ({flags})", f"{cores} cores", f"{threads} threads", *more])


PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
COPY = "copy"
_PROBE_SECONDS = 0.3
_COPIED_BYTES = 1 << 28
"""More than any cache holds."""


def encoder_products(config: EncoderConfig, *, tokens: int) -> tuple[Product, ...]:
    """The matrix products of an encoder layer: in and out of attention, in and out of the feed-forward."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return (
        (tokens, hidden, 3 * hidden),
        (tokens, hidden, hidden),
        (tokens, hidden, inner),
        (tokens, inner, hidden),
    )


def measure_peak(products: Sequence[Product], *, seconds: float = _PROBE_SECONDS) -> Peak:
    """The best speed among these products and a square one, and that of a copy; each gets some seconds."""
    device = torch.device("cpu")
    rates: Peak = {
        precision: max(
            devices.products_speed({product: 1}, device, precision, seconds=seconds)
            for product in (devices.square_product(device), *products)
        )
        for precision in PRECISIONS
    }
    return {**rates, COPY: copy_speed(seconds=seconds)}


def copy_speed(*, seconds: float, size: int = _COPIED_BYTES) -> float:
    """Bytes read and written per second in the fastest of several copies."""
    source = torch.ones(size // 4)
    # Not `empty`: the first touch of a page takes far longer than its copy.
    target = source.clone()
    fastest, begun = math.inf, time.perf_counter()
    while math.isinf(fastest) or time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        target.copy_(source)
        fastest = min(fastest, time.perf_counter() - before)
    return 2 * source.nbytes / fastest


def best_of(peaks: Sequence[Peak]) -> Peak:
    """The highest of each kind; the machine may have been busy at other times."""
    return {key: max(peak[key] for peak in peaks) for key in peaks[0]}


def best_flops(peak: Mapping[str, float]) -> float:
    """FLOP/s in the faster precision: what 100 % is."""
    return max(peak[precision] for precision in PRECISIONS)


def describe_peak(peak: Mapping[str, float]) -> str:
    """A line of text."""
    rates = ", ".join(f"{peak[precision] / 1e9:.0f} GFLOP/s in {precision}" for precision in PRECISIONS)
    return f"peak here: {rates}; {peak[COPY] / 1e9:.0f} GB/s copied"
