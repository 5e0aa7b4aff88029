"""What a run says of itself in environment.json, and where it is found when that file is lost."""

import pytest
import torch

from electra import files
from electra.errors import InputError
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.engine import read_environment

CHOICES = {"choices": {"precision": "bf16"}, "started_from": {"path": "x"}}
DAMAGED = ["[]", "{", "", "null", '{"choices": 3}', "\0\0"]


@pytest.fixture
def run(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints", CheckpointConfig()) as store:
        for step, precision in ((1, "fp32"), (2, "bf16")):
            facts = {"step": step, **CHOICES, "choices": {"precision": precision}}
            store.save(step, {"model": {"weight": torch.ones(1)}}, facts)
    return tmp_path


def test_a_file_that_is_whole_is_taken_as_it_is(run):
    files.write_json(run / "environment.json", {"choices": {"precision": "fp32"}})
    assert read_environment(run) == {"choices": {"precision": "fp32"}}


@pytest.mark.parametrize("content", DAMAGED)
def test_in_place_of_a_damaged_one_the_newest_checkpoint_is_asked(run, content):
    problems = []
    (run / "environment.json").write_text(content)
    assert read_environment(run, on_problem=problems.append).items() >= CHOICES.items()
    assert [str(run / "environment.json") in problem for problem in problems] == [True]
    (run / "checkpoints" / "step-00000002" / "state.json").write_text(content)
    assert read_environment(run)["choices"] == {"precision": "fp32"}


def test_a_run_that_has_not_begun_says_nothing(tmp_path):
    problems = []
    assert read_environment(tmp_path, on_problem=problems.append) == {}
    assert problems == []


@pytest.mark.parametrize("content", DAMAGED)
def test_without_a_checkpoint_a_damaged_one_is_an_error_with_a_way_out(tmp_path, content):
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(InputError, match=rf"{tmp_path}/environment\.json.*remove"):
        read_environment(tmp_path)
