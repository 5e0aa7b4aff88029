"""The commands a person types with s3:// URLs, on a real S3 server on loopback."""

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import electra
from electra.cli import main
from electra.errors import InputError
from electra.store import cache
from s3_server import KEY, SECRET

TEXTS = {
    f"corpus/{name}": "\n\n".join(
        f"The {who} number {number} cooked the meal {number * number} and the guest ate it."
        for number in range(300)
    ).encode()
    for name, who in (("a.txt", "chef"), ("b.txt", "baker"), ("sub/c.txt", "cook"))
}
PREPARE = ("--vocab_size", "300", "--workers", "1", "--valid_fraction", "0.05")
PRETRAIN = (
    *("--model.size", "tiny", "--train.batch_size", "8", "--train.precision", "fp32", "--train.steps", "12"),
    *("--train.warmup_steps", "2", "--checkpoint.save_every", "4", "--log.evaluate_every", "12"),
)


def upload(bucket, texts=TEXTS):
    for name, content in texts.items():
        bucket.put(name, content)
    bucket.put("corpus/z.txt.gz", gzip.compress(b"A last document is compressed.", mtime=0))
    bucket.put("corpus/picture.png", b"no text")
    bucket.put("corpus/.hidden.txt", b"never read")


def local_corpus(folder, bucket):
    for name, content in bucket.contents("corpus").items():
        path = folder / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "corpus"


def forget():
    for entry in cache._held.values():
        entry.end_use()
    cache._held.clear()


def test_prepare_gives_the_same_bytes_as_on_this_disk(bucket, tmp_path, monkeypatch, capsys):
    upload(bucket)
    here = local_corpus(tmp_path, bucket)
    assert main(["prepare", "--corpus", str(here), "--out", str(tmp_path / "data"), *PREPARE]) == 0
    # Smaller than the corpus: a file goes when the next one is needed.
    monkeypatch.setenv(cache.SIZE, "60kB")
    assert main(["prepare", "--corpus", bucket.url("corpus"), "--out", bucket.url("data"), *PREPARE]) == 0
    assert bucket.url("data") in capsys.readouterr().out
    ours, theirs = bucket.contents("data"), {}
    for path in (path for path in (tmp_path / "data").rglob("*") if path.is_file()):
        theirs[path.relative_to(tmp_path / "data").as_posix()] = path.read_bytes()
    assert ours.keys() == theirs.keys()
    # The manifest also says where the corpus was.
    assert {name for name in ours if ours[name] != theirs[name]} == {"manifest.json"}
    stored, kept = json.loads(ours["manifest.json"]), json.loads(theirs["manifest.json"])
    assert {key for key in kept if kept[key] != stored[key]} == {"config", "corpus", "manifest_sha256"}
    assert stored["config"]["corpus"] == [bucket.url("corpus")]
    assert stored["counts"]["skipped_files"] == {".png": 1}
    forget()
    # Nothing to do, on a machine that has nothing of it.
    monkeypatch.setenv(cache.PLACE, str(tmp_path / "other"))
    monkeypatch.delenv(cache.SIZE)
    assert main(["prepare", "--corpus", bucket.url("corpus"), "--out", bucket.url("data"), *PREPARE]) == 0
    assert "finished before" in capsys.readouterr().out
    assert main(["prepare", "--verify", bucket.url("data")]) == 0
    bucket.put("corpus/a.txt", b"changed")
    assert main(["prepare", "--corpus", bucket.url("corpus"), "--out", bucket.url("data"), *PREPARE]) == 2
    assert f"{bucket.url('data')} was made before" in capsys.readouterr().err


def test_patterns_and_single_objects(bucket, tmp_path):
    upload(bucket)
    from electra.text.sources import find_sources

    def names(*corpus):
        return [source.path.removeprefix(bucket.url("corpus/")) for source in find_sources(corpus).sources]

    assert names(bucket.url("corpus/*.txt")) == ["a.txt", "b.txt"]
    assert names(bucket.url("corpus/**/c.txt")) == ["sub/c.txt"]
    assert names(bucket.url("corpus/picture.png")) == ["picture.png"]
    # No object is read twice.
    assert names(bucket.url("corpus/b.txt"), bucket.url("corpus/")) == [
        "b.txt",
        "a.txt",
        "sub/c.txt",
        "z.txt.gz",
    ]
    with pytest.raises(InputError, match="no file to read here"):
        names(bucket.url("corpus/*.parquet"))


