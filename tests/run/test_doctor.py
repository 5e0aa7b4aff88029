"""Folders with one illness each, made from a real run: the doctor finds it, and not in a healthy one."""

import html
import json
import math
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import electra
from electra import cli, config, files
from electra.pretraining.states import states_warning
from electra.pretraining.step import collapse_warning
from electra.report.datasets import read_data
from electra.report.diagnosis import diagnose_run
from electra.report.page import page
from electra.report.runs import read_runs
from electra.tasks.config import FinetuneConfig

STEPS = 2000
TINY = {"little_text", "large_vocabulary", "many_epochs"}
"""True of the data of all tests."""
RANKS = {"states_rank": 40.0, "states_cosine": 0.3}


class Patient:
    """A real finished run with other measurements and other data, which can be made ill."""

    def __init__(self, folder: Path, *, run: Path, data: Path) -> None:
        self.run, self.data, self.tokenizer = folder / "run", folder / "data", data / "tokenizer"
        shutil.copytree(run, self.run)
        self.write_data()
        self.config(data=str(self.data), out=str(self.run), train__steps=STEPS)
        environment = json.loads((self.run / "environment.json").read_text()) | {"threads": 1, "cores": 2}
        files.write_json(self.run / "environment.json", environment)
        self.write_metrics()

    def config(self, **changes):
        path = self.run / "config.yaml"
        values = yaml.safe_load(path.read_text())
        for key, value in changes.items():
            *groups, name = key.split("__")
            place = values
            for group in groups:
                place = place[group]
            place[name] = value
        path.write_text(yaml.safe_dump(values))

    def write_data(self, *, rows=50_000, tokens=5_000_000, valid_rows=500, counts=None, tokenizer=None):
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(tokenizer or self.tokenizer, self.data / "tokenizer")
        ids = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
        size = 300 if counts is None else len(counts)
        counts = np.full(size, tokens // size, np.int64) if counts is None else counts
        if counts[1] == tokens // size:
            counts[1] = 10
        np.save(self.data / "token_counts.npy", counts)
        splits = {
            "train": {"rows": rows, "tokens": tokens, "shards": []},
            "valid": {"rows": valid_rows, "tokens": 0, "shards": []},
        }
        tokenizer_facts = {"vocab_size": size, "special_ids": ids}
        settings = {"corpus": ["text"], "tokenizer": None, "vocab_size": size, "valid_fraction": 0.01}
        facts = {"kind": "dataset", "splits": splits, "tokenizer": tokenizer_facts, "config": settings}
        files.write_manifest(self.data, facts)

    def write_metrics(self, *, change=lambda record: record, events=(), steps=STEPS):
        entropy = read_data(self.data).unigram_entropy
        lines = []
        for step in range(10, steps + 1, 10):
            for kind in ("train", *(["valid"] if step % 250 == 0 else [])):
                loss = entropy * (0.5 + 0.5 * math.exp(-step / 300)) + 0.01 * math.sin(step)
                metrics = {"masked_loss": loss, "masked_accuracy": 0.3, "discriminator_auc": 0.8}
                metrics |= {"discriminator_recall": 0.3, "discriminator_precision": 0.7}
                metrics |= {"replaced_fraction": 0.1, "discriminator_loss": 0.2}
                record = {
                    "kind": kind,
                    "step": step,
                    "tokens": 2000 * step,
                    "seconds": step / 2,
                    "flops": 1e9,
                }
                if kind == "train":
                    metrics |= {"loss": loss, "gradient_norm": 2.0, "mfu": 0.4, "tokens_per_second": 4000.0}
                    metrics |= {"learning_rate": 0.01}
                else:
                    metrics |= {"loss": loss, **RANKS}
                lines.append(record | {"metrics": change({**metrics, **record})})
        lines += [{"kind": "event", "step": steps, "event": name, "message": "x"} for name in events]
        text = "".join(json.dumps({**line, **line.pop("metrics", {})}) + "\n" for line in lines)
        (self.run / "metrics.jsonl").write_text(text)

    def findings(self):
        return diagnose_run(read_runs([self.run])[0])

    def ill(self):
        return {finding.key: finding for finding in self.findings() if finding.is_ill}


@pytest.fixture
def patient(tmp_path, runs, whole):
    return Patient(tmp_path, run=whole, data=runs.data)


def with_values(**values):
    """Change of every record; of held-out ones only, or of training ones, if the name says so."""

    def change(record):
        for name, value in values.items():
            kind, _, key = name.partition("__") if "__" in name else ("", "", name)
            if kind in ("", record["kind"]):
                record[key] = value(record) if callable(value) else value
        return record

    return change


def by_heart(record):
    risen = 1 + max(0, record["step"] - 1000) / 2000
    return record["masked_loss"] * (risen if record["kind"] == "valid" else 1 - 0.3 * (risen - 1))


def rising(record):
    return record["masked_loss"] * (1 + max(0, record["step"] - 1000) / 2000)


def accelerating(record):
    return 6 - 4 * (record["step"] / STEPS) ** 2


def uneven(record):
    return 4000.0 if record["step"] % 30 else 1000.0


MEASURED = {
    "unigram_plateau": ("wrong", with_values(masked_loss=5.69, masked_accuracy=0.05)),
    "calls_all_original": ("wrong", with_values(discriminator_auc=0.501, discriminator_recall=0.0)),
    "weak_discriminator": ("watch", with_values(discriminator_auc=0.57)),
    "nothing_replaced": ("wrong", with_values(replaced_fraction=0.001)),
    "collapsed_states": ("wrong", with_values(valid__states_rank=1.4, valid__states_cosine=0.99)),
    "diverged": ("wrong", with_values(loss=lambda record: None if record["step"] > 1900 else 3.0)),
    "gradient": ("watch", with_values(train__gradient_norm=55.0)),
    "rising_loss": ("watch", with_values(masked_loss=rising)),
    "still_falling": ("watch", with_values(masked_loss=accelerating)),
    "learned_by_heart": ("wrong", with_values(masked_loss=by_heart)),
    "many_epochs": ("watch", with_values(tokens=lambda record: 500_000 * record["step"])),
    "busy_machine": ("watch", with_values(train__tokens_per_second=uneven)),
    "slow": ("watch", with_values(train__mfu=0.1)),
    "discriminator_precision_low": ("watch", with_values(discriminator_precision=0.3)),
}


def assert_accepted(cure, capsys):
    """Every command of ours in a cure has keys and values that exist."""
    for part in cure.split(" && "):
        words = shlex.split(part)
        if words[0] == "electra" and words[1] != "bench":
            with pytest.raises(SystemExit) as ended:
                cli.main([*words[1:], "--print_config"])
            assert ended.value.code == 0, capsys.readouterr().err


def test_a_healthy_run_has_nothing_ill(patient):
    assert patient.ill() == {}
    assert {"unigram_plateau", "collapsed_states", "slow"} <= {one.key for one in patient.findings()}


@pytest.mark.parametrize("key", MEASURED)
def test_an_illness_is_found_in_what_was_measured(patient, key, capsys):
    severity, change = MEASURED[key]
    patient.write_metrics(change=change)
    ill = patient.ill()
    assert ill[key].severity == severity
    assert ill[key].cure
    assert_accepted(ill[key].cure, capsys)


@pytest.mark.parametrize(
    ("key", "events", "severity"),
    [
        ("rolled_back", ["rolled_back"], "watch"),
        ("diverged", ["diverged"], "wrong"),
        ("skipped_updates", ["skipped_update"] * 50, "watch"),
        ("long_warmup", ["warmup_too_long"], "watch"),
    ],
)
def test_an_illness_is_found_in_what_happened(patient, key, events, severity, capsys):
    patient.write_metrics(events=events)
    assert patient.ill()[key].severity == severity
    assert_accepted(patient.ill()[key].cure, capsys)
    patient.write_metrics(events=["saved", "skipped_update", "resumed"])
    assert patient.ill() == {}


def test_a_warmup_of_most_of_the_run_and_more_threads_than_cores(patient):
    patient.config(train__warmup_steps=1500)
    files.write_json(patient.run / "environment.json", {"threads": 8, "cores": 2})
    assert {*patient.ill()} == {"long_warmup", "many_threads"}


def test_the_first_steps_are_not_judged(patient):
    patient.write_metrics(steps=400, change=with_values(discriminator_auc=0.5, discriminator_recall=0.0))
    assert patient.ill() == {}
    assert "early" in {one.key for one in patient.findings()}


def test_illnesses_of_the_data_are_those_of_the_run(patient, other_vocabulary, capsys):
    rare = np.full(300, 3, np.int64)
    rare[5:50] = 100_000
    unknown = np.full(300, 16_000, np.int64)
    unknown[1] = 200_000
    ill = {
        "rows_below_batch": {"rows": 5},
        "little_text": {"tokens": 900_000},
        "nothing_held_out": {"valid_rows": 0},
        "large_vocabulary": {"counts": rare},
        "unknown_tokens": {"counts": unknown},
        "vocabulary_mismatch": {"tokenizer": other_vocabulary / "tokenizer"},
    }
    for key, content in ill.items():
        patient.write_data(**content)
        found = patient.ill()
        assert key in found, (key, [*found])
        assert_accepted(found[key].cure, capsys)
    patient.write_data()
    assert patient.ill() == {}


def test_without_the_data_the_accuracy_tells_the_plateau(patient):
    shutil.rmtree(patient.data)
    assert patient.ill() == {}
    assert "data_not_found" in {one.key for one in patient.findings()}
    patient.data = None
    text = (
        (patient.run / "metrics.jsonl")
        .read_text()
        .replace('"masked_accuracy": 0.3', '"masked_accuracy": 0.05')
    )
    (patient.run / "metrics.jsonl").write_text(text)
    assert patient.ill()["unigram_plateau"].severity == "wrong"


def test_masked_language_modelling_has_no_discriminator_to_judge(patient):
    def without(record):
        return {key: value for key, value in record.items() if not key.startswith(("discr", "replaced"))}

    patient.write_metrics(change=without)
    assert patient.ill() == {}
    assert not any("discriminator" in one.key for one in patient.findings())


@pytest.mark.parametrize("auc", [0.529, 0.531])
@pytest.mark.parametrize("recall", [0.009, 0.011])
def test_it_agrees_with_the_run_on_what_collapse_is(patient, auc, recall):
    values = {"discriminator_auc": auc, "discriminator_recall": recall, "replaced_fraction": 0.1}
    patient.write_metrics(change=with_values(**values))
    says = collapse_warning(values, step=STEPS, progress=1.0)
    assert ("calls_all_original" in patient.ill()) == (says is not None)


@pytest.mark.parametrize("rank", [3.9, 4.1])
@pytest.mark.parametrize("cosine", [0.949, 0.951])
def test_it_agrees_with_the_run_on_what_collapsed_states_are(patient, rank, cosine):
    values = {"states_rank": rank, "states_cosine": cosine}
    patient.write_metrics(change=with_values(valid__states_rank=rank, valid__states_cosine=cosine))
    found = patient.ill().get("collapsed_states")
    assert (found is not None and found.severity == "wrong") == (states_warning(values) is not None)


@pytest.mark.slow
def test_the_report_says_what_the_doctor_says(patient):
    patient.write_metrics(change=MEASURED["unigram_plateau"][1])
    shown = html.unescape(page(read_runs([patient.run])))
    for finding in patient.findings():
        assert finding.says in shown
        assert finding.cure in shown


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def doctor(*words, capsys):
    """The command's exit code and what it printed."""
    capsys.readouterr()
    try:
        code = cli.main(["doctor", *map(str, words)])
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().out


def found_by(path):
    return {finding.key: finding for finding in electra.doctor(path) if finding.is_ill}


def test_a_run_that_was_interrupted_is_resumed_by_the_cure(runs, interrupt, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    interrupt(6)
    runs.pretrain(run, code=cli.INTERRUPTED)
    code, out = doctor(run, capsys=capsys)
    assert code == cli.FAILURE
    assert max((run / "checkpoints").iterdir()).name in out
    # From wherever it is typed.
    monkeypatch.chdir(tmp_path)
    finding = found_by(Path("run"))["unfinished"]
    assert finding.severity == "wrong"
    assert cli.main(shlex.split(finding.cure)[1:]) == cli.OK
    assert "unfinished" not in found_by(run)
    assert runs.lines(run, "event")[-1]["step"] == 20


def test_a_damaged_checkpoint_and_a_damaged_model(runs, whole, tmp_path, capsys):
    run = shutil.copytree(whole, tmp_path / "run")
    assert {*found_by(run)} <= TINY
    newest, older = sorted((run / "checkpoints").glob("step-*"), reverse=True)[:2]
    flip(newest / "model.safetensors")
    assert found_by(run)["damaged_checkpoint"].severity == "watch"
    flip(next(run.glob("final/*/model.safetensors")))
    found = found_by(run)
    assert found["damaged_model"].severity == "wrong"
    assert older.name in found["damaged_model"].says
    for part in found["damaged_model"].cure.split(" && ")[1:]:
        assert cli.main(shlex.split(part)[1:]) == cli.OK
    for checkpoint in run.glob("checkpoints/step-*"):
        flip(checkpoint / "state.json")
    shutil.rmtree(run / "final")
    assert found_by(run)["damaged_checkpoint"].severity == "wrong"
    (run / "config.yaml").write_text("a: [")
    found = found_by(run)
    assert found["damaged_file"].severity == "wrong"
    assert shlex.split(found["damaged_file"].cure)[:1] == ["electra"]


def test_a_run_that_goes_on_is_only_told(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "final")
    with files.locked(run / ".lock", busy=""):
        assert "running" in {one.key for one in electra.doctor(run)}
        assert "unfinished" not in found_by(run)
    assert "unfinished" in found_by(run)


def test_a_dataset(runs, tmp_path, capsys):
    data = shutil.copytree(runs.data, tmp_path / "data")
    code, out = doctor(data, capsys=capsys)
    # True of so small a corpus, but nothing is broken.
    assert ({*found_by(data)} <= TINY, code) == (True, cli.OK)
    flip(next(data.glob("train-*.ids.npy")))
    code, out = doctor(data, "--json", capsys=capsys)
    assert code == cli.FAILURE
    (content,) = json.loads(out)
    assert content["kind"] == "dataset"
    assert {"key", "severity", "says", "cure"} == {*content["findings"][0]}
    assert content["findings"][0]["key"] == "damaged"
    assert_accepted(content["findings"][0]["cure"], capsys)
    (data / "manifest.json").write_text("{")
    assert found_by(data)["damaged"].severity == "wrong"


def test_a_dataset_that_was_not_finished(tmp_path, capsys):
    work = tmp_path / "data.partial" / "work"
    work.mkdir(parents=True)
    files.write_json(work / "plan.json", {"config": {"corpus": ["text"], "vocab_size": 300}})
    for path in (tmp_path / "data", tmp_path / "data.partial"):
        finding = found_by(path)["unfinished"]
        assert str(tmp_path / "data") in shlex.split(finding.cure)
        assert_accepted(finding.cure, capsys)


def rewrite(folder, change):
    """Change the weights of a model, and seal it again."""
    path = folder / "discriminator" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    facts = json.loads((folder / "manifest.json").read_text())
    facts = {key: value for key, value in facts.items() if key not in ("files", "manifest_sha256")}
    files.write_manifest(folder, facts)


def matrix_of(tensors):
    return next(name for name, tensor in tensors.items() if tensor.dim() == 2)


def test_a_model(make_run, tmp_path, capsys):
    model = shutil.copytree(make_run(facts={"tokens_read": 1000}), tmp_path / "run") / "final"
    assert found_by(model) == {}
    assert doctor(model, capsys=capsys)[0] == cli.OK
    reading = next(one for one in electra.doctor(model) if one.key == "tokens_read")
    assert config.read(FinetuneConfig, shlex.split(reading.cure)[2:], prog="electra finetune")
    rewrite(model, lambda tensors: tensors[matrix_of(tensors)].mul_(1000))
    assert found_by(model)["large_weights"].severity == "watch"
    rewrite(model, lambda tensors: tensors[matrix_of(tensors)].zero_())
    assert found_by(model)["zero_weights"].severity == "wrong"
    rewrite(model, lambda tensors: tensors[matrix_of(tensors)].fill_(torch.nan))
    assert found_by(model)["weights_not_finite"].severity == "wrong"
    flip(next(model.glob("*/model.safetensors")))
    assert found_by(model)["damaged_model"].severity == "wrong"
    assert doctor(model, capsys=capsys)[0] == cli.FAILURE


def test_a_model_with_another_tokenizer(make_run, runs, tmp_path):
    model = shutil.copytree(make_run() / "final" / "discriminator", tmp_path / "model")
    assert found_by(model) == {}
    values = json.loads((model / "config.json").read_text())
    files.write_json(model / "config.json", values | {"vocab_size": values["vocab_size"] + 5})
    assert "vocab_size" in found_by(model)["unusable_model"].says
    (model / "config.json").unlink()
    (model / "final").mkdir()
    assert found_by(model)["unusable_model"].severity == "wrong"


def test_bad_input_is_told_from_what_is_wrong(tmp_path, capsys):
    assert doctor(tmp_path / "absent", capsys=capsys)[0] == cli.BAD_INPUT
    assert doctor(tmp_path, capsys=capsys)[0] == cli.BAD_INPUT
    assert doctor(capsys=capsys)[0] == cli.BAD_INPUT
    (tmp_path / "file").write_text("x")
    assert doctor(tmp_path / "file", capsys=capsys)[0] == cli.BAD_INPUT
    code, out = doctor("--help", capsys=capsys)
    assert code == 0
    assert "Exit code" in out
