"""Every door that reads foreign files, with good files that were changed; `make chaos` does it for longer."""

import random

import pytest

import campaign
import fuzz
from electra.tasks.families.classification import Classification


@pytest.fixture(scope="module")
def doors(make_tuned, tmp_path_factory):
    _, model = make_tuned(Classification(("bad", "good"), ("accuracy",)))
    folder = tmp_path_factory.mktemp("doors") / "good"
    return {door.name: door for door in fuzz.doors(folder, model / "final")}


@pytest.mark.parametrize("name", campaign.DOORS)
def test_changed_files_are_read_or_refused(doors, tmp_path, name):
    door = doors[name]
    door.read(door.folder)
    examples, read = fuzz.fuzz(door, tmp_path / "changed", random.Random(name), examples=150, seconds=20)
    # If none were refused, or none read, the changes would not reach what they are meant for.
    assert 0 < read < examples


def test_all_doors_are_tried(doors):
    assert {*doors} == {*campaign.DOORS}
