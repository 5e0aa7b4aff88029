"""A command that several processes share -> these processes on the nodes of a Ray cluster, until it ends.

Ray places an actor for each process; the actor starts the command as torchrun would, with RANK, WORLD_SIZE
and so on in the environment, so that what happens inside is what happens under torchrun. `run_command`, where
the person has typed the command, shows what the first process says, passes signals on, and when a process or
a node is lost it begins anew with the nodes that are left, from the last checkpoint.

A process lives no longer than its actor: its standard input ends with it (`end_with_parent`). If a node is
cut off, its processes can outlive the news of their death by a minute. They hold the lock of the run folder
until then, and the new ones wait for it (`lock_seconds`).
"""

import contextlib
import fcntl
import math
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from electra import files
from electra.cluster import Cluster, Node, shortened
from electra.errors import INTERRUPTED, InputError
from electra.show import listed
from electra.train.signals import handled_by

RESTARTS = 10
"""How often a command begins anew on a cluster, unless somebody says otherwise."""

_WORKER = "ELECTRA_CLUSTER_WORKER"
_LOCK_SECONDS = 150.0
"""How long a process waits for the lock of the run folder: longer than those of a lost node live."""
_PLACE_SECONDS, _SILENT_SECONDS = 240.0, 90.0
_LOOK_SECONDS, _SETTLE_SECONDS, _NODES_SECONDS = 0.5, 10.0, 120.0
_LONGEST_PAUSE, _STEP_SECONDS = 60.0, 0.5
"""The second: how soon a signal is heard where something is waited for."""
_LAST_LINES, _MOST_LINES = 12, 2000
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the address of a network interface."""


def is_worker() -> bool:
    """Whether this process was started by `run_command`, and is to do the work itself."""
    return _WORKER in os.environ


def lock_seconds() -> float:
    """How long this process may wait for the lock of the run folder: those before it may still be dying."""
    return _LOCK_SECONDS if os.environ.get(_WORKER, "0") != "0" else 0.0


def end_with_parent() -> None:
    """Let this process end when the actor that started it does, however that ends."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, name="parent", daemon=True).start()


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a process is to run, and with what."""

    node: Node
    cpus: int
    gpus: int


def choose_seats(nodes: Sequence[Node], *, workers: int | None, batch_size: int, on_gpus: bool) -> list[Seat]:
    """One process for each GPU; without GPUs one for each node, or `workers` spread over the nodes' cores.

    There are as many as the nodes have room for and the batch can be divided by.
    """
    if on_gpus and any(node.gpus >= 1 for node in nodes):
        seats = [Seat(node=node, cpus=1, gpus=1) for node in nodes for _ in range(int(node.gpus))]
        return seats[: _dividing(batch_size, min(len(seats), workers or len(seats)))]
    room = {node.id: int(node.cpus) for node in nodes if node.cpus >= 1}
    able = [node for node in nodes if node.id in room]
    most = min(workers, sum(room.values())) if workers else len(able)
    number = _dividing(batch_size, most)
    counts = dict.fromkeys(room, 0)
    while sum(counts.values()) < number:
        # The node that is the least full, so that neighbours share cores only if they must.
        emptiest = min(able, key=lambda node: counts[node.id] / room[node.id])
        counts[emptiest.id] += 1
    # As many threads everywhere: the slowest one sets the pace.
    cpus = min((room[key] // count for key, count in counts.items() if count), default=0)
    return [Seat(node=node, cpus=cpus, gpus=0) for node in able for _ in range(counts[node.id])]


def _dividing(batch_size: int, most: int) -> int:
    return next((number for number in range(most, 0, -1) if batch_size % number == 0), 0)


def require_same_folders(cluster: Cluster, nodes: Sequence[Node], *, data: Path | None, out: Path) -> None:
    """Raise an InputError that names a node on which the data or the run folder is another one, or none."""
    here = data_seal(data) if data else ""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    token = f".cluster-{secrets.token_hex(8)}"
    (out / token).touch()
    try:
        answers = dict(cluster.each(nodes, look_at_folders, str(data or ""), str(out), token))
        problems = []
        for node, (seal, trouble, mark) in answers.items():
            if seal != here:
                problems.append(f"node {node} has other data in {data} than this machine ({seal or 'none'})")
            if trouble or not (out / mark).exists():
                problems.append(
                    f"node {node} {trouble or f'writes to another folder {out} than this machine'}"
                )
        if problems:
            raise InputError(
                "all machines must see the same --data and --out, on a disk that they share: "
                + listed(problems)
            )
    except BaseException:
        _remove_marks(out, token)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    _remove_marks(out, token)


def _remove_marks(out: Path, token: str) -> None:
    for mark in out.glob(f"{token}*"):
        mark.unlink(missing_ok=True)


def data_seal(data: Path) -> str:
    """What tells one dataset from another; empty if there is none."""
    manifest = data / files.MANIFEST
    return files.sha256(manifest) if manifest.is_file() else ""


def look_at_folders(data: str, out: str, token: str) -> tuple[str, str, str]:
    """What a node sees: the seal of the data, what is wrong with the run folder, its own mark there."""
    mark = f"{token}-{socket.gethostname()}-{secrets.token_hex(4)}"
    trouble = ""
    try:
        if not (Path(out) / token).exists():
            trouble = f"does not see the folder {out} of this machine"
        else:
            (Path(out) / mark).touch()
    except OSError as error:
        trouble = f"cannot write to {out}: {error.strerror}"
    return data_seal(Path(data)) if data else "", trouble, mark


class Report(NamedTuple):
    """What an actor has heard from its process since it was last asked."""

    lines: list[tuple[str, str]]
    """(stdout or stderr, line)"""
    code: int | None
    """Its exit code, once it has ended and everything it said was reported."""


class Worker:
    """An actor: starts one process of the command, and says what it says and how it ends."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._said: deque[tuple[str, str]] = deque(maxlen=_MOST_LINES)
        self._readers: list[threading.Thread] = []
        self._folder = tempfile.mkdtemp(prefix="electra-worker-")

    def place(self, address: str) -> tuple[int, str]:
        """A free port of the node, and the name of the interface that has its address."""
        with socket.socket() as free:
            free.bind(("", 0))
            return free.getsockname()[1], interface_of(address)

    def start(self, words: Sequence[str], config: str, environment: Mapping[str, str]) -> None:
        """Start the command with a config file of its own."""
        path = Path(self._folder) / "config.yaml"
        path.write_text(config, encoding="utf-8")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "electra", *words, "--config", str(path)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for name, stream in (("stdout", self._child.stdout), ("stderr", self._child.stderr)):
            assert stream is not None
            self._readers.append(threading.Thread(target=self._read, args=(name, stream), daemon=True))
            self._readers[-1].start()

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._said.append((name, line.rstrip("\n")))

    def look(self) -> Report:
        """Wait a moment for news."""
        assert self._child is not None
        ended = time.monotonic() + _LOOK_SECONDS
        while not self._said and self._child.poll() is None and time.monotonic() < ended:
            time.sleep(_LOOK_SECONDS / 10)
        code = self._child.poll()
        if code is not None:
            for reader in self._readers:
                # A grandchild may hold the pipe open.
                reader.join(timeout=_LOOK_SECONDS)
            if self._child.stdin is not None:
                self._child.stdin.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        lines = [self._said.popleft() for _ in range(len(self._said))]
        return Report(lines, code)

    def signal(self, number: int) -> None:
        """Send a signal to the process; one that asks for a checkpoint only if it does not end the process.

        It does before the training has begun, and that begins with a checkpoint anyway.
        """
        if self._child is None or self._child.poll() is not None:
            return
        if number != signal.SIGUSR1 or is_handled(self._child.pid, number):
            self._child.send_signal(number)


