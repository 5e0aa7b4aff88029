"""`--cluster` -> a Ray cluster -> pieces of work done on any of its nodes. Without it Ray is not imported.

    with connected("auto") as cluster:
        for item, result in cluster.work(function, items):
            ...

The process that connects deals the pieces and gets their results; it alone decides and writes. So a piece can
be done again somewhere else when its worker or its node dies, and the result does not depend on where it was
done. `function` is sent by name: it has to be importable on the nodes, as everything in this package is, and
its result may depend on its arguments only.
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import itertools
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import InputError, import_extra
from electra.show import listed

Item = TypeVar("Item")
Result = TypeVar("Result")

AUTO, LOCAL, CLIENT = "auto", "local", "ray://"
ATTEMPTS = 3
"""How often a piece is begun before whoever waits for it is told that its workers die."""
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")
"""Besides Python, Ray and electra, what must be the same on all nodes unless a command needs less."""

_ALREADY_WAITING = 2
"""Pieces in flight for each one that can be done at a time: no core waits for the next one."""
_CONNECT_SECONDS, _PROBE_SECONDS = 10.0, 300.0
_LOOK_EVERY_SECONDS, _PAUSE_SECONDS = 5.0, 1.0
_PATIENCE_SECONDS = 60.0
_LAST_LINES, _LINE_CHARACTERS = 8, 300
_STORE_BYTES, _STORE_BYTES_PER_CORE = 128_000_000, 64_000_000
# Ray's proxy forks while gRPC is busy, and now and then what it starts for us dies of it (Ray's issue 63202).
_NO_CLIENT_SERVER = re.compile("Starting Ray client server failed|Proxy failed to Connect to backend")
# Also where Ray raises a RuntimeError, or a bare Exception.
_TIMED_OUT = re.compile("timed out|deadline exceeded", re.IGNORECASE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# Set before Ray is imported: no usage statistics, and no advice on settings that nobody here made.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Told 127.0.0.1, Ray takes the machine's address for its own all the same, unless it is for a desktop.
_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster that is alive."""

    id: str
    name: str
    """As given to `ray start --node-name`; else its host's name, or its address if others have the same."""
    address: str
    cpus: float
    gpus: float

    def room(self, cpus: float, gpus: float) -> int:
        """How many pieces it can do at a time."""
        rooms = [have // need for have, need in ((self.cpus, cpus), (self.gpus, gpus)) if need]
        return int(min(rooms, default=0))


def check_address(address: str) -> str:
    """What `--cluster` may be; an InputError says what it may be."""
    is_client = address.startswith(CLIENT) and _host_and_port(address) is not None
    if address not in (AUTO, LOCAL) and not is_client:
        raise InputError(
            f"cluster is {address!r}, expected ray://HOST:PORT (such as ray://10.0.0.1:10001), auto (the "
            "cluster that this machine is a node of) or local (this machine's cores)"
        )
    return address


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    is_one = host and port.isdecimal() and 0 < int(port) < 1 << 16
    return (host.strip("[]"), int(port)) if is_one else None


@contextmanager
def connected(
    address: str, *, packages: Sequence[str] = PACKAGES, with_streams: bool = False
) -> "Iterator[Cluster]":
    """A cluster for as long as it is needed: `local` starts one that only this machine reaches, and ends it.

    The versions of Python, Ray, electra and `packages` must be the same on all nodes that work: those with
    cores or GPUs, and if there will be streams, which take neither, the others, too.
    """
    check_address(address)
    in_environment = os.environ.get("RAY_ADDRESS") if address == AUTO else None
    if in_environment == LOCAL:
        # What it means to Ray, too.
        address = LOCAL
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(_QUIET))
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == LOCAL:
            # Others on this machine reach loopback, too. Since 2.59 Ray asks them for this token.
            stack.enter_context(_environment({**_ON_LOOPBACK, "RAY_AUTH_TOKEN": _token()}))
            stack.enter_context(_environment({"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE")}))
            options |= {
                "address": LOCAL,
                "include_dashboard": False,
                "num_cpus": len(os.sched_getaffinity(0)),
                "object_store_memory": _STORE_BYTES + _STORE_BYTES_PER_CORE * len(os.sched_getaffinity(0)),
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": stack.enter_context(_private_folder()),
            }
        else:
            options["address"] = in_environment or address
            _reach(options["address"], named="RAY_ADDRESS" if in_environment else "--cluster")
        ray = import_extra("ray", extra="cluster")
        if ray.is_initialized():
            raise InputError(
                "this process is connected to a Ray cluster already: disconnect (ray.shutdown()) first"
            )
        _init(ray, address, options)
        stack.callback(ray.shutdown)
        cluster = Cluster(ray)
        if address != LOCAL:
            cluster.require_versions(packages, with_streams=with_streams)
        elif not all(node.address.startswith("127.") for node in cluster.nodes):
            raise ChildProcessError("Ray listens to other machines, too, although it was told not to")
        yield cluster


