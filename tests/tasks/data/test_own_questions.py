import pytest

from electra.errors import InputError
from electra.tasks.data.columns import Cells, OwnTaskConfig
from electra.tasks.families.answers import Answer, AnswerReader
from electra.tasks.families.choice import ChoiceReader

CONTEXT = "Denver won. Later Denver lost."
ANSWERING = AnswerReader(OwnTaskConfig(kind="answering"))


def asked(answers, *, context=CONTEXT):
    cells = Cells("a.jsonl:3", {"question": "Who?", "context": context, "answers": answers})
    return ANSWERING.example(cells, "3", classes={})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("Denver", [("Denver", 0)]),
        (" Denver ", [("Denver", 0)]),
        (["Denver", "lost"], [("Denver", 0), ("lost", 25)]),
        ({"text": ["Denver"], "answer_start": [18]}, [("Denver", 18)]),
        ({"text": ["Denver"]}, [("Denver", 0)]),
        ({"text": "Denver", "answer_start": 18}, [("Denver", 18)]),
        ([{"text": "Denver", "answer_start": 18}, {"text": "won"}], [("Denver", 18), ("won", 7)]),
    ],
)
def test_answers_come_in_several_forms(answers, expected):
    example = asked(answers)
    assert example.answers == tuple(Answer(*answer) for answer in expected)
    assert not example.is_impossible
    assert all(example.context.startswith(answer.text, answer.start) for answer in example.answers)


@pytest.mark.parametrize("answers", [None, "", [], {"text": [], "answer_start": []}])
def test_a_question_may_have_no_answer(answers):
    assert asked(answers).is_impossible
    assert asked(answers).answers == ()
    assert not ANSWERING.has_label(Cells("", {"answers": answers}))


def test_without_labels_nothing_is_known_of_the_answer():
    cells = Cells("a.jsonl:3", {"question": "Who?", "context": CONTEXT})
    example = ANSWERING.example(cells, "3", classes=None)
    assert not example.is_labelled


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("Boston", r"a\.jsonl:3: .*'Boston'"),
        ({"text": ["Denver"], "answer_start": [17]}, r"answer_start 17\b.*\b0\b"),
        ({"text": ["Denver"], "answer_start": [-30]}, "answer_start -30"),
        ({"text": ["Boston"], "answer_start": [0]}, "'Boston'.*answer_start 0"),
        ({"text": ["Denver", "won"], "answer_start": [0]}, r"\b2\b.*'answer_start'.*\b1\b"),
        (
            {"texts": ["Denver"]},
            r"a\.jsonl:3: 'answers'.*'text'.*'texts'",
        ),
        (["Denver", " "], "blank"),
    ],
)
def test_answers_that_are_not_in_the_text_are_refused(answers, message):
    with pytest.raises(InputError, match=message):
        asked(answers)


def chosen(label, choices, **columns):
    reader = ChoiceReader(OwnTaskConfig(kind="multiple_choice", choices=",".join(columns) or "choices"))
    row = {"prompt": "Well?", "label": label, **(columns or {"choices": choices})}
    return reader.example(Cells("a.jsonl:3", row), "3", classes={})


@pytest.mark.parametrize("label", [1, "1", 1.0, "B", "no", " no "])
def test_the_right_choice_is_named_in_several_ways(label):
    example = chosen(label, ["yes", "no"])
    assert (example.choices, example.label) == (("yes", "no"), 1)


@pytest.mark.parametrize("label", [1, "B", "no", "second"])
def test_choices_may_have_a_column_each(label):
    example = chosen(label, None, first="yes", second="no")
    assert (example.choices, example.label) == (("yes", "no"), 1)


@pytest.mark.parametrize(
    ("label", "choices", "message"),
    [
        (
            2,
            ["yes", "no"],
            r"a\.jsonl:3: 'label'.*'2'.*\b0\b.*\b1\b",
        ),
        ("C", ["yes", "no"], "'label'.*'C'"),
        ("1", ["1", "2"], "'1'.*several"),
        ("no", ["no", "no"], "'no'.*several"),
        ("0", ["yes"], "'choices'"),
    ],
)
def test_a_label_that_does_not_name_one_choice_is_refused(label, choices, message):
    with pytest.raises(InputError, match=message):
        chosen(label, choices)


def test_a_number_that_is_its_own_choice_is_no_contradiction():
    assert chosen("1", ["0", "1"]).label == 1