def is_handled(pid: int, number: int) -> bool:
    """Whether a process of this machine has a handler for a signal; if it cannot be told, it has."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    handled = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return handled is None or bool(int(handled[1], 16) >> (number - 1) & 1)


def interface_of(address: str) -> str:
    """The name of the network interface with an address; empty if it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


@dataclass(kw_only=True)
class _Process:
    """A process of the command, as seen from here."""

    rank: int
    seat: Seat
    actor: Any
    asked: Any = None
    """The question for news that has not been answered yet."""
    heard: float = field(default_factory=time.monotonic)
    code: int | None = None
    lost: str = ""
    """Why nobody will hear from it again."""
    is_silent: bool = False
    """Whether it is lost because its node says nothing, and not because Ray says so."""
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    @property
    def has_ended(self) -> bool:
        return self.code is not None or bool(self.lost)

    @property
    def has_crashed(self) -> bool:
        return bool(self.lost) or self.code not in (None, 0, INTERRUPTED)

    def last_words(self) -> str:
        """Who it was, how it ended and the last that it said."""
        how = self.lost or f"ended with code {self.code}"
        # What the first process says has been shown.
        said = shortened("\n".join(self.last), lines=_LAST_LINES) if self.rank else ""
        return f"process {self.rank} on node {self.seat.node.name} {how}" + (
            "; its last lines:\n  " + said.replace("\n", "\n  ") if said else ""
        )


