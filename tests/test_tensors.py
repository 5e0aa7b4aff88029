import hashlib
import math
import pickle

import pytest
import torch
from safetensors import safe_open
from torch import nn

from electra.errors import InputError
from electra.tensors import read_tensors, write_tensors
from electra.train.checkpoint import snapshot

KINDS = {
    "fp32": torch.tensor([[1.5, -0.0], [math.inf, 1e-45]]),
    "bf16": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "fp16": torch.tensor([65504.0, -6e-8]).half(),
    "fp64": torch.tensor([0.1], dtype=torch.float64),
    "int64": torch.tensor([2**62 + 1, -1]),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.0),
    "integer": torch.tensor(7),
    "empty": torch.empty(0, 4),
    "nan": torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "expanded": torch.tensor([2.0]).expand(4),
    "parameter": nn.Parameter(torch.ones(2)),
}


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor.dtype, tensor.shape) == (second[name].dtype, second[name].shape), name
        ours, theirs = (
            one.detach().contiguous().numpy(force=True)
            if one.dtype != torch.bfloat16
            else one.view(torch.int16).numpy()
            for one in (tensor, second[name])
        )
        assert ours.tobytes() == theirs.tobytes(), name


def write(path, tensors):
    """As a checkpoint does: every tensor once."""
    content = snapshot(tensors)
    write_tensors(path, content.tensors, shared=content.shared)


@pytest.mark.parametrize("tensors", [KINDS, {}], ids=["kinds", "none"])
def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    write(path, tensors)
    assert_same_bits(read_tensors(path), tensors)


class Tied(nn.Module):
    """Two networks with one table, as generator and discriminator have."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Embedding(50, 4)
        self.discriminator = nn.Embedding(50, 4)
        self.discriminator.weight = self.generator.weight


def test_a_shared_tensor_is_stored_once_and_restored_under_both_names(tmp_path):
    model, path = Tied(), tmp_path / "model.safetensors"
    write(path, model.state_dict())
    assert path.stat().st_size < 1.5 * 50 * 4 * 4
    loaded = read_tensors(path)
    assert_same_bits(loaded, dict(model.state_dict()))
    assert loaded["generator.weight"].data_ptr() == loaded["discriminator.weight"].data_ptr()
    other = Tied()
    other.load_state_dict(loaded)
    assert torch.equal(other.discriminator.weight, model.generator.weight)


def test_views_of_one_tensor_that_differ_are_not_taken_for_the_same(tmp_path):
    whole = torch.arange(6.0)
    views = {"whole": whole, "first": whole[:3], "last": whole[3:], "square": whole[:4].view(2, 2)}
    views |= {"turned": views["square"].t(), "bits": whole.view(torch.int32)}
    write(tmp_path / "a.safetensors", views)
    assert_same_bits(read_tensors(tmp_path / "a.safetensors"), views)


def test_the_same_tensors_make_the_same_file(tmp_path):
    tensors = {f"name{n}": torch.ones(n) for n in range(9)}
    tensors |= {f"alias{n}": tensors[f"name{n}"] for n in range(9)}
    for n in range(4):
        write(tmp_path / str(n), tensors)
    assert len({hashlib.sha256((tmp_path / str(n)).read_bytes()).digest() for n in range(4)}) == 1


def test_changing_what_was_read_does_not_change_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"a": torch.ones(1000)})
    before = path.read_bytes()
    read_tensors(path)["a"].zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\x08", pickle.dumps({"a": 1}), b"\xff" * 100], ids=range(4))
def test_what_is_no_safetensors_file_is_named(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_tensors(path)


def test_without_names_that_are_shared_each_tensor_is_written_for_itself(tmp_path):
    path, table = tmp_path / "a.safetensors", torch.arange(6.0)
    write_tensors(path, {"a": table, "b": table, "part": table[2:4]})
    assert_same_bits(read_tensors(path), {"a": table, "b": table, "part": table[2:4]})
    with safe_open(path, framework="pt") as file:
        # Without it transformers refuses the file.
        assert file.metadata() == {"format": "pt"}


def test_the_checksum_is_compared_while_reading(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": torch.ones(10)})
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert torch.equal(read_tensors(path, sha256=sha256)["a"], torch.ones(10))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    read_tensors(path)
    with pytest.raises(InputError, match=rf"a\.safetensors.*{sha256}"):
        read_tensors(path, sha256=sha256)