def test_an_object_that_changed_since_it_was_found_is_refused(bucket, tmp_path):
    upload(bucket)
    from electra.text.corpus import open_corpus
    from electra.text.quarantine import Tally

    corpus = open_corpus([bucket.url("corpus")])
    bucket.put("corpus/b.txt", b"something else by now")
    with pytest.raises(InputError, match=r"s3://.*/corpus/b.txt has changed since"):
        list(corpus.documents(Tally(), pytest.fail))


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_elsewhere(bucket, tmp_path, monkeypatch, capsys):
    upload(bucket)
    assert main(["prepare", "--corpus", bucket.url("corpus"), "--out", bucket.url("data"), *PREPARE]) == 0
    assert main(["pretrain", *PRETRAIN, "--data", bucket.url("data"), "--out", str(tmp_path / "run")]) == 0
    forget()
    command = [sys.executable, "-m", "electra", "pretrain", *PRETRAIN]
    command += ["--data", bucket.url("data"), "--out", bucket.url("run")]
    # The request is there when the first step is done: it ends the run after one, as a preemption would.
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as stopped:
        assert stopped.stderr is not None
        for line in stopped.stderr:
            if "step 1 " in line:
                stopped.send_signal(signal.SIGTERM)
                break
        rest = stopped.stderr.read()
    assert stopped.returncode == 130, rest
    assert f"in {bucket.url('run')}; run the same command again to resume" in rest
    names = bucket.names("run/checkpoints")
    assert names, rest
    assert {"run/metrics.jsonl", "run/environment.json", "run/config.yaml"} <= set(bucket.names("run"))
    monkeypatch.setenv(cache.PLACE, str(tmp_path / "another machine"))
    capsys.readouterr()
    assert main(command[3:]) == 0
    shown = capsys.readouterr()
    assert bucket.url("run/final") in shown.out
    assert "continuing from" in shown.err
    ours = bucket.read("run/final/discriminator/model.safetensors")
    assert ours == (tmp_path / "run" / "final" / "discriminator" / "model.safetensors").read_bytes()
    events = [json.loads(line) for line in bucket.read("run/metrics.jsonl").splitlines()]
    assert [event["step"] for event in events if event["kind"] == "valid"] == [12]
    look_for_secrets(bucket, tmp_path, shown.out + shown.err + rest)


def look_for_secrets(bucket, tmp_path, shown):
    """Neither keys nor places of this machine's cache are in what others may see."""
    contents = bucket.contents("run")
    assert bucket.url("data") in contents["config.yaml"].decode()
    for name, content in {**contents, "what was printed": shown.encode()}.items():
        for secret in (SECRET, KEY):
            assert secret.encode() not in content, name
        if name != "what was printed":
            assert b"/content/run" not in content, name
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_what_reads_and_tunes_a_run(bucket, tmp_path, monkeypatch, capsys):
    upload(bucket)
    electra.prepare(corpus=bucket.url("corpus"), out=bucket.url("data"), vocab_size=300, workers=1)
    made = electra.pretrain(
        data=bucket.url("data"),
        out=bucket.url("run"),
        model={"size": "tiny"},
        train={"steps": 2, "batch_size": 4, "precision": "fp32", "warmup_steps": 1},
    )
    monkeypatch.chdir(tmp_path)
    run = bucket.url("run")
    texts = ["The chef cooked the meal."]
    vectors = made.load().embed(texts)
    forget()
    monkeypatch.setenv(cache.PLACE, str(tmp_path / "another machine"))
    assert electra.load(run).embed(texts) == vectors
    assert not list((tmp_path / "another machine").rglob("step-*")), "a model needs no checkpoints"
    assert main(["report", run]) == 0
    assert Path("report.html").is_file()
    assert main(["report", run, "--out", bucket.url("pages/r.html")]) == 0
    assert bucket.read("pages/r.html").startswith(b"<!")
    main(["doctor", run])
    assert f"\n{run}: " in capsys.readouterr().out
    assert main(["export", "--model", run, "--to", "transformers", "--out", bucket.url("exported")]) == 0
    assert "exported/model.safetensors" in bucket.names("exported")
    table = "".join(
        f"text {number} is {'good' if number % 2 else 'bad'},{number % 2}\n" for number in range(40)
    )
    bucket.put("table.csv", f"text,label\n{table}".encode())
    tuned = ["--task", "csv", "--data", bucket.url("table.csv"), "--seeds", "1", "--train.epochs", "1"]
    assert main(["finetune", "--model", run, *tuned, "--out", bucket.url("tuned")]) == 0
    assert bucket.url("tuned") in capsys.readouterr().out
    forget()
    tuned = bucket.url("tuned")
    places = (b"/content/tuned", b"/content/run", b"/content/table")
    for name, content in bucket.contents("tuned").items():
        assert not any(place in content for place in places), name
    words = ["--model", tuned, "--input", bucket.url("table.csv"), "--out", bucket.url("said.jsonl")]
    assert main(["predict", *words]) == 0
    assert len(bucket.read("said.jsonl").splitlines()) == 40
    assert main(["evaluate", "--model", tuned, "--data", bucket.url("table.csv")]) == 0


