"""`electra pretrain --cluster` on Ray nodes with addresses of their own, which are killed and cut off."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import local_cluster
from electra import cli
from ray_nodes import GCS_PORT, PATIENCE, TEST_SECONDS, ray_nodes

NODES = pytest.mark.long(reason="Ray nodes, each of which is several Python processes")
HERE = pytest.mark.long(reason="Ray on this machine, and two processes that train")

ALONE = {"model__dropout": 0.0, "train__steps": 40, "log__evaluate_every": 40}
KEYS = {**ALONE, "cluster": "auto"}
STEPS = list(range(1, 41))
CUT_SECONDS = 20

pytestmark = pytest.mark.timeout(max(TEST_SECONDS, local_cluster.TEST_SECONDS))


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes(3) as found:
        yield found


@pytest.fixture(scope="module")
def one(runs, tmp_path_factory):
    """The same run in one process on no cluster."""
    out = tmp_path_factory.mktemp("one") / "run"
    runs.pretrain(out, **ALONE)
    return out


def begin(nodes, runs, out, **changes):
    """The command, typed on the first node, when it has saved something after the beginning."""
    command = nodes.electra(runs.words(out, **{**KEYS, **changes}))
    wait_for(lambda: any(step >= 8 for step in saved_steps(out)), command)
    return command


def saved_steps(out):
    return [int(path.name[5:]) for path in (out / "checkpoints").glob("step-????????")]


def wait_for(condition, command):
    end = time.monotonic() + PATIENCE
    while not condition():
        if command.poll() is not None or time.monotonic() > end:
            command.kill()
            said = command.communicate()
            local_cluster.require_started(said[1])
            raise AssertionError(said)
        time.sleep(0.05)


def finish(command, code=cli.OK):
    try:
        out, err = command.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        command.kill()
        raise AssertionError(command.communicate()) from None
    assert command.returncode == code, err
    return out, err


def training_processes(nodes, index):
    """Those of the command itself, not Ray's."""
    lines = (Path(f"/proc/{pid}/cmdline") for pid in nodes.pids(index))
    return [line for line in lines if line.exists() and b"electra\0pretrain\0--config" in line.read_bytes()]


@NODES
def test_a_node_is_killed_and_the_run_ends_as_if_it_had_not_been(nodes, runs, one, tmp_path):
    command = begin(nodes, runs, tmp_path / "run")
    # Of three nodes two can share a batch of eight rows.
    assert [len(training_processes(nodes, index)) for index in range(3)] == [1, 1, 0]
    nodes.kill(1)
    out, err = finish(command)
    print(err)
    assert "restart 1 of 10" in err
    assert "restart 2" not in err
    assert nodes.name(2) in err
    assert "trained" in out
    assert [line["step"] for line in runs.lines(tmp_path / "run", "train")] == STEPS
    assert len(runs.events(tmp_path / "run", "resumed")) == 1
    runs.assert_same_work(tmp_path / "run", one, precision="fp32")
    # There were two processes all the time.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    alone = [*torchrun, "-m", "electra", *runs.words(tmp_path / "two", **ALONE)]
    subprocess.run(alone, check=True, capture_output=True, timeout=PATIENCE)
    runs.assert_same(tmp_path / "run", tmp_path / "two")
    assert (tmp_path / "run" / "final" / "manifest.json").is_file()
    assert [len(training_processes(nodes, index)) for index in (0, 2)] == [0, 0]


@NODES
def test_a_network_that_is_gone_for_a_while_costs_no_step(nodes, runs, one, tmp_path):
    command = begin(nodes, runs, tmp_path / "run", cluster_workers=2)
    (other,) = (index for index in (1, 2) if training_processes(nodes, index))
    with nodes.cut(other):
        time.sleep(CUT_SECONDS)
    _, err = finish(command)
    print(err)
    assert [line["step"] for line in runs.lines(tmp_path / "run", "train")] == STEPS
    runs.assert_same_work(tmp_path / "run", one, precision="fp32")


