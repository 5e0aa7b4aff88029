"""A file, compressed or not -> its bytes in pieces, as far as they can be read.

A truncated or damaged file yields everything before the damage, and a problem that describes it.
"""

import lzma
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from electra.errors import import_extra
from electra.store.cache import open_file
from electra.text.quarantine import Reading
from electra.text.sources import Compression

PIECE_BYTES = 1 << 18
# A zstandard step is decompressed at once, and 128 KiB may be packed into 4 bytes: small steps bound memory.
_STEP_BYTES = {"none": PIECE_BYTES, "gzip": 1 << 16, "xz": 1 << 16, "zstd": 1 << 12}
_XZ_MEMORY = 1 << 29


def read_pieces(reading: Reading, *, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The decompressed contents of a source, in pieces of at least the given size except for the last."""
    parts: list[bytes] = []
    size = 0
    for part in _contents(reading, min(piece_bytes, _STEP_BYTES[reading.source.compression])):
        parts.append(part)
        size += len(part)
        if size >= piece_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _contents(reading: Reading, step_bytes: int) -> Iterator[bytes]:
    """Everything that can be read, and a problem if it ends too early."""
    source, tally = reading.source, reading.tally
    damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, lzma.LZMAError)
    if source.compression == "zstd":
        damage = (*damage, import_extra("zstandard", extra="zstd").ZstdError)
    used = 0

    def steps(file: IO[bytes]) -> Iterator[bytes]:
        nonlocal used
        while step := file.read(step_bytes):
            tally.source_bytes += len(step)
            yield step
            used += len(step)

    try:
        with open_file(source.path, size=source.bytes, modified=source.modified, buffering=0) as file:
            try:
                packed = source.compression != "none"
                yield from _decompressed(steps(file), source.compression) if packed else steps(file)
                # What is missing of compressed data is found by what decompresses it.
                reading.record_change(file, lost=0 if packed else max(0, source.bytes - used))
            except damage:
                # Of a file that changes while it is read, that is what is wrong, wherever it shows.
                if not reading.record_change(file, lost=max(0, source.bytes - used)):
                    raise
    except damage as error:
        reading.problem(_reason(error, source.compression), lost=max(0, source.bytes - used))


def _decompressed(steps: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """All members of a compressed file; zeros between them are padding."""
    engine: Any = None
    num_members = 0
    for step in steps:
        rest = step
        while rest:
            if engine is None:
                rest = rest.lstrip(b"\0") if num_members else rest
                engine = _engine(compression) if rest else None
            else:
                yield from _FEED[compression](engine, rest)
                rest = b""
            if engine is not None and engine.eof:
                rest, engine = engine.unused_data, None
                num_members += 1
    if engine is not None or not num_members:
        yield b"" if engine is None or compression != "gzip" else engine.flush()
        raise EOFError


def _engine(compression: Compression) -> Any:
    """A decompressor for one member."""
    if compression == "gzip":
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    if compression == "xz":
        return lzma.LZMADecompressor(format=lzma.FORMAT_AUTO, memlimit=_XZ_MEMORY)
    return import_extra("zstandard", extra="zstd").ZstdDecompressor().decompressobj()


def _gunzip(engine: Any, data: bytes) -> Iterator[bytes]:
    while data:
        before = engine.copy()
        try:
            yield engine.decompress(data, PIECE_BYTES)
        except zlib.error:
            # The call keeps what it had decompressed up to the bad byte, such as all but the checksum.
            for at in range(len(data)):
                yield before.decompress(data[at : at + 1])
            raise
        data = engine.unconsumed_tail


def _unxz(engine: Any, data: bytes) -> Iterator[bytes]:
    yield engine.decompress(data, PIECE_BYTES)
    while not (engine.eof or engine.needs_input):
        yield engine.decompress(b"", PIECE_BYTES)


def _unzstd(engine: Any, data: bytes) -> Iterator[bytes]:
    yield engine.decompress(data)


_FEED = {"gzip": _gunzip, "xz": _unxz, "zstd": _unzstd}


def _reason(error: Exception, compression: Compression) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, EOFError):
        return f"the {compression} data breaks off: its end is missing"
    return f"the {compression} data is damaged, or something else follows it: {error}"
