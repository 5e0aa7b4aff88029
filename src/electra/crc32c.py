"""Bytes -> CRC-32C, the checksum of TensorFlow's files, at the speed of memory rather than of Python.

A remainder modulo a polynomial P over GF(2) does not change when a multiple of P is added. P has the multiple
x^5685 + x^1362 + x^426 + 1, and squaring it gives another with all exponents doubled. Of its 64th power the
exponents count words of 64 bits: adding (XOR) the first words of a message at three places further behind and
dropping them there leaves the remainder as it was. So a long message is folded until 5,685 words are left,
those until 5,685 bytes are left, and only these go through the usual table.
"""

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # lowest bit first: x^31 is bit 0
_DEGREE = 5685
_DISTANCES = (_DEGREE - 1362, _DEGREE - 426, _DEGREE)
_CHUNK_BYTES = 1 << 19  # stays in the cache while it is folded
_WORD = 8
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8


def _table() -> list[int]:
    values = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (_POLYNOMIAL if remainder & 1 else 0)
        values.append(remainder)
    return values


_TABLE = _table()


def crc32c(data: NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes."""
    if len(data) < 2 * _WORD:
        return _remainder(data.tobytes(), start=_ONES) ^ _ONES
    # Zeros in front of a message do not count, and beginning with ones means to invert the first 32 bits.
    padding, first = -len(data) % _WORD, _WORD + len(data) % _WORD
    kept = np.concatenate([np.zeros(padding, np.uint8), data[:first]])
    kept[padding : padding + 4] ^= 0xFF
    for start in range(first, len(data), _CHUNK_BYTES):
        message = np.concatenate([kept, data[start : start + _CHUNK_BYTES]])
        kept = fold(message.view(np.uint64)).view(np.uint8)
    return _remainder(fold(kept).tobytes(), start=0) ^ _ONES


def fold(units: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """The last 5,685 units, changed so that they have the remainder of all; the units are overwritten."""
    stop = len(units) - _DEGREE
    for start in range(0, stop, _DISTANCES[0]):
        block = units[start : min(start + _DISTANCES[0], stop)]
        for distance in _DISTANCES:
            units[start + distance : start + distance + len(block)] ^= block
    return units[max(0, stop) :]


def masked(checksum: int) -> int:
    """The form in which files hold checksums, so that the checksum of a checksum tells something."""
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _ONES


def _remainder(data: bytes, *, start: int) -> int:
    remainder = start
    for byte in data:
        remainder = remainder >> 8 ^ _TABLE[(remainder ^ byte) & 0xFF]
    return remainder
