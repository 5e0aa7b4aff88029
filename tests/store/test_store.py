"""The cache and working copies, on fsspec's store in memory and on a real S3 server."""

import itertools
import os
import threading
import time

import pytest

from electra import cli, files
from electra.errors import InputError
from electra.store import cache, remote, working

fsspec = pytest.importorskip("fsspec")
numbers = itertools.count()


@pytest.fixture
def memory():
    """A folder of its own in fsspec's store in memory: URL, and the store."""
    return f"memory://bucket{next(numbers)}", fsspec.filesystem("memory")


def put(memory, name, content):
    memory[1].pipe_file(f"{memory[0].removeprefix('memory:/')}/{name}", content)


def contents(memory, under=""):
    top = f"{memory[0].removeprefix('memory:/')}/{under}".rstrip("/")
    return {name.removeprefix(top).lstrip("/"): memory[1].cat_file(name) for name in memory[1].find(top)}


def forget():
    """As if this process had ended and another begun."""
    for entry in cache._held.values():
        entry.end_use()
    cache._held.clear()


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def work(memory, name, content, *, meanwhile=lambda: None, then=None):
    """A command that writes one file of a run, and fails if it is told to."""
    with working.working_copy(f"{memory[0]}/run") as folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        meanwhile()
        if then:
            raise then


def seal(folder, **named):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in named.items():
        (folder / name).write_bytes(content)
    files.write_manifest(folder, {"kind": "thing"})
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a", True),
        ("gs://b", True),
        ("C:/x", False),
        ("a/b", False),
        ("hf:name", False),
        ("-", False),
    ],
)
def test_what_is_a_url(text, expected):
    assert remote.is_url(text) is expected


def test_a_folder_is_fetched_with_its_bytes_and_once(memory, monkeypatch):
    put(memory, "data/a.txt", b"one")
    put(memory, "data/sub/b.bin", bytes(range(256)) * 300)
    put(memory, "data2/c.txt", b"another folder")
    folder = cache.fetch(f"{memory[0]}/data")
    assert folder.name == "data"
    assert tree(folder) == {"a.txt": b"one", "sub/b.bin": bytes(range(256)) * 300}
    read = []
    monkeypatch.setattr(remote.Remote, "read", lambda self, name, *_: read.append(name))
    forget()
    assert cache.fetch(f"{memory[0]}/data/") == folder
    assert read == []


def test_what_changed_or_vanished_in_the_store_does_so_here(memory):
    for name in ("a", "b", "c"):
        put(memory, f"data/{name}", name.encode())
    cache.fetch(f"{memory[0]}/data")
    put(memory, "data/a", b"longer than before")
    memory[1].rm_file(f"{memory[0].removeprefix('memory:/')}/data/b")
    forget()
    assert tree(cache.fetch(f"{memory[0]}/data")) == {"a": b"longer than before", "c": b"c"}


