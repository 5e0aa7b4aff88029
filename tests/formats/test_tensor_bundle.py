"""Checkpoints that a small writer made, damaged in every way; and the authors' own."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import InputError
from electra.formats import tensor_bundle
from electra.formats.tensor_bundle import find_prefix, open_bundle
from foreign_models import (
    TYPE_NUMBERS,
    bytes_field,
    make_block,
    make_entry,
    make_header,
    make_table,
    masked_crc,
    number_field,
    write_bundle,
)

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "electra/layer_0/kernel": RANDOM.standard_normal((6, 5)).astype(np.float32),
    "electra/layer_0/bias": RANDOM.standard_normal(5).astype(np.float32),
    "electra/layer_1/kernel": RANDOM.standard_normal((3, 2, 2)),
    "empty": np.zeros((0, 3), np.float32),
    "flag": np.array([True, False, True]),
    "global_step": np.array(77, np.int64),
    "half": RANDOM.standard_normal(3).astype(np.float16),
    "naïve/ünïcode": np.arange(4, dtype=np.int32),
}


def read_all(path):
    bundle = open_bundle(path)
    return {name: bundle.read(name) for name in bundle.variables}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize(("num_shards", "per_block"), [(1, 40), (3, 2), (2, 1)])
def test_what_is_written_is_read(num_shards, per_block, tmp_path):
    write_bundle(tmp_path / "model.ckpt", ARRAYS, num_shards=num_shards, per_block=per_block)
    assert_same(read_all(tmp_path / "model.ckpt"), ARRAYS)


def test_the_authors_checkpoint_is_their_weights_bit_for_bit(shared: Path):
    folder = shared / "oracles" / "google-electra"
    with np.load(folder / "pretrain_mini.npz") as arrays:
        weights = {name[2:]: arrays[name] for name in arrays.files if name.startswith("w/")}
    assert len(weights) == 112
    assert_same(read_all(folder / "mini_ckpt"), weights)


def test_a_checkpoint_is_found_by_each_of_its_names(tmp_path):
    prefix = tmp_path / "model.ckpt-100"
    write_bundle(prefix, ARRAYS)
    for name in (tmp_path, prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001"):
        assert find_prefix(Path(name)) == prefix
    write_bundle(tmp_path / "model.ckpt-200", ARRAYS)
    with pytest.raises(InputError, match=r"\b2\b.*ckpt-100.*ckpt-200"):
        open_bundle(tmp_path)
    with pytest.raises(InputError, match=r"model\.ckpt-300\.index"):
        open_bundle(tmp_path / "model.ckpt-300")


def test_data_files_that_are_missing_or_cut_off(tmp_path):
    write_bundle(tmp_path / "model.ckpt", ARRAYS)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data-00000-of-00001.*\d+ bytes.*\d+"):
        open_bundle(tmp_path)
    data.unlink()
    with pytest.raises(InputError, match=r"data-00000-of-00001.*missing"):
        open_bundle(tmp_path)


def open_entries(folder, *entries, header=None, data=b""):
    """A checkpoint of hand-made entries."""
    block = make_block([(b"", make_header() if header is None else header), *entries])
    (folder / "model.ckpt.index").write_bytes(make_table([block]))
    (folder / "model.ckpt.data-00000-of-00001").write_bytes(data)
    return open_bundle(folder)


def test_many_variables_in_the_same_bytes_are_refused(tmp_path):
    data, crc = bytes(8), masked_crc(bytes(8))
    entries = [(name.encode(), make_entry(1, [2], size=8, crc=crc)) for name in "ab"]
    assert open_entries(tmp_path, entries[0], data=data).read("a").tolist() == [0, 0]
    with pytest.raises(InputError, match=r"\b8 bytes.*\b16\b"):
        open_entries(tmp_path, *entries, data=data)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make_entry(1, [2**40], size=2**42, crc=bytes(4)), f"{2**42:,}"),
        (make_entry(1, [2**40, 2**40, 0], size=0, crc=bytes(4)), rf"weight.*\[{2**40}, {2**40}, 0\]"),
        (make_entry(1, [-1], size=4, crc=bytes(4)), r"weight.*\[-1\]"),
        (make_entry(1, [1] * 40, size=4, crc=bytes(4)), r"weight.*\[1, 1"),
        (make_entry(1, [1], size=4, start=-4, crc=bytes(4)), r"weight.*\b4 bytes.*-4\b"),
        (make_entry(1, [1], size=4, shard=1, crc=bytes(4)), r"weight.*\b1\b.*\b4 bytes"),
        (make_entry(1, [1], size=4, crc=bytes(4)) + bytes_field(7, b""), "slices"),
        (bytes_field(2, number_field(3, 1)), "weight.*shape"),
        (b"\x0b", r"\b3\b"),
    ],
)
def test_entries_that_cannot_be(entry, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        open_entries(tmp_path, (b"weight", entry), data=bytes(4))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (make_entry(7, [1], size=4, crc=bytes(4)), "type 7"),
        (make_entry(1, [2], size=4, crc=bytes(4)), r"weight.*\[2\].*\b4 bytes"),
        (make_entry(1, [1], size=4, crc=bytes(4)), "checksum.*weight"),
    ],
)
def test_variables_that_cannot_be_read(entry, reason, tmp_path):
    bundle = open_entries(tmp_path, (b"weight", entry), data=bytes(4))
    with pytest.raises(InputError, match=reason):
        bundle.read("weight")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (make_header(0) + number_field(1, 100_000), "100000"),
        (number_field(2, 1), "big-endian"),
        (bytes_field(3, number_field(2, 9)), "version 9"),
    ],
)
def test_headers_of_other_kinds(header, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        open_entries(tmp_path, header=header)


def test_an_index_without_a_header_or_with_names_that_are_no_text(tmp_path):
    with pytest.raises(InputError, match="UTF-8"):
        open_entries(tmp_path, (b"\xff", b""))
    (tmp_path / "model.ckpt.index").write_bytes(make_table([make_block([(b"a", b"")])]))
    with pytest.raises(InputError, match="header"):
        open_bundle(tmp_path)


def test_a_huge_index_is_not_read(tmp_path, monkeypatch):
    write_bundle(tmp_path / "model.ckpt", ARRAYS)
    monkeypatch.setattr(tensor_bundle, "LARGEST_INDEX", 100)
    with pytest.raises(InputError, match=r"model\.ckpt\.index.*\b100\b"):
        open_bundle(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small checkpoint to be damaged: its prefix and the bytes of its index."""
    prefix = tmp_path_factory.mktemp("damage") / "model.ckpt"
    write_bundle(prefix, ARRAYS, per_block=3)
    return prefix, prefix.with_name("model.ckpt.index").read_bytes()


