import pytest

from electra.errors import InputError
from electra.tasks.data.columns import Cells, OwnTaskConfig
from electra.tasks.families.answering import Answer, AnswerReader
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
        ("Boston", r"a\.jsonl:3: the answer 'Boston' is not in its text"),
        ({"text": ["Denver"], "answer_start": [17]}, "is not at answer_start 17, it is at 0"),
        ({"text": ["Denver"], "answer_start": [-30]}, "is not at answer_start -30"),
        ({"text": ["Boston"], "answer_start": [0]}, "it is nowhere in the text"),
        ({"text": ["Denver", "won"], "answer_start": [0]}, "2 texts, but 'answer_start' has 1 places"),
        (
            {"texts": ["Denver"]},
            r"a\.jsonl:3: 'answers': no column 'text', only 'texts'; did you mean 'texts'",
        ),
        (["Denver", " "], "an answer is blank"),
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
            r"a\.jsonl:3: 'label' is '2', which names no choice; expected a number from 0 to 1",
        ),
        ("C", ["yes", "no"], "names no choice"),
        ("1", ["1", "2"], "could mean several choices"),
        ("no", ["no", "no"], "could mean several choices"),
        ("0", ["yes"], "one choice in 'choices'"),
    ],
)
def test_a_label_that_does_not_name_one_choice_is_refused(label, choices, message):
    with pytest.raises(InputError, match=message):
        chosen(label, choices)


def test_a_number_that_is_its_own_choice_is_no_contradiction():
    assert chosen("1", ["0", "1"]).label == 1
