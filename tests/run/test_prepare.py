"""`electra prepare` as a person runs it: whole commands on small corpora."""

import csv
import gzip
import io
import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import zstandard

from electra import files
from electra.cli import INTERRUPTED, main
from electra.text import dataset, shards
from electra.text.dataset import PrepareConfig
from electra.text.rows import KIND, Rows
from electra.text.tokenizer import load_tokenizer

WORDS = [
    *("the", "a", "of", "to", "in", "and", "is", "was", "river", "mountain", "city", "language", "model"),
    *("token", "old", "new", "small", "large", "fast", "slow", "red", "green", "people", "water", "light"),
    *("school", "music", "number", "letter", "reading", "writing", "walked", "seen", "found", "made"),
    *("given", "Zürich", "naïve", "東京", "모델"),
]


def sentence(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(5, 30))).capitalize() + "."


def paragraphs(num_documents, seed=0):
    rng = random.Random(seed)
    return ["\n".join(sentence(rng) for _ in range(rng.randint(1, 8))) for _ in range(num_documents)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = paragraphs(300)
    (folder / "a.txt").write_text("\n\n".join(texts[:100]), encoding="utf-8")
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts[100:])
    return folder


def prepare(corpus, out, *more, code=0):
    command = ["prepare", "--corpus", str(corpus), "--out", str(out), "--vocab_size", "300", *map(str, more)]
    assert main(command) == code


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def manifest_of(folder):
    return files.read_manifest(folder, kind=KIND)


def decoded(folder, split="train"):
    rows, tokenizer = Rows(folder, split), load_tokenizer(folder / "tokenizer")
    return [tokenizer.decode(rows[index].ids.tolist()) for index in range(len(rows))]


def test_a_folder_becomes_rows_and_a_person_sees_what_they_are(corpus, tmp_path, capsys):
    prepare(corpus, tmp_path / "data", "--valid_fraction", 0.1, "--workers", 1)
    manifest = manifest_of(tmp_path / "data")
    train, valid = manifest["splits"]["train"], manifest["splits"]["valid"]
    assert train["documents"] + valid["documents"] == 300
    assert 10 <= valid["documents"] <= 60
    assert train["rows"] == len(Rows(tmp_path / "data"))
    out = capsys.readouterr().out
    for fact in ("documents", "left out", "replaced", "tokens", "vocabulary", "MB/s", "[CLS]", "[SEP]"):
        assert fact in out
    assert out.count("row ") == 3
    assert not (tmp_path / "data.partial").exists()


def test_every_character_of_the_text_is_in_the_rows(corpus, tmp_path):
    prepare(
        corpus, tmp_path / "data", "--workers", 1, "--accents", "keep", "--case", "keep", "--vocab_size", 1000
    )
    kept = sorted("".join("".join(decoded(tmp_path / "data", split)).split()) for split in ("train", "valid"))
    kept = "".join(kept)
    for special in ("[CLS]", "[SEP]"):
        kept = kept.replace(special, "")
    assert "[UNK]" not in kept
    expected = "".join("".join(paragraphs(300)).split())
    assert sorted(kept) == sorted(expected)


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def test_tables_of_any_format_compression_and_encoding_give_the_same_rows(tmp_path):
    texts = [f'{text}\nnaïve déjà vu, "où" {n}' for n, text in enumerate(paragraphs(40))]
    texts = [text.replace("東京", "à").replace("모델", "é") for text in texts]
    formats = {
        ".jsonl": "".join(json.dumps({"body": text}, ensure_ascii=False) + "\n" for text in texts),
        ".csv": delimited(texts, ","),
        ".tsv": delimited(texts, "\t"),
    }
    encodings = ["utf-8", "utf-8-sig", "cp1252", "utf-16"]
    expected = None
    for number, (suffix, compression) in enumerate(product(formats, COMPRESS)):
        path, out = tmp_path / f"corpus{number}{suffix}{compression}", tmp_path / f"data{number}"
        path.write_bytes(COMPRESS[compression](formats[suffix].encode(encodings[number % 4])))
        prepare(path, out, "--workers", 1, "--text_field", "body", "--quoting", "double")
        shards = {name: data for name, data in contents(out).items() if name.endswith(".npy")}
        assert shards == (expected := expected or shards), path.name


def delimited(texts, delimiter):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([("id", "body"), *enumerate(texts)])
    return file.getvalue()


