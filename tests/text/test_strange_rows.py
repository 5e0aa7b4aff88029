"""Datasets whose manifest was changed and sealed again."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from electra import files
from electra.errors import InputError
from electra.text.rows import FORMAT_VERSION, KIND, Rows, write_shard


@pytest.fixture
def data(tmp_path):
    """A dataset of one shard with one row."""
    folder = tmp_path / "data"
    folder.mkdir()
    example = (np.array([7, 8, 9], np.uint32), np.array([], np.uint32))
    rows, tokens = write_shard(folder, "train-00000", [example], cls_id=2, sep_id=3, vocab_size=99)
    shards = [{"name": "train-00000", "rows": rows, "tokens": tokens}]
    facts = {"kind": KIND, "format_version": FORMAT_VERSION, "seq_length": 16}
    facts |= {"tokenizer": {"special_ids": {"[PAD]": 0}}, "splits": {"train": {"shards": shards}}}
    files.write_manifest(folder, facts)
    return folder


@pytest.mark.parametrize("name", ["../other/train-00000", "{top}/other/train-00000", "train-00001", "a\0b"])
def test_shards_are_files_that_the_manifest_seals(data, tmp_path, name):
    assert Rows(data)[0].ids.tolist() == [2, 7, 8, 9, 3]
    shutil.copytree(data, tmp_path / "other")
    for part in ("ids", "offsets", "segments"):
        shutil.copy(data / f"train-00000.{part}.npy", data / f"train-00001.{part}.npy")
    path = data / files.MANIFEST
    content = json.loads(path.read_bytes())
    del content["manifest_sha256"]
    content["splits"]["train"]["shards"][0]["name"] = name.format(top=tmp_path)
    checksum = hashlib.sha256(files.to_json(content)).hexdigest()
    files.write_json(path, {**content, "manifest_sha256": checksum})
    with pytest.raises(InputError, match=r"manifest\.json has no checksum of"):
        Rows(data)