def _init(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    # It prints to stdout that a worker died, whatever `log_to_driver` is. We say so ourselves.
    vars(importlib.import_module("ray._private.worker"))["print_to_stdstream"] = lambda *_, **__: None
    if address == LOCAL:
        # Read from the environment already if somebody else imported Ray.
        vars(importlib.import_module("ray._private.ray_constants"))["ENABLE_RAY_CLUSTER"] = False
    in_main_thread = threading.current_thread() is threading.main_thread()
    at_end = signal.getsignal(signal.SIGTERM)
    try:
        _init_at_last(ray, options)
        if in_main_thread:
            # Ray takes the signal for itself, and then our commands would not say how to resume.
            signal.signal(signal.SIGTERM, at_end)
    except Exception as error:
        ray.shutdown()
        said = f"{type(error).__name__}: {shortened(str(error)) or 'without a reason'}"
        if address == LOCAL:
            is_late = isinstance(error, TimeoutError) or _TIMED_OUT.search(str(error))
            how = " (timed out: is the machine very busy?)" if is_late else ""
            raise ChildProcessError(f"Ray did not start on this machine{how}: {said}") from error
        way_out = (
            "start it with 'ray start' on this machine, or name another with --cluster ray://HOST:PORT"
            if address == AUTO
            else "is this the port of Ray's client server (10001 by default), and runs the same Ray there?"
        )
        raise InputError(f"--cluster {address}: {said}; {way_out}") from error


def _init_at_last(ray: Any, options: Mapping[str, Any]) -> None:
    """`ray.init`, again if the server that the head node started for us died at once."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(**options)
            return
        except ConnectionError as error:
            if not _NO_CLIENT_SERVER.search(str(error)) or attempt == ATTEMPTS:
                raise
            ray.shutdown()
            print(
                "electra: warning: the server that Ray's head node started for this command died, trying "
                "again (GRPC_ENABLE_FORK_SUPPORT=0 before 'ray start --head' prevents it)",
                file=sys.stderr,
            )


def _reach(address: str, *, named: str) -> None:
    """Complain at once where Ray would try for half a minute."""
    if address == AUTO:
        return
    place = _host_and_port(address)
    if place is None:
        raise InputError(f"{named} {address}: expected HOST:PORT, such as 10.0.0.1:6379, {AUTO} or {LOCAL}")
    try:
        socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        # The latter for a host that cannot be one.
        raise InputError(
            f"{named} {address}: nobody answers there ({error}); is the cluster running ('ray status' on "
            "its first node), and may this machine reach it?"
        ) from error


class Cluster:
    """What is connected. Its methods are to be called by one thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._names: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._looked = -_LOOK_EVERY_SECONDS

    @property
    def nodes(self) -> list[Node]:
        """Those alive, as of a few seconds ago."""
        if time.monotonic() - self._looked >= _LOOK_EVERY_SECONDS:
            self.look_again()
        return self._nodes

    @property
    def sizes(self) -> str:
        """The nodes with what they have, for whoever finds no room there."""
        sizes = [f"{node.name} with {node.cpus:g} and {node.gpus:g}" for node in self.nodes]
        return f"cores and GPUs: {listed(sizes) or 'no node at all'}"

    def look_again(self) -> None:
        """See now who is alive."""
        facts = sorted(self._ray.nodes(), key=lambda node: str(node["NodeManagerAddress"]))
        hosts = [node["NodeManagerHostname"] for node in facts if node["Alive"]]
        for node in facts:
            host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
            own = node.get("NodeName")
            alone = host if hosts.count(host) == 1 else address
            self._names.setdefault(node["NodeID"], own if own and own != address else alone)
        self._nodes = [
            Node(
                id=node["NodeID"],
                name=self._names[node["NodeID"]],
                address=node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
            )
            for node in facts
            if node["Alive"]
        ]
        self._looked = time.monotonic()

    def name_of(self, node_id: str) -> str:
        """Also of one that has died."""
        if node_id not in self._names:
            self.look_again()
        return self._names.get(node_id, "an unknown node")

    def result_of(self, outcome: "_Outcome") -> Any:
        """What a piece gave, or its error."""
        node = self.name_of(outcome.node_id)
        if outcome.input_error is not None:
            raise InputError(outcome.input_error + (f" (on node {node})" if len(self.nodes) > 1 else ""))
        if outcome.failure is not None:
            raise ChildProcessError(f"a piece of the work failed on node {node}:\n{outcome.failure}")
        return outcome.result

    def require_versions(self, packages: Sequence[str], *, with_streams: bool) -> None:
        """Raise an InputError that names the nodes on which something is installed in another version."""
        here = versions(packages)
        nodes = [node for node in self.nodes if with_streams or node.cpus or node.gpus]
        different = [
            f"{name} has {what} {there.get(what, 'not installed')}, here it is {here[what]}"
            for name, there in self.each(nodes, versions, tuple(packages))
            for what in here
            if there.get(what) != here[what]
        ]
        if different:
            raise InputError("all machines of a cluster need the same versions: " + listed(different))

    def each(
        self, nodes: Sequence[Node], function: Callable[..., Result], *arguments: Any
    ) -> Iterator[tuple[str, Result]]:
        """What a function says on each of the nodes."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self._ray.remote(function)
        asked = {
            node.name: task.options(
                num_cpus=0,
                max_retries=1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.id, soft=False),
            ).remote(*arguments)
            for node in nodes
        }
        for name, answer in asked.items():
            try:
                yield name, self._ray.get(answer, timeout=_PROBE_SECONDS)
            except self._ray.exceptions.TaskUnschedulableError:
                # It has died, and was still among those alive a moment ago.
                continue
            except self._ray.exceptions.GetTimeoutError as error:
                raise InputError(
                    f"node {name} has not answered for {_PROBE_SECONDS:.0f} s: is it busy with other work, "
                    "or cut off? Type it again when it is not, or take it out of the cluster ('ray stop')"
                ) from error
            except self._ray.exceptions.RayError as error:
                raise InputError(
                    f"node {name} cannot run this version of electra: {shortened(str(error), lines=2)}; "
                    "install the same on every node"
                ) from error

    @property
    def ray(self) -> Any:
        """Ray itself, for those who have more to ask of it than to do pieces of work."""
        return self._ray

    def actor(self, kind: type, node: Node, *, cpus: float, gpus: float, max_concurrency: int = 1) -> Any:
        """An object of an importable class on a node, in a process of its own, until that is lost."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_concurrency": max_concurrency, "max_restarts": 0}
        return self._ray.remote(kind).options(scheduling_strategy=where, **options).remote()

    def work(
        self,
        function: Callable[..., Result],
        items: Iterable[Item],
        *,
        shared: Any = None,
        cpus: float = 1,
        gpus: float = 0,
        ordered: bool = True,
        on_done: Callable[[Item, str], None] | None = None,
    ) -> Iterator[tuple[Item, Result]]:
        """Each item with `function(item)`, or `function(item, shared)` where `shared` is sent once.

        Items are taken as pieces finish, and results kept until it is their turn: a few for every piece that
        the cluster can do at a time. `on_done` hears the item and the name of the node that did it.
        An InputError of a piece is raised as such; any other as ChildProcessError with the last lines of its
        traceback. A piece whose worker died is done again, `ATTEMPTS` times in all.
        """
        desk = _Desk(self, self._ray, function, shared, cpus=cpus, gpus=gpus)
        numbered = enumerate(items)
        finished: dict[int, tuple[Item, Result]] = {}
        turn = 0
        more = True
        try:
            while more or desk.running or finished:
                room = _ALREADY_WAITING * desk.room_at_last()
                while more and len(desk.running) < room and len(finished) < 2 * room:
                    number, item = next(numbered, (-1, None))
                    more = number >= 0
                    if more:
                        desk.submit(_Piece(number=number, item=item))
                if desk.running:
                    for piece, result, node in desk.collect():
                        if on_done is not None:
                            on_done(piece.item, node)
                        finished[piece.number] = (piece.item, result)
                elif more:
                    # There is no node to give it to.
                    time.sleep(_PAUSE_SECONDS)
                while finished and (not ordered or turn in finished):
                    yield finished.pop(turn if ordered else next(iter(finished)))
                    turn += 1
        finally:
            desk.cancel()

    def streams(
        self, function: Callable[..., Iterator[Result]], items: Iterable[Item], *, shared: Any, at_once: int
    ) -> Generator[tuple[Item, Iterator[Result]], None, None]:
        """Each item with what `function(item, shared)` yields, in order; it is run on a node, a little ahead.

        So many items are begun before it is their turn. If the node of one dies, it is begun again elsewhere,
        and as many results are left out as it yielded before: if what it yields depends on the node, whoever
        asks has to see from the results which of them are missing. What is waiting to be fetched takes no
        core from `work`.
        """
        begun: deque[tuple[Item, _Stream]] = deque()
        waiting = iter(items)
        sent = self._ray.put((shared,))
        try:
            while True:
                for item in itertools.islice(waiting, at_once - len(begun)):
                    begun.append((item, _Stream(self, self._ray, function, item, sent)))
                if not begun:
                    return
                item, stream = begun[0]
                yield item, stream.results()
                stream.end()
                begun.popleft()
        finally:
            for _, stream in begun:
                stream.end()


