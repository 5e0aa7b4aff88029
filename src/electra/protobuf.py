"""The bytes of a protobuf message -> its fields by number, without a schema and without the library.

Nothing is trusted: lengths are compared with the bytes that are there before anything is read.
"""

from collections.abc import Iterator

_VARINT_BYTES = 10
_MOST = 1 << 64
_FIXED_BYTES = {1: 8, 5: 4}


class DamagedError(ValueError):
    """Bytes that are not what they should be; whoever knows the file says which one it is."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends."""
    value = 0
    for position in range(at, min(at + _VARINT_BYTES, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - at)
        if byte < 0x80:
            if value >= _MOST:
                break
            return value, position + 1
    raise DamagedError("a number is cut off or too long")


def read_bytes(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    """Some bytes, and where they end."""
    if count > len(data) - at:
        raise DamagedError(f"{count} bytes were announced where {len(data) - at} are left")
    return data[at : at + count], at + count


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Every field of a protobuf message in turn: its number, and its value as a number or as bytes."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if wire_type == 2:
            count, at = read_varint(message, at)
            content, at = read_bytes(message, at, count)
            yield number, content
            continue
        if wire_type not in _FIXED_BYTES:
            raise DamagedError(f"a field has the unknown type {wire_type}")
        content, at = read_bytes(message, at, _FIXED_BYTES[wire_type])
        yield number, int.from_bytes(content, "little")


def as_int(value: int | bytes) -> int:
    """A field that must be a number; those of 64 bits may be negative."""
    if isinstance(value, bytes):
        raise DamagedError("a field holds bytes, expected a number")
    return value - _MOST if value >= _MOST // 2 else value


def as_bytes(value: int | bytes) -> bytes:
    """A field that must be text or a message."""
    if isinstance(value, int):
        raise DamagedError("a field holds a number, expected bytes")
    return value
