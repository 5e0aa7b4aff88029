import gzip
import json
import lzma
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text import documents, encoding, tables
from electra.text.documents import read_documents, split_documents, whole_document
from electra.text.quarantine import Reading, ReadProblem, Tally
from electra.text.sources import Source, find_sources
from electra.text.tables import Dialect

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": zstandard.compress,
}
SAMPLES = {
    "cp932": "吾輩は庭の隅で古い本を読んでいた。\r\n名前はまだ聞いていない。\r\n\r\n雨が静かに降り始めた。",
    "cp949": "아이들은 강가에서 놀다가 집으로 돌아갔다.\n\n밤에는 비가 내리고 바람이 불었다.",
    "koi8_r": "Дети весь день играли у старой реки.\n\nНочью пошёл дождь, и ветер стучал в окна дома.",
    "cp1252": "Les élèves étaient déjà rentrés.\n\nLa nuit, la pluie a réveillé le père et la mère.",
}
in_any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read(
    source: Source, *, size: int = 1 << 18, encoding: str | None = None, field: str = "text"
) -> tuple[list[str], list[ReadProblem], Tally]:
    problems: list[ReadProblem] = []
    tally = Tally()
    reading = Reading(source=source, tally=tally, quarantine=problems.append)
    found = read_documents(reading, text_column=field, dialect=Dialect(encoding=encoding), piece_bytes=size)
    return list(found), problems, tally


def read_path(path: Path) -> tuple[list[str], list[ReadProblem], Tally]:
    (source,) = find_sources([str(path)]).sources
    return read(source)


def read_bytes(
    folder: Path,
    data: bytes,
    *,
    size: int = 1 << 18,
    format: str = "text",
    compression: str = "none",
    **options: str,
) -> tuple[list[str], list[ReadProblem], Tally]:
    (folder / "data").write_bytes(data)
    source = Source(path=str(folder / "data"), format=format, compression=compression, bytes=len(data))
    return read(source, size=size, **options)


def check(
    found: list[str], problems: list[ReadProblem], tally: Tally, *, limit: int = documents.DOCUMENT_LIMIT
) -> None:
    """What the rest of the program relies on."""
    for document in found:
        assert document
        assert document == document.strip()
        assert len(document) <= limit
        assert not {"\r", "\0", "\ufeff"} & set(document)
        document.encode("utf-8")
    assert tally.documents == len(found)
    assert tally.text_bytes == sum(len(document.encode()) for document in found)
    assert tally.bad_rows == sum(problem.line is not None for problem in problems)
    for problem in problems:
        problem.reason.encode("utf-8")
        assert "\n" not in problem.reason


TEXTS = (
    st.binary(max_size=200)
    | st.text(max_size=100).map(str.encode)
    | st.lists(
        st.sampled_from(
            [b"ab", b"c", b"\n", b"\r\n", b"\r", b" ", b"\xc3\xa9", b"\0", b"\xff", b"\xef\xbb\xbf"]
        )
    ).map(b"".join)
)


@in_any_folder
@given(
    data=TEXTS, compression=st.sampled_from(sorted(COMPRESS)), size=st.integers(1, 7), end=st.integers(0, 300)
)
def test_any_bytes_as_text(tmp_path, data, compression, size, end):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "DOCUMENT_LIMIT", 20)
        packed = COMPRESS[compression](data)
        whole = read_bytes(tmp_path, packed, compression=compression)
        check(*whole, limit=20)
        assert whole[2].source_bytes == len(packed)
        assert read_bytes(tmp_path, packed, compression=compression, size=size) == whole
        # As compressed data, cut off and as it is, anything may come.
        check(*read_bytes(tmp_path, packed[:end], compression=compression, size=size), limit=20)
        check(*read_bytes(tmp_path, data, compression=compression, size=size), limit=20)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "b"]), inner, max_size=3)
    ),
    max_leaves=8,
)
ROWS = st.lists(
    JSON.map(json.dumps).map(str.encode)
    | st.builds(lambda text: json.dumps({"text": text}).encode(), st.text(st.characters(), max_size=30))
    | st.binary(max_size=20)
).map(b"\n".join)


@in_any_folder
@given(data=ROWS | st.binary(), compression=st.sampled_from(sorted(COMPRESS)), size=st.integers(1, 7))
def test_any_bytes_as_rows(tmp_path, data, compression, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "DOCUMENT_LIMIT", 20)
        patch.setattr(tables, "LINE_LIMIT", 60)
        packed = COMPRESS[compression](data)
        whole = read_bytes(tmp_path, packed, format="jsonl", compression=compression)
        check(*whole, limit=20)
        assert read_bytes(tmp_path, packed, format="jsonl", compression=compression, size=size) == whole


