"""Checkpoints of processes that each hold some rows of the weights: written by all, read by any number."""

import itertools
import json
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from electra import files
from electra.errors import InputError
from electra.tensors import Rows, TensorFiles, write_tensors
from electra.train.checkpoint import CheckpointConfig, CheckpointStore

WORKER = """
import json, os, signal, socket, sys
from pathlib import Path
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from safetensors.torch import save_file
from electra.train import checkpoint
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.distributed import World
from electra.train.optim import OptimizerConfig, build_optimizer, set_learning_rate
from electra.train.state import TrainState

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(110, 6)
        self.segments = nn.Embedding(2, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 110, bias=False)
        self.head.weight = self.tokens.weight
        self.idle = nn.Linear(6, 5)
        self.register_buffer("stage", torch.zeros((), dtype=torch.int64))

    def forward(self, ids):
        hidden = self.tokens(ids) + self.segments(ids % 2)
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return self.head(hidden).square().sum()


class Rank:
    def __init__(self, job):
        self.job, self.world, self.folder = job, World.from_environment(), Path(job["folder"])

    def build(self, seed):
        torch.manual_seed(seed)
        model = Model()
        module = self.world.wrap(model, self.job["way"], layers=model.layers, idle_weights=True)
        config, named = OptimizerConfig(optimizer=self.job["optimizer"]), model.named_parameters()
        optimizer = build_optimizer(config, named, is_matrix=lambda name: "layers" in name)
        set_learning_rate(optimizer, 0.01)
        self.state = TrainState(model=model, optimizer=optimizer)
        together = self.world if self.state.is_spread else None
        self.store = CheckpointStore(self.folder / "checkpoints", CheckpointConfig(), together=together)
        self.module = module

    def step(self):
        self.module(torch.arange(8).view(2, 4)).backward()
        self.state.optimizer.step()
        self.state.optimizer.zero_grad()

    def save(self, step):
        self.state.step = step
        if self.world.writes or self.state.is_spread:
            self.store.save(step, self.state.tensors(), self.state.facts())
            self.store.wait()

    def write_whole(self, name):
        # By torch's own hands, not by ours.
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, moments = get_state_dict(self.state.model, self.state.optimizer, options=options)
        if self.world.writes:
            moments = moments["state"]
            flat = {f"{key}.{what}": moments[key][what] for key in moments for what in moments[key]}
            for kind, tensors in (("model", model), ("optimizer", flat)):
                copies = {key: tensor.clone() for key, tensor in tensors.items()}
                save_file(copies, self.folder / f"{name}-{kind}.safetensors")

    def saves(self):
        self.build(seed=0)
        self.state.model.stage += 7
        for step in (1, 2):
            self.step()
            self.save(step)
        self.write_whole("saved")
        if self.state.is_spread:
            # Nobody may gather from here on.
            DTensor.full_tensor = None
            groups = self.state.tensors().values()
            part = [checkpoint.snapshot_of_part(group, with_whole=self.world.writes) for group in groups]
            return sum(one.num_bytes for one in part)

    def dies(self):
        place, rank = self.job["dies"].split()
        if self.world.rank == int(rank):
            write_part, half = checkpoint.write_part, "model-00002-of-00002.safetensors"
            if place == "before":
                checkpoint.write_part = die
            elif place == "half":
                checkpoint.write_part = lambda folder, *_: ((folder / half).write_bytes(b"x" * 99), die())
            elif place == "after":
                checkpoint.write_part = lambda *given: (write_part(*given), die())
            elif place == "sealed":
                checkpoint.publish_folder = die
        self.save(3)

    def loads(self):
        self.build(seed=1)
        # Moments of its own, which must not stay.
        self.step()
        self.state.load(self.store.load_latest(lambda problem: None))
        self.write_whole("read")
        return self.state.step

    def run(self):
        with self.world.joined(torch.device("cpu")):
            if self.job["act"] == "load":
                result = self.loads()
            else:
                result = self.saves()
                if self.job.get("dies"):
                    self.dies()
            self.store.close()
        return result


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def fork(job, rank, port):
    listen, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, listen
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(job["size"])}
    os.environ["RANK"] = str(rank)
    try:
        os.write(tell, json.dumps(Rank(job).run()).encode())
        os._exit(0)
    except BaseException as error:
        os.write(tell, json.dumps(f"{type(error).__name__}: {error}").encode())
        os._exit(1)


for line in sys.stdin:
    job = json.loads(line)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [fork(job, rank, port) for rank in range(job["size"])]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children]
    said = [os.read(listen, 10_000) for _, listen in children]
    print(json.dumps({"codes": codes, "said": [json.loads(text or "null") for text in said]}), flush=True)
"""


