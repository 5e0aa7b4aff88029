"""`electra pretrain` as a person runs it: whole commands on a small corpus, stopped, changed, continued."""

import itertools
import json
import math
import re
import shutil
import signal

import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra import cli
from electra.pretraining.step import PretrainPart, PretrainProblem
from pretrain_settings import read_settings


@pytest.fixture
def spoil(monkeypatch):
    """Make the loss of some batches NaN."""

    def batches(*numbers, factor=math.nan):
        call = PretrainPart.__call__

        def call_or_spoil(self, module):
            loss, sums = call(self, module)
            return (loss * factor if self.random.step in numbers else loss), sums

        monkeypatch.setattr(PretrainPart, "__call__", call_or_spoil)

    return batches


def test_the_run_folder_holds_what_is_promised(whole, runs):
    train, valid = runs.lines(whole, "train"), runs.lines(whole, "valid")
    assert [record["step"] for record in train] == list(range(1, 21))
    assert [record["step"] for record in valid] == [10, 20]
    assert train[-1]["tokens"] > train[0]["tokens"] > 0
    assert train[-1]["flops"] / train[-1]["tokens"] == pytest.approx(train[0]["flops"] / train[0]["tokens"])
    assert {"mlm_loss", "discriminator_auc", "replaced_fraction"} <= train[-1]["metrics"].keys()
    assert train[-1]["metrics"]["mlm_loss"] < train[0]["metrics"]["mlm_loss"]
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["gemm_peak_flops"] > 0
    assert environment["choices"]["precision"] == "fp32"
    assert (whole / "report.html").stat().st_size > 1000
    samples = [json.loads(line) for line in (whole / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [10, 20]
    row = samples[-1]["rows"][0]
    assert len({len(row[key]) for key in ("original", "masked", "corrupted", "replaced", "suspicion")}) == 1
    assert "[MASK]" in row["masked"]
    changed = [before != after for before, after in zip(row["original"], row["corrupted"], strict=True)]
    assert changed == [bool(flag) for flag in row["replaced"]]


def test_the_learning_rate_is_read_from_step_one_on_and_ends_at_zero(runs, whole):
    rates = [record["learning_rate"] for record in runs.lines(whole, "train")]
    assert rates[0] == pytest.approx(0.01 * (1 - 1 / 20))
    assert rates[-1] == 0


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_transformers_opens_the_final_models(whole, part):
    transformers = pytest.importorskip("transformers")
    name = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}[part]
    model, info = getattr(transformers, name).from_pretrained(
        whole / "final" / part, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    trained = load_file(whole / "checkpoints" / "step-00000020" / "model.safetensors")
    mine = trained[f"{part}.layers.0.attention.query.weight"]
    assert torch.equal(model.electra.encoder.layer[0].attention.self.query.weight, mine)
    tokenizer = transformers.AutoTokenizer.from_pretrained(whole / "final" / part)
    assert tokenizer.mask_token == "[MASK]"


@pytest.mark.slow
def test_the_saved_config_runs_the_run_again(runs, whole, tmp_path):
    command = ["pretrain", "--config", str(whole / "config.yaml"), "--out", str(tmp_path / "again")]
    assert cli.main(command) == cli.OK
    runs.assert_same(tmp_path / "again", whole)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(10,), (5, 10, 15), (1, 19)])
def test_stopped_and_continued_is_bit_for_bit_the_same(whole, runs, tmp_path, interrupt, stops):
    interrupt(*stops)
    for _ in stops:
        runs.pretrain(tmp_path / "run", code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "run")
    assert len(runs.events(tmp_path / "run", "resumed")) == len(stops)
    runs.assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_holds_with_accumulation(runs, tmp_path, interrupt, precision):
    keys = {"train__micro_batch": 3, "train__precision": precision}
    runs.pretrain(tmp_path / "whole", **keys)
    interrupt(7)
    runs.pretrain(tmp_path / "parts", **keys, code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "parts", **keys)
    runs.assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_accumulation_gives_the_loss_of_the_whole_batch(runs, tmp_path, precision):
    keys = {"model__dropout": 0.0, "train__steps": 2, "train__precision": precision}
    for name, size in (("all", "all"), ("parts", 3)):
        runs.pretrain(tmp_path / name, train__micro_batch=size, **keys)
    runs.assert_same_work(tmp_path / "all", tmp_path / "parts", precision=precision)
    if precision == "fp32":
        # In bf16 the tokens of a pair may change places.
        first, other = (runs.lines(tmp_path / name, "train")[0]["metrics"] for name in ("all", "parts"))
        assert first["discriminator_auc"] == pytest.approx(other["discriminator_auc"])