@pytest.mark.slow
@in_any_folder
@given(data=st.binary(), at=st.integers(0, 600), compression=st.sampled_from(["none", "gzip"]))
def test_any_bytes_as_parquet(tmp_path, data, at, compression):
    pq.write_table(pa.table({"text": ["one", "two", None]}), tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    damaged = good[:at] + data[:8] + good[at + len(data[:8]) :]
    for contents in (data, damaged):
        packed = COMPRESS[compression](contents)
        found, problems, tally = read_bytes(tmp_path, packed, format="parquet", compression=compression)
        for document in found:
            assert document.strip()
        assert (tally.documents, tally.source_bytes) == (len(found), len(packed))
        assert found or problems or contents is damaged


PLAIN = st.characters(
    codec="utf-8", exclude_categories=["Cc"], include_characters="\n\r\t", exclude_characters="\ufeff"
)


@in_any_folder
@given(text=st.text(PLAIN), size=st.integers(1, 7), limit=st.integers(2, 30))
def test_nothing_of_valid_utf8_is_lost(tmp_path, text, size, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "DOCUMENT_LIMIT", limit)
        solid = "".join(text.split())
        row = json.dumps({"text": text}).encode()
        for data, format in ((text.encode(), "text"), (row, "jsonl")):
            found, problems, tally = read_bytes(tmp_path, data, size=size, format=format)
            assert ("".join("".join(found).split()), problems) == (solid, [])
            assert tally.replaced_bytes == 0


def test_documents_of_plain_text_end_at_blank_lines_whatever_the_line_ends(tmp_path):
    for line_end in ("\n", "\r\n", "\r"):
        data = line_end.join(["", "one", " still one", "  ", "two", "\t", "", "three "]).encode()
        for size in (1, 2, 3, 1000):
            found, problems, tally = read_bytes(tmp_path, data, size=size)
            assert (found, problems) == (["one\n still one", "two", "three"], [])
            assert tally.encodings == {"utf-8": 1}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("compression", COMPRESS)
def test_old_encodings_come_out_right(tmp_path, name, compression):
    text = SAMPLES[name]
    expected = [part.replace("\r\n", "\n") for part in text.replace("\r\n\r\n", "\n\n").split("\n\n")]
    found, problems, tally = read_bytes(
        tmp_path, COMPRESS[compression](text.encode(name)), compression=compression
    )
    assert (found, problems, tally.encodings) == (expected, [], {name: 1})
    rows = "\n".join(json.dumps({"text": part}, ensure_ascii=False) for part in expected)
    found, problems, tally = read_bytes(tmp_path, rows.encode(name), format="jsonl", size=3)
    assert (found, problems, tally.encodings) == (expected, [], {name: 1})


def test_a_given_encoding_is_used_and_an_unknown_one_is_an_error_at_once(tmp_path):
    assert read_bytes(tmp_path, b"\xe9t\xe9", encoding="cp1251")[0] == ["йtй"]
    with pytest.raises(InputError, match="klingon"):
        Dialect(encoding="klingon")


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1", bytes(1000), bytes(range(256)) * 9]
)
def test_binary_data_in_the_guise_of_text_is_one_problem(tmp_path, data):
    found, (problem,), tally = read_bytes(tmp_path, data)
    assert found == []
    assert problem == ReadProblem(file=str(tmp_path / "data"), reason=problem.reason, bytes=len(data))
    assert "binary" in problem.reason
    assert (tally.source_bytes, tally.documents, tally.encodings) == (len(data), 0, {})


def test_a_file_that_is_cut_off_keeps_its_documents(tmp_path):
    text = "\n\n".join(f"document {n} {os.urandom(30).hex()}" for n in range(1000))
    data = gzip.compress(text.encode())
    found, (problem,), tally = read_bytes(tmp_path, data[: len(data) // 2], compression="gzip")
    assert 300 < len(found) < 1000
    assert text.startswith("\n\n".join(found))
    assert "breaks off" in problem.reason
    assert tally.source_bytes == len(data) // 2


def test_progress_is_monotone_and_ends_at_the_size(tmp_path):
    data = "\n\n".join(f"document {n}" for n in range(100_000)).encode()
    (tmp_path / "data").write_bytes(data)
    tally = Tally(source_bytes=7)
    source = Source(path=str(tmp_path / "data"), format="text", bytes=len(data))
    reading = Reading(source=source, tally=tally, quarantine=pytest.fail)
    seen = [tally.source_bytes for _ in read_documents(reading, text_column="text")]
    assert seen == sorted(seen)
    assert tally.source_bytes == len(data) + 7


def test_files_that_cannot_be_opened_are_problems(tmp_path):
    missing = tmp_path / os.fsdecode(b"caf\xe9.txt")
    found, (problem,), _ = read(Source(path=str(missing), format="text", bytes=5))
    assert (found, problem.bytes) == ([], 5)
    assert problem.file.encode().endswith(rb"caf\xe9.txt")
    for format in ("jsonl", "parquet"):
        assert "Is a directory" in read(Source(path=str(tmp_path), format=format))[1][0].reason


def test_a_missing_extra_is_an_error_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"electra\[zstd\]"):
        read(Source(path="a.txt.zst", format="text", compression="zstd"))


@pytest.mark.parametrize(
    "line", [b"word " * 20_000, b"w" * 100_000, b" " * 100_000, b"a\n" * 50_000, b"\n" * 100_000]
)
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch, line):
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT", 1 << 16)
    monkeypatch.setattr(tables, "LINE_LIMIT", 1 << 16)
    monkeypatch.setattr(encoding, "SAMPLE_BYTES", 1 << 16)
    with gzip.open(tmp_path / "data.gz", "wb", compresslevel=1) as file:
        for _ in range(150):
            file.write(line)
    # Many short lines are much work for the tracer, and rows of one character no other case than documents.
    for format in ["text"] if b"\n" in line else ["text", "jsonl"]:
        source = Source(path=str(tmp_path / "data.gz"), format=format, compression="gzip")
        tracemalloc.start()
        reading = Reading(source=source, tally=Tally(), quarantine=lambda _: None)
        found = read_documents(reading, text_column="text")
        num_characters = sum(map(len, found))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert num_characters <= 150 * len(line)
        assert peak < 5 << 20, "15 MB were read"


