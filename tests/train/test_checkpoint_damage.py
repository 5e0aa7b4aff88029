"""What can happen to checkpoints on the disk: nothing is taken for what it is not."""

import hashlib
import json
import os
import pickle
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file

from electra import files
from electra.errors import InputError
from electra.train import checkpoint

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def flip(path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "first bit": lambda path: flip(path, 0),
    "middle bit": lambda path: flip(path, path.stat().st_size // 2),
    "last bit": lambda path: flip(path, -1),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "of another step": lambda path: shutil.copy(path.parents[1] / "step-00000001" / path.name, path),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_and_the_previous_checkpoint_used(store, problems, name, damage):
    damage(store.folder / "step-00000002" / name)
    loaded = store.load_latest(problems.append)
    assert (loaded.step, loaded.facts["tokens"]) == (1, 10)
    assert torch.equal(loaded.tensors["model"]["weight"], torch.ones(60))
    assert len(problems) == 1
    assert "step-00000002" in problems[0]
    assert "damaged" in problems[0]
    # A manifest that is whole but of another step puts the blame on the files it does not fit.
    assert name in problems[0] or damage is DAMAGES["of another step"]
    with pytest.raises(InputError, match="step-00000002"):
        store.load(2)


def test_a_folder_under_another_steps_name_is_refused(store, problems):
    shutil.copytree(store.folder / "step-00000001", store.folder / "step-00000009")
    assert store.load_latest(problems.append).step == 2
    assert re.search(r"step-00000009.*\b1\b", problems[0])


def test_a_checkpoint_of_a_later_format_is_not_guessed_at(store, problems):
    path = store.folder / "step-00000002"
    files.write_manifest(path, {"kind": "checkpoint", "format_version": 3, "step": 2})
    assert store.load_latest(problems.append).step == 1
    assert re.search(r"step-00000002.*\b3\b.*\b1 to 2\b", problems[0])


def test_if_all_are_bad_it_stops_and_names_each(store, problems):
    flip(store.folder / "step-00000001" / "model.safetensors", 9)
    (store.folder / "step-00000002" / "manifest.json").unlink()
    with pytest.raises(InputError, match="step-00000002") as caught:
        store.load_latest(problems.append)
    assert len(problems) == 2
    assert all(problem in str(caught.value) for problem in problems)
    assert "step-00000001/model.safetensors" in str(caught.value)
    assert re.search(r"step-00000002.*manifest\.json", str(caught.value))


def test_a_leftover_is_named_ignored_and_removed_before_the_next_save(save, store, problems, monkeypatch):
    whole = store.folder / "step-00000002"
    # Even whole: it was not there yet when the process was killed. The second has this process's own number.
    leftovers = [store.folder / f"step-00000003.tmp-{number}" for number in (1, os.getpid())]
    for leftover in leftovers:
        shutil.copytree(whole, leftover)
    assert store.load_latest(problems.append).step == 2
    assert [str(path) in problem for path, problem in zip(leftovers, problems, strict=True)] == [True, True]
    found = []
    fill = checkpoint.fill_folder

    def watched(path, content):
        found.extend(store.folder.glob("*.tmp-*"))
        fill(path, content)

    monkeypatch.setattr(checkpoint, "fill_folder", watched)
    save(store, 3)
    assert found == []
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000002", "step-00000003"]
    assert store.load_latest(problems.append).step == 3


def test_what_a_failed_save_could_not_remove_goes_when_the_run_is_resumed(save, store, problems, monkeypatch):
    save(store, 3)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path: path.joinpath("gone").unlink())
    with pytest.raises(InputError, match="step-00000004"):
        save(store, 4)
    monkeypatch.undo()
    assert len(list(store.folder.iterdir())) == 3
    store.tidy(store.load_latest(problems.append))
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000003", "step-00000004"]


def test_beside_a_damaged_checkpoint_nothing_is_removed(save, store, problems):
    save(store, 3)
    flip(store.folder / "step-00000003" / "model.safetensors", -1)
    before = sorted(store.folder.iterdir())
    store.tidy(store.load_latest(problems.append))
    assert sorted(store.folder.iterdir()) == before


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(save, store, problems):
    flip(store.folder / "step-00000002" / "model.safetensors", -1)
    assert store.load_latest(problems.append).step == 1
    save(store, 3)
    assert store.steps() == [1, 3]
    flip(store.folder / "step-00000003" / "model.safetensors", -1)
    assert store.load_latest(problems.append).step == 1
    save(store, 3)
    assert store.load_latest(problems.append).step == 3
    assert store.steps() == [1, 3]


@pytest.mark.parametrize("name", [".DS_Store", "._model.safetensors", ".nfs00000000004a", "notes.txt", "a/b"])
def test_a_file_that_somebody_left_in_a_checkpoint_is_no_damage(save, store, problems, name):
    path = store.folder / "step-00000002" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"anything")
    assert store.load_latest(problems.append).step == 2
    assert problems == []
    # It goes with its checkpoint.
    save(store, 3, 4)
    assert store.steps() == [3, 4]
    assert [found.name for found in sorted(store.folder.iterdir())] == ["step-00000003", "step-00000004"]


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("sealed", [False, True], ids=["added", "sealed anew"])
@pytest.mark.parametrize("name", [*FILES[:3], "optimizer.pt", "pytorch_model.bin", "more.safetensors"])
def test_a_malicious_pickle_is_never_executed(store, problems, tmp_path, name, sealed):
    proof = tmp_path / "executed"
    attack = pickle.dumps(Payload(proof))
    pickle.loads(attack).close()
    proof.unlink()
    path = store.folder / "step-00000002"
    (path / name).write_bytes(attack)
    if sealed:
        files.write_manifest(path, {"kind": "checkpoint", "format_version": 1, "step": 2})
    # What the manifest does not name is never read; of what it names, weights and state are.
    harmless = name not in FILES[:3] and not (sealed and name == "more.safetensors")
    assert store.load_latest(problems.append).step == (2 if harmless else 1)
    assert harmless or name in problems[0]
    assert not proof.exists()


