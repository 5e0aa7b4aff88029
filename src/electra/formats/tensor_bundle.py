"""A TensorFlow checkpoint (PREFIX.index, PREFIX.data-00000-of-00001) -> its variables, without TensorFlow.

Bottom-up: sorted tables, the checkpoint. Its index is a sorted table (LevelDB's format) from the name of a
variable to the place and checksum of its numbers, each entry a protobuf message; the data files hold nothing
but the numbers.

A table is blocks and a footer. The footer says where the block of the index is, the index where all others
are. In a block, a key is stored as its difference from the key before it; the last bytes list the keys that
are stored whole, which serve a search and are not needed to read everything.

Nothing is trusted: what the index says is compared with the lengths of the files before anything is read, and
every checksum is verified.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.protobuf import DamagedError, as_bytes, as_int, read_bytes, read_fields, read_varint

# LevelDB rotates a checksum and adds this, so that the checksum of bytes that hold checksums says something.
_MASK_DELTA = 0xA282EAD8


def masked_crc(content: bytes | NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes, in the form in which TensorFlow's files hold it."""
    checksum: int = google_crc32c.value(content)
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


MAGIC = 0xDB4775248B80FB57
LONGEST_KEY = 1024
MOST_ENTRIES = 100_000
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0


def read_index_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All entries in the order of their keys; the checksum of every block is verified first."""
    if len(data) < _FOOTER_BYTES:
        raise DamagedError(f"it has {len(data)} bytes, expected {_FOOTER_BYTES} or more")
    footer = data[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != MAGIC:
        raise DamagedError("its end is not that of a table")
    # Of the two places in the footer the first is that of a block which tables of tensors leave empty.
    _, _, at = _read_place(footer, 0)
    start, size, _ = _read_place(footer, at)
    last_key, num_entries, last_end = None, 0, 0
    for _, place in _read_entries(_read_block(data, start, size)):
        block_start, block_size, _ = _read_place(place, 0)
        # Keeps an index from naming one block a million times.
        if block_start < last_end:
            raise DamagedError(f"the block at byte {block_start:,} overlaps the one before it")
        last_end = block_start + block_size
        for key, value in _read_entries(_read_block(data, block_start, block_size)):
            if last_key is not None and key <= last_key:
                raise DamagedError(f"the key {key!r} is not in its place")
            last_key, num_entries = key, num_entries + 1
            if num_entries > MOST_ENTRIES:
                raise DamagedError(f"it has more than {MOST_ENTRIES:,} entries")
            yield key, value


def _read_place(data: bytes, at: int) -> tuple[int, int, int]:
    start, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return start, size, at


def _read_block(data: bytes, start: int, size: int) -> bytes:
    """The entries of a block, without what serves a search."""
    end = start + size
    if end + _TRAILER_BYTES > len(data):
        raise DamagedError(f"a block is said to end at byte {end:,} of {len(data):,}")
    kind = data[end]
    expected = int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little")
    if masked_crc(data[start : end + 1]) != expected:
        raise DamagedError(f"the checksum of the block at byte {start:,} does not match its content")
    if kind != _UNCOMPRESSED:
        raise DamagedError(f"the block at byte {start:,} is compressed (kind {kind}), which is not read here")
    restarts_end = end - 4
    num_restarts = int.from_bytes(data[max(start, restarts_end) : end], "little")
    entries_end = restarts_end - 4 * num_restarts
    if entries_end < start:
        raise DamagedError(f"the block at byte {start:,} is shorter than it says")
    return data[start:entries_end]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    key, at = b"", 0
    while at < len(block):
        num_shared, at = read_varint(block, at)
        num_own, at = read_varint(block, at)
        num_value, at = read_varint(block, at)
        if num_shared > len(key):
            raise DamagedError("a key shares more with the key before it than that one has")
        if num_shared + num_own > LONGEST_KEY:
            raise DamagedError(f"a key has more than {LONGEST_KEY:,} bytes")
        own, at = read_bytes(block, at, num_own)
        key = key[:num_shared] + own
        value, at = read_bytes(block, at, num_value)
        yield key, value


INDEX_SUFFIX = ".index"
LARGEST_INDEX = 64_000_000
_MOST_DIMENSIONS = 32
_MOST_NUMBERS = 1 << 48
_FORMAT_VERSION = 1
# TensorFlow's numbers for the types of numbers; what else it has is listed, but cannot be read.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("<u1"),
    5: np.dtype("<i2"),
    6: np.dtype("<i1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
    17: np.dtype("<u2"),
    19: np.dtype("<f2"),
    22: np.dtype("<u4"),
    23: np.dtype("<u8"),
}


@dataclass(frozen=True, kw_only=True)
class Variable:
    """What the index says of a variable."""

    type_number: int
    shape: tuple[int, ...]
    shard: int
    start: int
    """First byte in the data file."""
    num_bytes: int
    checksum: int
    """Masked CRC-32C of the bytes."""


@dataclass(frozen=True, kw_only=True)
class TensorBundle:
    """A checkpoint whose index is read; variables are read one by one."""

    prefix: Path
    num_shards: int
    variables: Mapping[str, Variable]

    def read(self, name: str) -> NDArray[Any]:
        """The numbers of a variable, mapped into memory and not to be written to."""
        variable = self.variables[name]
        path = self.shard_path(variable.shard)
        if variable.type_number not in _DTYPES:
            raise InputError(
                f"{path}: {name} has TensorFlow's type {variable.type_number}, which is not read here"
            )
        dtype = _DTYPES[variable.type_number]
        if math.prod(variable.shape) * dtype.itemsize != variable.num_bytes:
            raise InputError(
                f"{self.prefix}{INDEX_SUFFIX} is damaged: {name} of shape {list(variable.shape)} is said to "
                f"have {variable.num_bytes} bytes"
            )
        content = self._map(path, variable)
        if masked_crc(content) != variable.checksum:
            raise InputError(
                f"{path} is damaged: the checksum of {name} does not match its content; copy the file again"
            )
        return content.view(dtype).reshape(variable.shape)

    def shard_path(self, shard: int) -> Path:
        """The data file of a number."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05}-of-{self.num_shards:05}")

    def _map(self, path: Path, variable: Variable) -> NDArray[np.uint8]:
        if not variable.num_bytes:
            return np.empty(0, np.uint8)
        mapped = np.memmap(path, np.uint8, "r", offset=variable.start, shape=(variable.num_bytes,))
        return np.asarray(mapped)


