"""Ray nodes in network namespaces: machines with addresses of their own, as far as Ray can tell.

    with ray_nodes(3) as nodes:
        nodes.run(["prepare", ...])                  # `electra prepare ... ` on the first node
        nodes.kill(2)                                # kill -9 of everything on the third
        with nodes.cut(1): ...                       # the second one's network is cut, and comes back

All nodes see the files of this machine; `nodes.folder(0)` is a node's own. What was made is removed at the
end, also after a failure. Needs root: elsewhere the test is skipped.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PATIENCE = 480.0
"""Seconds: a node is six Python processes, and tests share the machine."""
TEST_SECONDS = 4 * PATIENCE
"""For a test that starts nodes and waits several times."""
GCS_PORT, CLIENT_PORT = 6379, 10001
_STARTED = "Ray runtime started"
_ROOT = Path(__file__).parents[2]


def ip(*words: object) -> str:
    """The `ip` command; its complaint is the error."""
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def why_not() -> str | None:
    """Why there can be no namespaces here."""
    if shutil.which("ip") is None:
        return "no command 'ip' (iproute2) for network namespaces"
    name = f"electra-try-{secrets.token_hex(3)}"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except OSError as error:
        return f"no network namespaces may be made here: {error}"
    return None


@dataclass(kw_only=True)
class Nodes:
    """A running cluster of them."""

    tag: str
    base: Path
    environment: dict[str, str]
    """What every node, and who talks to them, has in its environment."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def name(self, index: int) -> str:
        """The name that Ray knows a node by."""
        return f"node-{index}"

    def address(self, index: int) -> str:
        return f"{self._net}.{index + 2}"

    def folder(self, index: int) -> Path:
        """What is local to a node; Ray's files are in `ray` there."""
        return self.base / f"n{index}"

    @property
    def client_address(self) -> str:
        """What `--cluster` gets from a machine that is no node, such as this process."""
        return f"ray://{self.address(0)}:{CLIENT_PORT}"

    @property
    def _net(self) -> str:
        number = int(self.tag, 16)
        return f"198.{18 + number % 2}.{number // 2 % 256}"

    def _space(self, index: int) -> str:
        return f"electra-{self.tag}-{index}"

    def _link(self, index: int) -> str:
        return f"e{self.tag}-{index}"

    @property
    def _bridge(self) -> str:
        return f"e{self.tag}-br"

    def inside(self, index: int, words: Sequence[str], **variables: str) -> subprocess.Popen[str]:
        """A command on a node, in its folder; ends with the test at the latest."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self._space(index), *words],
            env={**os.environ, **self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder(index),
        )

    def electra(self, words: Sequence[str], *, index: int = 0, **variables: str) -> subprocess.Popen[str]:
        """`electra ...` on a node, which finds the cluster with `--cluster auto`."""
        variables = {"RAY_ADDRESS": f"{self.address(0)}:{GCS_PORT}", **variables}
        return self.inside(index, [sys.executable, "-m", "electra", *words], **variables)

    def run(
        self, words: Sequence[str], *, index: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end."""
        with self.electra(words, index=index, **variables) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def pids(self, index: int) -> list[int]:
        """All processes on a node."""
        return [int(pid) for pid in ip("netns", "pids", self._space(index)).split()]

    def kill(self, index: int) -> None:
        """The node is gone from one moment to the next."""
        while pids := self.pids(index):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    @contextlib.contextmanager
    def cut(self, index: int) -> Iterator[None]:
        """No packet leaves or reaches a node meanwhile; nobody is told."""
        ip("link", "set", self._link(index), "nomaster")
        try:
            yield
        finally:
            ip("link", "set", self._link(index), "master", self._bridge)

    def start(self, index: int, **variables: str) -> None:
        """Make a node and start Ray there; `wait` waits for it."""
        space, link = self._space(index), self._link(index)
        if not index:
            ip("link", "add", self._bridge, "type", "bridge")
            ip("address", "add", f"{self._net}.1/24", "dev", self._bridge)
            ip("link", "set", self._bridge, "up")
        ip("netns", "add", space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", link, "master", self._bridge, "up")
        ip("-n", space, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")
        ip("-n", space, "route", "add", "default", "via", f"{self._net}.1")
        self.folder(index).mkdir(parents=True)
        with (self.folder(index) / "start.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", space, *self._ray_start(index)],
                    env={**os.environ, **self.environment, **variables},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd=self.folder(index),
                )
            )

    def _ray_start(self, index: int) -> list[str]:
        head = [
            "--head",
            f"--port={GCS_PORT}",
            f"--ray-client-server-port={CLIENT_PORT}",
            "--include-dashboard=false",
        ]
        joining = [f"--address={self.address(0)}:{GCS_PORT}"]
        return [
            *(sys.executable, "-m", "patient_ray", "start", "--block", "--disable-usage-stats"),
            *(joining if index else head),
            *(f"--node-ip-address={self.address(index)}", f"--node-name={self.name(index)}"),
            *("--num-cpus=1", "--object-store-memory=100000000", f"--temp-dir={self.folder(index) / 'ray'}"),
            *("--no-monitor", "--include-log-monitor=false"),
        ]

    def wait(self, index: int) -> None:
        """Until a node takes part in the cluster."""
        log = self.folder(index) / "start.log"
        end = time.monotonic() + PATIENCE
        while _STARTED not in (said := log.read_text(errors="replace")):
            if self.started[index].poll() is not None or time.monotonic() > end:
                print(said + self.last_log_lines(index))
                # Its own processes, on a machine that tests share: nothing can be learned about ours.
                pytest.skip(f"Ray did not start on node {index} of {len(self.started)}")
            time.sleep(0.1)

    def last_log_lines(self, index: int) -> str:
        """The end of each of Ray's logs on a node."""
        logs = sorted(self.folder(index).glob("ray/session_2*/logs/*.*"))
        texts = {path.name: path.read_text(errors="replace").splitlines()[-8:] for path in logs}
        return "".join(f"\n{name}:\n  " + "\n  ".join(lines) for name, lines in texts.items() if lines)

    def remove(self) -> None:
        """Everything, however far it came."""
        for index, process in enumerate(self.started):
            with contextlib.suppress(OSError):
                self.kill(index)
            process.kill()
            process.wait()
        spaces = [line.split()[0] for line in ip("netns", "list").splitlines() if line]
        for space in spaces:
            if space.startswith(f"electra-{self.tag}-"):
                # Its end of the link goes with it, and so the other one.
                ip("netns", "delete", space)
        with contextlib.suppress(OSError):
            ip("link", "delete", self._bridge)
        shutil.rmtree(self.base, ignore_errors=True)


@contextlib.contextmanager
def ray_nodes(count: int, *, variables: Mapping[int, Mapping[str, str]] | None = None) -> Iterator[Nodes]:
    """A cluster of so many nodes with one core each; `variables` are for the environment of single nodes."""
    pytest.importorskip("ray", reason="Ray is not installed (extra: cluster)")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    tag = secrets.token_hex(2)
    # Sockets have short names.
    base = Path(f"/tmp/electra-{tag}")
    environment = {
        "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT / 'tests' / 'support'}",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # As docs/cluster.md advises: else one in ten servers that the head node starts for a client dies.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    nodes = Nodes(tag=tag, base=base, environment=environment)
    try:
        for index in range(count):
            nodes.start(index, **(variables or {}).get(index, {}))
            nodes.wait(index)
        yield nodes
    finally:
        nodes.remove()
