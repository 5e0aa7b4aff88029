import hashlib
import math
import pickle

import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.train import checkpoint

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


@pytest.mark.parametrize("tensors", [KINDS, {}], ids=["kinds", "none"])
def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    checkpoint.write_tensors(path, checkpoint.snapshot(tensors))
    assert_same_bits(checkpoint.read_tensors(path), tensors)


class Tied(nn.Module):
    """Two networks with one table, as generator and discriminator have."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Embedding(50, 4)
        self.discriminator = nn.Embedding(50, 4)
        self.discriminator.weight = self.generator.weight


def test_a_shared_tensor_is_stored_once_and_restored_under_both_names(tmp_path):
    model, path = Tied(), tmp_path / "model.safetensors"
    content = checkpoint.snapshot(model.state_dict())
    checkpoint.write_tensors(path, content)
    assert content.num_bytes == 50 * 4 * 4
    assert path.stat().st_size < 1.5 * content.num_bytes
    loaded = checkpoint.read_tensors(path)
    assert_same_bits(loaded, dict(model.state_dict()))
    assert loaded["generator.weight"].data_ptr() == loaded["discriminator.weight"].data_ptr()
    other = Tied()
    other.load_state_dict(loaded)
    assert torch.equal(other.discriminator.weight, model.generator.weight)


def test_views_of_one_tensor_that_differ_are_not_taken_for_the_same(tmp_path):
    whole = torch.arange(6.0)
    views = {"whole": whole, "first": whole[:3], "last": whole[3:], "square": whole[:4].view(2, 2)}
    views |= {"turned": views["square"].t(), "bits": whole.view(torch.int32)}
    checkpoint.write_tensors(tmp_path / "a.safetensors", checkpoint.snapshot(views))
    assert_same_bits(checkpoint.read_tensors(tmp_path / "a.safetensors"), views)


def test_the_same_tensors_make_the_same_file(tmp_path):
    tensors = {f"name{n}": torch.ones(n) for n in range(9)}
    tensors |= {f"alias{n}": tensors[f"name{n}"] for n in range(9)}
    for n in range(4):
        checkpoint.write_tensors(tmp_path / str(n), checkpoint.snapshot(tensors))
    assert len({hashlib.sha256((tmp_path / str(n)).read_bytes()).digest() for n in range(4)}) == 1


def test_changing_what_was_read_does_not_change_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    checkpoint.write_tensors(path, checkpoint.snapshot({"a": torch.ones(1000)}))
    before = path.read_bytes()
    checkpoint.read_tensors(path)["a"].zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\x08", pickle.dumps({"a": 1}), b"\xff" * 100], ids=range(4))
def test_what_is_no_safetensors_file_is_named(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors is not a safetensors file"):
        checkpoint.read_tensors(path)
