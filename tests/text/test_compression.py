import errno
import gzip
import lzma
import os
import random
import zlib
from pathlib import Path

import pytest
import zstandard

from electra.text import compression
from electra.text.compression import read_pieces
from electra.text.quarantine import Reading, ReadProblem, Tally
from electra.text.sources import Compression, Source

TEXT = "".join(f"line {random.Random(n).random()}\n" for n in range(3000)).encode()
COMPRESS = {"none": bytes, "gzip": gzip.compress, "xz": lzma.compress, "zstd": zstandard.compress}
KINDS: list[Compression] = ["gzip", "xz", "zstd"]


def read(
    path: Path, kind: Compression, data: bytes | None, *, size: int = 1000
) -> tuple[bytes, list[ReadProblem]]:
    if data is not None:
        path.write_bytes(data)
    problems: list[ReadProblem] = []
    source = Source(path=str(path), format="text", compression=kind, bytes=len(data or b""))
    tally = Tally()
    pieces = list(
        read_pieces(Reading(source=source, tally=tally, quarantine=problems.append), piece_bytes=size)
    )
    assert tally.source_bytes <= source.bytes
    assert all(len(piece) >= size for piece in pieces[:-1])
    return b"".join(pieces), problems


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_the_bytes_come_back(tmp_path, kind, size):
    text = TEXT[:2000] if size < 10 else TEXT
    assert read(tmp_path / "a", kind, COMPRESS[kind](text), size=size) == (text, [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5, 1000, 1 << 20])
def test_all_members_are_read_and_padding_is_no_problem(tmp_path, kind, size):
    one, two = COMPRESS[kind](TEXT[:500]), COMPRESS[kind](b"and more")
    empty = COMPRESS[kind](b"")
    data = one + empty + two + (bytes(512) if kind != "zstd" else b"")
    assert read(tmp_path / "a", kind, data, size=size) == (TEXT[:500] + b"and more", [])


def test_a_skippable_frame_as_of_pzstd_is_skipped(tmp_path):
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"\1\2\3\4"
    data = skippable + zstandard.compress(b"one ") + skippable + zstandard.compress(b"two")
    assert read(tmp_path / "a", "zstd", data) == (b"one two", [])


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("change", ["grows", "gets a line", "is cut", "is touched"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, kind, change):
    path, data = tmp_path / "a", COMPRESS[kind](TEXT)
    path.write_bytes(data)
    source = Source(
        path=str(path), format="text", compression=kind, bytes=len(data), modified=path.stat().st_mtime_ns
    )
    problems: list[ReadProblem] = []
    pieces = read_pieces(Reading(source=source, tally=Tally(), quarantine=problems.append), piece_bytes=1000)
    next(pieces)
    if change == "gets a line":
        with path.open("ab") as file:
            file.write(b"which is not compressed\n")
    else:
        os.truncate(path, {"grows": len(data) + 8, "is cut": len(data) // 2, "is touched": len(data)}[change])
    os.utime(path, ns=(0, source.modified + 1))
    list(pieces)
    (problem,) = problems
    assert problem.reason.startswith("changed while the corpus was read")


@pytest.mark.parametrize("kind", KINDS)
def test_what_breaks_off_gives_all_before_it(tmp_path, kind):
    data = COMPRESS[kind](TEXT)
    for end in (0, 1, 5, len(data) // 2, len(data) - 1):
        contents, (problem,) = read(tmp_path / "a", kind, data[:end])
        assert TEXT.startswith(contents)
        # zstd gives out whole blocks of 128 KiB, which this text does not fill.
        assert len(contents) > len(TEXT) // 3 or end < len(data) // 2 or kind == "zstd"
        assert "breaks off" in problem.reason
    assert read(tmp_path / "a", kind, COMPRESS[kind](b"whole") + data[:50])[0].startswith(b"whole")


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_data_is_left_out_and_named(tmp_path, kind):
    contents, (problem,) = read(tmp_path / "a", kind, COMPRESS[kind](TEXT) + b"garbage that is long enough")
    assert contents == TEXT
    assert "follows" in problem.reason


def test_a_wrong_gzip_checksum_costs_no_text(tmp_path):
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    contents, (problem,) = read(tmp_path / "a", "gzip", bytes(data), size=1 << 20)
    assert contents == TEXT
    assert "incorrect data check" in problem.reason


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_the_middle_is_named(tmp_path, kind):
    data = bytearray(COMPRESS[kind](TEXT))
    middle = len(data) // 2
    data[middle : middle + 20] = bytes(20)
    contents, (problem,) = read(tmp_path / "a", kind, bytes(data), size=100)
    # Behind the damage gzip may give wrong bytes up to the checksum.
    assert TEXT.startswith(contents[: len(TEXT) // 3])
    assert "damaged" in problem.reason
    assert problem.bytes > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_compressed_at_all_is_lost_in_full(tmp_path, kind):
    contents, (problem,) = read(tmp_path / "a", kind, TEXT)
    assert (contents, problem.bytes) == (b"", len(TEXT))


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    contents, (missing,) = read(tmp_path / "missing", "none", None)
    assert contents == b""
    assert os.strerror(errno.ENOENT) in missing.reason
    assert missing.file == str(tmp_path / "missing")
    _, (folder,) = read(tmp_path, "gzip", None)
    assert os.strerror(errno.EISDIR) in folder.reason

    # Root, as which tests may run, is never denied.
    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "closed").write_bytes(b"text")
    monkeypatch.setattr(Path, "open", denied)
    _, (closed,) = read(tmp_path / "closed", "none", None)
    assert "Permission denied" in closed.reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_given_out_in_bounded_pieces(tmp_path, kind):
    path = tmp_path / "bomb"
    path.write_bytes(COMPRESS[kind](bytes(30 << 20)))
    reading = Reading(
        source=Source(path=str(path), format="text", compression=kind), tally=Tally(), quarantine=pytest.fail
    )
    sizes = [len(piece) for piece in read_pieces(reading)]
    assert sum(sizes) == 30 << 20
    assert kind == "zstd" or max(sizes) <= 2 * compression.PIECE_BYTES


def test_the_old_lzma_format_is_read_too(tmp_path):
    data = lzma.compress(TEXT, format=lzma.FORMAT_ALONE)
    assert read(tmp_path / "a", "xz", data) == (TEXT, [])


def test_raw_deflate_is_not_taken_for_gzip(tmp_path):
    assert read(tmp_path / "a", "gzip", zlib.compress(TEXT))[0] == b""
