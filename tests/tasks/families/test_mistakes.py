import pytest

from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.answers import Answer, AnswerExample
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging, TaggingExample
from electra.tasks.results import MAX_MISTAKES, worst_mistakes

FAMILY = Classification(("no", "yes"))


def text(label, number=1, pair=None):
    return TextExample(id=str(number), where=f"file:{number}", text="a text", text_pair=pair, label=label)


def said(label, probability):
    other = {"no": "yes", "yes": "no"}[label]
    return {"label": label, "probabilities": {label: probability, other: 1 - probability}}


def test_the_surest_mistakes_come_first_and_what_is_right_is_left_out():
    examples = [text(0, 1), text(1, 2), text(0, 3, pair="b")]
    predictions = [said("yes", 0.6), said("yes", 0.99), said("yes", 0.9)]
    first, second = worst_mistakes(FAMILY, examples, predictions)
    assert first == {
        "id": "3",
        "where": "file:3",
        "text": "a text",
        "text_pair": "b",
        "gold": "no",
        "predicted": "yes",
        "confidence": 0.9,
    }
    assert second["id"] == "1"


def test_there_are_not_more_than_a_person_looks_at():
    examples = [text(0, number) for number in range(80)]
    assert len(worst_mistakes(FAMILY, examples, [said("yes", 0.6)] * 80)) == MAX_MISTAKES


def test_confusion_has_a_row_for_each_true_label():
    examples = [text(0), text(0), text(1)]
    predictions = [said("no", 0.9), said("yes", 0.9), said("yes", 0.9)]
    assert FAMILY.confusion(examples, predictions) == [[1, 1], [0, 1]]
    assert Regression().confusion([text(0.5)], [{"value": 1.0}]) is None


QUESTION = AnswerExample(
    id="1", where="file", question="who?", context="The Cat sat", answers=(Answer("Cat", 4),)
)


@pytest.mark.parametrize(
    ("family", "example", "wrong", "right", "gold", "predicted"),
    [
        (MultiLabel(("a", "b")), text((0, 1)), {"labels": ["a"]}, {"labels": ["b", "a"]}, "a, b", "a"),
        (MultiLabel(("a", "b")), text(()), {"labels": ["a"]}, {"labels": []}, "none", "a"),
        (
            MultipleChoice(),
            ChoiceExample(id="1", where="file", prompt="p", choices=("x", "y"), label=1),
            {"choice": 0, "probabilities": [0.7, 0.3]},
            {"choice": 1, "probabilities": [0.3, 0.7]},
            "y",
            "x",
        ),
        (
            Tagging(("DET", "NOUN"), "tokens"),
            TaggingExample(id="1", where="file:1", words=("the", "cat"), tags=("DET", "NOUN"), lines=(1, 2)),
            {"tags": ["DET", "DET"], "confidences": [0.9, 0.8]},
            {"tags": ["DET", "NOUN"], "confidences": [0.9, 0.8]},
            "NOUN",
            "DET",
        ),
        (
            QuestionAnswering(answerability="on"),
            QUESTION,
            {"answer": "", "n_best": []},
            {"answer": "the cat", "n_best": []},
            "Cat",
            "(no answer)",
        ),
    ],
)
def test_every_kind_of_task_knows_its_mistakes(family, example, wrong, right, gold, predicted):
    assert worst_mistakes(family, [example], [right]) == []
    (mistake,) = worst_mistakes(family, [example], [wrong])
    assert (mistake["gold"], mistake["predicted"]) == (gold, predicted)


def test_a_wrong_word_is_marked_and_named_with_its_line():
    example = TaggingExample(id="1", where="file:1", words=("the", "cat"), tags=("DET", "NOUN"), lines=(1, 2))
    prediction = {"tags": ["DET", "DET"], "confidences": [0.9, 0.8]}
    (mistake,) = worst_mistakes(Tagging(("DET", "NOUN"), "tokens"), [example], [prediction])
    assert mistake["text"] == "the [cat]"
    assert mistake["where"] == "file:2 ('cat')"


def test_values_that_are_farthest_off_come_first():
    examples = [text(1.0, 1), text(2.0, 2)]
    found = worst_mistakes(Regression(low=0, high=5), examples, [{"value": 1.5}, {"value": 4.0}])
    assert [mistake["id"] for mistake in found] == ["2", "1"]
    assert found[0]["predicted"] == "4"
    pairs = [text(4.0, 1, pair="b"), text(None, 2, pair="c")]
    (similar,) = worst_mistakes(Similarity(), pairs, [{"similarity": 0.25}, {"similarity": 0.5}])
    assert similar["predicted"] == "0.250 (cosine)"
