import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.formats.tensor_bundle import DamagedError, as_bytes, as_int, masked_crc, read_fields, read_varint


@pytest.mark.parametrize(
    ("data", "value", "end"), [(b"\x05", 5, 1), (b"\x96\x01", 150, 2), (b"\xff" * 9 + b"\x01", 2**64 - 1, 10)]
)
def test_a_number_ends_where_its_last_byte_says(data, value, end):
    assert read_varint(data + b"\x7f", 0) == (value, end)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11, b"\xff" * 9 + b"\x02"])
def test_a_number_that_is_cut_off_or_too_long_is_refused(data):
    with pytest.raises(DamagedError):
        read_varint(data, 0)


def test_fields_of_all_kinds():
    message = b"\x08\x96\x01\x12\x02ab\x1d\x01\x00\x00\x00\x21" + bytes(7) + b"\x01"
    assert list(read_fields(message)) == [(1, 150), (2, b"ab"), (3, 1), (4, 1 << 56)]


def test_numbers_of_64_bits_may_be_negative():
    assert as_int(2**64 - 1) == -1
    with pytest.raises(DamagedError):
        as_int(b"1")
    with pytest.raises(DamagedError):
        as_bytes(1)


@given(st.binary(max_size=64))
def test_any_bytes_are_fields_or_damage(data):
    try:
        fields = list(read_fields(data))
    except DamagedError:
        return
    held = sum(len(value) if isinstance(value, bytes) else 1 for _, value in fields)
    assert held <= len(data)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [  # RFC 3720, B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_are_the_standards_rotated_by_15_plus_a_constant(data, checksum):
    expected = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(data) == masked_crc(np.frombuffer(data, np.uint8)) == expected
    assert masked_crc(np.array([*data], np.uint8)) == expected
