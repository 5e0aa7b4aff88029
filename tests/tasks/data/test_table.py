import re

import pytest

from electra.errors import InputError
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.data.table import find_files, label_notes, repeated_notes
from electra.tasks.families.family import TextExample


def found(folder, *names, path=None, **keys):
    for name in names:
        (folder / name).touch()
    splits = find_files(OwnTaskConfig(**keys), folder if path is None else folder / path)
    return {split: file.name for split, file in splits.items()}


@pytest.mark.parametrize(
    "names",
    [
        {"train": "train.csv", "dev": "dev.csv", "test": "test.csv"},
        {"train": "train.jsonl.gz", "dev": "valid.jsonl", "test": "test.parquet"},
        {"train": "sts-train.tsv", "dev": "sts-dev.tsv", "test": "sts-test.tsv"},
        {"train": "train-v1.3.json", "dev": "valid-v1.3.json", "test": "test-v1.3.json"},
        {"train": "ratings_train.txt", "test": "ratings_test.txt"},
        {"train": "train-00000-of-00001.parquet", "dev": "validation-00000-of-00001.parquet"},
        {"train": "Training.CSV", "dev": "My.Eval.csv"},
    ],
)
def test_splits_are_found_by_the_words_of_their_names(tmp_path, names):
    assert found(tmp_path, *names.values(), "README.md", "latest.csv", "constrained.csv") == names


def test_the_bare_name_goes_before_longer_ones(tmp_path):
    assert found(tmp_path, "train.csv", "train_old.csv", "dev.csv") == {
        "train": "train.csv",
        "dev": "dev.csv",
    }


def test_named_files_go_before_found_ones(tmp_path):
    names = found(tmp_path, "train.csv", "test.csv", "a.csv", "b.csv", train="a.csv", dev="b.csv")
    assert names == {"train": "a.csv", "dev": "b.csv", "test": "test.csv"}


def test_where_one_is_named_others_do_not_confuse(tmp_path):
    assert found(tmp_path, "train-1.csv", "train-2.csv", train="train-2.csv") == {"train": "train-2.csv"}


def test_a_single_file_is_trained_on_and_others_may_be_named_beside_it(tmp_path):
    assert found(tmp_path, "all.csv", "test.csv", "dev.csv", path="all.csv") == {"train": "all.csv"}
    assert found(tmp_path, path="all.csv", dev="dev.csv") == {"train": "all.csv", "dev": "dev.csv"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "trian-1.csv"}, r"trian-1\.csv: .*'train-1\.csv'"),
        ({}, r"train: 'train-1\.csv', 'train-2\.csv'"),
        ({"train": "train-3.csv"}, r"train.*'train-3\.csv'.*'train-[12]"),
        ({"path": "train-1.csv", "train": "train-2.csv"}, r"'train-2\.csv'.*train-1\.csv"),
        ({"path": "inner"}, r"inner: .*\.csv .*\.zst"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, keys, message):
    (tmp_path / "inner").mkdir()
    with pytest.raises(InputError, match=message):
        found(tmp_path, "train-1.csv", "train-2.csv", **keys)


def test_labels_are_shown_with_their_counts():
    (note,) = label_notes({"bad": 1200, "good": 1300})
    assert "bad (1,200), good (1,300)" in note


def test_many_labels_are_cut():
    (note,) = label_notes({f"c{number}": 10 for number in range(20)})
    assert re.search(r"\b20\b.*c0 \(10\), c1 \(10\).*c11 \(10\).*\b8\b", note)


def test_classes_out_of_balance_are_named():
    assert len(label_notes({"a": 100, "b": 10})) == 1
    assert re.search(r"\ba\b.*\b101\b.*\bb\b.*\b10\b", label_notes({"a": 101, "b": 10})[1])


def test_classes_with_few_examples_are_named():
    (note,) = label_notes({"a": 20, "b": 9, "c": 10})[1:]
    assert re.search(r"\b10\b.*: b$", note)


def test_decimal_classes_are_doubted():
    assert "regression" in label_notes({"0.5": 10, "1": 10})[1]
    assert len(label_notes({"1": 10, "2": 10})) == 1


def test_texts_on_both_sides_and_contradicting_labels_are_counted():
    def examples(*pairs):
        return [TextExample(id=text, where="", text=text, label=label) for text, label in pairs]

    splits = {
        "train": examples(("a", 0), ("b", 0), ("b", 1), ("a", 0)),
        "dev": examples(("a", 0), ("c", 1)),
        "test": examples(("d", 1)),
    }
    on_both_sides, contradicting = repeated_notes(splits, lambda example: example.text)
    assert re.match(r"dev: .*\b1\b.*50\.0%.*\btrain\b", on_both_sides)
    assert re.match(r"train: 1\b.*labels", contradicting)
