import math
import re
from pathlib import Path

import pytest

from electra.errors import InputError
from electra.tasks.data.glue import GLUE_TASKS, TASKS, find_glue, leaderboard_score, load_glue
from electra.tasks.families.family import Score

PARSES = "promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI = "\t".join(["index", *PARSES.split(), "sentence1", "sentence2"])
MNLI_LINE = "\t".join(["{}", *"1234567", "a", "b"])
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2".replace(" ", "\t")
STSB_LINE = "\t".join(["{}", *"123456", "a", "b"])
MRPC = "#1 ID\t#2 ID\t#1 String\t#2 String"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
PAIR = "index\tsentence1\tsentence2"

# First line (None if there is none), then one of each label, as in the official files.
OFFICIAL = {
    "CoLA/train.tsv": (None, "gj04\t0\t*\ta", "gj04\t1\t\ta"),
    "CoLA/dev.tsv": (None, "gj04\t0\t*\ta", "gj04\t1\t\ta"),
    "CoLA/test.tsv": ("index\tsentence", "0\ta", "1\ta"),
    "SST-2/train.tsv": ("sentence\tlabel", "a\t0", "a\t1"),
    "SST-2/dev.tsv": ("sentence\tlabel", "a\t0", "a\t1"),
    "SST-2/test.tsv": ("index\tsentence", "0\ta", "1\ta"),
    "MRPC/train.tsv": (f"\ufeffQuality\t{MRPC}", "0\t1\t2\ta\tb", "1\t1\t2\ta\tb"),
    "MRPC/dev.tsv": (f"\ufeffQuality\t{MRPC}", "0\t1\t2\ta\tb", "1\t1\t2\ta\tb"),
    "MRPC/test.tsv": (f"index\t{MRPC}", "0\t1\t2\ta\tb", "1\t1\t2\ta\tb"),
    "STS-B/train.tsv": (f"{STSB}\tscore", STSB_LINE.format(0) + "\t0.5", STSB_LINE.format(1) + "\t5.000"),
    "STS-B/dev.tsv": (f"{STSB}\tscore", STSB_LINE.format(0) + "\t0.5", STSB_LINE.format(1) + "\t5.000"),
    "STS-B/test.tsv": (STSB, STSB_LINE.format(0), STSB_LINE.format(1)),
    "QQP/train.tsv": (QQP, "7\t1\t2\ta\tb\t0", "8\t3\t4\ta\tb\t1"),
    "QQP/dev.tsv": (QQP, "7\t1\t2\ta\tb\t0", "8\t3\t4\ta\tb\t1"),
    "QQP/test.tsv": ("id\tquestion1\tquestion2", "0\ta\tb", "1\ta\tb"),
    "MNLI/train.tsv": (
        f"{MNLI}\tlabel1\tgold_label",
        MNLI_LINE.format(0) + "\tneutral\tentailment",
        MNLI_LINE.format(1) + "\tneutral\tneutral",
    ),
    "MNLI/test_matched.tsv": (MNLI, MNLI_LINE.format(0), MNLI_LINE.format(1)),
    "MNLI/test_mismatched.tsv": (MNLI, MNLI_LINE.format(9847), MNLI_LINE.format(9848)),
    "QNLI/train.tsv": (
        "index\tquestion\tsentence\tlabel", "0\ta\tb\tentailment", "1\ta\tb\tnot_entailment",
    ),
    "QNLI/dev.tsv": ("index\tquestion\tsentence\tlabel", "0\ta\tb\tentailment", "1\ta\tb\tnot_entailment"),
    "QNLI/test.tsv": ("index\tquestion\tsentence", "0\ta\tb", "1\ta\tb"),
    "RTE/train.tsv": (f"{PAIR}\tlabel", "0\ta\tb\tentailment", "1\ta\tb\tnot_entailment"),
    "RTE/dev.tsv": (f"{PAIR}\tlabel", "0\ta\tb\tentailment", "1\ta\tb\tnot_entailment"),
    "RTE/test.tsv": (PAIR, "0\ta\tb", "1\ta\tb"),
    "WNLI/train.tsv": (f"{PAIR}\tlabel", "0\ta\tb\t0", "1\ta\tb\t1"),
    "WNLI/dev.tsv": (f"{PAIR}\tlabel", "0\ta\tb\t0", "1\ta\tb\t1"),
    "WNLI/test.tsv": (PAIR, "0\ta\tb", "1\ta\tb"),
    "diagnostic/diagnostic.tsv": (PAIR, "0\ta\tb", "1\ta\tb"),
}  # fmt: skip
for genres in ("matched", "mismatched"):
    votes = "\t".join(f"label{number}" for number in range(1, 6))
    OFFICIAL[f"MNLI/dev_{genres}.tsv"] = (
        f"{MNLI}\t{votes}\tgold_label",
        MNLI_LINE.format(0) + "\tneutral" * 5 + "\tentailment",
        MNLI_LINE.format(1) + "\tentailment" * 5 + "\tcontradiction",
    )


