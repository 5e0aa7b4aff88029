"""Numbers of a step -> event files in RUN/tensorboard/, as TensorBoard reads them; it is not needed to write.

A file is a row of records: length, checksum of the length, data, checksum of the data (TFRecord). The data is
an `Event` of TensorBoard's event.proto in the wire format of Protocol Buffers. Every sitting of a run writes
a file of its own; a record at its start says from which step on the files before it do not count.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from electra.crc32c import crc32c, masked

_NAME = "events.out.tfevents."

# Numbers of the fields in Event, Summary, Summary.Value and SessionLog.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_STATUS, _START = 1, 1

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LARGEST_FLOAT32 = 3.4028234e38


class TensorBoardFiles:
    """The event files of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._first_step: int | None = None

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """One record with all numbers of a step."""
        if self._file is None:
            self._file = self._next_path().open("xb")
            self._append(_event(_field(_FILE_VERSION, b"brain.Event:2"), step=0))
        if self._first_step is not None:
            self._append(_event(_field(_SESSION_LOG, _number(_STATUS, _START)), step=self._first_step))
            self._first_step = None
        scalars = [
            _field(_VALUE, _field(_TAG, name.encode()) + _float(_SIMPLE_VALUE, value))
            for name, value in values.items()
        ]
        self._append(_event(_field(_SUMMARY, b"".join(scalars)), step=step))
        self._file.flush()

    def go_back(self, step: int) -> None:
        """What was written of later steps does not count; said when the next one is written."""
        self._first_step = step + 1

    def close(self) -> None:
        """Close the file; a later `write` begins another."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_path(self) -> Path:
        """TensorBoard reads files in the order of their names, which must not depend on a clock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [path.name.removeprefix(_NAME) for path in self._folder.glob(f"{_NAME}*")]
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return self._folder / f"{_NAME}{last + 1:06}"

    def _append(self, event: bytes) -> None:
        assert self._file is not None
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _event(content: bytes, *, step: int) -> bytes:
    wall_time = _varint(_WALL_TIME << 3 | _EIGHT_BYTES) + struct.pack("<d", time.time())
    return wall_time + _number(_STEP, step) + content


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _float(number: int, value: float) -> bytes:
    fitting = min(_LARGEST_FLOAT32, max(-_LARGEST_FLOAT32, value))
    return _varint(number << 3 | _FOUR_BYTES) + struct.pack("<f", fitting)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    assert value >= 0, f"negative: {value}"
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(crc32c(np.frombuffer(data, np.uint8))))