@pytest.mark.slow
def test_a_command_that_was_killed_while_it_uploaded_goes_on(bucket, tmp_path, monkeypatch):
    upload(bucket)
    command = ["prepare", "--corpus", bucket.url("corpus"), "--out", bucket.url("data"), *PREPARE]
    dies = (
        "import os, sys; from electra.store.remote import Remote; from electra.cli import main\n"
        "write = Remote.write\n"
        "def last(self, path, name):\n"
        "    found = write(self, path, name)\n"
        "    if name == 'token_counts.npy': os.kill(os.getpid(), 9)\n"
        "    return found\n"
        "Remote.write = last; main(sys.argv[1:])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", dies, *command], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    there = bucket.names("data")
    assert there
    assert "data/manifest.json" not in there
    with pytest.raises(InputError, match="not a finished dataset"):
        electra.pretrain(data=bucket.url("data"), out=tmp_path / "run", train={"steps": 1})
    forget()
    assert main(command) == 0
    assert "data/manifest.json" in bucket.names("data")
    assert main(["prepare", "--verify", bucket.url("data")]) == 0


def complaint(capsys, *words):
    assert main([str(word) for word in words]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert SECRET not in message
    assert KEY not in message
    return message


def test_a_wrong_bucket(bucket, capsys, tmp_path):
    message = complaint(capsys, "pretrain", "--data", "s3://no-such-bucket/data", "--out", tmp_path / "run")
    assert "s3://no-such-bucket/data: there is no such bucket" in message
    upload(bucket)
    message = complaint(
        capsys, "prepare", "--corpus", bucket.url("corpus"), "--out", "s3://no-such-bucket/data", *PREPARE
    )
    assert "s3://no-such-bucket/data: there is no such bucket" in message
    assert "nothing in the store" in complaint(capsys, "predict", "--model", bucket.url("none"), "--out", "x")


def test_no_credentials(bucket, capsys, monkeypatch, tmp_path):
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    message = complaint(capsys, "doctor", bucket.url("run"))
    assert "no usable credentials" in message
    assert "AWS_ACCESS_KEY_ID" in message


@pytest.mark.slow
def test_no_network(bucket, capsys, monkeypatch):
    import s3fs

    # Nobody listens there. (The port of a service that no machine has.)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    message = complaint(capsys, "doctor", bucket.url("run"))
    assert "no answer" in message
    assert bucket.url("run") in message


def test_credentials_in_a_url_are_refused_and_not_repeated(bucket, capsys, tmp_path):
    message = complaint(
        capsys, "pretrain", "--data", f"s3://{KEY}:{SECRET}@b/data", "--out", tmp_path / "run"
    )
    assert "no credentials" in message
    assert not (tmp_path / "run").exists()


def test_a_missing_extra_is_named(bucket, capsys, monkeypatch):
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    assert "electra[store]" in complaint(capsys, "doctor", bucket.url("run"))