def test_bad_rows_of_a_table_are_quarantined_with_their_line(tmp_path):
    texts = [text.replace("\n", " ") for text in paragraphs(60)]
    rows = "".join(f'"{text}",{n}\n' for n, text in enumerate(texts))
    (tmp_path / "table.csv").write_text(f"text,n\n{rows}too,many,values\n{rows}")
    prepare(tmp_path / "table.csv", tmp_path / "data", "--workers", 1, "--duplicates", "keep")
    (entry,) = (tmp_path / "data" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(entry)["file"] == str(tmp_path / "table.csv")
    assert json.loads(entry)["line"] == 62
    counts = manifest_of(tmp_path / "data")["counts"]
    assert (counts["documents"], counts["bad_rows"]) == (120, 1)


def test_the_library_function_says_where_and_how_much(corpus, tmp_path):
    config = PrepareConfig(corpus=[str(corpus)], out=str(tmp_path / "data"), vocab_size=300, workers=1)
    made, found = dataset.make_dataset(config), dataset.make_dataset(config)
    train = manifest_of(tmp_path / "data")["splits"]["train"]
    assert made.path == found.path == tmp_path / "data"
    for prepared in (made, found):
        assert (prepared.documents, prepared.rows, prepared.tokens) == (
            train["documents"],
            train["rows"],
            train["tokens"],
        )
    assert (made.rows_seconds > 0, found.rows_seconds) == (True, 0)


def test_a_dataset_made_before_the_keys_of_csv_is_found_finished(corpus, tmp_path):
    prepare(corpus, tmp_path / "data", "--workers", 1)
    manifest = files.read_manifest(tmp_path / "data", kind=KIND)
    for key in ("delimiter", "quoting"):
        del manifest["config"][key]
    files.write_manifest(tmp_path / "data", {key: manifest[key] for key in manifest if key != "files"})
    prepare(corpus, tmp_path / "data", "--workers", 1)


@pytest.mark.slow
def test_output_does_not_depend_on_the_number_of_workers(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_CHARACTERS", 20_000)
    # A block goes to workers in several parts.
    monkeypatch.setattr(shards, "_PART_CHARACTERS", 3_000)
    prepare(corpus, tmp_path / "one", "--workers", 1)
    prepare(corpus, tmp_path / "two", "--workers", 2)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert len([name for name in one if name.endswith(".ids.npy")]) > 4
    assert one == two


def test_the_same_command_again_finds_it_made(corpus, tmp_path, capsys):
    prepare(corpus, tmp_path / "data", "--workers", 1)
    before = (tmp_path / "data" / "manifest.json").stat().st_mtime_ns
    capsys.readouterr()
    prepare(corpus, tmp_path / "data", "--workers", 1)
    assert (tmp_path / "data" / "manifest.json").stat().st_mtime_ns == before
    assert "finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"), [("key", r"seq_length.*\b128\b.*\b64\b"), ("file", "corpus.*--out")]
)
def test_a_finished_folder_is_never_overwritten(corpus, tmp_path, capsys, change, message):
    prepare(corpus, tmp_path / "data", "--workers", 1)
    before = contents(tmp_path / "data")
    if change == "file":
        (corpus / "c.txt").write_text("more")
    prepare(corpus, tmp_path / "data", *(["--seq_length", 64] if change == "key" else []), code=2)
    assert re.search(message, capsys.readouterr().err)
    assert contents(tmp_path / "data") == before


