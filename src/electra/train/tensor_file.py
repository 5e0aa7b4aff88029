"""Named tensors -> a copy in memory -> one safetensors file -> the same tensors, bit for bit.

A tensor that has several names, such as embeddings that two networks share, is stored once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra import files
from electra.errors import InputError

SUFFIX = ".safetensors"
_SHARED = "shared"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Tensors as they were at one moment, in the CPU's memory and nobody else's."""

    tensors: dict[str, Tensor]
    """Each tensor under the first of its names."""
    shared: dict[str, str]
    """Every further name -> the first name."""

    @property
    def num_bytes(self) -> int:
        """What the tensors take, in memory and on the disk."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def snapshot(tensors: Mapping[str, Tensor]) -> Snapshot:
    """Copy the tensors now, so that training can go on with them."""
    copies: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first_name: dict[object, str] = {}
    for name, tensor in tensors.items():
        # state_dict() makes a new tensor object for each name: only the memory tells that they are one.
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        first = first_name.setdefault(memory, name)
        if first == name:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        else:
            shared[name] = first
    return Snapshot(tensors=copies, shared=shared)


def write(path: Path, content: Snapshot) -> None:
    """Write a file and force it to the disk."""
    # One entry: safetensors writes several in an order that differs from run to run.
    save_file(content.tensors, path, metadata={_SHARED: json.dumps(content.shared)})
    files.fsync(path)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors by all their names; nothing in the file is ever executed."""
    try:
        with safe_open(path, framework="pt") as file:
            shared = json.loads((file.metadata() or {}).get(_SHARED, "{}"))
        tensors = load_file(path)
        return {**tensors, **{name: tensors[first] for name, first in shared.items()}}
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is not a safetensors file of ours: {error}") from error
