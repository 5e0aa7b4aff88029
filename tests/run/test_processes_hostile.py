"""Several processes of `electra pretrain`, one of which hangs, dies or never comes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from electra import cli
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.distributed import World
from ports import free_port
from processes import start

# In processes of their own, with less patience than a person has.
SCRIPT = """
import os, sys
from datetime import timedelta
from electra import cli
from electra.train import distributed, signals

signals.STUCK_SECONDS = 1.0
if seconds := os.environ.get("TIMEOUT_SECONDS"):
    distributed.TIMEOUT = timedelta(seconds=int(seconds))
sys.exit(cli.main())
"""


def launch(command, *, port, ranks=(0, 1), **environment):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2}
    return [
        start(
            [sys.executable, "-c", SCRIPT, *command],
            env={
                **os.environ,
                **{key: str(value) for key, value in {**place, "RANK": rank, **environment}.items()},
            },
            stderr=subprocess.PIPE,
        )
        for rank in ranks
    ]


@pytest.fixture
def pair(runs, tmp_path):
    """Two processes in the middle of a run."""

    def launched(**environment):
        command = runs.words(tmp_path / "run", train__steps=10**5, log__evaluate_every=10**5)
        started = launch(command, port=free_port(), **environment)
        while not (tmp_path / "run" / "checkpoints" / "step-00000004").exists():
            assert all(process.poll() is None for process in started), started[0].communicate()
            time.sleep(0.02)
        return started

    return launched


def newest(run):
    store = CheckpointStore(run / "checkpoints", CheckpointConfig())
    return store.load_latest(lambda problem: None)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "number"), [(1, signal.SIGTERM), (0, signal.SIGINT)])
def test_a_signal_is_honoured_while_the_other_process_hangs(pair, tmp_path, stopped, number):
    processes = pair()
    processes[stopped].send_signal(signal.SIGSTOP)
    other = processes[1 - stopped]
    # Until it waits for the one that is stopped.
    time.sleep(0.5)
    other.send_signal(number)
    complaint = other.communicate(timeout=120)[1].decode()
    assert other.returncode == cli.INTERRUPTED, complaint
    assert signal.Signals(number).name in complaint
    assert "Traceback" not in complaint
    assert newest(tmp_path / "run").step >= 4


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_without_a_signal_the_wait_has_an_end(pair, tmp_path, how):
    processes = pair(TIMEOUT_SECONDS=5)
    processes[1].send_signal(how)
    complaint = processes[0].communicate(timeout=120)[1].decode()
    assert processes[0].returncode == cli.FAILURE, complaint
    assert "ConnectionError" in complaint
    assert "Traceback" not in complaint
    assert newest(tmp_path / "run").step >= 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, None])
def test_a_process_that_never_comes_is_not_waited_for_for_ever(runs, tmp_path, number):
    port, timeout = free_port(), 600 if number else 3
    (alone,) = launch(runs.words(tmp_path / "run"), port=port, ranks=[0], TIMEOUT_SECONDS=timeout)
    if number:
        # Once it listens for the other one.
        while not is_open(port):
            assert alone.poll() is None, alone.communicate()
            time.sleep(0.05)
        alone.send_signal(number)
    complaint = alone.communicate(timeout=120)[1].decode()
    assert alone.returncode == (cli.INTERRUPTED if number else cli.FAILURE), complaint
    assert "Traceback" not in complaint
    assert not (tmp_path / "run").exists()


def is_open(port):
    """Whether a process of this machine listens there."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "MASTER_PORT"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "RANK"),
        ({"RANK": "-1"}, "RANK"),
    ],
)
def test_an_environment_that_describes_no_world_is_named(
    runs, tmp_path, monkeypatch, capsys, environment, name
):
    for variable in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    assert World.from_environment() == World()
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert cli.main(runs.words(tmp_path / "run")) == cli.BAD_INPUT
    assert name in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
