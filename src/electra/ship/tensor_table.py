"""Bytes of a sorted table (LevelDB's format, which TensorFlow took over) -> its keys with their values.

A table is blocks and a footer. The footer says where the block of the index is, the index where all others
are. In a block a key is stored as what differs from the key before it, and the last bytes say where keys
begin that are stored whole: these serve a search, and are not needed to read all.
"""

from collections.abc import Iterator

import numpy as np

from electra.crc32c import crc32c, masked
from electra.ship.tensor_wire import DamagedError, read_bytes, read_varint

MAGIC = 0xDB4775248B80FB57
LONGEST_KEY = 1024
MOST_ENTRIES = 100_000
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
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
    if masked(crc32c(np.frombuffer(data, np.uint8, size + 1, start))) != expected:
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
