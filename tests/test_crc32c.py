import numpy as np
import pytest

from electra.crc32c import crc32c, fold, masked
from foreign_models import slow_crc


def random_bytes(count):
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)


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
def test_published_values(data, checksum):
    assert crc32c(np.frombuffer(data, np.uint8)) == checksum == slow_crc(data)


# Around a word, the length that is left over, the same in words, and a chunk.
@pytest.mark.parametrize(
    "count", [1, 4, 15, 16, 17, 23, 5684, 5685, 5686, 45_479, 45_480, 45_481, 80_003, 524_296, 524_305]
)
def test_folding_does_not_change_the_checksum(count):
    data = random_bytes(count)
    before = data.copy()
    assert crc32c(data) == slow_crc(data.tobytes())
    assert np.array_equal(data, before)


def test_a_long_message_is_folded_to_a_short_one():
    assert len(fold(random_bytes(100_000))) == 5685
    assert len(fold(random_bytes(100))) == 100


def test_every_bit_of_a_long_message_counts():
    data = random_bytes(600_000)
    expected = crc32c(data)
    for place in np.random.default_rng(0).integers(0, len(data), 20).tolist():
        data[place] ^= 1
        assert crc32c(data) != expected
        data[place] ^= 1


def test_masking_is_that_of_leveldb():
    # A rotation by 15 and the constant: leveldb/util/crc32c.h.
    assert masked(0) == 0xA282EAD8
    assert masked(0x8000) == 0xA282EAD9
