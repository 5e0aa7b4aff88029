"""`electra prepare` where the disk is unkind: loops, pipes, closed folders, its own output, no room."""

import errno
import gzip
import io
import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

import small_disk
from electra import cli, files
from electra.text import shards, sources, tables
from electra.text.rows import KIND

SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"


def write_texts(folder, names, *, documents=20):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        texts = [f"{name} {number}: {SENTENCE}." for number in range(documents)]
        (folder / name).write_text("\n\n".join(texts))


def prepare(corpus, out, *more, code=cli.OK):
    arguments = corpus if isinstance(corpus, list) else [corpus]
    command = ["prepare", "--corpus", *map(str, arguments), "--out", str(out), "--vocab_size", "300"]
    assert cli.main([*command, "--workers", "1", *map(str, more)]) == code


def counts(out):
    manifest = files.read_manifest(out, kind=KIND)
    documents = sum(split["documents"] for split in manifest["splits"].values())
    return {**manifest["counts"], "kept_documents": documents}


def quarantined(out):
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]


@pytest.fixture
def closed(monkeypatch):
    """A folder called `closed` cannot be listed: root, as which tests may run, is never denied."""
    scandir = os.scandir

    def denied(path):
        if str(path).rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(sources.os, "scandir", denied)


@pytest.mark.parametrize("name", ["loop", "loop.txt"])
@pytest.mark.parametrize("pattern", ["", "*", "**/*.txt"])
def test_a_link_to_itself_costs_nothing_but_itself(tmp_path, name, pattern):
    corpus = tmp_path / "corpus"
    write_texts(corpus, [f"{number}.txt" for number in range(30)])
    (corpus / name).symlink_to(corpus / name)
    prepare(corpus / pattern, tmp_path / "data")
    found = counts(tmp_path / "data")
    assert found["kept_documents"] == 30 * 20
    is_read = name == "loop.txt" or pattern == "*"
    assert [Path(entry["file"]).name for entry in quarantined(tmp_path / "data")] == [name] * is_read
    assert found["skipped_files"] == ({} if is_read or pattern else {"(no suffix)": 1})