def open_bundle(path: str | Path) -> TensorBundle:
    """The checkpoint that a prefix, one of its files, or the folder around it stands for."""
    prefix = find_prefix(Path(path))
    index = prefix.with_name(prefix.name + INDEX_SUFFIX)
    if index.stat().st_size > LARGEST_INDEX:
        raise InputError(
            f"{index} has {index.stat().st_size:,} bytes, more than the index of any model "
            f"({LARGEST_INDEX:,}): is it the right file?"
        )
    try:
        bundle = _read_index(prefix, index.read_bytes())
    except DamagedError as error:
        raise InputError(f"{index} is not a readable index of a TensorFlow checkpoint: {error}") from error
    _check_lengths(bundle)
    return bundle


def _check_lengths(bundle: TensorBundle) -> None:
    """That all data files are there, and hold what the index says, everything once."""
    by_shard: dict[int, list[Variable]] = {}
    for variable in bundle.variables.values():
        by_shard.setdefault(variable.shard, []).append(variable)
    for shard, variables in sorted(by_shard.items()):
        path = bundle.shard_path(shard)
        if not path.is_file():
            raise InputError(f"{path} is missing: copy all files of the checkpoint")
        length = path.stat().st_size
        end = max(variable.start + variable.num_bytes for variable in variables)
        total = sum(variable.num_bytes for variable in variables)
        # Of variables that lie upon each other, a small file could hold more than any memory.
        if max(end, total) > length:
            raise InputError(
                f"{path} has {length:,} bytes, its index speaks of {max(end, total):,}: is the file cut off, "
                "or of another checkpoint?"
            )