def run_command(
    cluster: Cluster,
    words: Sequence[str],
    config: str,
    *,
    seats: Callable[[Sequence[Node]], list[Seat]],
    check: Callable[[Sequence[Node]], None],
    max_restarts: int,
    ends: Sequence[int],
) -> int:
    """Run `electra WORDS --config FILE` in a process at each seat; begin anew if one crashes or is lost.

    `check` raises an InputError if one of some nodes cannot take part: of those that there are when the
    command begins it is raised here, later ones are left out. Returns the exit code of the command: one of
    `ends`, or that of the last attempt.
    """
    lost_at: float | None = None
    able = [node for node in cluster.nodes if node.cpus or node.gpus]
    check(able)
    known = {node.id for node in able}
    avoided: dict[str, float] = {}
    with _asked_to_stop() as passed:
        for restarts in range(max_restarts + 1):
            passed.end_if_told()
            for node in cluster.nodes:
                if node.id not in known:
                    known.add(node.id)
                    avoided |= _left_out(node, check)
            chosen = _seats_left(cluster, seats, avoided, passed)
            _say(
                f"{len(chosen)} processes: "
                + listed([f"{rank} on {seat.node.name}" for rank, seat in enumerate(chosen)], most=8)
            )
            crew = _Crew(cluster, chosen, passed, restarts=restarts, lost_at=lost_at)
            try:
                code = crew.run(words, config)
            finally:
                crew.end()
            if code in ends or passed.stops:
                return code if code in ends else INTERRUPTED
            lost_at = crew.last_sign
            # Until Ray has found out, too, or the node is back.
            avoided |= dict.fromkeys(crew.silent_nodes, time.monotonic() + _SILENT_SECONDS)
            if restarts == max_restarts:
                break
            _say(f"restart {restarts + 1} of {max_restarts}, from the last checkpoint")
            # At once after the first loss; what crashes again and again may need time to pass.
            again = time.monotonic() + min(_LONGEST_PAUSE, 2.0**restarts - 1)
            while time.monotonic() < again:
                passed.end_if_told()
                time.sleep(_STEP_SECONDS)
            cluster.look_again()
    return code


def _left_out(node: Node, check: Callable[[Sequence[Node]], None]) -> dict[str, float]:
    try:
        check([node])
    except InputError as error:
        _say(f"{node.name} is left out: {error}")
        return {node.id: math.inf}
    return {}


def _seats_left(
    cluster: Cluster,
    seats: Callable[[Sequence[Node]], list[Seat]],
    avoided: Mapping[str, float],
    passed: "_Passed",
) -> list[Seat]:
    """The seats on the nodes that are alive; waits a while if there are none."""
    until = time.monotonic() + _NODES_SECONDS
    while True:
        passed.end_if_told()
        now = time.monotonic()
        if chosen := seats([node for node in cluster.nodes if avoided.get(node.id, now) <= now]):
            return chosen
        if now > until:
            raise InputError(
                f"no node of the cluster has room for a process ({cluster.sizes}): start one with 'ray "
                "start', then type it again"
            )
        time.sleep(_STEP_SECONDS)