@pytest.mark.slow
def test_a_run_keeps_the_precision_that_it_began_with(runs, tmp_path, interrupt, monkeypatch):
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "bf16")
    interrupt(2)
    runs.pretrain(tmp_path / "run", train__precision="auto", train__steps=5, code=cli.INTERRUPTED)
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "fp32")
    runs.pretrain(tmp_path / "run", train__precision="auto", train__steps=5)
    runs.pretrain(tmp_path / "whole", train__precision="bf16", train__steps=5)
    runs.assert_same(tmp_path / "run", tmp_path / "whole")
    chosen = json.loads((tmp_path / "run" / "environment.json").read_text())["choices"]
    assert chosen["precision"] == "bf16"


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(whole, runs):
    before = runs.learned(whole)
    runs.pretrain(whole)
    assert runs.learned(whole)[0] == before[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_within_one_step(runs, tmp_path, interrupt, number):
    interrupt(6, number=number)
    runs.pretrain(tmp_path / "run", code=cli.INTERRUPTED)
    assert (tmp_path / "run" / "checkpoints" / "step-00000007" / "manifest.json").is_file()
    assert runs.lines(tmp_path / "run", "train")[-1]["step"] == 7


@pytest.mark.slow
def test_a_signal_in_an_evaluation_saves_and_the_evaluation_is_made_later(whole, runs, tmp_path, monkeypatch):
    look, seen = PretrainProblem._look, []

    def look_and_signal(self, number):
        if not seen:
            signal.raise_signal(signal.SIGTERM)
        seen.append(number)
        return look(self, number)

    monkeypatch.setattr(PretrainProblem, "_look", look_and_signal)
    runs.pretrain(tmp_path / "run", code=cli.INTERRUPTED)
    assert seen == [0]
    assert (tmp_path / "run" / "checkpoints" / "step-00000010").is_dir()
    assert not runs.lines(tmp_path / "run", "valid")
    runs.pretrain(tmp_path / "run")
    runs.assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGUSR1", "checkpoint_now"])
def test_a_request_to_save_is_answered_and_training_goes_on(
    whole, runs, tmp_path, interrupt, monkeypatch, how
):
    run = tmp_path / "run"
    if how == "SIGUSR1":
        interrupt(6, number=signal.SIGUSR1)
    else:
        (run).mkdir()
        (run / how).touch()
    runs.pretrain(run, checkpoint__keep_last=50)
    assert (run / "checkpoints" / f"step-{7 if how == 'SIGUSR1' else 1:08}").is_dir()
    assert not (run / "checkpoint_now").exists()
    assert len(runs.events(run, "signal")) == 1
    runs.assert_same(run, whole)


@pytest.mark.slow
def test_a_changed_config_is_refused_by_its_keys(runs, tmp_path, interrupt, capsys):
    interrupt(5)
    runs.pretrain(tmp_path / "run", code=cli.INTERRUPTED)
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT, train__learning_rate=0.02, masking__mask_prob=0.3)
    complaint = capsys.readouterr().err
    assert re.search(r"train\.learning_rate.*\b0\.01\b.*\b0\.02\b", complaint)
    assert "--resume.allow_changes masking.mask_prob train.learning_rate" in complaint
    command = runs.words(tmp_path / "run", train__learning_rate=0.02)
    assert cli.main([*command, "--resume.allow_changes", "train.learning_rate"]) == cli.OK
    rates = {record["step"]: record["learning_rate"] for record in runs.lines(tmp_path / "run", "train")}
    assert rates[7] / rates[6] > 1.5


