import json

import pytest

from electra.errors import InputError
from electra.report.runs import read_run, read_runs


def only(folder):
    return read_runs([folder])[0]


def test_a_whole_run(make_run):
    run = only(make_run(steps=100))
    assert [record["step"] for record in run.train] == [*range(10, 101, 10)]
    assert run.train[3]["tokens"] == 40 * 4096
    assert "mlm_loss" in run.train[0]
    assert run.config["masking.mask_prob"] == 0.15
    assert run.environment["cpu.cores"] == 2
    assert run.events[0].event == "saved"
    assert run.notes == []


def test_a_metric_that_was_null_is_absent_at_that_step(make_run):
    run = only(make_run(steps=100))
    assert "discriminator_precision" not in run.train[0]


def test_a_torn_last_line_is_left_out_and_noted(make_run):
    folder = make_run(steps=100)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    run = only(folder)
    assert len(run.train) == 9
    (note,) = run.notes
    assert note.startswith(f"metrics.jsonl line {len(path.read_text().splitlines())} ")


@pytest.mark.parametrize("line", ["\x00\x00", "{not json", "[1, 2]", "3", "{}", '{"kind": "train"}'])
def test_odd_lines_do_not_hide_the_others(make_run, line):
    folder = make_run(steps=100)
    path = folder / "metrics.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    assert len(only(folder).train) == 10


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", "true", '"7"', "[1]", "1" + "0" * 400])
def test_what_is_no_finite_number_is_not_measured(tmp_path, value):
    metrics = f'{{"mlm_loss": {value}, "mlm_accuracy": 1}}'
    line = f'{{"kind": "train", "step": 1, "loss": {value}, "metrics": {metrics}}}'
    (tmp_path / "metrics.jsonl").write_text(line)
    assert read_run(tmp_path, name="r").train == [{"step": 1, "mlm_accuracy": 1}]


def test_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "config.yaml").write_text("objective: mlm\n")
    run = only(tmp_path)
    assert (run.train, run.samples) == ([], [])
    assert any("metrics.jsonl" in note for note in run.notes)


def test_damaged_facts_are_notes(make_run):
    folder = make_run(steps=10)
    (folder / "config.yaml").write_text("a: [1")
    (folder / "environment.json").write_text("{")
    run = only(folder)
    assert (run.config, run.environment) == ({}, {})
    assert len(run.notes) == 2


def test_a_malicious_tag_in_the_config_is_not_obeyed(make_run, tmp_path):
    folder, victim = make_run(steps=10), tmp_path / "victim"
    (folder / "config.yaml").write_text(f"a: !!python/object/apply:os.mkdir [{victim}]\n")
    assert "config.yaml" in only(folder).notes[0]
    assert not victim.exists()


@pytest.mark.parametrize("number", ["0x" + "f" * 20_000, ":".join(["1"] * 3000), "-" + "9" * 200])
def test_a_number_that_nobody_could_show_is_a_note(make_run, number):
    folder = make_run(steps=10)
    (folder / "config.yaml").write_text(f"seed: {number}\n")
    run = only(folder)
    assert run.config == {}
    assert "config.yaml" in run.notes[0]


def test_samples_with_missing_or_odd_views(tmp_path):
    rows = [{"original": ["a", 3], "suspicion": [None, 0.5]}, "no row"]
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "samples.jsonl").write_text(json.dumps({"step": 5, "rows": rows}))
    (row,) = only(tmp_path).samples[0].rows
    assert (row.original, row.masked, row.suspicion) == (["a", "3"], [], [0.0, 0.5])


@pytest.mark.parametrize(
    ("folders", "names"),
    [(["x/a", "x/b"], ["a", "b"]), (["x/a", "y/a"], ["x/a", "y/a"]), (["x/a", "x/a"], ["a (1)", "a (2)"])],
)
def test_names_are_short_and_differ(tmp_path, folders, names):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "metrics.jsonl").touch()
    assert [run.name for run in read_runs([tmp_path / folder for folder in folders])] == names


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="run folder"):
        read_runs([])
    with pytest.raises(InputError, match="absent"):
        read_runs([tmp_path / "absent"])
    with pytest.raises(InputError, match=r"config\.yaml.*metrics\.jsonl"):
        read_runs([tmp_path])