@NODES
def test_a_signal_saves_in_parts_and_ends_all_and_one_process_goes_on(nodes, runs, one, tmp_path):
    run = tmp_path / "run"
    command = begin(nodes, runs, run, train__parallel="fsdp", cluster_workers=2)
    command.send_signal(signal.SIGTERM)
    _, err = finish(command, cli.INTERRUPTED)
    assert "saved at step" in err
    newest = max(saved_steps(run))
    assert sorted(path.name for path in (run / "checkpoints" / f"step-{newest:08}").glob("model*")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert not any(training_processes(nodes, index) for index in (0, 2))
    runs.pretrain(run, **ALONE, resume__allow_changes="all")
    assert runs.events(run, "resumed") == [newest]
    assert [line["step"] for line in runs.lines(run, "train")] == STEPS
    runs.assert_same_work(run, one, precision="fp32")


@NODES
def test_a_node_that_sees_another_folder_is_named(nodes, runs, tmp_path):
    """A folder that only the command sees."""
    private = nodes.folder(0) / "private"
    private.mkdir()
    words = shlex.join([sys.executable, "-m", "electra", *runs.words(private / "run", **KEYS)])
    alone = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {private} && exec {words}"]
    command = nodes.inside(0, alone, RAY_ADDRESS=f"{nodes.address(0)}:{GCS_PORT}")
    _, err = finish(command, cli.BAD_INPUT)
    assert nodes.name(2) in err
    assert str(private / "run") in err


@HERE
def test_a_signal_that_asks_for_a_checkpoint_gets_one_and_training_goes_on(runs, tmp_path):
    run, never = tmp_path / "run", 10**6
    keys = {"train__steps": never, "checkpoint__save_every": never, "log__evaluate_every": never}
    command = local_cluster.begin(*runs.words(run, **keys, cluster="local", cluster_workers=2))

    def last_step():
        lines = runs.lines(run, "train") if (run / "metrics.jsonl").exists() else []
        return lines[-1]["step"] if lines else 0

    try:
        wait_for(lambda: last_step() > 1, command)
        assert saved_steps(run) == [0]
        command.send_signal(signal.SIGUSR1)
        wait_for(lambda: len(saved_steps(run)) > 1, command)
        saved = max(saved_steps(run))
        wait_for(lambda: last_step() > saved + 1, command)
        command.send_signal(signal.SIGTERM)
        said = local_cluster.finish(command, cli.INTERRUPTED).stderr
    finally:
        command.kill()
        command.wait()
    assert "2 processes" in said
    assert "restart" not in said
    # All processes have saved together, once for each signal.
    assert runs.events(run, "signal") == [saved, max(saved_steps(run))]


TYPED = """
import electra, json, sys

run = electra.pretrain(**json.loads(sys.argv[1]), cluster="local", cluster_workers=2, max_restarts=1)
print("the answer:", json.dumps([run.steps, run.best_step, run.tokens, run.metrics, run.load().abilities]))
"""


@HERE
def test_in_python_it_is_the_same(runs, one, tmp_path):
    """A cluster as a keyword, in a program that somebody wrote."""
    given = json.dumps(runs.keywords(tmp_path / "run", **ALONE))
    done = local_cluster.finish(local_cluster.begin(given, code=TYPED))
    (answer,) = (line for line in done.stdout.splitlines() if line.startswith("the answer:"))
    steps, best_step, tokens, metrics, abilities = json.loads(answer.removeprefix("the answer:"))
    assert (steps, best_step) == (40, 40)
    assert tokens == runs.lines(one, "train")[-1]["tokens"]
    assert 0 <= metrics["discriminator_auc"] <= 1
    assert "detect" in abilities
    assert "2 processes" in done.stderr
    runs.assert_same_work(tmp_path / "run", one, precision="fp32")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"cluster": "ray:/host"}, ["cluster", "ray://HOST:PORT"]),
        ({"cluster": "ray://127.0.0.1:1"}, ["ray://127.0.0.1:1"]),
        ({"cluster": "local", "cluster_workers": 0}, ["cluster_workers"]),
        ({"cluster_workers": 2}, ["cluster_workers", "--cluster"]),
        ({"cluster": "local", "dry_run": "true"}, ["dry_run", "--cluster"]),
    ],
    ids=lambda value: None if isinstance(value, list) else " ".join(map(str, value.values())),
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(runs, tmp_path, capsys, changes, names):
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, **changes)
    complaint = capsys.readouterr().err
    assert all(name in complaint for name in names)
    assert not (tmp_path / "run").exists()


def test_a_run_that_only_a_store_has_cannot_be_shared(runs, capsys):
    runs.pretrain("memory://run", code=cli.BAD_INPUT, cluster="local")
    assert "--out memory://run" in capsys.readouterr().err


def test_torchrun_and_a_cluster_are_one_launcher_too_many(runs, tmp_path, monkeypatch, capsys):
    world = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, cluster="local")
    assert "torchrun" in capsys.readouterr().err
