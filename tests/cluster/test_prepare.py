"""`electra prepare --cluster`: the same bytes as on one machine, whatever happens to the nodes."""

import gzip
import hashlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (extra: cluster)")

import patient_ray
from electra import cluster as clusters
from electra.cli import main
from electra.text import dataset, on_nodes, shards
from local_cluster import require_started
from ray_nodes import CLIENT_PORT, PATIENCE, TEST_SECONDS, ray_nodes

pytestmark = pytest.mark.timeout(TEST_SECONDS)

WORDS = [
    "the",
    "of",
    "river",
    "mountain",
    "city",
    "language",
    "model",
    "token",
    "old",
    "new",
    "small",
    "large",
    "people",
    "water",
    "naïve",
    "東京",
]
SMALL_BLOCKS = 1 << 15
# Blocks are cut where the command runs; small ones make many pieces of little text.
COMMAND = (
    f"import sys, patient_ray; from electra.text import shards; shards.BLOCK_CHARACTERS = {SMALL_BLOCKS}; "
    "from electra.cli import main; sys.exit(main(sys.argv[1:]))"
)
SECRET = "hunter2-is-no-password"


def write_corpus(folder: Path) -> Path:
    rng = random.Random(0)

    def document():
        lines = (" ".join(rng.choices(WORDS, k=rng.randint(5, 30))) for _ in range(rng.randint(1, 8)))
        return "\n".join(lines)

    folder.mkdir()
    texts = [document() for _ in range(3000)]
    for number in range(5):
        (folder / f"{number}.txt").write_text("\n\n".join(texts[number * 400 : number * 400 + 450]))
    (folder / "latin.txt").write_bytes("\n\n".join(["Übergrößenträger, naïveté"] * 50).encode("cp1252"))
    (folder / "broken.txt").write_bytes(b"good\n\nbad \xff\xfe byte among many good ones" + b" x" * 100)
    with gzip.open(folder / "rows.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts[2000:])
        file.write("this is no JSON\n")
    (folder / "empty.txt").touch()
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def words(corpus: Path, out: Path, *more: str) -> list[str]:
    return ["prepare", "--corpus", str(corpus), "--out", str(out), "--vocab_size", "300", *more]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus")


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    """The dataset that one process makes without Ray."""
    out = tmp_path_factory.mktemp("one") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK_CHARACTERS", SMALL_BLOCKS)
        assert main(words(corpus, out, "--workers", "1")) == 0
    found = digests(out)
    assert len([name for name in found if name.startswith("train-")]) > 30
    return found


# --- without Ray: who decides what ---


class InOneProcess:
    """A cluster as far as `prepare` knows one; what nodes get and give goes through a pickle, as with Ray."""

    def __init__(self, num_nodes):
        self.nodes = [
            clusters.Node(id=str(n), name=f"n{n}", address="", cpus=1, gpus=0) for n in range(num_nodes)
        ]
        self.begun = []

    def streams(self, function, items, *, shared, at_once):
        for item in items:
            self.begun.append(item)
            parts = function(*pickle.loads(pickle.dumps((item, shared))))
            yield item, (pickle.loads(pickle.dumps(part)) for part in parts)

    def work(self, function, items, *, shared, ordered, on_done):
        # The last comes first, as it may.
        for number, item in reversed(list(enumerate(items))):
            result = function(*pickle.loads(pickle.dumps((item, shared))))
            on_done(item, f"n{number % len(self.nodes)}")
            yield item, pickle.loads(pickle.dumps(result))


@pytest.fixture
def in_one_process(monkeypatch):
    """Commands get this cluster from now on."""
    cluster = InOneProcess(3)

    @contextmanager
    def connected(address, *, packages, with_streams):
        assert address == "auto"
        # Readers take no cores.
        assert with_streams
        yield cluster

    monkeypatch.setattr(dataset, "connected", connected)
    monkeypatch.setattr(shards, "BLOCK_CHARACTERS", SMALL_BLOCKS)
    return cluster


def test_what_nodes_read_and_make_has_the_same_bytes(corpus, expected, in_one_process, tmp_path, capsys):
    assert main(words(corpus, tmp_path / "data", "--cluster", "auto")) == 0
    assert digests(tmp_path / "data") == expected
    assert sum(len(run.sources) for run in in_one_process.begun) == 2 * len(list(corpus.iterdir()))
    assert "n2 made" in capsys.readouterr().out


def test_files_in_parts_and_relative_to_the_folder_of_the_command(
    corpus, in_one_process, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(corpus.parent)
    monkeypatch.setattr(on_nodes, "_RUN_FILES", 2)
    monkeypatch.setattr(on_nodes, "_GROUP_CHARACTERS", 1000)
    relative = Path(corpus.name)
    assert main(words(relative, tmp_path / "one", "--workers", "1")) == 0
    assert main(words(relative, tmp_path / "data", "--cluster", "auto")) == 0
    assert digests(tmp_path / "data") == digests(tmp_path / "one")
    problems = (tmp_path / "data" / "quarantine.jsonl").read_text()
    assert json.loads(problems.splitlines()[0])["file"].startswith(f"{corpus.name}/")
    assert max(len(run.sources) for run in in_one_process.begun) == 2


def test_files_that_a_node_does_not_see_are_read_by_the_command(
    corpus, expected, in_one_process, tmp_path, monkeypatch
):
    see = on_nodes._is_here
    monkeypatch.setattr(on_nodes, "_is_here", lambda source: see(source) and "1.txt" not in source.path)
    assert main(words(corpus, tmp_path / "data", "--cluster", "auto")) == 0
    assert digests(tmp_path / "data") == expected


def test_a_node_sees_a_file_if_it_is_the_same(tmp_path):
    from electra.text.sources import find_sources

    path = tmp_path / "a.txt"
    path.write_text("text")
    [source] = find_sources([str(path)]).sources
    assert on_nodes._is_here(source)
    path.write_text("longer text")
    assert not on_nodes._is_here(source)
    path.unlink()
    assert not on_nodes._is_here(source)


def test_standard_input_and_one_node_are_read_by_the_command(in_one_process, tmp_path, monkeypatch):
    text = "\n\n".join(f"Document {number} of {' '.join(WORDS)}." for number in range(300))
    (tmp_path / "in.txt").write_text(text)
    made = []
    for more in (["--workers", "1"], ["--cluster", "auto"]):
        with (tmp_path / "in.txt").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(words("-", tmp_path / str(len(made)), *more)) == 0
        made.append(digests(tmp_path / str(len(made))))
    assert made[0] == made[1]
    in_one_process.nodes = in_one_process.nodes[:1]
    assert main(words(tmp_path / "in.txt", tmp_path / "file", "--cluster", "auto")) == 0
    assert in_one_process.begun == []


def test_the_vocabulary_sample_leaves_out_what_cannot_be_in_it(in_one_process, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(on_nodes, "_RUN_FILES", 1)
    from electra.text import corpus as corpora

    monkeypatch.setattr(corpora.VocabularySample.__init__, "__kwdefaults__", {"limit": 20_000})
    assert main(words(corpus, tmp_path / "one", "--workers", "1")) == 0
    assert main(words(corpus, tmp_path / "data", "--cluster", "auto")) == 0
    assert digests(tmp_path / "data") == digests(tmp_path / "one")
    bounds = [run.largest_hash for run in in_one_process.begun[: len(list(corpus.iterdir()))]]
    assert bounds[0] is None
    known = [bound for bound in bounds if bound is not None]
    assert len(known) > 3
    assert known == sorted(known, reverse=True)


def test_a_wrong_address_is_refused_before_anything_is_made(corpus, tmp_path, capsys):
    for address, part in [("10.0.0.1", "ray://HOST:PORT"), ("ray://127.0.0.1:1", "ray status")]:
        assert main(words(corpus, tmp_path / "data", "--cluster", address)) == 2
        assert part in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- with Ray ---


def with_support() -> str:
    return os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(Path(patient_ray.__file__).parent)])
    )


