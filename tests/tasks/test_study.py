import dataclasses
import re

import pytest

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.study import content_hash, limited, require_trainable, row_length
from electra.tasks.task import Task


def examples(count, *, where="file"):
    return [
        TextExample(
            id=str(number), where=f"{where}:{number}", text=f"text {number}", label=int(number % 4 == 0)
        )
        for number in range(count)
    ]


@pytest.fixture
def task():
    return Task(
        name="any",
        family=Classification(("no", "yes")),
        splits={"train": examples(100), "dev": examples(20), "test": examples(30)},
        unlabelled=frozenset({"test"}),
        main_score="accuracy",
    )


def test_fewer_examples_keep_the_shares_of_the_classes(task):
    fewer = limited(task, train=20, held_out=8)
    labels = [example.label for example in fewer.splits["train"]]
    assert (len(labels), sum(labels)) == (20, 5)
    assert len(fewer.splits["dev"]) == 8
    assert len(fewer.splits["test"]) == 30
    train, dev = fewer.notes
    assert re.match(r"train: 20\b.*\b100\b", train)
    assert re.match(r"dev: 8\b.*\b20\b", dev)


def test_the_same_examples_are_left_every_time(task):
    assert limited(task, train=20, held_out=None).splits == limited(task, train=20, held_out=None).splits


def test_no_limit_changes_nothing_and_says_nothing(task):
    same = limited(task, train=None, held_out=1000)
    assert same.splits == task.splits
    assert not same.notes


def test_the_hash_is_of_what_is_learned_not_of_where_it_was(task):
    moved = dataclasses.replace(task, splits={**task.splits, "train": examples(100, where="elsewhere")})
    assert content_hash([moved]) == content_hash([task])
    changed = dataclasses.replace(task.splits["train"][7], label=1)
    other = [*task.splits["train"][:7], changed, *task.splits["train"][8:]]
    assert content_hash([dataclasses.replace(task, splits={**task.splits, "train": other})]) != content_hash(
        [task]
    )


@pytest.mark.parametrize(("asked", "expected"), [(None, 128), (64, 64), (512, 512)])
def test_rows_are_as_long_as_asked_or_as_the_tasks(task, asked, expected):
    assert row_length(task, EncoderConfig(), max_length=asked) == expected


def test_rows_are_no_longer_than_the_model_takes(task):
    encoder = EncoderConfig(max_position_embeddings=64)
    assert row_length(task, encoder, max_length=None) == 64
    with pytest.raises(InputError, match=r"max_length.*\b65\b.*\b8\b.*\b64\b"):
        row_length(task, encoder, max_length=65)


@pytest.mark.parametrize(("missing", "message"), [("train", "training.*`train`"), ("dev", "`dev`")])
def test_what_cannot_be_learned_or_scored_is_refused(task, missing, message):
    rest = {split: found for split, found in task.splits.items() if split != missing}
    with pytest.raises(InputError, match=message):
        require_trainable(dataclasses.replace(task, splits=rest))
    require_trainable(task)
