import csv
import re
import zipfile
from pathlib import Path

import pytest

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.data.glue import TASKS
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.answers import AnswerExample
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.tagging import Tagging
from electra.tasks.model import FineTuned, TaskModel
from electra.tasks.predictions import (
    INPUT,
    Predicted,
    SubmissionFile,
    check_form,
    form_of,
    input_columns,
    input_config,
    load_input,
    submission_file,
    write_form,
    write_submission,
)
from electra.tasks.task import Task

FAMILY = Classification(("no", "yes"))


@pytest.fixture
def tuned(tokenizer):
    def make(family, **columns):
        encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
        model = TaskModel(encoder, {"any": family})
        facts = {INPUT: columns, "main_score": "accuracy"}
        return FineTuned(model=model, task="any", tokenizer=tokenizer, max_length=32, facts=facts)

    return make


def task_of(family, *examples):
    return Task(name="any", family=family, splits={"train": examples}, main_score="accuracy")


def test_a_model_of_pairs_takes_pairs():
    pair = TextExample(id="1", where="here", text="a", text_pair="b", label=0)
    assert input_columns(task_of(FAMILY, pair), None) == {"kind": "classification", "text_pair": "text_pair"}
    single = TextExample(id="1", where="here", text="a", label=0)
    assert input_columns(task_of(FAMILY, single), None) == {"kind": "classification"}
    assert input_columns(task_of(QuestionAnswering(answerability="on")), None) == {"kind": "answering"}


def test_own_columns_are_remembered_but_not_the_files():
    columns = input_columns(task_of(FAMILY), OwnTaskConfig(text="body", train="x.csv"))
    assert columns["text"] == "body"
    assert "train" not in columns


def test_what_is_given_for_a_file_counts_more(tuned):
    model = tuned(FAMILY, text="body", text_pair="more")
    assert input_config(model, OwnTaskConfig()).text == "body"
    config = input_config(model, OwnTaskConfig(text="headline"))
    assert (config.text, config.text_pair) == ("headline", "more")


def test_a_table_needs_no_labels(tuned, tmp_path):
    (tmp_path / "rows.csv").write_text("body\nx\ny\n", encoding="utf-8")
    task = load_input(tuned(FAMILY, text="body"), tmp_path / "rows.csv", OwnTaskConfig())
    assert [example.text for example in task.examples("test")] == ["x", "y"]
    assert task.unlabelled == {"test"}


def test_lines_of_a_text_are_examples(tuned, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffa b\r\n\r\nc\n", encoding="utf-8")
    task = load_input(tuned(FAMILY), path, OwnTaskConfig())
    assert [(example.id, example.text) for example in task.examples("test")] == [("1", "a b"), ("3", "c")]
    tagged = load_input(tuned(Tagging(("A", "B"), "tokens")), path, OwnTaskConfig())
    assert tagged.examples("test")[0].words == ("a", "b")


@pytest.mark.parametrize(
    ("family", "columns", "content", "message"),
    [
        (FAMILY, {"text_pair": "more"}, "a\n", "text.*more"),
        (MultipleChoice(), {}, "a\n", r"--input.*JSONL"),
        (FAMILY, {}, "\n \n", r"\.txt: .*text"),
    ],
)
def test_a_text_that_cannot_be_judged_is_refused(tuned, tmp_path, family, columns, content, message):
    (tmp_path / "lines.txt").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_input(tuned(family, **columns), tmp_path / "lines.txt", OwnTaskConfig())


def predicted_task(family, example, *, name="any"):
    return Task(name=name, family=family, splits={"test": [example]}, main_score="accuracy")


TEXT = TextExample(id="7", where="here", text='a "quoted", text\nof two lines')
COLA = Classification(("unacceptable", "acceptable"))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", "lines"),
        ("a.csv", "table"),
        ("a.tsv", "table"),
        ("a.zip", "submission"),
        ("a", "official"),
    ],
)
def test_the_name_asks_for_the_form(name, form):
    assert form_of(Path(name)) == form


@pytest.mark.parametrize(
    ("family", "example", "prediction", "expected"),
    [
        (COLA, TEXT, {"label": "acceptable", "probabilities": {"acceptable": 0.75}}, {"label": "acceptable"}),
        (Regression(), TEXT, {"value": 1.25}, {"value": "1.25"}),
        (
            MultipleChoice(),
            ChoiceExample(id="7", where="here", prompt="p", choices=("x", "y")),
            {"choice": 1, "probabilities": [0.2, 0.8]},
            {"prompt": "p", "choice": "1"},
        ),
        (
            QuestionAnswering(answerability="off"),
            AnswerExample(id="7", where="here", question="q", context="c"),
            {"answer": "c", "text": "c", "n_best": []},
            {"question": "q", "answer": "c"},
        ),
    ],
)
def test_a_table_holds_question_and_answer(tmp_path, family, example, prediction, expected):
    path = tmp_path / "said.csv"
    task = predicted_task(family, example)
    write_form(path, [Predicted(task=task, split="test", predictions=[prediction])])
    with path.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["id"] == "7"
    assert expected.items() <= row.items()
    if isinstance(example, TextExample):
        assert row["text"] == TEXT.text


@pytest.mark.parametrize(
    ("path", "splits", "message"),
    [
        ("a.csv", ["test", "dev"], "--split"),
        ("a", ["test"], r"a\.csv"),
        ("a.zip", ["dev"], "'dev'"),
        ("a.xls", ["test"], r"a\.xls.*\.csv"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_before_the_work(path, splits, message):
    with pytest.raises(InputError, match=message):
        check_form(Path(path), predicted_task(COLA, TEXT, name="cola"), splits)


def test_what_it_can_hold_passes():
    task = predicted_task(COLA, TEXT, name="cola")
    for path in ("a.zip", "a.csv", "a.jsonl"):
        check_form(Path(path), task, ["test"])


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
    with pytest.raises(InputError, match=r"'dev'.*\bcola\b.*\btest\b"):
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
    too_few, qqp, mnli = write_submission(tmp_path / "a.zip", parts)
    assert re.match(r"CoLA\.tsv\b.*\b2\b.*\b1063\b", too_few)
    assert re.match(r"QQP\.tsv\b.*\bqqp\b", qqp)
    assert re.match(r"MNLI-mm\.tsv\b.*\bmnli\b", mnli)
