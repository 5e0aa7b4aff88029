"""Datasets of strangers: what they say is compared with what they hold, and with where it lies."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from electra.errors import InputError
from electra.text.dataset_splits import open_splits

datasets = pytest.importorskip("datasets", reason="datasets is in the extra hf")
DATA = "data-00000-of-00001.arrow"
TEXTS = ["abcde", "fghijklmnop"]
ENDS = (5, 16)
"""Where the texts end in their column."""


@pytest.fixture
def saved(tmp_path):
    """A folder of `save_to_disk` with two rows."""
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1]}).save_to_disk(folder)
    return folder


def replace(path, old, new):
    content = path.read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def put_ends(folder, *ends):
    replace(folder / DATA, *(np.array([0, *some], np.int32).tobytes() for some in (ENDS, ends)))


def rows(folder):
    return [row for split in open_splits(str(folder)).values() for _, row in split.rows()]


def test_what_is_whole_is_read(saved):
    assert [row["text"] for row in rows(saved)] == TEXTS


@pytest.mark.parametrize(
    ("ends", "row"), [((5, 200), 2), ((5, 40), 2), ((-5, 16), 1), ((30, 16), 1), ((5, 4), 2)]
)
def test_a_text_that_lies_outside_of_its_column_is_refused_by_its_row(saved, ends, row):
    put_ends(saved, *ends)
    with pytest.raises(InputError, match=rf"^hf:{saved}:{row}: "):
        rows(saved)


def test_a_text_that_lies_far_outside_does_not_end_the_process(saved):
    put_ends(saved, 5, 1_000_000_000)
    read = f"""
from electra.errors import InputError
from electra.text.dataset_splits import open_splits
try:
    list(open_splits({str(saved)!r})[""].rows())
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, timeout=120)
    assert (done.returncode, f"{saved}:2: " in done.stdout) == (0, True), done


def test_bytes_that_are_no_text_are_refused_by_their_row(saved):
    replace(saved / DATA, b"fghij", b"fg\xff\xfej")
    with pytest.raises(InputError, match=rf"^hf:{saved}:2: "):
        rows(saved)


def test_so_are_values_that_python_does_not_have(tmp_path):
    import pyarrow

    days = pyarrow.array([0, 2**31 - 1], pyarrow.int32()).cast(pyarrow.date32())
    datasets.Dataset(pyarrow.table({"text": TEXTS, "day": days})).save_to_disk(tmp_path / "days")
    with pytest.raises(InputError, match=r"days:2: "):
        rows(tmp_path / "days")


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "place", ["../other/data.arrow", "{top}/other/data.arrow", "sub/../../other/data.arrow", "pipe", "a\0b"]
)
def test_files_of_a_split_lie_in_its_folder(saved, tmp_path, place):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.arrow").write_bytes((saved / DATA).read_bytes())
    os.mkfifo(saved / "pipe")
    change(saved / "state.json", _data_files=[{"filename": place.format(top=tmp_path)}])
    with pytest.raises(InputError, match=r"saved/state\.json names"):
        rows(saved)


@pytest.mark.parametrize("state", ["[]", '{"_data_files": [3]}', '{"_data_files": {"a": 1}}', "[" * 100_000])
def test_a_state_of_another_form(saved, state):
    (saved / "state.json").write_text(state)
    with pytest.raises(InputError, match=r"saved/state\.json"):
        rows(saved)


@pytest.mark.parametrize("split", ["../saved", "..", ".", "/etc", "a/../b", "x::http://127.0.0.1:9/data"])
def test_splits_are_folders_in_the_folder(saved, tmp_path, split):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "dataset_dict.json").write_text(json.dumps({"splits": [split]}))
    with pytest.raises(InputError, match=r"parts/dataset_dict\.json names"):
        rows(tmp_path / "parts")


def test_the_files_of_each_split_are_looked_at(saved, tmp_path):
    datasets.DatasetDict({"train": datasets.load_from_disk(saved)}).save_to_disk(tmp_path / "parts")
    assert [row["text"] for row in rows(tmp_path / "parts")] == TEXTS
    train = tmp_path / "parts" / "train"
    # It does not hide what counts.
    (train / "dataset_dict.json").write_text('{"splits": []}')
    change(train / "state.json", _data_files=[{"filename": f"../../saved/{DATA}"}])
    with pytest.raises(InputError, match=r"train/state\.json names"):
        rows(tmp_path / "parts")


def test_data_may_be_links(tmp_path, monkeypatch):
    """As version control of data makes them."""
    (tmp_path / "kept.csv").write_text("text,label\nopen,0\n")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.csv").symlink_to(tmp_path / "kept.csv")
    (tmp_path / "link").symlink_to(tmp_path / "files")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path / "files")
    for folder in (tmp_path / "files", tmp_path / "link", "../files"):
        assert [row["text"] for row in rows(folder)] == ["open"]


@pytest.mark.parametrize("place", ["../secret.csv", "{top}/secret.csv"])
def test_a_readme_names_no_data_elsewhere(tmp_path, monkeypatch, place):
    (tmp_path / "secret.csv").write_text("text,label\nsecret,0\n")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\nopen,0\n")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert [row["text"] for row in rows(folder)] == ["open"]
    named = f"  data_files: {place.format(top=tmp_path)}"
    (folder / "README.md").write_text(
        "\n".join(["---", "configs:", "- config_name: default", named, "---", ""])
    )
    with pytest.raises(InputError, match=r"README\.md names"):
        rows(folder)