@dataclass(kw_only=True)
class _Piece:
    """One item on its way."""

    number: int
    item: Any
    attempts: int = 0
    token: str = ""
    """Stands in the log of the worker that does it."""


class _Desk:
    """Hands out pieces and takes what comes back."""

    def __init__(
        self,
        cluster: Cluster,
        ray: Any,
        function: Callable[..., Any],
        shared: Any,
        *,
        cpus: float,
        gpus: float,
    ) -> None:
        assert cpus or gpus, "a piece that needs nothing would never be waited for"
        self.running: dict[Any, _Piece] = {}
        self._cluster, self._ray = cluster, ray
        self._function, self._shared = function, ray.put((shared,))
        self._cpus, self._gpus = cpus, gpus
        self._crowded_out: float | None = None
        # Done again by us, who count and say so, and not by Ray.
        self._task = ray.remote(_do).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD"
        )
        if not self._room():
            raise InputError(self._no_room())

    def room_at_last(self) -> int:
        """How many pieces the cluster can do at a time; 0 for a while when the last that could has died."""
        room = self._room()
        if room:
            self._crowded_out = None
        elif self._crowded_out is None:
            self._crowded_out = time.monotonic()
        elif time.monotonic() - self._crowded_out > _PATIENCE_SECONDS:
            raise ChildProcessError(f"{self._no_room()}; the others have died")
        return room

    def _room(self) -> int:
        return sum(node.room(self._cpus, self._gpus) for node in self._cluster.nodes)

    def _no_room(self) -> str:
        return (
            f"no node of the cluster has the {self._cpus:g} cores and {self._gpus:g} GPUs that a piece of "
            f"the work needs ({self._cluster.sizes})"
        )

    def submit(self, piece: _Piece) -> None:
        """Begin a piece, or begin it again."""
        piece.attempts += 1
        piece.token = secrets.token_hex(8)
        self.running[self._task.remote(self._function, piece.item, self._shared, piece.token)] = piece

    def collect(self) -> Iterator[tuple[_Piece, Any, str]]:
        """The pieces that have finished, with result and node; waits for one, but not for ever."""
        ready, _ = self._ray.wait(list(self.running), num_returns=1, timeout=_LOOK_EVERY_SECONDS)
        if not ready:
            return
        # Whatever else has finished by now.
        more, _ = self._ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        for reference in {*ready, *more}:
            piece = self.running.pop(reference)
            try:
                outcome: _Outcome = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise ChildProcessError(f"a piece of the work failed:\n{shortened(str(error))}") from error
            except self._ray.exceptions.RayError as error:
                self._again(piece, error)
                continue
            yield piece, self._cluster.result_of(outcome), self._cluster.name_of(outcome.node_id)

    def _again(self, piece: _Piece, error: Exception) -> None:
        reason = shortened(str(error), lines=1)
        if piece.attempts >= ATTEMPTS:
            raise ChildProcessError(
                f"the workers that did a piece of the work died, {ATTEMPTS} times; the last one"
                f"{self._last_words(piece.token)}\n{reason}\nis there enough memory on the nodes?"
            ) from error
        print(f"electra: warning: a worker died, its piece is done again: {reason}", file=sys.stderr)
        self.submit(piece)

    def _last_words(self, token: str) -> str:
        """Where the worker died that had been given a token, and the last lines of its log."""
        with contextlib.suppress(InputError):
            for node, lines in self._cluster.each(self._cluster.nodes, _log_of, token):
                if lines is not None:
                    return f" on node {node}{':' if lines else ''}\n{lines}".rstrip()
        return " on a node that is gone"

    def cancel(self) -> None:
        """End what is still being done."""
        for reference in self.running:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)
        self.running.clear()


