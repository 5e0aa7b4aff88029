import numpy as np
import pytest

from electra.tasks import inference
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TaskRow
from electra.tasks.inference import outputs_of, predict_examples
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
    first, second = (
        predict_examples(model, "mood", make_opinions(4), tokenizer, max_length=32) for _ in range(2)
    )
    assert first == second


def test_choices_of_a_question_are_judged_together(model, tokenizer):
    examples = [
        ChoiceExample(id=str(number), where="here", prompt="the day was", choices=choices)
        for number, choices in enumerate([("warm", "cold and grey to me"), ("fine", "dull", "the house")])
    ]
    predictions = predict_examples(model, "choice", examples, tokenizer, max_length=32, max_tokens=16)
    assert [len(prediction["probabilities"]) for prediction in predictions] == [2, 3]
    assert all(sum(prediction["probabilities"]) == pytest.approx(1) for prediction in predictions)


def test_nothing_gives_nothing(model, tokenizer):
    assert predict_examples(model, "mood", [], tokenizer, max_length=32) == []


def rows_of(*lengths):
    return [
        TaskRow(
            input_ids=np.arange(length), token_type_ids=np.zeros(length, int), example=number, unit=number
        )
        for number, length in enumerate(lengths)
    ]


def sizes(batches, rows):
    return [sum(len(rows[place].input_ids) for place in batch) for batch in batches]


def test_a_few_texts_are_shared_evenly():
    lengths = np.random.default_rng(0).integers(5, 60, 32)
    rows = rows_of(*lengths)
    one, other = inference.core_batches(rows, cores=2, max_tokens=4096)
    assert sorted([*one, *other]) == list(range(32))
    assert 0.75 < sum(lengths[one]) / sum(lengths[other]) < 1.35


def test_many_texts_come_in_batches_that_a_core_is_fastest_with():
    rows = rows_of(*[32] * 1000)
    assert set(sizes(inference.core_batches(rows, cores=2, max_tokens=4096), rows)[:-1]) == {2048}
    assert set(sizes(inference.core_batches(rows, cores=1, max_tokens=4096), rows)[:-1]) == {4096}
    assert set(sizes(inference.core_batches(rows, cores=2, max_tokens=320), rows)[:-1]) == {320}


@pytest.mark.parametrize(("lengths", "expected"), [([], 0), ([20], 1), ([20, 30, 40], 1), ([300], 1)])
def test_a_sentence_or_two_are_not_divided(lengths, expected):
    assert len(inference.core_batches(rows_of(*lengths), cores=2, max_tokens=4096)) == expected


@pytest.mark.slow
def test_a_model_says_the_same_on_all_cores(two_threads, monkeypatch, tiny_encoder, tokenizer, make_opinions):
    family = Classification(("bad", "good"))
    model = TaskModel(tiny_encoder, {"mood": family})
    rows = family.rows(make_opinions(60), tokenizer, max_length=32)
    monkeypatch.setattr("electra.tasks.inference.LEAST_TOKENS", 8)
    monkeypatch.setattr("electra.tasks.inference.CORE_TOKENS", 40)
    spread = outputs_of(model, "mood", rows, pad_id=tokenizer.pad_id)
    monkeypatch.setattr("electra.tasks.inference.num_cores", lambda _: 1)
    np.testing.assert_allclose(
        np.stack(spread), np.stack(outputs_of(model, "mood", rows, pad_id=tokenizer.pad_id)), atol=2e-6
    )