def run_here(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": with_support(), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_on_this_machine(corpus, expected, tmp_path):
    done = run_here(
        words(corpus, tmp_path / "data", "--cluster", "local"), TMPDIR=str(tmp_path), MY_PASSWORD=SECRET
    )
    require_started(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "ray" not in done.stdout + done.stderr
    assert digests(tmp_path / "data") == expected
    assert "made" in done.stdout
    assert SECRET not in done.stdout


@pytest.fixture(scope="module")
def nodes():
    """Three machines. The tests below use up one of them: their order matters."""
    with ray_nodes(3) as nodes:
        yield nodes


def begin(nodes, arguments, **variables):
    """The command on the first node."""
    address = f"{nodes.address(0)}:6379"
    return nodes.inside(0, [sys.executable, "-c", COMMAND, *arguments], RAY_ADDRESS=address, **variables)


def end(process) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.slow
def test_on_three_nodes(nodes, corpus, expected, tmp_path):
    code, out, err = end(
        begin(nodes, words(corpus, tmp_path / "data", "--cluster", "auto"), MY_PASSWORD=SECRET)
    )
    assert code == 0, err
    assert "warning" not in err
    assert digests(tmp_path / "data") == expected
    assert [name for name in ("node-0", "node-1", "node-2") if f"{name} made" not in out] == []
    # Neither what is in somebody's environment nor the cluster's own token is written anywhere.
    logs = [path for path in nodes.base.rglob("*") if path.is_file()]
    assert len(logs) > 10
    for secret in (SECRET, nodes.environment["RAY_AUTH_TOKEN"]):
        assert [path for path in logs if secret.encode() in path.read_bytes()] == []
        assert secret not in out + err


@pytest.mark.slow
def test_a_node_is_killed_in_the_middle(nodes, corpus, expected, tmp_path):
    out = tmp_path / "data"
    process = begin(nodes, words(corpus, out, "--cluster", "auto"))
    receipts = out.with_name("data.partial") / "work" / "receipts"
    patience = time.monotonic() + PATIENCE
    while not (receipts.is_dir() and any(receipts.iterdir())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience
        time.sleep(0.005)
    # It must not be done before the node is gone.
    process.send_signal(signal.SIGSTOP)
    num_finished = len(list(receipts.iterdir()))
    nodes.kill(2)
    process.send_signal(signal.SIGCONT)
    code, _, err = end(process)
    assert code == 0, err
    assert num_finished < len([name for name in expected if name.endswith(".ids.npy")])
    assert digests(out) == expected


@pytest.mark.slow
def test_on_the_two_nodes_that_are_left(nodes, corpus, expected, tmp_path):
    code, out, err = end(begin(nodes, words(corpus, tmp_path / "data", "--cluster", "auto")))
    assert code == 0, err
    assert "warning" not in err
    assert digests(tmp_path / "data") == expected
    assert "node-1 made" in out
    assert "node-2" not in out


@pytest.mark.slow
def test_from_a_machine_that_is_no_node(nodes, corpus, expected, tmp_path):
    assert nodes.client_address.endswith(f":{CLIENT_PORT}")
    done = run_here(words(corpus, tmp_path / "data", "--cluster", nodes.client_address), **nodes.environment)
    assert done.returncode == 0, done.stderr + nodes.last_log_lines(0)
    assert digests(tmp_path / "data") == expected


@pytest.mark.slow
def test_a_node_with_another_version_is_named(nodes, corpus, tmp_path):
    other = nodes.base / "other" / "electra-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: electra\nVersion: 9.9.9\n")
    nodes.start(3, PYTHONPATH=f"{other.parent}:{nodes.environment['PYTHONPATH']}")
    nodes.wait(3)
    code, out, err = end(begin(nodes, words(corpus, tmp_path / "data", "--cluster", "auto")))
    assert (code, out) == (2, "")
    assert "node-3 has electra 9.9.9" in err
    assert "node-1" not in err
    assert list(tmp_path.iterdir()) == []