@pytest.fixture
def glue(tmp_path):
    """A folder as the official one, with two examples in each file."""
    for name, lines in OFFICIAL.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines if line is not None), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("row", TASKS, ids=lambda row: row.name)
def test_every_task_in_its_official_files(glue, row):
    task = load_glue(row.name, glue)
    assert set(task.splits) == {split.name for split in row.splits}
    assert task.unlabelled == {name for name in task.splits if name.startswith("test")}
    for name, examples in task.splits.items():
        assert len(examples) == (4 if name == "train" and row.is_unordered else 2)
        assert len({example.id for example in examples}) == len(examples)
        assert {example.text for example in examples} <= {"a", "b"}
        assert {example.text_pair for example in examples} <= ({"a", "b"} if len(row.texts) == 2 else {None})
        assert all((example.label is None) == (name in task.unlabelled) for example in examples)
    assert (task.name, task.family, task.epochs) == (row.name, row.family, row.epochs)
    assert task.main_score == row.family.metrics[0]
    assert all(re.search(r"\b2 examples", note) for note in task.notes if "official" in note)


def test_gold_labels_not_single_votes(glue):
    task = load_glue("mnli", glue)
    names = task.family.labels()
    assert task.scored_splits == ["dev_matched", "dev_mismatched"]
    assert [names[example.label] for example in task.splits["train"]] == ["entailment", "neutral"]
    assert [names[example.label] for example in task.splits["dev_mismatched"]] == [
        "entailment",
        "contradiction",
    ]


def test_pairs_without_order_are_seen_in_both(glue):
    first, _, third, fourth = load_glue("mrpc", glue).splits["train"]
    assert (first.text, first.text_pair) == (third.text_pair, third.text) == ("a", "b")
    assert (third.label, fourth.label) == (0, 1)
    assert (first.id, third.id) == ("2", "2-swapped")
    assert third.where == first.where
    assert len(load_glue("mrpc", glue).splits["dev"]) == 2
    assert len(load_glue("mrpc", glue, unordered_pairs="as_read").splits["train"]) == 2


def test_the_task_s_own_folder_or_the_one_above_in_any_case(glue):
    assert load_glue("sst2", glue / "SST-2").splits == load_glue("sst2", glue).splits
    (glue / "RTE").rename(glue / "rte")
    assert load_glue("rte", glue).splits["dev"]
    (glue / "QNLI").rename(glue / "somewhere")
    assert load_glue("qnli", glue / "somewhere").splits["dev"]


def test_the_diagnostic_set_may_lie_with_mnli_and_under_its_new_name(glue):
    (glue / "diagnostic/diagnostic.tsv").rename(glue / "MNLI/AX.tsv")
    (glue / "diagnostic").rmdir()
    (example, _) = load_glue("ax", glue).splits["test"]
    assert example.where == f"{glue}/MNLI/AX.tsv:2"
    assert "ax" in find_glue(glue)
    (glue / "MNLI/AX.tsv").unlink()
    assert "ax" not in find_glue(glue)