def test_a_damaged_file_of_the_cache_is_fetched_again(memory):
    put(memory, "data/a", b"whole")
    folder = cache.fetch(f"{memory[0]}/data")
    before = (folder / "a").stat()
    (folder / "a").write_bytes(b"wholf")
    # Of the same size and time: only its checksum tells.
    os.utime(folder / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    forget()
    assert tree(cache.fetch(f"{memory[0]}/data")) == {"a": b"whole"}


def test_an_interrupted_download_goes_on_where_it_was(memory, monkeypatch):
    monkeypatch.setattr(cache, "_PIECE_BYTES", 10)
    put(memory, "data/big", bytes(range(100)))
    whole_read, asked = remote.Remote.read, []

    def read(self, name, start, end):
        asked.append(start)
        if len(asked) == 4:
            raise InputError("the network is gone")
        return whole_read(self, name, start, end)

    monkeypatch.setattr(remote.Remote, "read", read)
    with pytest.raises(InputError, match="network"):
        cache.fetch(f"{memory[0]}/data")
    assert not list(cache.place().rglob("content/data/big")), "half of a file has its name"
    forget()
    assert (cache.fetch(f"{memory[0]}/data") / "big").read_bytes() == bytes(range(100))
    assert asked == [0, 10, 20, 30, 30, 40, 50, 60, 70, 80, 90]


def test_an_object_that_changes_while_it_is_read_is_refused(memory, monkeypatch):
    put(memory, "a", b"before")
    whole_read = remote.Remote.read

    def read(self, name, start, end):
        found = whole_read(self, name, start, end)
        put(memory, "a", b"after!")
        return found

    monkeypatch.setattr(remote.Remote, "read", read)
    with pytest.raises(InputError, match=r"memory://bucket\d+/a has changed while it was read"):
        cache.fetch(f"{memory[0]}/a")
    monkeypatch.setattr(remote.Remote, "read", whole_read)
    assert cache.fetch(f"{memory[0]}/a").read_bytes() == b"after!"


def test_a_sealed_folder_is_compared_with_its_manifest(memory, tmp_path):
    for name, content in tree(seal(tmp_path / "thing", a=b"right", b=b"more")).items():
        put(memory, f"thing/{name}", content)
    cache.fetch(f"{memory[0]}/thing")
    put(memory, "thing/a", b"wrong")
    forget()
    with pytest.raises(InputError, match=r"thing/a is not what its manifest says"):
        cache.fetch(f"{memory[0]}/thing")
    memory[1].rm_file(f"{memory[0].removeprefix('memory:/')}/thing/a")
    with pytest.raises(InputError, match=r"thing/a is missing"):
        cache.fetch(f"{memory[0]}/thing")


def test_names_that_lead_out_of_the_cache_are_refused(memory):
    entry = cache.Entry.of("read", f"{memory[0]}/x")
    with pytest.raises(InputError, match="cannot be a file"):
        entry.path_of("../../../escaped")


def test_the_least_recently_used_goes_first_and_nothing_in_use(memory, monkeypatch):
    monkeypatch.setenv(cache.SIZE, "2500B")
    for name in "abc":
        put(memory, name, name.encode() * 1000)

    def kept():
        return sorted(path.name for path in cache.place().glob("read/*/content/*"))

    for name in "ab":
        with cache.open_file(f"{memory[0]}/{name}") as file:
            assert file.read() == name.encode() * 1000
    # `a` was fetched first, but is used again later than `b`.
    with cache.open_file(f"{memory[0]}/a"), cache.open_file(f"{memory[0]}/c") as file:
        assert file.read() == b"c" * 1000
    assert kept() == ["a", "c"]
    for name in "ac":
        cache.fetch(f"{memory[0]}/{name}")
    with pytest.raises(InputError, match=cache.SIZE):
        cache.fetch(f"{memory[0]}/b")
    assert kept() == ["a", "c"]


def test_work_that_is_not_uploaded_is_never_removed(memory, monkeypatch):
    monkeypatch.setenv(cache.SIZE, "1500B")
    put(memory, "a", b"a" * 1000)
    entry = cache.hold("work", f"{memory[0]}/run")
    entry.content.mkdir(parents=True)
    (entry.content / "weights").write_bytes(bytes(5000))
    (entry.folder / cache.UNPUBLISHED).touch()
    forget()
    cache.fetch(f"{memory[0]}/a")
    assert (entry.content / "weights").exists()
    (entry.folder / cache.UNPUBLISHED).unlink()
    put(memory, "b", b"b" * 1000)
    forget()
    cache.fetch(f"{memory[0]}/b")
    assert not entry.content.exists()


@pytest.mark.parametrize("size", ["big", "-1GB", "1 2"])
def test_a_size_that_is_none_is_refused(memory, monkeypatch, size):
    monkeypatch.setenv(cache.SIZE, size)
    put(memory, "a", b"a")
    with pytest.raises(InputError, match=cache.SIZE):
        cache.fetch(f"{memory[0]}/a")


def test_of_a_run_only_the_newest_checkpoints_are_fetched(memory):
    for step in (10, 20, 30, 40):
        put(memory, f"run/checkpoints/step-{step:08}/model", b"w")
        if step < 40:
            # The last one is still being uploaded.
            put(memory, f"run/checkpoints/step-{step:08}/manifest.json", b"{}")
    put(memory, "run/metrics.jsonl", b"")
    steps = {name.split("/")[1] for name in tree(cache.fetch(f"{memory[0]}/run")) if "/" in name}
    assert steps == {"step-00000020", "step-00000030"}
    put(memory, "run/final/config.json", b"{}")
    assert set(tree(cache.fetch(f"{memory[0]}/run"))) == {"metrics.jsonl", "final/config.json"}
    assert len(tree(cache.fetch(f"{memory[0]}/run", checkpoints=True))) == 6


def test_a_working_copy_is_uploaded_with_the_manifest_last(memory, monkeypatch):
    written, removed = [], []
    write, remove = remote.Remote.write, remote.Remote.remove
    monkeypatch.setattr(
        remote.Remote, "write", lambda self, path, name: written.append(name) or write(self, path, name)
    )
    monkeypatch.setattr(
        remote.Remote, "remove", lambda self, name: removed.append(name) or remove(self, name)
    )
    with working.working_copy(f"{memory[0]}/run") as folder:
        seal(folder / "final", weights=b"1")
        (folder / "log").write_bytes(b"line\n")
        (folder / ".lock").touch()
        (folder / "checkpoints" / "step-1.tmp-77").mkdir(parents=True)
        (folder / "checkpoints" / "step-1.tmp-77" / "half").touch()
    assert written == ["final/weights", "log", "final/manifest.json"]
    assert set(contents(memory, "run")) == set(written)
    written.clear()
    forget()
    with working.working_copy(f"{memory[0]}/run") as folder:
        seal(folder / "final", weights=b"2")
        (folder / "log").unlink()
    # A reader must not find the old manifest beside new files.
    assert removed == ["final/manifest.json", "log"]
    assert written == ["final/weights", "final/manifest.json"]
    assert contents(memory, "run")["final/weights"] == b"2"


def test_an_interrupted_upload_goes_on_and_was_never_whole(memory, monkeypatch, capsys):
    write, calls = remote.Remote.write, []

    def fails(self, path, name):
        calls.append(name)
        if len(calls) == 2:
            raise InputError("the network is gone")
        return write(self, path, name)

    monkeypatch.setattr(remote.Remote, "write", fails)
    with (
        pytest.raises(InputError, match=r"gone.* waits there"),
        working.working_copy(f"{memory[0]}/d") as folder,
    ):
        seal(folder, a=b"1", b=b"2", c=b"3")
    assert files.MANIFEST not in contents(memory, "d")
    forget()
    with working.working_copy(f"{memory[0]}/d") as again:
        assert tree(again) == tree(folder)
    assert calls == ["a", "b", "b", "c", files.MANIFEST]
    assert contents(memory, "d") == tree(folder)


def test_a_failing_command_uploads_what_it_has_and_its_error_stands(memory, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt):
        work(memory, "a", b"saved", then=KeyboardInterrupt)
    assert contents(memory, "run") == {"a": b"saved"}
    monkeypatch.setattr(remote.Remote, "write", lambda *_: (_ for _ in ()).throw(InputError("no answer")))
    with pytest.raises(ZeroDivisionError):
        work(memory, "b", b"more", then=ZeroDivisionError)
    assert "no answer" in capsys.readouterr().err


def test_what_another_machine_has_written_counts(memory, capsys, monkeypatch, tmp_path):
    with working.working_copy(f"{memory[0]}/run") as folder:
        seal(folder / "checkpoints" / "step-00000010", model=b"10")
    forget()
    here = cache.place()
    monkeypatch.setenv(cache.PLACE, str(tmp_path / "other machine"))
    with working.working_copy(f"{memory[0]}/run") as folder:
        assert (folder / "checkpoints" / "step-00000010" / "model").read_bytes() == b"10"
        seal(folder / "checkpoints" / "step-00000020", model=b"20")
    forget()
    monkeypatch.setenv(cache.PLACE, str(here))
    with working.working_copy(f"{memory[0]}/run") as folder:
        assert (folder / "checkpoints" / "step-00000020" / "model").read_bytes() == b"20"
    assert capsys.readouterr().err == ""


def test_work_that_was_overtaken_is_set_aside(memory, capsys, monkeypatch):
    write = remote.Remote.write
    monkeypatch.setattr(remote.Remote, "write", lambda *_: (_ for _ in ()).throw(InputError("no answer")))
    with pytest.raises(InputError):
        work(memory, "a", b"mine")
    monkeypatch.setattr(remote.Remote, "write", write)
    put(memory, "run/b", b"theirs")
    forget()
    with working.working_copy(f"{memory[0]}/run") as folder:
        assert tree(folder) == {"b": b"theirs"}
    assert (folder.parents[1] / "set_aside" / "a").read_bytes() == b"mine"
    assert "set_aside" in capsys.readouterr().err


def test_files_that_somebody_tidied_away_here_stay_in_the_store(memory):
    work(memory, "a", b"1")
    work(memory, "b", b"2")
    folder = cache.hold("work", f"{memory[0]}/run").content
    (folder / "a").unlink()
    forget()
    work(memory, "c", b"3")
    assert contents(memory, "run") == tree(folder) == {"a": b"1", "b": b"2", "c": b"3"}


def test_a_second_writer_on_this_machine_is_refused(memory):
    with working.working_copy(f"{memory[0]}/run"), pytest.raises(InputError, match="another command"):
        work(memory, "a", b"1")


def test_two_writers_are_found_out(memory):
    with pytest.raises(InputError, match="another command"):
        work(memory, "a", b"mine", meanwhile=lambda: put(memory, "run/a", b"theirs"))
    assert contents(memory, "run") == {"a": b"theirs"}


def test_what_is_new_is_uploaded_while_a_command_runs(memory, monkeypatch):
    monkeypatch.setattr(working, "EVERY_SECONDS", 0.01)
    arrived = threading.Event()
    write = remote.Remote.write
    monkeypatch.setattr(remote.Remote, "write", lambda *args: (write(*args), arrived.set())[0])
    with working.working_copy(f"{memory[0]}/run") as folder:
        seal(folder / "checkpoints" / "step-00000010", model=b"10")
        end = time.monotonic() + 60
        while (
            "checkpoints/step-00000010/manifest.json" not in contents(memory, "run")
            and time.monotonic() < end
        ):
            arrived.wait(0.1)
        assert contents(memory, "run") == tree(folder)


def test_only_the_first_process_fetches_and_uploads(memory, monkeypatch):
    work(memory, "a", b"1")
    forget()
    monkeypatch.setenv(cache.PLACE, str(cache.place().with_name("machine 2")))
    monkeypatch.setenv("RANK", "1")
    with working.working_copy(f"{memory[0]}/run") as folder:
        assert not folder.exists()
        folder.mkdir(parents=True)
        (folder / "b").write_bytes(b"not mine to write")
    assert contents(memory, "run") == {"a": b"1"}


def test_a_process_beside_the_first_one_has_its_folder(memory, monkeypatch):
    """As the parts of a sharded checkpoint need it, on one machine."""
    with working.working_copy(f"{memory[0]}/run") as folder, monkeypatch.context() as other:
        other.setenv("RANK", "1")
        with working.working_copy(f"{memory[0]}/run") as the_same:
            the_same.mkdir()
            (the_same / "part").write_bytes(b"2 of 2")
    assert contents(memory, "run") == tree(folder) == {"part": b"2 of 2"}


def test_texts_show_urls_where_the_same_lies_in_a_store(memory):
    put(memory, "data/a", b"1")
    folder = cache.fetch(f"{memory[0]}/data")
    text = f"{folder}/a is in {folder}, {folder}.partial is not"
    assert cache.with_urls(text) == f"{memory[0]}/data/a is in {memory[0]}/data, {folder}.partial is not"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://KEY:SECRETSECRET@bucket/data", "no credentials"),
        ("https://host/file?X-Amz-Signature=SECRETSECRET", "no credentials"),
        ("s3://", "bucket is missing"),
        ("nonsense://bucket/a", "Protocol not known"),
        ("memory://nothing/here", "nothing in the store"),
    ],
)
def test_urls_that_cannot_be_fetched(url, message):
    with pytest.raises(InputError, match=message) as caught:
        cache.fetch(url)
    assert "SECRETSECRET" not in str(caught.value)


def test_a_node_of_a_cluster_reads_objects_itself_if_it_can(memory):
    from electra.text import on_nodes
    from electra.text.corpus import open_corpus

    put(memory, "corpus/a.txt", b"One.\n\nTwo.")
    corpus = open_corpus([f"{memory[0]}/corpus"])
    run = on_nodes._Run(sources=corpus.sources, largest_hash=None)

    def read():
        return list(on_nodes.read_run(run, (corpus, "/where/the/command/was/given")))

    assert [document for part in read() for document in part.group[0]] == ["One.", "Two."]
    assert not any(part.is_elsewhere for part in read())
    memory[1].rm_file(f"{memory[0].removeprefix('memory:/')}/corpus/a.txt")
    assert [part.is_elsewhere for part in read()] == [True]


def test_machines_that_write_parts_need_a_folder_they_share(monkeypatch, capsys):
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    keys = ["--data=memory://data", "--out=memory://run", "--train.parallel=fsdp"]
    assert cli.main(["pretrain", *keys]) == cli.BAD_INPUT
    assert "memory://run" in capsys.readouterr().err