class _Passed:
    """Signals that were sent to this process and are to be sent on."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.stops = False

    def end_if_told(self) -> None:
        """While no process trains there is nobody to pass it on to, and nothing to save."""
        if self.stops:
            raise KeyboardInterrupt("before the training began, or began again; the last checkpoint is kept")


@contextmanager
def _asked_to_stop() -> Iterator[_Passed]:
    """Collect signals; the second Ctrl-C ends this process at once, and its actors with it."""
    passed = _Passed()

    def hear(number: int, _frame: FrameType | None) -> None:
        if passed.stops and number == signal.SIGINT:
            raise KeyboardInterrupt("at the second signal, without saving")
        passed.stops = passed.stops or number != signal.SIGUSR1
        passed.pending.append(signal.SIGTERM if number != signal.SIGUSR1 else number)

    if threading.current_thread() is not threading.main_thread():
        yield passed
        return
    with handled_by(hear):
        yield passed


class _Crew:
    """The processes of one attempt."""

    def __init__(
        self,
        cluster: Cluster,
        seats: Sequence[Seat],
        passed: _Passed,
        *,
        restarts: int,
        lost_at: float | None,
    ) -> None:
        self._ray, self._passed = cluster.ray, passed
        self._restarts, self._lost_at = restarts, lost_at
        self._processes = [
            _Process(
                rank=rank,
                seat=seat,
                # Asked for news and told of signals at the same time.
                actor=cluster.actor(Worker, seat.node, cpus=seat.cpus, gpus=seat.gpus, max_concurrency=2),
            )
            for rank, seat in enumerate(seats)
        ]

    @property
    def last_sign(self) -> float:
        """When whoever has not been heard of for the longest time was heard of."""
        return min(one.heard for one in self._processes)

    @property
    def silent_nodes(self) -> list[str]:
        """Nodes that have not answered for some time; of one that is lost Ray knows whether it is alive."""
        since = time.monotonic() - _SETTLE_SECONDS / 2
        unheard = (one for one in self._processes if one.is_silent or not one.has_ended)
        return [one.seat.node.id for one in unheard if one.is_silent or one.heard < since]

    def run(self, words: Sequence[str], config: str) -> int:
        """Start the processes and listen until all have ended; the exit code of the command."""
        if not self._start(words, config):
            self._complain()
            return 1
        until = math.inf
        while not all(one.has_ended for one in self._processes) and time.monotonic() < until:
            self._listen()
            self._pass_on()
            if any(one.has_crashed for one in self._processes):
                # The others notice by themselves, unless they wait for one that is cut off.
                until = min(until, time.monotonic() + _SETTLE_SECONDS)
        codes = [one.code for one in self._processes]
        if all(code == 0 for code in codes):
            return 0
        worst = max((code for code in codes if code in (2, INTERRUPTED)), default=1)
        if not self._passed.stops:
            self._complain()
        return worst

    def _start(self, words: Sequence[str], config: str) -> bool:
        """Whether all processes could be started."""
        places = self._ask_all(lambda one: one.actor.place.remote(one.seat.node.address))
        if any(one.lost for one in self._processes):
            return False
        seen: dict[str, int] = {}
        environments = {}
        for one in self._processes:
            _, interface = places[one.rank]
            neighbours = seen.get(one.seat.node.id, 0)
            seen[one.seat.node.id] = neighbours + 1
            names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
            environments[one.rank] = {
                _WORKER: str(self._restarts),
                "MASTER_ADDR": self._processes[0].seat.node.address,
                "MASTER_PORT": str(places[0][0]),
                "WORLD_SIZE": str(len(self._processes)),
                "RANK": str(one.rank),
                # Ray shows a process its own GPU only.
                "LOCAL_RANK": "0" if one.seat.gpus else str(neighbours),
                "OMP_NUM_THREADS": str(one.seat.cpus),
                # Otherwise torch warns of every node whose name no server knows.
                "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
                **dict.fromkeys(names, interface),
            }
        self._ask_all(lambda one: one.actor.start.remote(list(words), config, environments[one.rank]))
        if any(one.lost for one in self._processes):
            return False
        for one in self._processes:
            one.asked, one.heard = one.actor.look.remote(), time.monotonic()
        return True

    def _ask_all(self, ask: Callable[[_Process], Any]) -> dict[int, Any]:
        """What the actors answer; who does not is lost."""
        asked = {ask(one): one for one in self._processes}
        until = time.monotonic() + _PLACE_SECONDS
        waiting = list(asked)
        while waiting and time.monotonic() < until:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=_STEP_SECONDS)
            self._passed.end_if_told()
        answers = {}
        for question, one in asked.items():
            try:
                answers[one.rank] = self._ray.get(question, timeout=0)
            except self._ray.exceptions.RayTaskError as error:
                raise ChildProcessError(f"node {one.seat.node.name}: {shortened(str(error))}") from error
            except self._ray.exceptions.GetTimeoutError:
                one.lost = f"did not start within {_PLACE_SECONDS:.0f} s: is the node busy with other work?"
                one.is_silent = True
            except self._ray.exceptions.RayError as error:
                one.lost = f"could not be started: {shortened(str(error), lines=1).strip()}"
        return answers

    def _listen(self) -> None:
        """Take the news that come within a second."""
        waiting = {one.asked: one for one in self._processes if not one.has_ended}
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=1.0)
        for question in ready:
            one = waiting[question]
            try:
                self._hear(one, self._ray.get(question))
            except self._ray.exceptions.RayTaskError as error:
                raise ChildProcessError(f"node {one.seat.node.name}: {shortened(str(error))}") from error
            except self._ray.exceptions.ActorUnavailableError:
                # Perhaps only for a moment: Ray says when it has given up.
                time.sleep(_LOOK_SECONDS)
            except self._ray.exceptions.RayError as error:
                one.lost = f"is lost: {shortened(str(error), lines=1).strip()}"
            if not one.has_ended:
                one.asked = one.actor.look.remote()
        for one in waiting.values():
            if not one.has_ended and time.monotonic() - one.heard > _SILENT_SECONDS:
                one.lost = f"is lost: nothing was heard from its node for {_SILENT_SECONDS:.0f} s"
                one.is_silent = True

    def _hear(self, one: _Process, report: Report) -> None:
        one.heard, one.code = time.monotonic(), report.code
        for stream, line in report.lines:
            if stream == "stderr":
                one.last.append(line)
            if one.rank == 0:
                print(line, file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)
                if self._lost_at is not None and line.startswith("resumed"):
                    seconds = time.monotonic() - self._lost_at
                    _say(f"training again, {seconds:.0f} s after the last sign of what was lost")
                    self._lost_at = None

    def _pass_on(self) -> None:
        while self._passed.pending:
            number = self._passed.pending.pop(0)
            for one in self._processes:
                # All save as soon as one is asked to: if each were asked, in steps of its own, so often.
                is_asked = one.rank == 0 or number != signal.SIGUSR1
                if is_asked and not one.has_ended:
                    one.actor.signal.remote(int(number))

    def _complain(self) -> None:
        """Say who failed, each with its last words; those that only lost a neighbour last."""
        failed = [one for one in self._processes if one.has_crashed]
        culprits = [one for one in failed if not any("has lost the others" in line for line in one.last)]
        for one in culprits or failed:
            _say(one.last_words())

    def end(self) -> None:
        """End all actors, and their processes with them."""
        for one in self._processes:
            with contextlib.suppress(Exception):
                self._ray.kill(one.actor)


def _say(text: str) -> None:
    print(f"electra: {text}", file=sys.stderr, flush=True)
