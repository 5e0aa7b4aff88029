"""What can happen while a checkpoint is written: full disks and killed processes."""

import errno
import json
import os
import re
import subprocess
import sys
import threading

import pytest
import torch

import small_disk
from electra.errors import InputError
from electra.train import checkpoint
from electra.train import checkpoint as checkpoints
from electra.train.checkpoint import CheckpointConfig, CheckpointStore


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FAILING_WRITES = [
    "safetensors.torch.save_file",
    "electra.files.fsync",
    "electra.files.write_manifest",
    "electra.files.write_file",
    "pathlib.Path.rename",
]


@pytest.mark.parametrize("place", FAILING_WRITES)
def test_a_full_disk_keeps_what_there_is_and_says_what_is_needed(save, store, problems, monkeypatch, place):
    before = {path: path.read_bytes() for path in store.folder.rglob("*.*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(place, full_disk)
        with pytest.raises(InputError) as caught:
            save(store, 3, size=500_000)
    assert re.search(r"step-00000003.*Errno 28.*\b2\.0 MB.*MB.*step-00000002", str(caught.value))
    assert {path: path.read_bytes() for path in store.folder.rglob("*.*") if path.is_file()} == before
    assert store.load_latest(problems.append).step == 2
    save(store, 3)
    assert store.load_latest(problems.append).step == 3
    assert problems == []


def test_a_save_without_room_does_not_fill_the_disk_first(save, store, monkeypatch):
    written = []
    monkeypatch.setattr(CheckpointStore, "_free_bytes", lambda self: 1_900_000)
    monkeypatch.setattr(checkpoint, "fill_folder", lambda *content: written.append(content))
    with pytest.raises(InputError, match=r"No space left.*\b2\.0 MB.*\b1\.9 MB"):
        save(store, 3, size=500_000)
    assert written == []


def test_a_failure_is_told_once_by_check_or_by_the_next_save(save, store, monkeypatch):
    tensors = {"model": {"weight": torch.ones(3)}}
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full_disk)
        store.save(3, tensors, {})
        with pytest.raises(InputError, match="step-00000003"):
            store.save(4, tensors, {})
        ended = threading.Event()
        store.save(5, tensors, {})
        store._pending.add_done_callback(lambda _: ended.set())
        assert ended.wait(timeout=30)
        with pytest.raises(InputError, match="step-00000005"):
            store.check()
    store.check()
    save(store, 6)
    assert store.steps() == [2, 6]


class TrainingError(Exception):
    pass


def save_and_fail(folder, error: Exception | None) -> None:
    with CheckpointStore(folder, CheckpointConfig()) as store:
        store.save(1, {"model": {"weight": torch.ones(3)}}, {})
        if error:
            raise error


def test_a_failure_is_told_at_the_end_and_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(InputError, match="No space left"):
        save_and_fail(tmp_path, None)
    with pytest.raises(TrainingError) as caught:
        save_and_fail(tmp_path, TrainingError())
    assert "No space left" in caught.value.__notes__[0]


def test_old_ones_that_cannot_be_removed_are_no_failure_to_save(save, store, problems, monkeypatch):
    def refuse(path, *, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "rmtree", refuse)
        with pytest.raises(InputError, match=r"step-00000003.*Permission"):
            save(store, 3)
    assert store.load_latest(problems.append).step == 3
    save(store, 4)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000003", "step-00000004"]


@pytest.fixture
def tiny_disk(tmp_path):
    with small_disk.mounted(tmp_path / "disk", size="1m") as folder:
        yield folder


@pytest.mark.parametrize("foreseen", [True, False], ids=["foreseen", "met while writing"])
def test_a_really_full_disk(save, tiny_disk, problems, monkeypatch, foreseen):
    if not foreseen:
        monkeypatch.setattr(CheckpointStore, "_free_bytes", lambda self: 10**9)
    with CheckpointStore(tiny_disk / "run" / "checkpoints", CheckpointConfig(keep_last=1)) as store:
        save(store, 1, 2, size=100_000)
        with pytest.raises(InputError, match=r"No space left.*step-00000002"):
            save(store, 3, size=200_000)
        assert [path.name for path in store.folder.iterdir()] == ["step-00000002"]
        assert store.load_latest(problems.append).step == 2
        save(store, 3, size=100_000)
        assert store.load_latest(problems.append).step == 3
    assert problems == []


KILLED_SAVES = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from electra.train.checkpoint import CheckpointConfig, CheckpointStore

torch.set_num_threads(1)
folder, config = Path(sys.argv[1]), CheckpointConfig(keep_last=2)

def tensors(step):
    return {"model": {str(n): torch.full((30_000,), float(step)) for n in range(4)},
            "optimizer": {"age": torch.tensor(step)}}

def save_for_ever(ready):
    store = CheckpointStore(folder, config)
    latest = store.load_latest(lambda problem: None)
    step = latest.step if latest else 0
    while True:
        step += 1
        store.save(step, tensors(step), {"step": step})
        if ready:
            store.wait()
            os.write(ready, b".")
            ready = None

for round in range(12):
    listen, ready = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(ready)
    os.close(ready)
    assert os.read(listen, 1)
    time.sleep(random.Random(round).uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    problems = []
    found = CheckpointStore(folder, config).load_latest(problems.append)
    wrong = [
        (group, name) for group, saved in tensors(found.step).items() for name, tensor in saved.items()
        if not torch.equal(found.tensors[group][name], tensor)
    ]
    print(json.dumps({"step": found.step, "wrong": wrong, "facts": found.facts,
                      "problems": problems}), flush=True)
"""


@pytest.mark.slow
def test_kill_9_while_saving_never_leaves_what_is_taken_for_whole(tmp_path):
    command = [sys.executable, "-c", KILLED_SAVES, tmp_path / "checkpoints"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == 12
    steps = [found["step"] for found in rounds]
    assert steps == sorted(set(steps))
    for found in rounds:
        assert not found["wrong"]
        assert found["facts"] == {"step": found["step"]}
        assert all("unfinished" in problem for problem in found["problems"])
    # Otherwise no kill has met a save, and nothing is shown.
    assert sum(bool(found["problems"]) for found in rounds) >= 3
