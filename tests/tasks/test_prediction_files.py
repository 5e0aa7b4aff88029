import csv
from pathlib import Path

import pytest

from electra.errors import InputError
from electra.tasks.families.answering import AnswerExample, QuestionAnswering
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.predictions import Predicted, check_form, form_of, write_form
from electra.tasks.task import Task


def task_of(family, example, *, name="any"):
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
    task = task_of(family, example)
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
        ("a.csv", ["test", "dev"], "choose one with --split"),
        ("a", ["test"], "give a file name, such as a.csv"),
        ("a.zip", ["dev"], "no predictions for 'dev'"),
        ("a.xls", ["test"], "a.xls: expected"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_before_the_work(path, splits, message):
    with pytest.raises(InputError, match=message):
        check_form(Path(path), task_of(COLA, TEXT, name="cola"), splits)


def test_what_it_can_hold_passes():
    task = task_of(COLA, TEXT, name="cola")
    for path in ("a.zip", "a.csv", "a.jsonl"):
        check_form(Path(path), task, ["test"])
