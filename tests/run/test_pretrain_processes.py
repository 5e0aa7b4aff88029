"""`electra pretrain` in processes of its own: several that share the work, and ones that are killed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from electra import cli
from electra.train import checkpoint
from ports import free_port
from processes import start

pytestmark = pytest.mark.slow


# A process of its own: what a test changes in this one does not reach there.
SCRIPT = """
import os, sys
from electra import cli
from electra.pretraining.step import PretrainPart
from electra.text.batches import Batches

if spoiled := os.environ.get("SPOIL_ON_LAST_RANK"):
    call = PretrainPart.__call__
    def spoil(self, module):
        loss, sums = call(self, module)
        last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        return (loss * float("nan") if last and self.random.step == int(spoiled) else loss), sums
    PretrainPart.__call__ = spoil
if ids := os.environ.get("ROW_IDS"):
    part = Batches.part
    def record(self, step, *, rank, world_size):
        batch = part(self, step, rank=rank, world_size=world_size)
        if self.batch_size == 8:
            with open(f"{ids}-{rank}", "a") as file:
                print(step, *batch.row_ids_B, file=file)
        return batch
    Batches.part = record
sys.exit(cli.main())
"""


def launch(command, **environment):
    everything = {**os.environ, **{key: str(value) for key, value in environment.items()}}
    return start([sys.executable, "-c", SCRIPT, *command], env=everything, stderr=subprocess.PIPE)


def launch_world(size, command, **environment):
    """What torchrun does, with fewer processes."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": size}
    return [launch(command, **place, RANK=rank, LOCAL_RANK=rank, **environment) for rank in range(size)]


def finish(processes, code=cli.OK):
    messages = [process.communicate(timeout=300)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), messages
    return messages


MANY_PROCESSES = pytest.mark.long(reason="seven processes in several runs")
EMULATED = pytest.mark.long(reason="three processes in bf16, which many processors emulate")


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("objective", "sizes", "precision"),
    [
        pytest.param("electra", (1, 2, 4), "fp32", marks=MANY_PROCESSES),
        pytest.param("electra", (1, 2), "bf16", marks=EMULATED),
        ("two_stage", (1, 2), "fp32"),
        pytest.param("two_stage", (1, 2), "bf16", marks=EMULATED),
        ("single_pass", (1, 2), "fp32"),
    ],
)
def test_several_processes_do_the_work_of_one(runs, tmp_path, objective, sizes, precision):
    changes = {"model__dropout": 0.0, "train__steps": 6, "objective": objective}
    changes |= {"train__precision": precision}
    if objective == "two_stage":
        changes |= {"two_stage__first_stage_steps": 3, "generator__sharing": "none", "generator__width": 1}
    for size in sizes:
        command = runs.words(tmp_path / str(size), **changes)
        finish(launch_world(size, command, ROW_IDS=tmp_path / f"rows{size}"))
    for size in sizes[1:]:
        runs.assert_same_work(tmp_path / "1", tmp_path / str(size), precision=precision)
    whole, *parts = (rows_of(tmp_path / f"rows{size}", size, steps=6) for size in sizes)
    assert [len(row_ids) for row_ids in whole] == [8] * 6
    assert all(part == whole for part in parts)


def rows_of(recorded, size, *, steps):
    """For each step the ids of its rows, in the order of the processes that worked on them."""
    ranks = [Path(f"{recorded}-{rank}").read_text().splitlines() for rank in range(size)]
    # Rows are read ahead: there may be more lines than steps.
    words = [[line.split() for line in lines[:steps]] for lines in ranks]
    assert all([int(line[0]) for line in lines] == list(range(steps)) for lines in words)
    return [[row_id for line in together for row_id in line[1:]] for together in zip(*words, strict=True)]


