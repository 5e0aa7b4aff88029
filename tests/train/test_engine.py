import json
import math
import re
import subprocess
import sys

import pytest
import torch
import yaml

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.sizes import EncoderConfig
from electra.train.distributed import World
from electra.train.engine import (
    Engine,
    ResumeConfig,
    check_same_run,
    flatten,
    json_values,
    read_choices,
    write_description,
)
from electra.train.schedule import TrainConfig

SAVED = {
    "dataset_sha256": "aaa",
    "tokenizer_sha256": "bbb",
    "config": {"seed": 0, "out": "x", "train": {"steps": 10, "learning_rate": 0.1}},
}


def check(changes, *, allowed=(), **facts):
    config = {**SAVED["config"], **changes}
    check_same_run(
        SAVED,
        {**SAVED, **facts, "config": config},
        ResumeConfig(allow_changes=list(allowed)),
        free_keys=("out",),
        defaults={"start": "", "train": {"steps": 1, "optimizers": "joint"}},
    )


def test_the_same_run_and_free_keys_pass():
    check({})
    check({"out": "y"})


def test_a_key_newer_than_the_run_may_have_its_default_only():
    check({"start": "", "train": {**SAVED["config"]["train"], "optimizers": "joint"}})
    with pytest.raises(InputError, match=r"train\.optimizers.*joint.*separate"):
        check({"train": {**SAVED["config"]["train"], "optimizers": "separate"}})


def test_changed_keys_are_named_with_both_values():
    with pytest.raises(InputError, match=r"train\.steps.*\b10\b.*\b20\b") as complaint:
        check({"seed": 1, "train": {"steps": 20, "learning_rate": 0.1}})
    assert re.search(r"seed.*\b0\b.*\b1\b", str(complaint.value))
    assert "--resume.allow_changes seed train.steps" in str(complaint.value)


@pytest.mark.parametrize("allowed", ["train.steps", "train", "all"])
def test_a_change_that_is_named_is_allowed(allowed):
    check({"train": {"steps": 20, "learning_rate": 0.1}}, allowed=[allowed])


def test_a_change_beside_the_named_one_is_refused():
    with pytest.raises(InputError, match="seed"):
        check({"seed": 1, "train": {"steps": 20, "learning_rate": 0.1}}, allowed=["train.steps"])


@pytest.mark.parametrize(("key", "what"), [("dataset_sha256", "data"), ("tokenizer_sha256", "tokenizer")])
def test_other_hashes_are_refused_with_both_values(key, what):
    with pytest.raises(InputError, match=rf"{what}.*{SAVED[key]}.*ccc"):
        check({}, allowed=["all"], **{key: "ccc"})


def test_values_are_flat_and_plain():
    assert dict(flatten({"a": {"b": 1}, "c": 2})) == {"a.b": 1, "c": 2}
    assert json_values({"clip": math.inf, "rate": 0.1}) == {"clip": "inf", "rate": 0.1}


def test_a_new_run_has_chosen_nothing_yet(tmp_path):
    assert read_choices(tmp_path) == {}


def test_a_run_keeps_what_it_chose_for_as_long_as_the_config_says_auto(tmp_path):
    write_description(tmp_path, {"seed": 3}, choices={"precision": "bf16", "micro_batch": 5}, fact=1)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"seed": 3}
    assert json.loads((tmp_path / "environment.json").read_text())["fact"] == 1
    cpu = torch.device("cpu")
    auto = Engine.choose(TrainConfig(micro_batch="auto", batch_size=8), World(), cpu, run=tmp_path)
    assert auto.precision == "bf16"
    assert auto.micro_batch(lambda: 1.0) == 5
    assert auto.choices(micro_batch=5) == {"device": "cpu", "precision": "bf16", "micro_batch": 5}
    named = TrainConfig(micro_batch=2, precision="fp32", batch_size=8)
    given = Engine.choose(named, World(), cpu, run=tmp_path)
    assert (given.precision, given.micro_batch(lambda: 1.0)) == ("fp32", 2)


def test_encoders_are_told_whether_to_recompute(tmp_path):
    model = torch.nn.Sequential(Encoder(EncoderConfig.preset("tiny", vocab_size=20)))
    for recomputes in (True, False):
        Engine(train=TrainConfig(checkpoint_activations=recomputes)).set_recomputation(model)
        assert model[0].recomputes_layers == recomputes
    assert Engine(train=TrainConfig()).wrap(model, idle_weights=False) is model


def test_a_folder_is_held_by_one_command_at_a_time(tmp_path):
    engine = Engine(train=TrainConfig())
    refused = pytest.raises(InputError, match=r"run.*--out")
    with engine.holding(tmp_path / "run"), refused, engine.holding(tmp_path / "run"):
        pass
    with engine.holding(tmp_path / "run"):
        pass


def test_what_a_killed_command_was_writing_goes_when_the_next_one_holds_the_folder(tmp_path):
    write = (
        "import os; from electra import files; files.write_file(PATH, lambda file: os.kill(os.getpid(), 9))"
    )
    (tmp_path / "seed-0").mkdir()
    for name in ("environment.json", "seed-0/scores.json"):
        program = write.replace("PATH", f"__import__('pathlib').Path({str(tmp_path / name)!r})")
        subprocess.run([sys.executable, "-c", program], check=False)
    assert len(list(tmp_path.rglob(".*.json.*.tmp"))) == 2
    # Process 1 runs, and nobody's process writes the other one.
    others = {".report.html.1.tmp", ".mine.tmp"}
    for name in others:
        (tmp_path / name).touch()
    with Engine(train=TrainConfig()).holding(tmp_path):
        assert {path.name for path in tmp_path.rglob("*.tmp")} == others


def test_a_run_computes_with_its_own_number_of_threads(tmp_path):
    before = torch.get_num_threads()
    train = TrainConfig(steps=1, batch_size=2, threads=before + 1, precision="fp32")
    engine = Engine.choose(train, World(), torch.device("cpu"))
    with engine.holding(tmp_path / "run"):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(InputError, match=r"train\.threads.*\b0\b"):
        TrainConfig(steps=1, threads=0)