def test_a_link_into_a_closed_place_costs_nothing_but_itself(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    write_texts(corpus, [f"{number}.txt" for number in range(30)])
    (corpus / "far").symlink_to(tmp_path / "nowhere")
    stat = Path.stat

    def denied(self, **options):
        if self.name == "far":
            raise PermissionError(13, "Permission denied")
        return stat(self, **options)

    monkeypatch.setattr(sources.Path, "stat", denied)
    prepare(corpus, tmp_path / "data", "--max_bad_fraction", 1)
    assert counts(tmp_path / "data")["kept_documents"] == 30 * 20
    (entry,) = quarantined(tmp_path / "data")
    assert (Path(entry["file"]).name, entry["bytes"] > 0) == ("far", True)


@pytest.mark.parametrize("pattern", ["", "*/*.txt", "**/*.txt"])
def test_a_folder_that_cannot_be_listed_counts_as_lost(tmp_path, closed, capsys, pattern):
    for folder in ("a", "b", "closed"):
        write_texts(tmp_path / "corpus" / folder, ["1.txt", "2.txt"])
    corpus = tmp_path / "corpus" / pattern
    prepare(corpus, tmp_path / "data", code=cli.BAD_INPUT)
    assert f"{tmp_path}/corpus/closed" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    shutil.rmtree(tmp_path / "data.partial")
    prepare(corpus, tmp_path / "data", "--max_bad_fraction", 0.5)
    found = counts(tmp_path / "data")
    listed = sum(path.stat().st_size for path in tmp_path.glob("corpus/[ab]/*.txt"))
    assert (found["quarantined"], found["lost_bytes"]) == (1, listed // 2)


def test_links_to_a_disk_that_is_gone_count_as_lost(tmp_path):
    corpus = tmp_path / "corpus"
    write_texts(corpus, ["here.txt"])
    for number in range(9):
        (corpus / f"far-{number}.txt").symlink_to(tmp_path / "unmounted" / f"{number}.txt")
    prepare(corpus, tmp_path / "data", code=cli.BAD_INPUT)
    shutil.rmtree(tmp_path / "data.partial")
    prepare(corpus, tmp_path / "data", "--max_bad_fraction", 1)
    assert counts(tmp_path / "data")["lost_bytes"] == 9 * (corpus / "here.txt").stat().st_size


def make_special(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            # The address of a socket is short; from its own folder any path is.
            here = Path.cwd()
            os.chdir(path.parent)
            made.bind(path.name)
            os.chdir(here)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("pattern", ["", "*", "**/*.txt"])
def test_what_is_no_file_is_left_out_and_counted(tmp_path, kind, pattern):
    corpus = tmp_path / "corpus"
    write_texts(corpus, ["a.txt"])
    make_special(corpus / "special.txt", kind)
    prepare(corpus / pattern, tmp_path / "data")
    assert counts(tmp_path / "data")["skipped_files"] == {".txt": 1}
    assert counts(tmp_path / "data")["kept_documents"] == 20


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_refused_by_its_name(tmp_path, kind, capsys):
    write_texts(tmp_path / "corpus", ["a.txt"])
    make_special(tmp_path / "special.txt", kind)
    prepare([tmp_path / "corpus", tmp_path / "special.txt"], tmp_path / "data", code=cli.BAD_INPUT)
    assert f"{tmp_path}/special.txt" in capsys.readouterr().err
    assert not list(tmp_path.glob("data*"))


@pytest.mark.parametrize("pattern", ["", "**/*.*", "*"])
def test_what_it_writes_is_no_part_of_the_corpus(tmp_path, monkeypatch, pattern, capsys):
    corpus = tmp_path / "corpus"
    write_texts(corpus, ["a.txt", "b.txt"], documents=100)
    write = shards.ShardWriter.write

    def write_one(self, block):
        write(self, block)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "BLOCK_CHARACTERS", 5_000)
    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardWriter, "write", write_one)
        prepare(corpus / pattern, corpus / "data", code=cli.INTERRUPTED)
    assert (corpus / "data.partial").is_dir()
    prepare(corpus / pattern, corpus / "data")
    assert "1 shards found finished" in capsys.readouterr().out
    found = counts(corpus / "data")
    assert (found["files"], found["kept_documents"], found["quarantined"]) == (2, 200, 0)
    # Nor is it once it is whole.
    prepare(corpus / pattern, corpus / "data")


def test_a_corpus_of_nothing_but_its_output_is_refused(tmp_path, capsys):
    write_texts(tmp_path / "corpus", ["a.txt"])
    prepare(tmp_path / "corpus", tmp_path / "data")
    prepare(tmp_path / "data", tmp_path / "data", code=cli.BAD_INPUT)
    assert str(tmp_path / "data") in capsys.readouterr().err
    prepare(tmp_path / "corpus" / "a.txt", tmp_path / "corpus", code=cli.BAD_INPUT)
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0.25, 1, 2], ids=["shorter", "rewritten", "longer"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch, size):
    corpus = tmp_path / "corpus"
    write_texts(corpus, ["a.txt", "b.txt"], documents=200)
    path = corpus / "b.txt"
    before = path.stat().st_size
    text = path.read_bytes() * 2
    find = sources.find_sources

    def find_and_change(*arguments, **options):
        found = find(*arguments, **options)
        path.write_bytes(text[: int(size * before)])
        os.utime(path, ns=(0, 1_000))
        return found

    monkeypatch.setattr("electra.text.corpus.find_sources", find_and_change)
    prepare(corpus, tmp_path / "data", "--max_bad_fraction", 1)
    (entry,) = quarantined(tmp_path / "data")
    assert (entry["file"], entry["bytes"]) == (str(path), max(0, before - int(size * before)))


def test_a_file_that_is_gone_when_it_is_read_is_lost_whole(tmp_path, monkeypatch):
    write_texts(tmp_path / "corpus", ["a.txt", "b.txt"])
    before = (tmp_path / "corpus" / "b.txt").stat().st_size
    find = sources.find_sources

    def find_and_remove(*arguments, **options):
        found = find(*arguments, **options)
        (tmp_path / "corpus" / "b.txt").unlink()
        return found

    monkeypatch.setattr("electra.text.corpus.find_sources", find_and_remove)
    prepare(tmp_path / "corpus", tmp_path / "data", "--max_bad_fraction", 1)
    assert counts(tmp_path / "data")["lost_bytes"] == before


