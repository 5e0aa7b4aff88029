"""`electra` commands in processes of their own, which start in milliseconds and can be killed as a group."""

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import shim

PATIENCE = 240.0
"""Seconds after which a command that should have ended counts as hanging."""
PRELOADED = [
    "electra.run.prepare",
    "electra.run.pretrain",
    "electra.run.finetune",
    "electra.run.export",
    "electra.run.predict",
    "electra.tasks.finetuning",
    "electra.train.distributed",
    "shim",
]

# Importing torch takes seconds, in which a kill would hit nothing of ours. A server that has imported all and
# computed nothing forks each command.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True)
class Ended:
    """How a command ended: code (negative: the signal that ended it), and all it said."""

    code: int
    said: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def is_clean_refusal(self) -> bool:
        """It failed, said why, and did not show its insides."""
        return self.code > 0 and "electra:" in self.said and "Traceback" not in self.said


@dataclass
class Command:
    """A running command: one process, or the ranks of one run."""

    words: Sequence[str]
    log: Path
    ranks: int = 1
    fault: shim.Fault | None = None
    processes: list[multiprocessing.process.BaseProcess] = field(init=False)

    def __post_init__(self) -> None:
        port = free_port() if self.ranks > 1 else 0
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self.processes = [
            _forks.Process(
                target=_run,
                args=(self.words, self.log, _place(rank, size=self.ranks, port=port), self.fault),
            )
            for rank in range(self.ranks)
        ]
        for process in self.processes:
            process.start()

    def signal(self, number: int, *, rank: int | None = None) -> None:
        """Send it to every process of the command, and to those it started."""
        for process in self.processes if rank is None else [self.processes[rank]]:
            try:
                # Until the child has made its group, its id is not a group's.
                os.killpg(process.pid, number)
            except ProcessLookupError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def is_running(self) -> bool:
        return any(process.exitcode is None for process in self.processes)

    def wait(self, seconds: float) -> None:
        """Until it has ended, or so long."""
        end = time.monotonic() + seconds
        while self.is_running() and (left := end - time.monotonic()) > 0:
            multiprocessing.connection.wait([process.sentinel for process in self.processes], min(left, 0.05))

    def end(self) -> Ended:
        """Wait for it; a command that hangs is killed and counts as one that failed."""
        self.wait(PATIENCE)
        hung = self.is_running()
        if hung:
            self.signal(signal.SIGKILL)
        for process in self.processes:
            process.join()
        codes = [process.exitcode or 0 for process in self.processes]
        said = self.log.read_text(errors="replace")
        if hung:
            return Ended(1, said + f"\nTraceback: it hung for {PATIENCE:.0f} s")
        return Ended(next((code for code in codes if code), 0), said)


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _place(rank: int, *, size: int, port: int) -> dict[str, str]:
    if size == 1:
        return {}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, "RANK": rank}
    return {key: str(value) for key, value in place.items()}


def _run(words: Sequence[str], log: Path, place: Mapping[str, str], fault: shim.Fault | None) -> None:
    os.setsid()
    said = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(said, sys.stdout.fileno())
    os.dup2(said, sys.stderr.fileno())
    os.environ.update(place)
    # Many small shards, so that a moment chosen at random lies between two; reports take seconds and are
    # made from what is compared here.
    from electra import cli
    from electra.run import finetune, pretrain
    from electra.text import shards
    from electra.train import distributed, signals

    shards.BLOCK_CHARACTERS = 20_000
    signals.STUCK_SECONDS = 1.0
    # A person has ten minutes for a process that does not come.
    distributed.TIMEOUT = timedelta(seconds=PATIENCE / 4)
    pretrain.write_report = finetune.write_report = lambda folder: "not written: this is a campaign"
    if fault is not None:
        fault.install()
    sys.exit(cli.main(list(words)))
