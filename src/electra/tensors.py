"""Named tensors <-> one safetensors file, compared with its checksum in the same pass; nothing is unpickled.

Checkpoints and model folders both consist of such files. A tensor that has several names, such as embeddings
that two networks share, can be stored once: the metadata then lists its other names. A file can also hold
some rows of its tensors, as one of several processes has them: the metadata then says which (`Rows`), and
`TensorFiles` reads them from all files, as whole tensors or in other shares.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from electra import files
from electra.errors import InputError

SUFFIX = ".safetensors"
_SHARED, _ROWS = "shared", "rows"
_LENGTH_BYTES = 8
"""A file begins with the length of its header, which is JSON."""


@dataclass(frozen=True)
class Rows:
    """Which rows of a tensor, along its first dimension, are meant."""

    first: int
    count: int
    whole: int
    """How many the whole tensor has."""


def read_tensors(path: Path, *, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file by all their names; `sha256` is the checksum it must have, if one is known."""
    try:
        content = files.read_bytes(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    # The bytes that are hashed are the bytes that are used, and the disk is asked for them once. 53 MB take
    # 60 ms, 49 of them for the hash; a hash of its own and a read by mapping take 64.
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not {sha256}. Copy the file again")
    try:
        tensors = safetensors.torch.load(content)
        shared, _ = _read_metadata(_metadata_in(content), tensors.keys())
        return {**tensors, **{name: tensors[first] for name, first in shared.items()}}
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from error


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    shared: Mapping[str, str] | None = None,
    rows: Mapping[str, Rows] | None = None,
) -> None:
    """Write a file and force it to the disk; `shared`: further name -> name of the same tensor here.

    `rows`: name of a tensor that is not whole -> which rows it has. Only one of the two can be given.
    """
    # One entry: safetensors writes several in an order that differs from run to run.
    metadata = {"format": "pt"} if shared is None else {_SHARED: json.dumps(dict(shared))}
    if rows:
        assert not shared, f"names for rows of a tensor: {list(shared or ())}"
        metadata = {_ROWS: json.dumps({name: [some.first, some.whole] for name, some in rows.items()})}
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


def _metadata_in(content: bytes) -> Mapping[str, str] | None:
    """The metadata of a file that safetensors has read, which has found that they are texts, or none."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    found: Mapping[str, str] | None = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length]).get(
        "__metadata__"
    )
    return found


def _read_metadata(
    metadata: Mapping[str, str] | None, stored: Collection[str]
) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Further name -> name of the same tensor; name -> its first row here, and how many the whole has.

    `stored` are the names of the tensors in the file. Whoever gives us a file gives us its metadata, too.
    """
    found = {key: json.loads((metadata or {}).get(key, "{}")) for key in (_SHARED, _ROWS)}
    for key, value in found.items():
        if not isinstance(value, dict):
            raise ValueError(f"its metadata {key!r} are no JSON object")
    shared, rows = found[_SHARED], found[_ROWS]
    for name, first in shared.items():
        if not isinstance(first, str) or first not in stored or name in stored:
            raise ValueError(f"its metadata {_SHARED!r} give {_short(name)} for {_short(first)}")
    for name, place in rows.items():
        is_place = isinstance(place, list) and [type(one) for one in place] == [int, int]
        if not is_place or min(place) < 0 or name not in stored:
            raise ValueError(f"its metadata {_ROWS!r} give {_short(place)} for {_short(name)}")
    return shared, {name: (first, whole) for name, (first, whole) in rows.items()}


def _short(value: object) -> str:
    return repr(value)[:60]


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Rows of a tensor in a file."""

    file: Any
    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    rows: Rows

    def read(self, first: int, end: int) -> Tensor:
        """Some of the rows, counted from the first of the whole tensor."""
        if not self.shape:
            tensor: Tensor = self.file.get_tensor(self.name)
            return tensor
        some: Tensor = self.file.get_slice(self.name)[first - self.rows.first : end - self.rows.first]
        return some


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of files that each have some of their rows; what is asked for is read, nothing before.

    As a mapping it has whole tensors. The files are mapped into memory for as long as this object lives;
    whether they are as they were written has been checked by others.
    """

    def __init__(self, paths: Sequence[Path], *, may_share: bool = True) -> None:
        """`may_share`: whether tensors may have further names; each costs who reads all of them a copy."""
        self._stored: dict[str, list[_Stored]] = {}
        for path in paths:
            try:
                self._open(path, may_share=may_share)
            # RuntimeError: what torch raises, and, as RecursionError, what deep JSON does.
            except (SafetensorError, ValueError, KeyError, RuntimeError, OSError) as error:
                raise InputError(f"{path} is not a readable safetensors file: {error}") from error
        for name, stored in self._stored.items():
            stored.sort(key=lambda some: some.rows.first)
            _require_whole(name, stored)

    def _open(self, path: Path, *, may_share: bool) -> None:
        # Without types.
        file: Any = safe_open(path, framework="pt")
        names: list[str] = file.keys()
        shared, rows = _read_metadata(file.metadata(), set(names))
        if shared and not may_share:
            raise ValueError(f"its metadata have {_SHARED!r}, which such files never have")
        for name in names:
            part = file.get_slice(name)
            shape = tuple(part.get_shape())
            if shape:
                # Of a type that torch does not have, not even no rows can be read: now, not in mid-training.
                part[:0]
            elif name in rows:
                raise ValueError(f"its metadata {_ROWS!r} have {_short(name)}, which is a single number")
            count = shape[0] if shape else 1
            first, whole = rows.get(name, (0, count))
            self._stored.setdefault(name, []).append(
                _Stored(
                    file=file,
                    path=path,
                    name=name,
                    shape=shape,
                    dtype=part.get_dtype(),
                    rows=Rows(first, count, whole),
                )
            )
        for name, other in shared.items():
            self._stored[name] = self._stored[other]

    def shape(self, name: str) -> torch.Size:
        """The shape of a whole tensor."""
        first = self._stored[name][0]
        return torch.Size((first.rows.whole, *first.shape[1:]) if first.shape else ())

    def rows(self, name: str, rows: Rows) -> Tensor:
        """Some rows of a tensor, in memory of their own."""
        stored = self._stored[name]
        end = rows.first + rows.count
        parts = [
            some.read(max(rows.first, some.rows.first), min(end, some.rows.first + some.rows.count))
            for some in stored
            if some.rows.first < end and rows.first < some.rows.first + some.rows.count
        ]
        if not parts:
            first = stored[0].rows.first
            return stored[0].read(first, first).clone()
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored[name]
        return self.rows(name, Rows(0, stored[0].rows.whole, stored[0].rows.whole))

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def _require_whole(name: str, stored: Sequence[_Stored]) -> None:
    """Refuse a tensor some of whose rows are nowhere, or twice; empty ones have a single place."""
    whole, expected = stored[0].rows.whole, 0
    for some in stored:
        fits = (some.rows.whole, some.dtype) == (whole, stored[0].dtype)
        fits = fits and some.shape[1:] == stored[0].shape[1:]
        if not fits or some.rows.first != expected:
            raise InputError(f"{some.path}: {name} does not begin where another file ends, at {expected}")
        expected += some.rows.count
    if expected != whole:
        raise InputError(f"{stored[-1].path}: {name} has {expected} of {whole} rows in all files")
