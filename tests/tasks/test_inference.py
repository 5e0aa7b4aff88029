import numpy as np
import pytest

from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.inference import outputs_of, predict
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric

FAMILY = Classification(("bad", "good"))


@pytest.fixture
def model(tiny_encoder):
    return TaskModel(tiny_encoder, {"mood": FAMILY, "choice": MultipleChoice()})


def test_outputs_come_in_the_order_of_rows_however_they_are_batched(model, tokenizer, make_opinions):
    rows = FAMILY.rows(make_opinions(40), tokenizer, max_length=32)
    alone = [outputs_of(model, "mood", [row], pad_id=tokenizer.pad_id)[0] for row in rows]
    for max_tokens in (64, 300, 10_000):
        together = outputs_of(model, "mood", rows, pad_id=tokenizer.pad_id, max_tokens=max_tokens)
        np.testing.assert_allclose(np.stack(together), np.stack(alone), atol=2e-6)
    assert np.ptp(np.stack(alone)[:, 0]) > 1e-3


def test_dropout_is_off(model, tokenizer, make_opinions):
    model.train()
    first, second = (predict(model, "mood", make_opinions(4), tokenizer, max_length=32) for _ in range(2))
    assert first == second


def test_choices_of_a_question_are_judged_together(model, tokenizer):
    examples = [
        ChoiceExample(id=str(number), where="here", prompt="the day was", choices=choices)
        for number, choices in enumerate([("warm", "cold and grey to me"), ("fine", "dull", "the house")])
    ]
    predictions = predict(model, "choice", examples, tokenizer, max_length=32, max_tokens=16)
    assert [len(prediction["probabilities"]) for prediction in predictions] == [2, 3]
    assert all(sum(prediction["probabilities"]) == pytest.approx(1) for prediction in predictions)


def test_nothing_gives_nothing(model, tokenizer):
    assert predict(model, "mood", [], tokenizer, max_length=32) == []
