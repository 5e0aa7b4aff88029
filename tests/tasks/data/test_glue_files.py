import dataclasses
import lzma

import pytest

from electra.errors import InputError
from electra.tasks.data.glue import EMPTY_TEXT, MISSING_COLUMNS, glue_task, load_glue, read_glue_file

QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"


def read(folder, name, split, *lines, end="\n", start="", last=True):
    """What is found in a file of these lines."""
    task = glue_task(name)
    (row,) = [row for row in task.splits if row.name == split]
    path = folder / row.files[0]
    path.write_bytes((start + end.join(lines) + end * last).encode())
    return read_glue_file(path, task, row)


def test_a_file_without_names_of_columns(tmp_path):
    first, second = read(
        tmp_path, "cola", "dev", "gj04\t1\t\tIt is.", "cj99\t0\t*\tIs it it.", last=False
    ).examples
    assert (first.text, first.text_pair, first.label, first.id) == ("It is.", None, 1, "1")
    assert (second.text, second.label, second.id) == ("Is it it.", 0, "2")
    assert second.where == f"{tmp_path}/dev.tsv:2"


def test_columns_go_by_their_names(tmp_path):
    file = read(tmp_path, "rte", "dev", "label\tsentence2\tindex\tsentence1", "entailment\tb\t7\ta")
    (example,) = file.examples
    assert (example.id, example.text, example.text_pair, example.label) == ("7", "a", "b", 0)


def test_quotes_marks_and_line_ends_of_windows(tmp_path):
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    line = '0\t11\t12\t" He said .\tHe said " so \u2028 and \x85 more'
    file = read(tmp_path, "mrpc", "train", header, line, "", "", end="\r\n", start="\ufeff")
    (example,) = file.examples
    assert example.text == '" He said .'
    assert example.text_pair == 'He said " so \u2028 and \x85 more'
    assert (example.id, example.label) == ("2", 0)


def test_values(tmp_path):
    header = "index\tsentence1\tsentence2\tscore"
    file = read(tmp_path, "stsb", "dev", header, "0\ta\tb\t4.750", "1\ta\tb\t0")
    assert [example.label for example in file.examples] == [4.75, 0.0]


@pytest.mark.parametrize("header", ["index\tsentence", "index\tsentence\tlabel"])
def test_labels_of_a_test_file_are_missing_or_nonsense(tmp_path, header):
    lines = {2: ("5\tA text.",), 3: ("5\tA text.\t-1",)}[len(header.split("\t"))]
    (example,) = read(tmp_path, "sst2", "test", header, *lines).examples
    assert (example.id, example.text, example.label) == ("5", "A text.", None)


def test_known_flaws_of_the_official_file_are_counted(tmp_path):
    lines = (QQP, "1\t2\t3\ta\tb\t1", "4\t5\t6\tbroken", "in two\tc\t0", "7\t8\t9\td\t\t0")
    file = read(tmp_path, "qqp", "train", *lines)
    assert file.flaws == {MISSING_COLUMNS: [3, 4], EMPTY_TEXT: [5]}
    assert [(example.id, example.text_pair) for example in file.examples] == [("1", "b"), ("7", "")]
    with pytest.raises(InputError, match=r"test\.tsv:3: .*'4'"):
        read(tmp_path, "qqp", "test", "id\tquestion1\tquestion2", "3\ta\tb", "4")


RTE = "index\tsentence1\tsentence2\tlabel"
STSB = "index\tsentence1\tsentence2\tscore"


@pytest.mark.parametrize(
    ("name", "split", "lines", "message"),
    [
        (
            "rte",
            "dev",
            [RTE, "0\ta\tb\tentailment", "1\ta\tb"],
            r"dev\.tsv:3: .*missing",
        ),
        ("rte", "dev", [RTE, "0\ta\tb\tc\tentailment"], r"dev\.tsv:2: .*columns"),
        ("rte", "dev", [RTE, "0\ta\tb\tentailment", "", "1\ta\tb\tentailment"], r"dev\.tsv:3: .*columns"),
        ("rte", "dev", [RTE, "0\ta\tb\tmaybe"], r"dev\.tsv:2: label.*'maybe'.*entailment"),
        ("rte", "dev", [RTE, "0\ta\t \tentailment"], r"dev\.tsv:2: .*text"),
        ("rte", "dev", [RTE, "0\ta\tb\tentailment"] * 2, r"dev\.tsv:3: label.*'label'"),
        ("rte", "train", [RTE, "3\ta\tb\tentailment", "3\tc\td\tentailment"], r":3: index '3'.*\b2\b"),
        ("rte", "dev", ["index\tsentence1\tlabel", "0\ta\tentailment"], r"dev\.tsv:1.*'sentence2'.*RTE"),
        ("rte", "test", ["sentence1\tsentence2", "a\tb"], r"test\.tsv:1: .*'index'"),
        ("rte", "dev", [RTE], r"dev\.tsv: .*examples"),
        ("rte", "dev", [""], r"dev\.tsv.*empty"),
        ("cola", "train", ["It is.\t1"], r"train\.tsv:1: .*columns"),
        ("cola", "train", [""], r"train\.tsv.*empty"),
        ("cola", "train", ["gj04\t2\t\tIt is."], r"train\.tsv:1: label.*'2'.*0, 1"),
        ("stsb", "dev", [STSB, "0\ta\tb\tnan"], r"dev\.tsv:2: score.*'nan'.*\b0\b.*\b5\b"),
        ("stsb", "dev", [STSB, "0\ta\tb\t5.1"], r"dev\.tsv:2: score.*'5\.1'"),
        ("stsb", "dev", [STSB, "0\ta\tb\t"], r"dev\.tsv:2: score.*''"),
        ("stsb", "dev", [STSB, "0\ta\tb\t-0.2"], r"dev\.tsv:2: score.*'-0\.2'"),
    ],
)
def test_bad_lines_are_named(tmp_path, name, split, lines, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, split, *lines)


def test_other_encodings_and_compressed_files_are_read(tmp_path):
    header = "index\tsentence\tlabel\n"
    lines = "".join(f"{n}\tune soirée très réussie, déjà vue {n}\t1\n" for n in range(9))
    (tmp_path / "dev.tsv.xz").write_bytes(lzma.compress((header + lines).encode("cp1252")))
    (tmp_path / "train.tsv").write_bytes((header + lines + "9\tnon\t0\n").encode("utf-16"))
    task = load_glue("sst2", tmp_path)
    assert [example.text for example in task.examples("dev")] == [
        f"une soirée très réussie, déjà vue {n}" for n in range(9)
    ]
    assert task.examples("train")[:9] == [
        dataclasses.replace(example, where=f"{tmp_path}/train.tsv:{n + 2}")
        for n, example in enumerate(task.examples("dev"))
    ]


def test_a_byte_that_is_no_character_is_named_with_its_line(tmp_path):
    task = glue_task("cola")
    path = tmp_path / "dev.tsv"
    path.write_bytes("gj04\t1\t\tnaïve é é é\n".encode() + b"gj04\t1\t\tcaf\xe9\n")
    with pytest.raises(InputError, match=r"dev\.tsv:2: .*utf-8"):
        read_glue_file(path, task, task.splits[1])
