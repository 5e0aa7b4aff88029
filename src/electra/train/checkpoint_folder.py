"""The content of a checkpoint <-> one folder of safetensors and JSON, sealed by a manifest.

What is read is checked against the manifest first, every byte of it; nothing is ever unpickled.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.train import tensor_file
from electra.train.tensor_file import Snapshot

KIND = "checkpoint"
FORMAT_VERSION = 1
REPLACED = ".replaced"
_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint, read back."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    """As saved, in the CPU's memory: file -> name -> tensor."""
    facts: dict[str, Any]
    """As saved, and as JSON gives them back: tuples are lists, keys are strings."""
    path: Path


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is to be written, safe from changes."""

    step: int
    tensors: dict[str, Snapshot]
    state: bytes
    best_step: int | None

    @property
    def num_bytes(self) -> int:
        """What it takes on the disk."""
        return sum(tensors.num_bytes for tensors in self.tensors.values()) + len(self.state)


def fill(folder: Path, content: Content) -> None:
    """Every file of a checkpoint, each on the disk before the manifest is."""
    folder.mkdir()
    for name, tensors in content.tensors.items():
        tensor_file.write(folder / (name + tensor_file.SUFFIX), tensors)
    files.write_file(folder / _STATE, lambda file: file.write(content.state))
    files.write_manifest(folder, {"kind": KIND, "format_version": FORMAT_VERSION, "step": content.step})


def publish(unfinished: Path, path: Path) -> None:
    """Give a whole folder its name; a folder cannot be put in the place of another in one step."""
    if path.exists():
        replaced = path.with_name(path.name + REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    unfinished.rename(path)
    for folder in (path.parent, path.parent.parent):
        files.fsync(folder)


def read(step: int, path: Path) -> Checkpoint:
    """A checkpoint whose every byte is as it was sealed."""
    manifest = files.read_manifest(path, kind=KIND)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has format {manifest.get('format_version')}, this program reads {FORMAT_VERSION}"
        )
    if damaged := list(files.damaged_files(path, manifest)):
        raise InputError("; ".join(damaged))
    if manifest.get("step") != step:
        raise InputError(f"{path} holds step {manifest.get('step')}: the folder was renamed")
    names = [name for name in manifest["files"] if name.endswith(tensor_file.SUFFIX)]
    tensors = {name.removesuffix(tensor_file.SUFFIX): tensor_file.read(path / name) for name in names}
    facts = files.read_json(path / _STATE)
    if not isinstance(facts, dict):
        raise InputError(f"{path / _STATE} holds no JSON object")
    return Checkpoint(step=step, tensors=tensors, facts=facts, path=path)
