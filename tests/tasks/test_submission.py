import zipfile

import pytest

from electra.errors import InputError
from electra.tasks.data.glue import TASKS
from electra.tasks.families.family import TextExample
from electra.tasks.predictions import SubmissionFile, submission_file, write_submission

TWO = [TextExample(id=str(number), where=f"test.tsv:{number + 2}", text="a") for number in (0, 1)]


def labels(*names):
    return [{"label": name, "probabilities": {}} for name in names]


@pytest.mark.parametrize(
    ("name", "split", "predictions", "file", "lines"),
    [
        ("cola", "test", labels("unacceptable", "acceptable"), "CoLA.tsv", "01"),
        ("sst2", "test", labels("positive", "negative"), "SST-2.tsv", "10"),
        ("mrpc", "test", labels("equivalent", "not_equivalent"), "MRPC.tsv", "10"),
        ("qqp", "test", labels("not_duplicate", "duplicate"), "QQP.tsv", "01"),
        ("wnli", "test", labels("entailment", "not_entailment"), "WNLI.tsv", "10"),
        ("mnli", "test_matched", labels("neutral", "entailment"), "MNLI-m.tsv", ["neutral", "entailment"]),
        ("mnli", "test_mismatched", labels(*["contradiction"] * 2), "MNLI-mm.tsv", ["contradiction"] * 2),
        ("ax", "test", labels("neutral", "entailment"), "AX.tsv", ["neutral", "entailment"]),
        (
            "qnli",
            "test",
            labels("not_entailment", "entailment"),
            "QNLI.tsv",
            ["not_entailment", "entailment"],
        ),
        ("rte", "test", labels("entailment", "not_entailment"), "RTE.tsv", ["entailment", "not_entailment"]),
        ("stsb", "test", [{"value": 3.14159}, {"value": 5.2}], "STS-B.tsv", ["3.142", "5.000"]),
        ("stsb", "test", [{"value": -0.3}, {"value": 0}], "STS-B.tsv", ["0.000", "0.000"]),
    ],
)
def test_every_task_in_its_official_form(name, split, predictions, file, lines):
    part = submission_file(name, split, TWO, predictions)
    assert part == SubmissionFile(file, f"index\tprediction\n0\t{lines[0]}\n1\t{lines[1]}\n", 2)


def test_only_test_sets_are_submitted():
    with pytest.raises(InputError, match="'dev' of cola, only for test"):
        submission_file("cola", "dev", TWO, labels("acceptable", "acceptable"))


def whole():
    """All files, of the right lengths."""
    return [
        SubmissionFile(split.submission, "index\tprediction\n", split.num_examples)
        for task in TASKS
        for split in task.splits
        if split.submission
    ]


def test_one_zip_with_the_same_bytes_each_time(tmp_path):
    parts = whole()
    assert write_submission(tmp_path / "a.zip", parts) == []
    assert write_submission(tmp_path / "b.zip", parts[::-1]) == []
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == {
            "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv",
            "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv",
        }  # fmt: skip
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.read("CoLA.tsv") == b"index\tprediction\n"


def test_what_is_missing_is_told(tmp_path):
    parts = [part for part in whole() if part.name not in ("QQP.tsv", "MNLI-mm.tsv", "CoLA.tsv")]
    parts.append(submission_file("cola", "test", TWO, labels("acceptable", "acceptable")))
    assert write_submission(tmp_path / "a.zip", parts) == [
        "CoLA.tsv has 2 predictions, the server expects 1063",
        "QQP.tsv is missing: there are no predictions of qqp",
        "MNLI-mm.tsv is missing: there are no predictions of mnli",
    ]