@pytest.mark.slow
def test_every_novel_of_aozora(shared):
    for novel in sorted((shared / "data/text/aozora").glob("*.txt")):
        found, problems, tally = read_path(novel)
        check(found, problems, tally)
        assert (problems, tally.encodings) == ([], {"cp932": 1})
        text = novel.read_bytes().decode("cp932", "replace")
        assert "".join("".join(found).split()) == "".join(text.split())
        assert bool(tally.replaced_bytes) == ("\ufffd" in text)


@pytest.mark.slow
def test_korean_and_english_wikipedia(shared):
    for name in ("kowiki/kowiki-01.jsonl.gz", "enwiki/enwiki-06.jsonl.gz"):
        path = shared / "data/text" / name
        with gzip.open(path, "rt", encoding="utf-8") as file:
            expected = [json.loads(line)["text"].strip() for line in file]
        found, problems, tally = read_path(path)
        assert (found, problems, tally.replaced_bytes) == (expected, [], 0)


# --- where text is cut into documents ---

LINES = st.lists(st.sampled_from(["a", "bc", " ", "\n", "\n\n", " \n", "\t", "\u3000", "語", "\x0b"])).map(
    "".join
)


def split(pieces: list[str]) -> tuple[list[str], int]:
    tally = Tally()
    return list(split_documents(pieces, tally)), tally.documents_split


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def reference(text: str) -> list[str]:
    """The definition, line by line."""
    found, lines = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            found.append("\n".join(lines).strip())
            lines = []
    return found


@given(LINES, st.integers(1, 7))
def test_a_blank_line_ends_a_document(text, size):
    assert split([text]) == (reference(text), 0)
    assert split(cut(text, size)) == (reference(text), 0)


@given(LINES, st.integers(1, 7), st.integers(2, 9))
def test_long_documents_are_cut_the_same_whatever_the_pieces(text, size, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "DOCUMENT_LIMIT", limit)
        found, num_split = split([text])
        assert split(cut(text, size)) == (found, num_split)
        whole = reference(text)
        assert num_split == sum(len(document) > limit for document in whole)
        tally = Tally()
        assert found == [part for document in whole for part in whole_document(document, tally)]
        assert tally.documents_split == num_split
    assert all(0 < len(document) <= limit and document == document.strip() for document in found)
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("aaaa bb\ncc dd", ["aaaa bb", "cc dd"]),
        ("aaaa bb cc dd", ["aaaa bb", "cc dd"]),
        ("a\nbbbbbbbbbbbb", ["a\nbbbbbb", "bbbbbb"]),
        ("aaaaaaaa\nbbbb", ["aaaaaaaa", "bbbb"]),
        ("aaaaaaaabbbb", ["aaaaaaaa", "bbbb"]),
    ],
)
def test_a_cut_is_at_a_line_end_or_at_a_space_or_anywhere(monkeypatch, text, parts):
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT", 8)
    assert list(whole_document(text, Tally())) == parts


def test_a_document_at_the_limit_is_whole_whatever_space_follows(monkeypatch):
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT", 8)
    text = "aaa\nbbbb" + " " * 100 + "\n\nc"
    assert split(cut(text, 3)) == (["aaa\nbbbb", "c"], 0)


def test_a_stored_text_keeps_its_blank_lines_and_gets_our_line_ends():
    assert list(whole_document(" a\r\n\r\n b\rc \n", Tally())) == ["a\n\n b\nc"]
    assert list(whole_document(" \n\t", Tally())) == []


@pytest.mark.slow
def test_much_of_nothing_and_one_endless_line_take_no_memory():
    spaces = [" " * 100_000] * 200
    assert split(["\n" * 100_000] * 100) == ([], 0)
    assert split(["a\n", *spaces, "\nb"]) == (["a", "b"], 0)
    found, num_split = split(["x" * 1_000_000] * 20)
    assert (sum(map(len, found)), num_split) == (20_000_000, 1)
    assert max(map(len, found)) == documents.DOCUMENT_LIMIT