def test_torchrun_starts_it_as_a_person_would(runs, tmp_path):
    command = runs.words(tmp_path / "run", model__dropout=0.0, train__steps=3)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*torchrun, "-m", "electra", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == cli.OK, done.stderr
    # One process writes and speaks for all.
    assert [line["step"] for line in runs.lines(tmp_path / "run", "train")] == [1, 2, 3]
    assert len(re.findall(r"trained +3 steps", done.stdout)) == 1
    assert len(re.findall(r"held out.*\bstep 3\b", done.stderr)) == 1
    runs.pretrain(tmp_path / "alone", model__dropout=0.0, train__steps=3)
    runs.assert_same_work(tmp_path / "run", tmp_path / "alone", precision="fp32")


def train_and_kill(size, command, out):
    """Begin a run with so many processes, and kill them after a checkpoint of step 5."""
    processes = launch_world(size, command)
    wait_for(out / "checkpoints" / "step-00000005", processes)
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


@MANY_PROCESSES
def test_a_run_of_two_processes_is_exact_and_goes_on_with_one(runs, tmp_path):
    changes = {"model__dropout": 0.0, "checkpoint__save_every": 5}
    finish(launch_world(2, runs.words(tmp_path / "whole", **changes)))
    train_and_kill(2, runs.words(tmp_path / "parts", **changes), tmp_path / "parts")
    shutil.copytree(tmp_path / "parts", tmp_path / "alone")
    finish(launch_world(2, runs.words(tmp_path / "parts", **changes)))
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")
    finish(
        [launch(runs.words(tmp_path / "alone", **changes, train__micro_batch=4, resume__allow_changes="all"))]
    )
    last = [runs.lines(tmp_path / name, "train")[-1]["loss"] for name in ("whole", "alone")]
    assert last[0] == pytest.approx(last[1], rel=1e-3)


@MANY_PROCESSES
def test_so_is_one_of_four_that_add_up_in_the_same_order_after_a_kill(runs, tmp_path):
    changes = {"model__dropout": 0.0, "checkpoint__save_every": 5, "train__steps": 12}
    finish(launch_world(4, runs.words(tmp_path / "whole", **changes)))
    command = runs.words(tmp_path / "parts", **changes)
    train_and_kill(4, command, tmp_path / "parts")
    finish(launch_world(4, command))
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")