@pytest.fixture(scope="module")
def copied(tmp_path_factory, shared: Path):
    """The same of the authors' own."""
    folder = tmp_path_factory.mktemp("authors") / "mini_ckpt"
    shutil.copytree(shared / "oracles" / "google-electra" / "mini_ckpt", folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder / "model.ckpt", (folder / "model.ckpt.index").read_bytes()


def read_damaged(checkpoint, data):
    """All arrays of a checkpoint with another index, or what is said about it."""
    prefix, whole = checkpoint
    index = prefix.with_name("model.ckpt.index")
    index.write_bytes(data)
    try:
        return read_all(prefix)
    except InputError as error:
        return str(error)
    finally:
        index.write_bytes(whole)


def check_damaged_index(checkpoint, data, *, num_variables):
    """Damage is told in words, or lies where nothing is read."""
    found = read_damaged(checkpoint, data)
    assert "model.ckpt" in found if isinstance(found, str) else len(found) == num_variables


def flipped(data, place, change):
    place %= len(data)
    return data[:place] + bytes([data[place] ^ change]) + data[place + 1 :]


@given(st.integers(0), st.integers(1, 255))
def test_flipped_bytes_of_an_index(written, place, change):
    check_damaged_index(written, flipped(written[1], place, change), num_variables=len(ARRAYS))


@given(st.integers(0))
def test_truncated_indices(written, length):
    check_damaged_index(written, written[1][: length % len(written[1])], num_variables=-1)


@settings(max_examples=60)
@given(st.integers(0), st.integers(1, 255))
def test_flipped_bytes_of_the_authors_index(copied, place, change):
    check_damaged_index(copied, flipped(copied[1], place, change), num_variables=112)


@settings(max_examples=30)
@given(st.integers(0))
def test_the_authors_index_truncated(copied, length):
    check_damaged_index(copied, copied[1][: length % len(copied[1])], num_variables=-1)


@settings(max_examples=30)
@given(st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_of_the_authors_data_is_found(copied, place, change):
    data = copied[0].with_name("model.ckpt.data-00000-of-00001")
    place %= data.stat().st_size
    with data.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ change]))
    try:
        bundle = open_bundle(copied[0])
        (hit,) = [
            name
            for name, each in bundle.variables.items()
            if each.start <= place < each.start + each.num_bytes
        ]
        with pytest.raises(InputError, match=r"data-00000-of-00001.*checksum"):
            bundle.read(hit)
    finally:
        with data.open("r+b") as file:
            file.seek(place)
            file.write(bytes([byte]))


@given(st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_of_data_is_found(written, place, change):
    data = written[0].with_name("model.ckpt.data-00000-of-00001")
    whole = data.read_bytes()
    data.write_bytes(flipped(whole, place, change))
    try:
        with pytest.raises(InputError, match=r"data-00000-of-00001.*checksum"):
            read_all(written[0])
    finally:
        data.write_bytes(whole)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0), st.integers(1, 255), st.integers(0, 3))
def test_damage_with_a_checksum_that_fits(written, place, change, num_cut):
    """What a person with bad intent would write: the bytes are wrong, and their checksum is right."""
    entries = [(b"", make_header())]
    start = 0
    for name, array in sorted(ARRAYS.items(), key=lambda item: item[0].encode()):
        data = array.tobytes()
        number = TYPE_NUMBERS[array.dtype.name]
        crc = masked_crc(data)
        entries.append((name.encode(), make_entry(number, array.shape, start=start, size=len(data), crc=crc)))
        start += len(data)
    block = flipped(make_block(entries), place, change)
    found = read_damaged(written, make_table([block[: len(block) - num_cut]]))
    if isinstance(found, str):
        assert "model.ckpt" in found
    else:
        assert sum(array.nbytes for array in found.values()) <= start