@pytest.fixture
def long_corpus(tmp_path):
    write_texts(tmp_path / "corpus", ["a.txt", "b.txt"], documents=8_000)
    return tmp_path / "corpus"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_on_a_full_disk_it_says_where_and_how_much_and_goes_on_when_there_is_room(
    long_corpus, tmp_path, capsys, monkeypatch, workers
):
    monkeypatch.setattr(shards, "BLOCK_CHARACTERS", 200_000)
    with small_disk.mounted(tmp_path / "disk", size="400k") as disk:
        out = disk / "data"
        prepare(long_corpus, out, "--workers", workers, code=cli.BAD_INPUT)
        complaint = capsys.readouterr().err
        assert re.search(rf"{out}\.partial/\S+: .*{os.strerror(errno.ENOSPC)}", complaint)
        assert len(re.findall(r"\d+\.\d MB", complaint)) == 3
        assert "Traceback" not in complaint
        finished = len(list((disk / "data.partial" / "work" / "receipts").iterdir()))
        assert finished > 0
        small_disk.resize(disk, size="20m")
        prepare(long_corpus, out, "--workers", workers)
        assert f"{finished} shards found finished" in capsys.readouterr().out
        assert counts(out)["kept_documents"] == 16_000
        shutil.copytree(out, tmp_path / "resumed")
    prepare(long_corpus, tmp_path / "whole")
    for path in (tmp_path / "whole").glob("*.npy"):
        assert path.read_bytes() == (tmp_path / "resumed" / path.name).read_bytes()


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "train-00000.ids.npy", "token_counts.npy", "manifest.json"]
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_whatever_there_is_no_room_for_is_named_and_nothing_made_is_lost(
    tmp_path, monkeypatch, capsys, name, number
):
    write_texts(tmp_path / "corpus", ["a.txt"])
    write = files.write_file

    def fail(path, fill):
        def no_room(file):
            raise OSError(number, os.strerror(number))

        write(path, no_room if path.name == name else fill)

    with monkeypatch.context() as patch:
        for module in ("files", "text.rows"):
            patch.setattr(f"electra.{module}.write_file", fail)
        prepare(tmp_path / "corpus", tmp_path / "data", code=cli.BAD_INPUT)
    complaint = capsys.readouterr().err
    assert f"{name}: " in complaint
    assert os.strerror(number) in complaint
    assert (tmp_path / "data.partial").is_dir()
    prepare(tmp_path / "corpus", tmp_path / "data")
    assert counts(tmp_path / "data")["kept_documents"] == 20


def test_no_room_for_a_decompressed_copy_is_no_fault_of_the_file(tmp_path, monkeypatch, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    write_texts(tmp_path / "corpus", ["a.txt"])
    plain = tmp_path / "plain.parquet"
    parquet.write_table(arrow.table({"text": [f"{n} {SENTENCE}" for n in range(50)]}), plain)
    (tmp_path / "corpus" / "b.parquet.gz").write_bytes(gzip.compress(plain.read_bytes()))

    class Full(io.BytesIO):
        def writelines(self, lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tables.tempfile, "TemporaryFile", Full)
    prepare(tmp_path / "corpus", tmp_path / "data", "--max_bad_fraction", 1, code=cli.BAD_INPUT)
    assert re.search(r"b\.parquet\.gz.*TMPDIR", capsys.readouterr().err)


def test_verify_minds_no_hidden_file_but_any_other(tmp_path, capsys):
    write_texts(tmp_path / "corpus", ["a.txt"])
    prepare(tmp_path / "corpus", tmp_path / "data")
    for name, code in ((".DS_Store", cli.OK), ("tokenizer/.nfs0001", cli.OK), ("stray.txt", cli.BAD_INPUT)):
        (tmp_path / "data" / name).write_bytes(b"x")
        assert cli.main(["prepare", "--verify", str(tmp_path / "data")]) == code
        said = capsys.readouterr()
        assert str(tmp_path / "data" / name) in (said.err if code else said.out)
