import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.formats.tensor_bundle import LONGEST_KEY, DamagedError, read_index_table
from foreign_models import MAGIC, make_block, make_table, seal, varint


@settings(max_examples=50)
@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=9), max_size=40), st.integers(1, 20))
def test_what_is_written_is_read(entries, per_block):
    pairs = sorted(entries.items())
    blocks = [make_block(pairs[first : first + per_block]) for first in range(0, len(pairs), per_block)]
    assert list(read_index_table(make_table(blocks))) == pairs


def refused(data, match):
    with pytest.raises(DamagedError, match=match):
        list(read_index_table(data))


def test_a_compressed_block_is_refused_in_words():
    refused(make_table([make_block([(b"a", b"1")])], kind=1), "compressed")


def test_other_files_are_refused():
    refused(b"", "0 bytes")
    refused(bytes(100), "end")


def test_a_changed_byte_in_a_block_is_found():
    table = bytearray(make_table([make_block([(b"name", b"value")])]))
    table[table.index(b"value")] ^= 1
    refused(bytes(table), "checksum")


def test_keys_must_rise_and_blocks_must_not_come_twice():
    refused(make_table([make_block([(b"b", b"")]), make_block([(b"a", b"")])]), "b'a'")
    block = seal(make_block([]))
    places = [(bytes([number]), varint(0) + varint(len(block) - 5)) for number in range(3)]
    index = make_block(places)
    ends = varint(0) * 2 + varint(len(block)) + varint(len(index))
    refused(block + seal(index) + ends.ljust(40, b"\0") + MAGIC, "overlaps")


def test_keys_do_not_grow_without_bound():
    refused(make_table([make_block([(b"k" * (LONGEST_KEY + 1), b"")])]), "1,024")


@pytest.mark.parametrize(
    "entry",
    [
        varint(1) + varint(1) + varint(0) + b"a",  # shares with a key that there is not
        varint(0) + varint(5) + varint(0) + b"a",  # key cut off
        varint(0) + varint(1) + varint(2**63) + b"a",  # value larger than any file
        varint(0) + b"\x80",
    ],
)
def test_entries_that_speak_of_more_than_there_is(entry):
    with pytest.raises(DamagedError):
        list(read_index_table(make_table([entry + bytes(4) + (1).to_bytes(4, "little")])))


def test_a_block_whose_restarts_do_not_fit():
    refused(make_table([b"\xff\xff\xff\xff"]), "shorter than it says")
    refused(make_table([b"ab"]), "shorter than it says")


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_blocks_of_any_bytes_are_entries_or_damage(blocks):
    try:
        entries = list(read_index_table(make_table([block + bytes(4) for block in blocks])))
    except DamagedError:
        return
    assert sum(len(value) for _, value in entries) <= sum(map(len, blocks))


@given(st.binary(max_size=80), st.booleans())
def test_files_of_any_bytes_are_damage(data, has_magic):
    with pytest.raises(DamagedError):
        list(read_index_table(data + MAGIC if has_magic else data))