@pytest.fixture(scope="module")
def do():
    """Do a job with some processes; torch is imported once for all of them."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def do_job(**job):
        process.stdin.write(
            json.dumps({key: str(value) if key == "folder" else value for key, value in job.items()}) + "\n"
        )
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        return answer["codes"], answer["said"]

    yield do_job
    process.communicate(timeout=60)


def assert_same(folder):
    for kind in ("model", "optimizer"):
        saved, read = (load_file(folder / f"{name}-{kind}.safetensors") for name in ("saved", "read"))
        assert saved.keys() == read.keys()
        for name, tensor in saved.items():
            assert torch.equal(tensor, read[name]), (kind, name)
            assert tensor.dtype == read[name].dtype


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "read", "optimizer"),
    [
        ((3, "fsdp"), (3, "fsdp"), "muon"),
        ((3, "fsdp"), (2, "fsdp"), "adamw"),
        ((2, "fsdp"), (3, "fsdp"), "adam_as_google"),
        ((3, "fsdp"), (2, "ddp"), "muon"),
        ((3, "fsdp"), (1, "ddp"), "adamw"),
        ((1, "ddp"), (3, "fsdp"), "muon"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_what_some_processes_wrote_any_others_read_bit_for_bit(tmp_path, do, saved, read, optimizer):
    size, way = saved
    codes, held = do(act="save", folder=tmp_path, size=size, way=way, optimizer=optimizer)
    assert codes == [0] * size, held
    if way == "fsdp":
        # Nobody gathers: each copies its rows. A few numbers that all have, the first process writes.
        assert max(held) <= 1.2 * min(held)
        names = {path.name for path in (tmp_path / "checkpoints" / "step-00000002").iterdir()}
        parts = itertools.product(("model", "optimizer"), range(1, size + 1))
        expected = {f"{kind}-{number:05}-of-{size:05}.safetensors" for kind, number in parts}
        assert names == {*expected, "state.json", "manifest.json"}
    size, way = read
    codes, steps = do(act="load", folder=tmp_path, size=size, way=way, optimizer=optimizer)
    assert (codes, steps) == ([0] * size, [2] * size)
    assert_same(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before 1", "half 1", "after 1", "before 0", "sealed 0"])
def test_kill_9_of_one_process_in_the_middle_of_a_save_loses_nothing(tmp_path, do, dies):
    job = {"folder": tmp_path, "size": 2, "way": "fsdp", "optimizer": "adamw"}
    codes, said = do(act="save", dies=dies, **job)
    killed = int(dies.split()[1])
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 1
    assert said[1 - killed].startswith("ConnectionError")
    complaints = []
    with CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()) as store:
        assert store.load_latest(complaints.append).step == 2
        assert store.steps() == [1, 2]
    assert len(complaints) == 1
    assert "unfinished" in complaints[0]
    assert do(act="load", **job) == ([0, 0], [2, 2])
    assert_same(tmp_path)


@pytest.fixture
def spread(tmp_path):
    """Files with rows 0 to 2 and 3 to 4 of a table, and a tensor that only the first one has."""
    table = torch.arange(20.0).view(5, 4)
    paths = [tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    write_tensors(paths[0], {"table": table[:3], "age": torch.tensor(7)}, rows={"table": Rows(0, 3, 5)})
    write_tensors(paths[1], {"table": table[3:]}, rows={"table": Rows(3, 2, 5)})
    return table, paths


@pytest.mark.parametrize(("first", "count"), [(0, 5), (0, 3), (1, 1), (2, 2), (3, 2), (4, 1), (5, 0), (0, 0)])
def test_any_rows_are_put_together_from_the_files_that_have_them(spread, first, count):
    table, paths = spread
    found = TensorFiles(paths)
    assert torch.equal(found.rows("table", Rows(first, count, 5)), table[first : first + count])


def test_as_a_mapping_it_has_whole_tensors(spread):
    table, paths = spread
    found = TensorFiles(paths)
    assert sorted(found) == ["age", "table"]
    assert torch.equal(found["table"], table)
    assert (found["age"], found.shape("age"), found.shape("table")) == (7, (), (5, 4))


@pytest.mark.parametrize(
    ("rows", "name"),
    [(Rows(2, 2, 5), "table"), (Rows(4, 2, 5), "table"), (Rows(3, 2, 6), "table"), (Rows(3, 2, 4), "table")],
    ids=["overlap", "hole", "another size", "too long"],
)
def test_rows_that_do_not_make_a_whole_are_refused(spread, rows, name):
    table, paths = spread
    write_tensors(paths[1], {"table": table[3:]}, rows={"table": rows})
    with pytest.raises(InputError, match=rf"00002-of-00002.*{name}"):
        TensorFiles(paths)


@pytest.mark.parametrize("damage", ["missing", "changed", "other rows"])
def test_a_damaged_part_is_a_damaged_checkpoint(spread, tmp_path, damage):
    table, paths = spread
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        for path in paths:
            (folder / path.name).write_bytes(path.read_bytes())
        files.write_json(folder / "state.json", {"step": step})
        part = folder / paths[1].name
        if step == 2 and damage == "other rows":
            write_tensors(part, {"table": table[3:]}, rows={"table": Rows(1, 2, 5)})
        files.write_manifest(folder, {"kind": "checkpoint", "format_version": 2, "step": step})
        if step == 2 and damage == "missing":
            part.unlink()
        elif step == 2 and damage == "changed":
            content = bytearray(part.read_bytes())
            content[-1] ^= 1
            part.write_bytes(content)
    complaints = []
    found = CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()).load_latest(complaints.append)
    assert found.step == 1
    assert torch.equal(found.tensors["model"]["table"], table)
    assert "model-00002-of-00002" in complaints[0]


def test_a_part_that_only_its_writer_sees_is_not_sealed(tmp_path):
    (tmp_path / "here").write_text("x")
    with pytest.raises(FileNotFoundError, match="one folder"):
        files.write_manifest(tmp_path, {"kind": "checkpoint"}, known={"there": {"bytes": 1, "sha256": ""}})
    assert not (tmp_path / files.MANIFEST).exists()