def test_tasks_that_a_folder_holds(glue):
    assert find_glue(glue) == list(GLUE_TASKS)
    for name in ("dev.tsv", "train.tsv", "test.tsv"):
        (glue / "WNLI" / name).unlink()
    assert find_glue(glue) == [name for name in GLUE_TASKS if name != "wnli"]
    with pytest.raises(InputError, match=r"GLUE.*CoLA"):
        find_glue(glue / "CoLA")


def test_a_task_without_training_examples_can_be_scored(glue):
    (glue / "QNLI/train.tsv").unlink()
    task = load_glue("qnli", glue)
    assert task.scored_splits == ["dev"]
    assert any(note.startswith("qnli") and "train.tsv" in note for note in task.notes)


def test_flaws_of_the_official_file_are_told(glue):
    with (glue / "QQP/train.tsv").open("a") as file:
        file.write("9\tbroken\n" * 12)
    (note,) = [note for note in load_glue("qqp", glue).notes if "12 lines" in note]
    assert note.startswith(f"{glue}/QQP/train.tsv: ")
    assert re.search(r"official.*\b12 lines: 4, 5, 6, 7, 8, 9, 10, 11, 12, 13 \.\.\.", note)


def test_what_cannot_be_loaded(glue):
    with pytest.raises(InputError, match="nowhere"):
        load_glue("cola", glue / "nowhere")
    with pytest.raises(InputError, match=r"mnli.*train\.tsv.*MNLI/"):
        load_glue("mnli", glue / "diagnostic")
    with pytest.raises(InputError, match=r"SST-2/train\.tsv:1: .*'sentence1'"):
        load_glue("rte", glue / "SST-2")
    (glue / "WNLI/train.tsv").write_text(f"{PAIR}\tlabel\n0\ta\tb\t1\n1\tc\td\t1\n")
    with pytest.raises(InputError, match=r"WNLI/train\.tsv: .*\b2\b.*label"):
        load_glue("wnli", glue)


def test_the_leaderboard_counts_means():
    scores = {"dev": {"accuracy": Score(0.8), "f1": Score(0.9)}}
    assert leaderboard_score("mrpc", scores).value == pytest.approx(0.85)
    both = {"dev_matched": {"accuracy": Score(0.8)}, "dev_mismatched": {"accuracy": Score(0.6)}}
    assert leaderboard_score("mnli", both).value == pytest.approx(0.7)
    scores["dev"]["f1"] = Score(math.nan, "no reason")
    assert re.search("f1.*dev.*no reason", leaderboard_score("mrpc", scores).undefined)
    assert not leaderboard_score("mrpc", {}).is_defined


# Real files. No train set of QNLI is to be had there.
@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("cola", [2528, 6023]),
        ("sst2", [29780, 37569]),
        ("mrpc", [1194, 2474]),
        ("stsb", None),
        ("qnli", None),
        ("rte", [1249, 1241]),
        ("wnli", [323, 312]),
    ],
)
def test_real_files_have_the_official_counts(shared: Path, name, classes):
    (row,) = [row for row in TASKS if row.name == name]
    task = load_glue(name, shared / "data/glue", unordered_pairs="as_read")
    expected = {split.name: split.num_examples for split in row.splits}
    if name == "qnli":
        del expected["train"]
        (note,) = task.notes
        assert "train.tsv" in note
    else:
        assert task.notes == ()
    assert {split: len(examples) for split, examples in task.splits.items()} == expected
    if classes:
        labels = [example.label for example in task.splits["train"]]
        assert [labels.count(number) for number in range(2)] == classes
    # The server counts its examples from 0.
    ids = [example.id for example in task.splits["test"]]
    assert ids == [str(number) for number in range(len(ids))]