def test_a_folder_of_something_else_is_refused(corpus, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("all I have")
    prepare(corpus, tmp_path / "data", code=2)
    assert re.search(r"data\b.*dataset.*--out", capsys.readouterr().err)
    assert (tmp_path / "data" / "thesis.txt").read_text() == "all I have"


@pytest.mark.slow
def test_adding_text_never_moves_a_document_across_the_split(corpus, tmp_path):
    prepare(corpus, tmp_path / "before", "--valid_fraction", 0.2, "--workers", 1)
    (corpus / "0-first.txt").write_text("\n\n".join(paragraphs(200, seed=9)), encoding="utf-8")
    tokenizer = ["--tokenizer", str(tmp_path / "before" / "tokenizer")]
    command = [
        "prepare",
        "--corpus",
        str(corpus),
        "--out",
        str(tmp_path / "after"),
        "--valid_fraction",
        "0.2",
    ]
    assert main([*command, *tokenizer, "--workers", "1"]) == 0
    assert set(decoded(tmp_path / "before", "valid")) < set(decoded(tmp_path / "after", "valid"))
    assert set(decoded(tmp_path / "before", "train")) < set(decoded(tmp_path / "after", "train"))


def test_duplicates_are_dropped_and_counted(tmp_path):
    texts = paragraphs(20)
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n\n".join(texts[:7]), encoding="utf-8")
    glob = tmp_path / "*.txt"
    prepare(glob, tmp_path / "dropped", "--workers", 1)
    prepare(glob, tmp_path / "kept", "--workers", 1, "--duplicates", "keep")
    assert manifest_of(tmp_path / "dropped")["counts"]["duplicate_documents"] == 7
    assert manifest_of(tmp_path / "kept")["counts"]["duplicate_documents"] == 0
    assert manifest_of(tmp_path / "kept")["splits"]["train"]["documents"] > 20


@pytest.mark.slow
def test_standard_input(tmp_path):
    text = "\n\n".join(paragraphs(30)).encode()
    command = [sys.executable, "-m", "electra", "prepare", "--corpus", "-", "--out", str(tmp_path / "data")]
    run = [*command, "--vocab_size", "300", "--workers", "1"]
    result = subprocess.run(run, input=text, capture_output=True, check=True)
    assert b"documents" in result.stdout
    splits = manifest_of(tmp_path / "data")["splits"]
    assert splits["train"]["documents"] + splits["valid"]["documents"] == 30
    again = subprocess.run(run, input=text, capture_output=True, check=False)
    assert again.returncode == 2
    assert b"--out" in again.stderr


def test_unreadable_files_are_quarantined_and_too_many_are_an_error(corpus, tmp_path, capsys):
    (corpus / "broken.jsonl").write_text('{"text": "fine here"}\nnot json\n{"body": 1}\n')
    (corpus / "cut.txt.gz").write_bytes(gzip.compress("\n\n".join(paragraphs(9, seed=5)).encode())[:700])
    prepare(corpus, tmp_path / "data", "--workers", 1)
    quarantine = [
        json.loads(line) for line in (tmp_path / "data" / "quarantine.jsonl").read_text().splitlines()
    ]
    assert {(Path(entry["file"]).name, entry["line"]) for entry in quarantine} == {
        ("broken.jsonl", 2),
        ("broken.jsonl", 3),
        ("cut.txt.gz", None),
    }
    assert manifest_of(tmp_path / "data")["counts"]["quarantined"] == 3
    assert "broken.jsonl:2" in capsys.readouterr().out
    (corpus / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(200_000))
    prepare(corpus, tmp_path / "other", "--workers", 1, code=2)
    error = capsys.readouterr().err
    assert "max_bad_fraction" in error
    assert "broken.jsonl:2" in error
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("content", ["", "   \n \n\n", "\n"])
def test_no_text_is_an_error(tmp_path, capsys, content):
    (tmp_path / "empty.txt").write_text(content)
    prepare(tmp_path / "empty.txt", tmp_path / "data", code=2)
    assert "corpus" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "no/such/file", "--out", "x"], "no/such/file"),
        (["--corpus", "builtin", "--out", "x", "--seq_length", "4"], r"seq_length.*\b4\b.*\b8\b"),
        (["--corpus", "builtin", "--out", "x", "--valid_fraction", "1.5"], r"valid_fraction.*1\.5"),
        (["--corpus", "builtin", "--out", "x", "--encoding", "klingon"], "encoding.*'klingon'"),
        (["--corpus", "builtin", "--out", "x", "--workers", "0"], r"workers.*\b0\b"),
        (
            ["--corpus", "builtin", "--out", "x", "--tokenizer", "t", "--vocab_size", "9"],
            "vocab_size.*--tokenizer",
        ),
        (["--corpus", "builtin"], "--out DIR"),
        (["--verify", "no-such-folder"], "no-such-folder"),
    ],
)
def test_bad_values_are_named_before_any_work(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_does_not_exist_stops_before_any_work(corpus, tmp_path, capsys):
    command = ["prepare", "--corpus", str(corpus), "--out", str(tmp_path / "data"), "--tokenizer", "nowhere"]
    assert main(command) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "data.partial").exists()