def find_prefix(path: Path) -> Path:
    """PREFIX of PREFIX.index, from whatever a person gives for a checkpoint."""
    if path.is_dir():
        found = sorted(entry for entry in path.glob(f"*{INDEX_SUFFIX}") if entry.is_file())
        if len(found) != 1:
            names = ", ".join(str(entry.with_suffix("")) for entry in found) or "none"
            raise InputError(f"{path} has {len(found)} TensorFlow checkpoints, give one of: {names}")
        return found[0].with_suffix("")
    stem, is_data, _ = path.name.rpartition(".data-")
    prefix = (
        path.with_suffix("")
        if path.suffix == INDEX_SUFFIX
        else path.with_name(stem if is_data else path.name)
    )
    index = prefix.with_name(prefix.name + INDEX_SUFFIX)
    if not index.is_file():
        raise InputError(
            f"there is no {index}: expected a TensorFlow checkpoint, which is the files PREFIX.index and "
            "PREFIX.data-00000-of-00001; give PREFIX, or the folder. The single file of TensorFlow's first "
            "format is not read"
        )
    return prefix


def _read_index(prefix: Path, data: bytes) -> TensorBundle:
    entries = dict(read_index_table(data))
    # The header has the empty name, which sorts first.
    if b"" not in entries:
        raise DamagedError("it has no header")
    num_shards = _read_header(entries.pop(b""))
    variables = {}
    for key, value in entries.items():
        try:
            name = key.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"the name {key!r} is not UTF-8") from error
        variables[name] = _read_variable(name, value, num_shards)
    return TensorBundle(prefix=prefix, num_shards=num_shards, variables=variables)


def _read_header(message: bytes) -> int:
    """BundleHeaderProto -> the number of data files."""
    num_shards = 1
    for number, value in read_fields(message):
        if number == 1:
            num_shards = as_int(value)
        elif number == 2 and as_int(value):
            raise DamagedError("its numbers are big-endian, which is not read here")
        elif number == 3:
            for version_number, version in read_fields(as_bytes(value)):
                if version_number == 2 and as_int(version) > _FORMAT_VERSION:
                    raise DamagedError(
                        f"it asks for a reader of version {version!r}, this is {_FORMAT_VERSION}"
                    )
    if not 1 <= num_shards <= 99_999:
        raise DamagedError(f"it says that there are {num_shards} data files")
    return num_shards


def _read_variable(name: str, message: bytes, num_shards: int) -> Variable:
    """BundleEntryProto -> what it says, checked as far as that is possible without the data."""
    shape: tuple[int, ...] = ()
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    for number, value in read_fields(message):
        if number == 2:
            shape = _read_shape(name, as_bytes(value))
        elif number == 7:
            raise DamagedError(f"{name} is cut into slices, which are not read here")
        elif number in numbers:
            numbers[number] = as_int(value)
    type_number, shard, start, num_bytes, checksum = numbers.values()
    if min(start, num_bytes) < 0 or not 0 <= shard < num_shards:
        raise DamagedError(f"{name} is said to be in data file {shard}, {num_bytes} bytes from {start}")
    return Variable(
        type_number=type_number,
        shape=shape,
        shard=shard,
        start=start,
        num_bytes=num_bytes,
        checksum=checksum,
    )


def _read_shape(name: str, message: bytes) -> tuple[int, ...]:
    """TensorShapeProto -> sizes."""
    sizes: list[int] = []
    for number, value in read_fields(message):
        if number == 2:
            # A size of 0 is left out of the message.
            sizes.append(sum(as_int(size) for key, size in read_fields(as_bytes(value)) if key == 1))
        elif number == 3 and as_int(value):
            raise DamagedError(f"{name} has no shape")
    is_possible = min(sizes, default=0) >= 0 and math.prod(max(size, 1) for size in sizes) < _MOST_NUMBERS
    if len(sizes) > _MOST_DIMENSIONS or not is_possible:
        raise DamagedError(f"{name} has the impossible shape {sizes[: _MOST_DIMENSIONS + 1]}")
    return tuple(sizes)
