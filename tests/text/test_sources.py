import os
import sys
from pathlib import Path

import pytest

from electra.errors import InputError
from electra.text.sources import Source, find_sources


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text")


def names(folder: Path, *arguments: str) -> list[str]:
    found = find_sources([str(folder / argument) for argument in arguments])
    return [os.path.relpath(source.path, folder) for source in found.sources]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", ("text", "none")),
        ("a.MD", ("text", "none")),
        ("a.jsonl.gz", ("jsonl", "gzip")),
        ("a.ndjson.zst", ("jsonl", "zstd")),
        ("c4-train.00000-of-01024.json.gz", ("jsonl", "gzip")),
        ("a.parquet", ("parquet", "none")),
        ("a.csv.xz", ("csv", "xz")),
        ("a.TSV", ("tsv", "none")),
        ("a.txt.xz", ("text", "xz")),
    ],
)
def test_the_suffix_tells_format_and_compression(tmp_path, name, kind):
    touch(tmp_path, name)
    (source,) = find_sources([str(tmp_path)]).sources
    assert (source.format, source.compression, source.bytes) == (*kind, 4)


def test_a_folder_gives_known_kinds_sorted_and_counts_the_others(tmp_path):
    touch(tmp_path, "b/2.txt", "b/1.txt", "a.md", "c.png", "d.png", "README", "e.xlsx.gz", "log.20240101")
    touch(tmp_path, ".hidden.txt", ".git/x.txt")
    found = find_sources([str(tmp_path)])
    assert [os.path.relpath(s.path, tmp_path) for s in found.sources] == ["a.md", "b/1.txt", "b/2.txt"]
    assert found.skipped == {".png": 2, ".xlsx.gz": 1, "(no suffix)": 2}


def test_arguments_keep_their_order_and_no_file_comes_twice(tmp_path):
    touch(tmp_path, "z/1.txt", "a/1.txt", "a/2.txt", "a/x.log")
    (tmp_path / "a/again.txt").symlink_to(tmp_path / "a/1.txt")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert names(tmp_path, "z", "a") == ["z/1.txt", "a/1.txt", "a/2.txt"]
    assert names(tmp_path, "a/2.txt", "a", "a/*.txt", "a/1.txt", "linked") == ["a/2.txt", "a/1.txt"]
    # The walk has left out this one, so naming it is not a repetition.
    assert names(tmp_path, "a", "a/x.log") == ["a/1.txt", "a/2.txt", "a/x.log"]


def test_links_that_loop_end(tmp_path):
    touch(tmp_path, "a/1.txt")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to(tmp_path / "a")
    assert names(tmp_path, "a") == ["a/1.txt"]
    assert names(tmp_path, "**/*.txt") == ["a/1.txt"]


def test_patterns(tmp_path):
    touch(tmp_path, "1.txt", "a/2.txt", "a/b/3.txt", "a/b/4.log", ".c/5.txt", "draft[1].txt")
    assert names(tmp_path, "*.txt") == ["1.txt", "draft[1].txt"]
    assert names(tmp_path, "**/*.txt") == ["1.txt", "a/2.txt", "a/b/3.txt", "draft[1].txt"]
    assert names(tmp_path, "a/**/b/*.l?g") == ["a/b/4.log"]
    assert names(tmp_path, "a/**") == ["a/2.txt", "a/b/3.txt"]
    assert names(tmp_path, "a*") == ["a/2.txt", "a/b/3.txt"]
    assert names(tmp_path, ".c/[4-6].txt") == [".c/5.txt"]
    assert names(tmp_path, "draft[1].txt") == ["draft[1].txt"]


def test_patterns_and_folders_are_relative_to_the_working_folder(tmp_path, monkeypatch):
    touch(tmp_path, "a/1.txt", "2.txt")
    monkeypatch.chdir(tmp_path)
    assert [source.path for source in find_sources(["*.txt", "a"]).sources] == ["2.txt", "a/1.txt"]


def test_a_file_that_is_named_is_read_whatever_its_suffix(tmp_path):
    touch(tmp_path, "NOTES", "old.log.gz")
    notes, log = find_sources([str(tmp_path / "NOTES"), str(tmp_path / "old.log.gz")]).sources
    assert (notes.format, notes.compression) == ("text", "none")
    assert (log.format, log.compression) == ("text", "gzip")


def test_what_names_nothing_is_an_error_that_helps(tmp_path):
    touch(tmp_path, "corpus.txt", "pictures/a.png")
    with pytest.raises(InputError, match=r"corpsu\.txt.*corpus\.txt"):
        find_sources([str(tmp_path / "corpsu.txt")])
    with pytest.raises(InputError, match=r"\*\.jsonl: .*\.txt"):
        find_sources([str(tmp_path / "*.jsonl")])
    with pytest.raises(InputError, match=r"pictures: .*\.txt.*1 \.png"):
        find_sources([str(tmp_path / "pictures")])
    with pytest.raises(InputError, match=r"place\.txt.*no/such\b"):
        find_sources([str(tmp_path / "no/such/place.txt")])
    with pytest.raises(InputError, match="hf:OWNER/NAME"):
        find_sources(["hf:"])


def test_a_dataset_of_the_hub_is_a_name():
    found = find_sources(["hf:owner/name:config@split", "hf:owner/name:config@split"])
    assert found.sources == [Source(path="owner/name:config@split", format="hf")]
    assert found.sources[0].name == "hf:owner/name:config@split"


def test_a_link_to_nowhere_is_kept_for_the_reader_to_report_and_a_pipe_is_not(tmp_path):
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    found = find_sources([str(tmp_path)])
    assert [(s.path, s.bytes) for s in found.sources] == [(str(tmp_path / "gone.txt"), 0)]
    assert found.skipped == {".txt": 1}


def test_a_name_of_undecodable_bytes_can_be_opened_and_printed(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9\n.txt")).write_bytes(b"text")
    (source,) = find_sources([str(tmp_path)]).sources
    assert Path(source.path).read_bytes() == b"text"
    assert source.name.encode("utf-8").endswith(rb"/caf\xe9\n.txt")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    touch(tmp_path, "1.txt", "closed/2.txt")
    scandir = os.scandir

    # Root, as which tests may run, is never denied.
    def denied(path: str):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    found = find_sources([str(tmp_path)])
    assert len(found.sources) == 1
    assert found.unreadable == [f"{tmp_path}/closed: Permission denied"]
    with pytest.raises(InputError, match=r"closed: .*Permission denied"):
        find_sources([str(tmp_path / "closed")])


def test_a_missing_extra_shows_before_anything_is_read(tmp_path, monkeypatch):
    touch(tmp_path, "1.txt", "2.txt.zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"electra\[zstd\]"):
        find_sources([str(tmp_path)])