@pytest.mark.slow
def test_verify_names_any_damage(corpus, tmp_path, capsys):
    prepare(corpus, tmp_path / "data", "--workers", 1)
    assert main(["prepare", "--verify", str(tmp_path / "data")]) == 0
    for path in sorted(p for p in (tmp_path / "data").rglob("*") if p.is_file() and p.stat().st_size):
        whole = path.read_bytes()
        broken = bytearray(whole)
        broken[len(whole) // 2] ^= 1
        for damage in (bytes(broken), whole[:-1]):
            path.write_bytes(damage)
            assert main(["prepare", "--verify", str(tmp_path / "data")]) == 2, path
            assert path.name in capsys.readouterr().err
        path.write_bytes(whole)
    assert main(["prepare", "--verify", str(tmp_path / "data")]) == 0


def start_and_signal(command, *, when, signal_number, timeout=60.0):
    """Run a command in its own process group and send it a signal as soon as `when()` is true."""
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + timeout
    while not when() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    if process.poll() is None:
        process.send_signal(signal_number)
    _, error = process.communicate(timeout=timeout)
    return process.returncode, error.decode()


def small_blocks(*arguments):
    """The command with many small shards, so that a signal comes in the middle."""
    code = (
        "import sys; from electra.text import shards; shards.BLOCK_CHARACTERS = 10_000; "
        "from electra.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", code, "prepare", "--vocab_size", "300", *arguments]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(corpus, tmp_path, workers):
    arguments = ["--corpus", str(corpus), "--workers", workers, "--out"]
    subprocess.run(small_blocks(*arguments, str(tmp_path / "whole")), check=True, capture_output=True)
    expected = contents(tmp_path / "whole")
    receipts = tmp_path / "killed.partial" / "work" / "receipts"
    kills = 0
    for finished in (0, 1, 3, 6, 9):
        code, _ = start_and_signal(
            small_blocks(*arguments, str(tmp_path / "killed")),
            when=lambda finished=finished: (
                receipts.exists() and len(list(receipts.glob("*.json"))) >= finished
            ),
            signal_number=signal.SIGKILL,
        )
        kills += code == -signal.SIGKILL
    assert kills >= 3
    done = subprocess.run(small_blocks(*arguments, str(tmp_path / "killed")), check=True, capture_output=True)
    assert b"shards found finished" in done.stdout
    assert contents(tmp_path / "killed") == expected
    assert not (tmp_path / "killed.partial").exists()


@pytest.mark.parametrize("is_removed", [False, True])
def test_killed_after_its_last_step_but_one(corpus, tmp_path, monkeypatch, is_removed):
    out, partial = tmp_path / "data", tmp_path / "data.partial"
    remove = shutil.rmtree

    def killed(path, **options):
        if path == partial:
            raise KeyboardInterrupt
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        prepare(corpus, out, "--workers", 1, code=INTERRUPTED)
    expected = contents(out)
    assert list((partial / "work" / "receipts").iterdir())
    if is_removed:
        remove(out)
    prepare(corpus, out, "--workers", 1)
    assert contents(out) == expected
    assert not partial.exists()


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_half_artefact_and_says_how_to_go_on(corpus, tmp_path, signal_number):
    receipts = tmp_path / "data.partial" / "work" / "receipts"
    command = small_blocks("--corpus", str(corpus), "--out", str(tmp_path / "data"), "--workers", "2")
    code, error = start_and_signal(
        command,
        when=lambda: receipts.exists() and len(list(receipts.glob("*.json"))) >= 2,
        signal_number=signal_number,
    )
    assert code == 130
    assert str(tmp_path / "data.partial") in error
    assert "Traceback" not in error
    assert not (tmp_path / "data").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert manifest_of(tmp_path / "data")["splits"]["train"]["rows"] > 0


def test_the_vocabulary_sample_is_bounded_and_the_same_in_any_order():
    from electra.text.corpus import vocabulary_sample

    documents = [(n * 7919 % 10_007, "x" * (n % 50 + 1)) for n in range(1, 500)]
    shuffled = random.Random(0).sample(documents, len(documents))
    sample = vocabulary_sample(iter(documents), limit=1000)
    assert sample == vocabulary_sample(iter(shuffled), limit=1000)
    assert 1000 <= sum(map(len, sample)) < 1050
    assert sample[0] == min(documents)[1]
    assert vocabulary_sample(iter(documents + documents), limit=10**9) == vocabulary_sample(
        iter(documents), limit=10**9
    )


def test_token_counts_are_those_of_the_training_rows(corpus, tmp_path):
    prepare(corpus, tmp_path / "data", "--workers", 1)
    counts = np.load(tmp_path / "data" / "token_counts.npy")
    rows = Rows(tmp_path / "data")
    ids = np.concatenate([rows[index].ids for index in range(len(rows))])
    assert np.array_equal(counts, np.bincount(ids, minlength=len(counts)))
