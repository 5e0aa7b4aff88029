import threading

import pytest
import torch
from torch import nn

from electra import files
from electra.errors import InputError
from electra.train import checkpoint
from electra.train import checkpoint as checkpoints
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.state import pack_optimizer, unpack_optimizer


def no_problem(problem: str) -> None:
    raise AssertionError(problem)


def tensors_of(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"weight": torch.full((20, 3), float(step))}, "optimizer": {"age": torch.tensor(step)}}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def make_store(folder):
    stores = []

    def make(**options) -> CheckpointStore:
        stores.append(CheckpointStore(folder, CheckpointConfig(**options)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_comes_back_and_lies_where_the_run_folder_promises(make_store, folder):
    table = torch.randn(9, 4)
    tensors = {
        "model": {
            "a": table,
            "b": table,
            "half": torch.randn(3).bfloat16(),
            "ids": torch.tensor([2**60, -1]),
            "scalar": torch.tensor(1.5),
        },
        "optimizer": {},
    }
    facts = {"step": 1000, "tokens": 12, "seconds": 0.1 + 0.2, "config": {"name": "ü"}, "loss": None}
    store = make_store()
    store.save(1000, tensors, facts)
    store.wait()
    loaded = make_store().load_latest(no_problem)
    assert (loaded.step, loaded.facts, loaded.path) == (1000, facts, folder / "step-00001000")
    assert loaded.tensors.keys() == tensors.keys()
    assert loaded.tensors["optimizer"] == {}
    for name, tensor in tensors["model"].items():
        assert loaded.tensors["model"][name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors["model"][name], tensor)
    assert loaded.tensors["model"]["a"].data_ptr() == loaded.tensors["model"]["b"].data_ptr()
    assert names_in(folder) == ["step-00001000"]
    assert names_in(folder / "step-00001000") == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert files.read_manifest(loaded.path, kind="checkpoint")["step"] == 1000


def test_a_checkpoint_without_tensors_or_facts_is_one_too(make_store):
    store = make_store()
    store.save(0, {}, {})
    loaded = store.load_latest(no_problem)
    assert (loaded.step, loaded.tensors, loaded.facts) == (0, {}, {})


def test_no_checkpoint_is_none_and_makes_no_folder(make_store, folder):
    store = make_store()
    assert store.load_latest(no_problem) is None
    assert store.steps() == []
    assert not folder.exists()


@pytest.fixture
def held_write(monkeypatch):
    """Background writes stand still until the event is set."""
    go_on, begun = threading.Event(), threading.Event()
    fill = checkpoint.fill_folder

    def held_fill(path, content):
        begun.set()
        assert go_on.wait(timeout=30)
        fill(path, content)

    monkeypatch.setattr(checkpoint, "fill_folder", held_fill)
    yield begun, go_on
    go_on.set()


def test_training_may_change_everything_right_after_save(make_store, held_write):
    begun, go_on = held_write
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW([*model.named_parameters()])
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    saved_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors, optimizer_facts = pack_optimizer(optimizer)
    saved_age = tensors["weight.step"].clone()
    facts = {"optimizer": optimizer_facts, "metrics": {"loss": 1.0}}
    store = make_store()
    store.save(1, {"model": model.state_dict(), "optimizer": tensors}, facts)
    assert begun.wait(timeout=30)
    optimizer.step()
    facts["metrics"]["loss"] = 2.0
    go_on.set()
    loaded = store.load_latest(no_problem)
    for name, tensor in saved_weights.items():
        assert torch.equal(loaded.tensors["model"][name], tensor)
        assert not torch.equal(model.state_dict()[name], tensor)
    assert loaded.facts["metrics"] == {"loss": 1.0}
    unpack_optimizer(optimizer, loaded.tensors["optimizer"], loaded.facts["optimizer"])
    assert optimizer.state[model.weight]["step"] == saved_age


def test_a_second_save_waits_for_the_first(make_store, held_write, folder):
    begun, go_on = held_write
    store = make_store()
    store.save(1, tensors_of(1), {})
    assert begun.wait(timeout=30)
    store.check()
    second = threading.Thread(target=store.save, args=(2, tensors_of(2), {}))
    second.start()
    second.join(timeout=0.2)
    assert second.is_alive()
    assert store.steps() == []
    go_on.set()
    second.join(timeout=30)
    assert not second.is_alive()
    store.wait()
    assert store.steps() == [1, 2]


def save_all(store: CheckpointStore, steps) -> None:
    for step in steps:
        store.save(step, tensors_of(step), {"step": step})
    store.wait()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"keep_last": 1}, [60]),
        ({"keep_last": 2}, [50, 60]),
        ({"keep_last": 9}, [10, 20, 30, 40, 50, 60]),
        ({"keep_last": 1, "keep_every": 20}, [20, 40, 60]),
        ({"keep_last": 2, "keep_every": 30}, [30, 50, 60]),
    ],
)
def test_old_checkpoints_are_pruned_by_the_rules(make_store, folder, options, left):
    store = make_store(**options)
    save_all(store, range(10, 61, 10))
    assert store.steps() == left
    assert names_in(folder) == [f"step-{step:08}" for step in left]
    assert [store.load(step).tensors["optimizer"]["age"].item() for step in left] == left
    with pytest.raises(InputError, match=r"\b7\b.*\[.*60\]"):
        store.load(7)


