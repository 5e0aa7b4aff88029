"""Named tensors <-> one safetensors file, compared with its checksum in the same pass; nothing is unpickled.

Checkpoints and model folders both consist of such files. A tensor that has several names, such as embeddings
that two networks share, can be stored once: the metadata then lists its other names.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from electra import files
from electra.errors import InputError

SUFFIX = ".safetensors"
_SHARED = "shared"
_LENGTH_BYTES = 8
"""A file begins with the length of its header, which is JSON."""


def read_tensors(path: Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file by all their names; `sha256` is the checksum it must have, if one is known."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    # The bytes that are hashed are the bytes that are used, and the disk is asked for them once. 53 MB take
    # 60 ms, 49 of them for the hash; a hash of its own and a read by mapping take 64.
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not {sha256}. Copy the file again")
    try:
        tensors = safetensors.torch.load(content)
        return {**tensors, **{name: tensors[first] for name, first in _shared_names(content).items()}}
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from error


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, shared: Mapping[str, str] | None = None
) -> None:
    """Write a file and force it to the disk; `shared`: further name -> name of the same tensor here."""
    # One entry: safetensors writes several in an order that differs from run to run.
    metadata = {"format": "pt"} if shared is None else {_SHARED: json.dumps(dict(shared))}
    whole: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        # safetensors refuses two names for one memory.
        whole[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    safetensors.torch.save_file(whole, path, metadata=metadata)
    files.fsync(path)


def _shared_names(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    names = json.loads(header.get("__metadata__", {}).get(_SHARED, "{}"))
    if not isinstance(names, dict):
        raise ValueError(f"{_SHARED} is no JSON object")
    return names
