import math

import pytest

from electra.errors import InputError
from electra.train.engine import ResumeConfig, check_same_run, flatten, plain, read_choices

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
    )


def test_the_same_run_and_free_keys_pass():
    check({})
    check({"out": "y"})


def test_changed_keys_are_named_with_both_values():
    with pytest.raises(InputError, match=r"train\.steps: 10 -> 20") as complaint:
        check({"seed": 1, "train": {"steps": 20, "learning_rate": 0.1}})
    assert "seed: 0 -> 1" in str(complaint.value)
    assert "--resume.allow_changes seed train.steps" in str(complaint.value)


@pytest.mark.parametrize("allowed", ["train.steps", "train", "all"])
def test_a_change_that_is_named_is_allowed(allowed):
    check({"train": {"steps": 20, "learning_rate": 0.1}}, allowed=[allowed])


def test_a_change_beside_the_named_one_is_refused():
    with pytest.raises(InputError, match="seed"):
        check({"seed": 1, "train": {"steps": 20, "learning_rate": 0.1}}, allowed=["train.steps"])


@pytest.mark.parametrize(("key", "what"), [("dataset_sha256", "data"), ("tokenizer_sha256", "tokenizer")])
def test_other_hashes_are_refused_with_both_values(key, what):
    with pytest.raises(InputError, match=f"another {what}.*{SAVED[key]}.*ccc"):
        check({}, allowed=["all"], **{key: "ccc"})


def test_values_are_flat_and_plain():
    assert dict(flatten({"a": {"b": 1}, "c": 2})) == {"a.b": 1, "c": 2}
    assert plain({"clip": math.inf, "rate": 0.1}) == {"clip": "inf", "rate": 0.1}


def test_a_new_run_has_chosen_nothing_yet(tmp_path):
    assert read_choices(tmp_path) == {}