@pytest.mark.slow
def test_other_data_is_refused_with_both_hashes(runs, whole, other_data, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    runs.pretrain(run, data=other_data, code=cli.BAD_INPUT)
    complaint = capsys.readouterr().err
    state = json.loads((run / "checkpoints" / "step-00000020" / "state.json").read_text())
    assert state["dataset_sha256"] in complaint
    assert "--data" in complaint


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(whole, runs, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    path = run / "checkpoints" / "step-00000020" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    runs.pretrain(run)
    assert "step-00000020" in capsys.readouterr().err
    runs.assert_same(run, whole)


@pytest.mark.slow
def test_a_loss_that_is_no_number_changes_nothing(runs, tmp_path, spoil):
    spoil(3)
    runs.pretrain(tmp_path / "run", train__steps=5, checkpoint__save_every=1, checkpoint__keep_last=9)
    assert runs.events(tmp_path / "run", "skipped_update") == [4]
    assert runs.lines(tmp_path / "run", "train")[3]["loss"] is None
    folder = tmp_path / "run" / "checkpoints"
    assert not (folder / "step-00000004").exists(), "a state in doubt is no checkpoint"
    before, after = (load_file(folder / f"step-0000000{step}" / "model.safetensors") for step in (3, 5))
    assert all(value.isfinite().all() for value in after.values() if value.is_floating_point())
    # The learning rate of the last step is 0: nothing else could have changed a weight after step 3.
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_several_in_a_row_go_back_and_leave_the_batches_out(runs, tmp_path, spoil):
    spoil(5, 6, 7)
    runs.pretrain(tmp_path / "run", health__max_bad_steps=3)
    assert runs.events(tmp_path / "run", "rolled_back") == [4]
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000020" / "state.json").read_text())
    assert (state["step"], state["batches_skipped"]) == (20, 4)
    assert [record["step"] for record in runs.lines(tmp_path / "run", "train")] == list(range(1, 21))
    assert all(record["loss"] is not None for record in runs.lines(tmp_path / "run", "train"))


@pytest.mark.slow
def test_a_spike_that_stays_goes_back(runs, tmp_path, spoil):
    spoil(9, 10, 11, factor=50.0)
    runs.pretrain(tmp_path / "run", health__spike_steps=3)
    assert runs.events(tmp_path / "run", "rolled_back") == [8]


@pytest.mark.slow
def test_after_three_times_it_ends_with_advice(runs, tmp_path, spoil, capsys):
    spoil(*range(5, 100))
    runs.pretrain(tmp_path / "run", health__max_bad_steps=2, code=cli.BAD_INPUT)
    assert "lower --train.learning_rate" in capsys.readouterr().err
    assert len(runs.events(tmp_path / "run", "rolled_back")) == 3


@pytest.mark.slow
def test_a_dry_run_says_what_is_needed_and_writes_nothing(runs, tmp_path, capsys):
    assert cli.main([*runs.words(tmp_path / "run"), "--dry_run=true"]) == cli.OK
    shown = capsys.readouterr().out
    for word in ("parameters", "FLOPs", "memory", "disk", "whole run", "[MASK]", "replaced"):
        assert word in shown
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_time_budget_ends_the_run_and_the_schedule(runs, tmp_path):
    runs.pretrain(tmp_path / "run", train__max_time="2s", train__steps=10**6)
    last = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    state = json.loads((last / "state.json").read_text())
    assert state["seconds"] >= 2
    assert state["step"] < 10**6
    train = runs.lines(tmp_path / "run", "train")
    for before, after in itertools.pairwise(train):
        assert after["learning_rate"] <= 0.01 * max(0.0, 1 - before["seconds"] / 2)


@pytest.mark.slow
def test_a_token_budget_ends_the_run(runs, tmp_path):
    runs.pretrain(tmp_path / "run", train__max_tokens="1e3")
    tokens = [record["tokens"] for record in runs.lines(tmp_path / "run", "train")]
    assert tokens[-2] < 1000 <= tokens[-1]


@pytest.mark.slow
def test_auto_finds_a_micro_batch_that_fits(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.train.devices.free_memory", lambda device: 2_000_000)
    runs.pretrain(tmp_path / "run", train__micro_batch="auto", train__steps=2)
    chosen = json.loads((tmp_path / "run" / "environment.json").read_text())["choices"]["micro_batch"]
    assert 1 <= chosen < 8


@pytest.mark.slow
def test_layers_computed_twice_take_less_memory_and_lose_the_same(runs, tmp_path, capsys):
    def kept(**keys):
        runs.pretrain(tmp_path / "preview", dry_run="true", **keys)
        return float(re.search(r"memory .* ([\d.]+) for the rows", capsys.readouterr().out)[1])

    twice = {"train__checkpoint_activations": "true"}
    for name, keys in {"once": {}, "twice": twice}.items():
        runs.pretrain(tmp_path / name, train__steps=3, **keys)
    losses = [[line["loss"] for line in runs.lines(tmp_path / name, "train")] for name in ("once", "twice")]
    assert losses[0] == losses[1]
    assert kept(**twice, train__batch_size=128) < kept(train__batch_size=128)


@pytest.mark.slow
def test_memory_that_runs_out_names_the_key(runs, tmp_path, monkeypatch, capsys):
    def full(self, module):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PretrainPart, "__call__", full)
    runs.pretrain(tmp_path / "run", code=cli.BAD_INPUT)
    assert "--train.micro_batch 4" in capsys.readouterr().err


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(runs, tmp_path, capsys, monkeypatch):
    begin = PretrainProblem.begin

    def begin_twice(self, *, step, batch_number, progress):
        if step == 2:
            assert cli.main(runs.words(tmp_path / "run")) == cli.BAD_INPUT
        return begin(self, step=step, batch_number=batch_number, progress=progress)

    monkeypatch.setattr(PretrainProblem, "begin", begin_twice)
    runs.pretrain(tmp_path / "run", train__steps=3)
    assert re.search("run.* process.*--out", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("size", "rate", "mask_prob", "width"), [("base", 2e-4, 0.15, 1 / 3), ("large", 2e-4, 0.25, 0.25)]
)
def test_values_that_are_not_given_are_the_papers_for_the_size(size, rate, mask_prob, width, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(yaml.safe_dump({"model": {"size": size}, "train": {"batch_size": 7}}))
    settings = read_settings(["--config", str(path), "--data=d", "--out=o", "--train.steps=9"])
    assert (settings.train.learning_rate, settings.masking.mask_prob) == (rate, mask_prob)
    assert (settings.generator.width, settings.train.batch_size, settings.train.steps) == (width, 7, 9)


def test_another_budget_replaces_the_papers_number_of_steps():
    where = ["--data=d", "--out=o"]
    assert read_settings(where).train.steps == 1_000_000
    assert read_settings([*where, "--train.max_time=30m"]).train.steps is None
    assert read_settings([*where, "--train.max_tokens=1e9"]).train.steps is None
    assert read_settings([*where, "--train.max_time=30m", "--train.steps=9"]).train.steps == 9
