"""Processes on machines with caches of their own, whose run is in an object store: they stay one training."""

import json
import os
import random
import subprocess
import sys

import pytest

import electra
from electra.store import cache
from ports import free_port
from processes import start

SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"
WORDS = SENTENCE.split()
MACHINES = ("first", "second")
"""Of each process."""
PATIENCE = 300
"""Seconds: tests share the machine."""
pytestmark = pytest.mark.timeout(4 * PATIENCE)

PRETRAIN = {
    "model.size": "tiny",
    "model.hidden_size": 32,
    "model.embedding_size": 16,
    "model.intermediate_size": 64,
    "train.batch_size": 6,
    "train.steps": 12,
    "checkpoint.save_every": 4,
    "log.log_every": 1,
    "log.evaluate_every": 12,
    "health.max_bad_steps": 2,
}
# At the end every process says what it holds.
SCRIPT = """
import hashlib, os, pathlib, sys
from electra import cli
from electra.pretraining import build
from electra.pretraining.step import PretrainPart
from electra.run import pretrain
from electra.store import working

spoiled, call = set(map(int, os.environ.get("SPOILED", "").split())), PretrainPart.__call__

def spoil(self, module):
    if str(self.random.step) == os.environ.get("KILLED_AT"):
        os.kill(os.getpid(), 9)
    loss, sums = call(self, module)
    if self.random.step in spoiled:
        spoiled.remove(self.random.step)
        loss = loss * float("nan")
    return loss, sums

def write_final(run, folder):
    digest = hashlib.sha256()
    for group in run.state.tensors().values():
        for name, tensor in sorted(group.items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    pathlib.Path(os.environ["SAID"]).write_text(f"{run.state.step} {digest.hexdigest()}")
    write(run, folder)

PretrainPart.__call__ = spoil
# Only at the end: until then the first machine alone has what is new.
working.EVERY_SECONDS = 1e6
build.write_final, write = write_final, build.write_final
pretrain.write_report = lambda folder: "not written: this is a test"
sys.exit(cli.main())
"""


@pytest.fixture
def data(tmp_path):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(20, 60))) + "." for _ in range(150)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    keys = {"vocab_size": 300, "seq_length": 32, "valid_fraction": 0.2, "workers": 1}
    return electra.prepare(corpus=tmp_path / "corpus.txt", out=tmp_path / "data", **keys)


def run(words, folder, **environment):
    """What torchrun does on machines that share the data only: exit codes, messages, and what each holds."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(MACHINES))}
    processes = []
    for rank, machine in enumerate(MACHINES):
        own = {"RANK": str(rank), "LOCAL_RANK": "0", "SAID": str(folder / f"said-{rank}")}
        own |= {cache.PLACE: str(folder / machine), "OMP_NUM_THREADS": "1"}
        everything = {**os.environ, **place, **own, **environment}
        command = [sys.executable, "-c", SCRIPT, *words]
        processes.append(start(command, env=everything, stderr=subprocess.PIPE, text=True))
    # Those that disagree wait for each other for ten minutes, unless the test ends before.
    messages = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    held = [path.read_text() for path in sorted(folder.glob("said-*"))]
    return [process.returncode for process in processes], messages, held


def pretrain_words(data, out, **changes):
    keys = {**PRETRAIN, "data": data, "out": out, **changes}
    return ["pretrain", *(f"--{key}={value}" for key, value in keys.items())]


@pytest.mark.long(reason="two processes in three runs")
def test_what_only_the_first_machine_has_is_continued_and_returned_to_by_all(bucket, data, tmp_path):
    words = pretrain_words(data, bucket.url("run"))
    codes, messages, _ = run(words, tmp_path, KILLED_AT="6")
    assert -9 in codes, messages
    assert bucket.names("run") == []
    newest = max(tmp_path.glob("first/work/*/content/run/checkpoints/step-????????"))
    # Two steps without a number lead back to the last checkpoint, of which no store has heard.
    codes, messages, held = run(words, tmp_path, SPOILED="9 10")
    assert codes == [0, 0], messages
    assert len(held) == 2
    assert len(set(held)) == 1, "they have trained apart"
    events = [json.loads(line) for line in bucket.read("run/metrics.jsonl").splitlines()]
    steps = {event["event"]: event["step"] for event in events if event["kind"] == "event"}
    assert steps["resumed"] == int(newest.name[5:])
    assert steps["rolled_back"] == 8
    assert not list((tmp_path / "second").rglob("content/run/*"))
    # It is the run of the same processes that were never killed, in a folder that they share.
    (tmp_path / "plain").mkdir()
    codes, messages, plain = run(
        pretrain_words(data, tmp_path / "plain" / "run"), tmp_path / "plain", SPOILED="9 10"
    )
    assert codes == [0, 0], messages
    assert set(plain) == set(held)


@pytest.mark.long(reason="two processes that start")
def test_fine_tuning_on_several_machines(bucket, data, tmp_path):
    model = electra.pretrain(
        data=data,
        out=tmp_path / "model",
        model={"size": "tiny", "hidden_size": 32, "embedding_size": 16, "intermediate_size": 64},
        train={"steps": 1, "batch_size": 4, "warmup_steps": 0},
    )
    rows = "".join(f"{WORDS[n % 9]} {WORDS[n % 7]},{n % 2}\n" for n in range(60))
    (tmp_path / "table.csv").write_text(f"text,label\n{rows}")
    keys = {"task": "csv", "seeds": 1, "train.epochs": 1, "train.batch_size": 6}
    keys |= {"model": model, "data": tmp_path / "table.csv", "out": bucket.url("tuned")}
    codes, messages, _ = run(["finetune", *(f"--{key}={value}" for key, value in keys.items())], tmp_path)
    assert codes == [0, 0], messages
    assert any(name.endswith("scores.json") for name in bucket.names("tuned"))
    assert not list((tmp_path / "second").rglob("content/tuned/*"))