class _Stream:
    """What a function yields on some node."""

    def __init__(
        self, cluster: Cluster, ray: Any, function: Callable[..., Any], item: Any, shared: Any
    ) -> None:
        self._cluster, self._ray = cluster, ray
        self._arguments = (function, item, shared)
        self._had = self._attempts = 0
        self._asked: deque[Any] = deque()
        self._begin()

    def _begin(self) -> None:
        self._attempts += 1
        actor = self._ray.remote(_Source).options(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")
        self._actor = actor.remote(*self._arguments, self._had)
        self._asked.clear()
        self._ask()

    def _ask(self) -> None:
        while len(self._asked) < _ALREADY_WAITING:
            self._asked.append(self._actor.next.remote())

    def results(self) -> Iterator[Any]:
        """All of them, in order."""
        while True:
            try:
                outcome: _Outcome = self._ray.get(self._asked.popleft())
            except self._ray.exceptions.RayError as error:
                reason = shortened(str(error), lines=1)
                if self._attempts >= ATTEMPTS:
                    raise ChildProcessError(f"a worker died again and again: {reason}") from error
                print(f"electra: warning: a worker died, another goes on: {reason}", file=sys.stderr)
                self._begin()
                continue
            result = self._cluster.result_of(outcome)
            if outcome.is_end:
                return
            self._ask()
            self._had += 1
            yield result

    def end(self) -> None:
        """Nothing more is wanted."""
        self._asked.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


def shortened(text: str, *, lines: int = _LAST_LINES) -> str:
    """The last lines of what a machine had to say, none of them long."""
    said = [line.rstrip() for line in _ESCAPE.sub("", text).splitlines() if line.strip()]
    return "\n".join(
        line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..." for line in said[-lines:]
    )


def _token() -> str:
    """One for the whole life of the process: Ray reads it once."""
    global _secret
    _secret = _secret or secrets.token_hex(32)
    return _secret


_secret = ""


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables that are as before when it is over, whatever Ray did to them."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for Ray's files that others cannot enter: Ray itself lets everybody into its own.

    Ray's sockets lie deep in it, and the name of a socket has at most 107 characters.
    """
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < 24 else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="electra-", dir=place))
    try:
        yield str(folder / "ray")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- on a node ---


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What became of a piece."""

    node_id: str
    result: Any = None
    input_error: str | None = None
    failure: str | None = None
    is_end: bool = False


def _do(function: Callable[..., Any], item: Any, shared: tuple[Any], token: str) -> _Outcome:
    print(_line_of(token), file=sys.stderr, flush=True)
    return _outcome(lambda: function(item) if shared[0] is None else function(item, shared[0]))


class _Source:
    """Runs a function that yields, from one request to the next."""

    def __init__(
        self, function: Callable[..., Iterator[Any]], item: Any, shared: tuple[Any], skipped: int
    ) -> None:
        self._results = itertools.islice(function(item, shared[0]), skipped, None)

    def next(self) -> _Outcome:
        """What it yields next."""
        end = object()
        outcome = _outcome(lambda: next(self._results, end))
        return _Outcome(node_id=outcome.node_id, is_end=True) if outcome.result is end else outcome


def _outcome(work: Callable[[], Any]) -> _Outcome:
    node_id = _here()
    try:
        return _Outcome(node_id=node_id, result=work())
    except InputError as error:
        return _Outcome(node_id=node_id, input_error=str(error))
    except Exception:
        return _Outcome(node_id=node_id, failure=shortened(traceback.format_exc()))


def _here() -> str:
    node_id: str = import_extra("ray", extra="cluster").get_runtime_context().get_node_id()
    return node_id


def _line_of(token: str) -> str:
    return f"electra: piece {token}"


def _log_of(token: str) -> str | None:
    """The last lines in the log of the worker that had been given a piece, if it was one of this node."""
    own = Path("/proc/self/fd/2").resolve()
    for path in own.parent.glob("worker-*.err"):
        _, found, rest = path.read_text(encoding="utf-8", errors="replace").partition(_line_of(token))
        if found:
            return shortened(rest)
    return None


def versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """What must be the same on every node: another version may make other bytes."""
    found = {"Python": platform.python_version(), "electra": f"{_version('electra')} ({_digest()})"}
    return found | {package: _version(package) for package in ("ray", *packages)}


def _version(package: str) -> str:
    try:
        # 2.13.0+cpu and 2.13.0+cu130 are one: a machine without GPUs may direct others that have them.
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _digest() -> str:
    """Changes with the code, which between two releases has one version."""
    folder = Path(__file__).parent
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return content.hexdigest()[:8]