def resealed(folder, *, version, tensors, metadata):
    """A checkpoint of step 2 that somebody has made, with checksums that fit."""
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "state.json").write_text('{"step": 2}')
    names = {1: "model.safetensors", 2: "model-00001-of-00001.safetensors"}
    save_file(tensors, folder / names[version], metadata=metadata)
    files.write_manifest(folder, {"kind": "checkpoint", "format_version": version, "step": 2})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("metadata", [{"shared": '{"x": []}'}, {"shared": "[1]"}, {"rows": "[1]"}], ids=str)
def test_metadata_of_another_form_are_damage(store, problems, version, metadata):
    path = store.folder / "step-00000002"
    resealed(path, version=version, tensors={"weight": torch.ones(60)}, metadata=metadata)
    assert store.load_latest(problems.append).step == 1
    assert re.search(r"step-00000002.*model.*\.safetensors", problems[0])


def test_names_take_no_memory(store, problems):
    names = json.dumps({f"name{number}": "weight" for number in range(200)})
    made = {"tensors": {"weight": torch.ones(60)}, "metadata": {"shared": names}}
    path = store.folder / "step-00000002"
    resealed(path, version=1, **made)
    found = store.load(2).tensors["model"]
    assert len(found) == 201
    assert len({tensor.data_ptr() for tensor in found.values()}) == 1
    # Who writes parts never shares.
    resealed(path, version=2, **made)
    assert store.load_latest(problems.append).step == 1
    assert "shared" in problems[0]


class First:
    """The first of two processes, which keeps what it says and sends."""

    def __init__(self):
        self.sent = []

    def first_says(self, act):
        self.said = act()
        return self.said

    def send_from_first(self, tensor):
        self.sent.append(tensor)


class Other:
    """The second of them."""

    def __init__(self, first):
        self.said, self.sent = first.said, iter(first.sent)

    def first_says(self, act):
        return self.said

    def send_from_first(self, tensor):
        tensor.copy_(next(self.sent))


def test_a_tensor_of_several_names_is_sent_once_to_others_and_takes_their_memory_once(store):
    path = store.folder / "step-00000002"
    tensors = {"weight": torch.ones(60), "bias": torch.arange(3.0)}
    resealed(path, version=1, tensors=tensors, metadata={"shared": '{"tied": "weight"}'})
    first = First()
    ours = dict(checkpoint.read_by_first(first, lambda: store.load(2)).tensors["model"])
    theirs = checkpoint.read_by_first(Other(first), lambda: None).tensors["model"]
    assert len(first.sent) == 2
    for found in (ours, theirs):
        assert found.keys() == {"weight", "bias", "tied"}
        assert found["tied"].data_ptr() == found["weight"].data_ptr()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_files_elsewhere_are_not_read(store, problems):
    path, elsewhere = store.folder / "step-00000002", store.folder / "elsewhere.safetensors"
    shutil.copy(path / "model.safetensors", elsewhere)
    content = json.loads((path / files.MANIFEST).read_bytes())
    del content["manifest_sha256"]
    content["files"]["../elsewhere.safetensors"] = content["files"]["model.safetensors"]
    checksum = hashlib.sha256(files.to_json(content)).hexdigest()
    files.write_json(path / files.MANIFEST, {**content, "manifest_sha256": checksum})
    assert store.load_latest(problems.append).step == 1
    assert "elsewhere.safetensors" in problems[0]
