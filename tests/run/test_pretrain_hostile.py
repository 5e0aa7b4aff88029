"""`electra pretrain` in a run folder that something has damaged, and with keys that make no sense."""

import json
import re
import shutil

import pytest

from electra import cli, files
from electra.train.checkpoint import FORMAT_VERSION, KIND

pytestmark = pytest.mark.slow


@pytest.fixture
def half(whole, tmp_path):
    """A run that has four steps left."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    shutil.rmtree(run / "final")
    (step,) = (run / "checkpoints").iterdir()
    assert step.name in ("step-00000010", "step-00000016")
    return run


def test_broken_lines_of_the_logs_are_left_out_and_said(runs, half, whole, capsys):
    for name in ("metrics.jsonl", "samples.jsonl"):
        first, *others = (half / name).read_bytes().splitlines(keepends=True)
        (half / name).write_bytes(b"".join([first, b'{"step": 3, "kind\n', b"\0\0\n", *others]))
    runs.pretrain(half)
    complaint = capsys.readouterr().err
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert re.search(rf"{name}.*\b2, 3\b", complaint)
    assert len(runs.events(half, "damaged_log")) == 2
    runs.assert_same(half, whole)
    steps = [json.loads(line)["step"] for line in (half / "samples.jsonl").read_text().splitlines()]
    assert steps == [10, 20]


def test_a_run_without_any_checkpoint_begins_again_and_logs_each_step_once(runs, half, whole):
    shutil.rmtree(half / "checkpoints")
    runs.pretrain(half)
    runs.assert_same(half, whole)
    records = [json.loads(line) for line in (half / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if record["kind"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("valid_rows", [16, 0])
def test_a_model_that_computes_nothing_is_no_result(runs, tmp_path, capsys, valid_rows):
    run, keys = tmp_path / "run", {"train__steps": 2, "valid_rows": valid_rows}
    for _ in range(2):
        # The same again when the same command is given again.
        runs.pretrain(run, train__learning_rate=1e30, code=cli.BAD_INPUT, **keys)
        assert "--train.learning_rate" in capsys.readouterr().err
        assert not (run / "final").exists()
        assert len(runs.events(run, "diverged")) == 1
        assert not (run / "checkpoints" / "step-00000002").exists()
    # The way out that it names.
    runs.pretrain(run, train__learning_rate=1e-3, resume__allow_changes="train.learning_rate", **keys)
    assert (run / "final" / "manifest.json").is_file()


@pytest.mark.parametrize("content", ["[]", None])
def test_without_environment_json_the_checkpoint_says_what_the_run_chose(
    runs, tmp_path, interrupt, monkeypatch, capsys, content
):
    run, keys = tmp_path / "run", {"train__precision": "auto", "train__steps": 5}
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "bf16")
    interrupt(2)
    runs.pretrain(run, **keys, code=cli.INTERRUPTED)
    if content is None:
        (run / "environment.json").unlink()
    else:
        (run / "environment.json").write_text(content)
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "fp32")
    runs.pretrain(run, **keys)
    assert "environment.json" in capsys.readouterr().err
    # Written again, with what was chosen at first.
    assert json.loads((run / "environment.json").read_text())["choices"]["precision"] == "bf16"


def test_if_no_checkpoint_says_it_either_it_is_an_error_with_a_way_out(runs, half, capsys):
    (half / "environment.json").write_text("[]")
    reseal(half, lambda state: state.pop("choices"))
    runs.pretrain(half, code=cli.BAD_INPUT)
    assert str(half / "environment.json") in capsys.readouterr().err


def reseal(run, change):
    """Change the state of the only checkpoint, and seal it anew."""
    (folder,) = (run / "checkpoints").glob("step-*")
    state = json.loads((folder / "state.json").read_text())
    change(state)
    files.write_json(folder / "state.json", state)
    facts = {"kind": KIND, "format_version": FORMAT_VERSION, "step": int(folder.name.partition("-")[2])}
    files.write_manifest(folder, facts)
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config", None),
        ("tokenizer_sha256", 3),
        ("health", {"pulse": 60}),
    ],
)
def test_a_checkpoint_that_lacks_a_fact_is_named_with_a_way_out(runs, half, capsys, key, value):
    folder = reseal(half, lambda state: state.pop(key) if value is None else state.update({key: value}))
    runs.pretrain(half, code=cli.BAD_INPUT)
    complaint = capsys.readouterr().err
    assert str(folder) in complaint
    assert key in complaint
    assert "--out" in complaint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_restarts", "-1"),
        ("valid_rows", "-1"),
        ("generator.width", "1000"),
        ("generator.depth", "11"),
        ("train.micro_batch", "abc"),
        ("train.steps", "1.5"),
        ("train.threads", "[1]"),
        ("model.dropout", "much"),
        ("model.backbone", "modren"),
        ("train", "3"),
        ("train", "{steps: abc}"),
        ("seed", "null"),
    ],
)
@pytest.mark.parametrize("where", ["command", "file"])
def test_a_value_that_makes_no_sense_is_one_line_that_names_its_key(
    runs, tmp_path, capsys, key, value, where
):
    command = ["pretrain", f"--data={runs.data}", f"--out={tmp_path / 'run'}"]
    if where == "command":
        command += [f"--{key}", value]
    else:
        group, _, name = key.rpartition(".")
        path = tmp_path / "keys.yaml"
        path.write_text(f"{group}:\n  {name}: {value}\n" if group else f"{key}: {value}\n")
        command += ["--config", str(path)]
    assert cli.main(command) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    named = "train.steps" if "steps" in value else key
    assert re.search(rf"(electra|keys\.yaml): {re.escape(named)}\b", line)
    assert "Union" not in line
    assert len(line) < 200 + len(str(tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["pretrain", "prepare"])
@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/run", "file", "file/run"])
def test_an_out_that_cannot_be_a_folder_is_refused_before_any_work(
    runs, tmp_path, monkeypatch, capsys, verb, out
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    words = {"pretrain": ["--data", str(runs.data)], "prepare": ["--corpus", "file"]}[verb]
    assert cli.main([verb, *words, "--out", out]) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--out {out}" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["token_counts.npy", "tokenizer/vocab.txt", "tokenizer/tokenizer.json"])
def test_what_was_counted_or_named_wrongly_is_found_before_it_is_used(runs, tmp_path, capsys, name):
    data = shutil.copytree(runs.data, tmp_path / "data")
    content = bytearray((data / name).read_bytes())
    content[len(content) // 2] ^= 1
    (data / name).write_bytes(content)
    runs.pretrain(tmp_path / "run", data=data, code=cli.BAD_INPUT)
    assert f"{name}: contents changed" in capsys.readouterr().err