def test_the_best_is_kept_and_only_the_newest_best(make_store, folder):
    store = make_store(keep_last=1)
    for step, best in ((0, -1), (10, 10), (20, 10), (30, 10), (40, 40), (50, 40)):
        store.save(step, tensors_of(step), {"step": step, "best_step": best})
        store.wait()
        assert store.steps() == sorted({step, *[best][: best >= 0]})
    for asked in (store, make_store()):
        best = asked.load(asked.load_latest(no_problem).facts["best_step"])
        assert (best.step, best.tensors["optimizer"]["age"].item()) == (40, 40)


def test_going_back_behind_the_best_makes_the_one_before_the_best_again(make_store):
    store = make_store(keep_last=3)
    for step, best in ((10, 10), (20, 10), (30, 30)):
        store.save(step, tensors_of(step), {"best_step": best})
    store.save(20, tensors_of(20), {"best_step": 10})
    store.wait()
    assert store.steps() == [10, 20]
    assert store.load_latest(no_problem).facts["best_step"] == 10


def test_a_checkpoint_that_is_lost_is_said_to_be(make_store, folder):
    store = make_store(keep_last=1)
    save_all(store, [1])
    store.save(2, tensors_of(2), {"best_step": 1})
    store.wait()
    checkpoints.shutil.rmtree(folder / "step-00000001")
    with pytest.raises(InputError, match=r"step 1.*\[2\]"):
        store.load(1)


def test_the_disk_has_room_for_the_last_the_best_and_one_in_the_making(make_store, folder, monkeypatch):
    store, most = make_store(keep_last=2), []
    fill = checkpoint.fill_folder

    def watched(path, content):
        fill(path, content)
        most.append(len(list(folder.iterdir())))

    monkeypatch.setattr(checkpoint, "fill_folder", watched)
    for step in range(9):
        store.save(step, tensors_of(step), {"best_step": 1})
    store.wait()
    assert max(most) == store.config.most_at_once


def test_old_ones_are_removed_only_when_the_new_one_is_whole(make_store, monkeypatch):
    store = make_store(keep_last=1)
    save_all(store, [1])
    seen = []
    rmtree = checkpoints.shutil.rmtree

    def watched(path, **options):
        if "step-00000001" in path.name:
            seen.append(CheckpointStore(store.folder, store.config).load(2).step)
        rmtree(path, **options)

    monkeypatch.setattr(checkpoints.shutil, "rmtree", watched)
    save_all(store, [2])
    assert seen == [2]
    assert store.steps() == [2]


def test_everything_is_on_the_disk_before_it_gets_its_name(make_store, monkeypatch, folder):
    synced: list[tuple[str, bool]] = []
    fsync = files.os.fsync

    def recorded(descriptor):
        target = files.os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((target, (folder / "step-00000005").exists()))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", recorded)
    save_all(make_store(), [5])
    before = [path.rsplit("/", 1)[1] for path, named in synced if not named]
    assert before.index("model.safetensors") < before.index(next(n for n in before if "manifest.json" in n))
    assert {"model.safetensors", "optimizer.safetensors"} <= set(before)
    assert any("state.json" in name for name in before)
    assert before[-1].startswith("step-00000005.tmp-")
    assert [path for path, named in synced if named] == [str(folder), str(folder.parent)]


def test_going_back_and_saving_again_leaves_one_history(make_store):
    store = make_store(keep_last=2, keep_every=3)
    save_all(store, [1, 2, 3, 4])
    assert store.steps() == [3, 4]
    store.load(3)
    store.save(3, tensors_of(99), {"step": 3})
    store.wait()
    assert names_in(store.folder) == ["step-00000003"]
    assert store.load_latest(no_problem).tensors["optimizer"]["age"] == 99


def test_a_step_that_is_saved_again_is_never_without_a_checkpoint(make_store, monkeypatch):
    store = make_store()
    save_all(store, [3])
    rename = checkpoints.Path.rename

    def cut_off(path, target):
        if ".tmp-" in path.name:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Path, "rename", cut_off)
        with pytest.raises(InputError, match="Input/output error"):
            save_all(store, [3])
    # Between the two renames: the old one has lost its name, the new one has not got it.
    assert names_in(store.folder) == ["step-00000003.replaced"]
    assert store.steps() == [3]
    assert store.load_latest(no_problem).tensors["optimizer"]["age"] == 3
    save_all(store, [3, 4])
    assert names_in(store.folder) == ["step-00000003", "step-00000004"]


def test_facts_that_are_no_json_are_refused_at_once(make_store):
    store = make_store()
    for facts in ({"loss": float("nan")}, {"weights": torch.ones(1)}):
        with pytest.raises((ValueError, TypeError)):
            store.save(1, {}, facts)
    with pytest.raises(AssertionError, match="facts of step 4"):
        store.save(5, {}, {"step": 4})
    assert store.load_latest(no_problem) is None


def test_too_little_room_is_refused_with_the_numbers(make_store, folder, monkeypatch):
    monkeypatch.setattr(
        checkpoints.shutil,
        "disk_usage",
        lambda path: checkpoints.shutil._ntuple_diskusage(9e9, 8e9, 2_500_000),
    )
    store = make_store()
    store.require_space(2_500_000)
    with pytest.raises(InputError, match=r"3\.1 MB.*checkpoints\b.*2\.5 MB.*checkpoint\.keep_last"):
        store.require_space(3_100_000)
    monkeypatch.undo()
    store.require_space(1)
    with pytest.raises(InputError, match=r"checkpoint\.keep_last"):
        store.require_space(10**18)


@pytest.mark.parametrize(("key", "value"), [("save_every", 0), ("keep_last", 0), ("keep_every", -1)])
def test_settings_without_meaning_are_refused(key, value):
    with pytest.raises(InputError, match=rf"{key}.*{value}"):
        CheckpointConfig(**{key: value})
