import hashlib
import json
import math
import os
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from electra.errors import InputError
from electra.tensors import TensorFiles, read_tensors, write_tensors
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


DEEP = "[" * 100_000
READERS = {"read_tensors": read_tensors, "TensorFiles": lambda path: dict(TensorFiles([path]))}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "metadata",
    [
        *({"shared": text} for text in ('{"x": []}', '{"x": 3}', '{"x": "none"}', '{"a": "a"}')),
        *({"shared": text} for text in ("[1]", "3", "null", "{", DEEP)),
        *({"rows": f'{{"a": {place}}}'} for place in ("[1e999, 4]", "null", "[0, 4, 0]", '["0", "4"]')),
        *({"rows": f'{{"a": {place}}}'} for place in ("[-1, 4]", "[0, true]", "[0.0, 4.0]", "{}")),
        *({"rows": text} for text in ("[1]", "3", "null", '{"none": [0, 4]}', DEEP)),
    ],
    ids=lambda metadata: str(metadata)[:40],
)
def test_metadata_of_another_form_are_refused_by_the_name_of_the_file(tmp_path, read, metadata):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4, 4)}, path, metadata=metadata)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read(path)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("header", "is_read"),
    [
        ({"__metadata__": None, "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, True),
        # Types that torch, or safetensors for torch, does not have.
        ({"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, False),
        ({"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, False),
    ],
)
def test_headers_as_we_do_not_write_them(tmp_path, read, header, is_read):
    path, text = tmp_path / "model.safetensors", json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(header["a"]["data_offsets"][1]))
    if is_read:
        assert read(path)["a"].tolist() == [0, 0, 0, 0]
    else:
        with pytest.raises(InputError, match=r"model\.safetensors"):
            read(path)


def test_parts_of_a_tensor_are_of_one_type_and_have_rows(tmp_path):
    def parts(*tensors):
        for number, tensor in enumerate(tensors):
            rows = json.dumps({"a": [number, len(tensors)]})
            save_file({"a": tensor}, tmp_path / f"{number}.safetensors", metadata={"rows": rows})
        return dict(TensorFiles([tmp_path / f"{number}.safetensors" for number in range(len(tensors))]))

    assert parts(torch.ones(1), torch.zeros(1))["a"].tolist() == [1, 0]
    with pytest.raises(InputError, match=r"1\.safetensors"):
        parts(torch.ones(1), torch.zeros(1).to(torch.float8_e5m2))
    with pytest.raises(InputError, match=r"0\.safetensors"):
        parts(torch.tensor(1.0), torch.tensor(0.0))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_tensors(tmp_path / "model.safetensors")