def test_no_number_on_one_process_is_skipped_by_both(runs, tmp_path):
    changes = {"train__steps": 5, "model__dropout": 0.0}
    finish(launch_world(2, runs.words(tmp_path / "run", **changes), SPOIL_ON_LAST_RANK=2))
    assert runs.events(tmp_path / "run", "skipped_update") == [3]
    assert [record["loss"] is None for record in runs.lines(tmp_path / "run", "train")] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_what_the_first_process_cannot_read_is_refused_by_both(runs, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    messages = finish(launch_world(2, runs.words(tmp_path / "run")), code=cli.BAD_INPUT)
    assert all("none is whole" in message for message in messages)


def test_a_signal_to_one_process_stops_and_saves_both(runs, tmp_path):
    processes = launch_world(2, runs.words(tmp_path / "run", train__steps=10**5))
    wait_for(tmp_path / "run" / "checkpoints" / "step-00000004", processes)
    processes[1].send_signal(signal.SIGTERM)
    finish(processes, code=cli.INTERRUPTED)
    saved = max((tmp_path / "run" / "checkpoints").iterdir())
    assert (
        checkpoint.CheckpointStore(saved.parent, checkpoint.CheckpointConfig()).load_latest(print).path
        == saved
    )


@MANY_PROCESSES
def test_sharded_weights_learn_the_same_and_checkpoints_are_of_one_kind(runs, tmp_path):
    changes = {"model__dropout": 0.0, "train__steps": 12, "train__micro_batch": 3, "log__evaluate_every": 12}
    finish(launch_world(2, runs.words(tmp_path / "ddp", **changes)))
    finish(launch_world(2, runs.words(tmp_path / "fsdp", **changes, train__parallel="fsdp")))
    ddp = runs.lines(tmp_path / "ddp", "train")
    runs.assert_same_work(tmp_path / "ddp", tmp_path / "fsdp", precision="fp32")
    # The last checkpoint but one of each, continued in the other way, and by one process.
    shutil.rmtree(tmp_path / "ddp" / "checkpoints" / "step-00000012")
    allow = {"resume__allow_changes": "all"}
    # Resumed by as many processes in the same way, it is the same run bit for bit.
    shutil.copytree(tmp_path / "fsdp", tmp_path / "fsdp again")
    shutil.rmtree(tmp_path / "fsdp again" / "checkpoints" / "step-00000012")
    finish(launch_world(2, runs.words(tmp_path / "fsdp again", **changes, train__parallel="fsdp")))
    runs.assert_same(tmp_path / "fsdp", tmp_path / "fsdp again")
    shutil.copytree(tmp_path / "ddp", tmp_path / "ddp to fsdp")
    finish(launch_world(2, runs.words(tmp_path / "ddp to fsdp", **changes, **allow, train__parallel="fsdp")))
    shutil.rmtree(tmp_path / "fsdp" / "checkpoints" / "step-00000012")
    finish([launch(runs.words(tmp_path / "fsdp", **changes, **allow))])
    for name in ("ddp to fsdp", "fsdp"):
        continued = runs.lines(tmp_path / name, "train")
        assert [line["loss"] for line in continued] == pytest.approx([line["loss"] for line in ddp], rel=1e-3)
        assert runs.events(tmp_path / name, "resumed") == [8]


@MANY_PROCESSES
@pytest.mark.numeric
def test_muon_in_several_processes_with_whole_or_sharded_matrices(runs, tmp_path):
    changes = {
        "train__optimizer": "muon",
        "train__matrix_learning_rate": 0.02,
        "model__embedding_start": "spectral",
        "model__dropout": 0.0,
        "train__steps": 6,
        "train__weight_decay": 0.1,
    }
    runs.pretrain(tmp_path / "one", **changes)
    for way in ("ddp", "fsdp"):
        finish(launch_world(2, runs.words(tmp_path / way, **changes, train__parallel=way)))
        runs.assert_same_work(tmp_path / "one", tmp_path / way, precision="fp32")
        # The rows of an orthogonal matrix depend on each other: in shards that were orthogonalised on their
        # own the two halves of a step would differ from the whole by as much as they are.
        one, several = (
            checkpoint.read_checkpoint(4, tmp_path / run / "checkpoints" / "step-00000004").tensors["model"]
            for run in ("one", way)
        )
        name = "discriminator.layers.1.feed_forward.inner.weight"
        assert (one[name] - several[name]).norm() < 1e-3 * one[name].norm()


def wait_for(path, processes):
    while not path.exists():
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        time.sleep(0.02)


@pytest.mark.long(reason="starts and kills a run twenty times")
def test_killed_at_any_moment_twenty_times_it_ends_bit_for_bit_the_same(runs, tmp_path):
    changes = {"train__steps": 400, "train__micro_batch": 5, "log__evaluate_every": 50}
    finish([launch(runs.words(tmp_path / "whole", **changes))])
    run, rng, kills = tmp_path / "run", random.Random(0), 0
    while kills < 20:
        process = launch(runs.words(run, **changes))
        known = set((run / "checkpoints").glob("step-*")) if run.exists() else set()
        while process.poll() is None and set((run / "checkpoints").glob("step-*")) <= known:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.2)
        assert process.poll() is None, process.communicate()[1].decode()
        process.kill()
        process.communicate()
        kills += 1
    finish([launch(runs.words(run, **changes))])
    runs.assert_same(run, tmp_path / "whole")


@pytest.mark.long(reason="300 steps that are saved every fourth, lest it ends before it is killed")
def test_a_supervisor_starts_again_after_a_crash(runs, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "electra", *runs.words(run, train__steps=300), "--max_restarts=3"]
    supervisor = start(command, stderr=subprocess.PIPE)
    wait_for(run / "checkpoints" / "step-00000008", [supervisor])
    (child,) = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    message = finish([supervisor])[0]
    assert "restart 1 of 3" in message
    assert len(runs.events(run, "resumed")) == 1
    assert runs.lines(run, "train")[-1]["step"] == 300
