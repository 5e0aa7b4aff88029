import math

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.tasks.batches import collate
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.inference import predict_examples
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


def question(number, *choices, label=None):
    return ChoiceExample(
        id=str(number), where=f"dev.jsonl:{number}", prompt="the film was", choices=choices, label=label
    )


QUESTIONS = [question(1, "fine", "dull", "cold", label=2), question(2, "warm", "grey", label=0)]

GOOD_AND_BAD = ("lovely", "awful and grey", "fine", "cold")


class Given(torch.nn.Module):
    """A head that gives what it is told."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, hidden, attention_mask_BL):
        return self.logits


def test_a_row_for_each_choice(tokenizer):
    rows = MultipleChoice().rows(QUESTIONS, tokenizer, max_length=16)
    assert [(row.example, row.unit, row.origin) for row in rows] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip
    assert tokenizer.tokens(rows[2].input_ids) == ["[CLS]", "the", "film", "was", "[SEP]", "cold", "[SEP]"]
    assert rows[2].token_type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert rows[2].targets == {"label": 2}


def test_one_loss_for_each_question_of_any_number_of_choices(tokenizer):
    family = MultipleChoice()
    rows = family.rows(QUESTIONS, tokenizer, max_length=16)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=CPU)
    head = Given(0.0, 0.0, math.log(2), math.log(3), 0.0)
    losses = family.losses(head, torch.zeros(5, 7, 4), batch)
    assert losses.tolist() == pytest.approx([math.log(2), math.log(4 / 3)])
    predictions = family.predictions(QUESTIONS, rows, family.outputs(head, torch.zeros(5, 7, 4), batch))
    assert predictions[0] == {"choice": 2, "probabilities": pytest.approx([0.25, 0.25, 0.5])}
    assert predictions[1] == {"choice": 0, "probabilities": pytest.approx([0.75, 0.25])}
    assert family.scores(QUESTIONS, predictions)["accuracy"].value == 1
    predictions[1]["choice"] = 1
    assert family.scores(QUESTIONS, predictions)["accuracy"].value == 0.5


def test_the_same_question_twice_in_a_row_stays_two_units(tokenizer):
    family = MultipleChoice()
    rows = family.rows(QUESTIONS[1:], tokenizer, max_length=16)
    batch = collate([*rows, *rows], pad_id=tokenizer.pad_id, device=CPU)
    losses = family.losses(Given(1.0, 2.0, 1.0, 2.0), torch.zeros(4, 7, 4), batch)
    assert losses.shape == (2,)
    assert losses[0] == losses[1]


def test_a_model_chooses(tokenizer, tiny_encoder):
    family = MultipleChoice()
    model = TaskModel(tiny_encoder, {"choice": family})
    examples = [*QUESTIONS, question(3, *GOOD_AND_BAD)]
    together = predict_examples(model, "choice", examples, tokenizer, max_length=16)
    for example, prediction in zip(examples, together, strict=True):
        (alone,) = predict_examples(model, "choice", [example], tokenizer, max_length=16)
        assert len(prediction["probabilities"]) == len(example.choices)
        assert alone["probabilities"] == pytest.approx(prediction["probabilities"], abs=1e-5)


def test_damage_and_missing_labels_are_told(tokenizer):
    family = MultipleChoice()
    rows = family.rows(QUESTIONS, tokenizer, max_length=16)
    with pytest.raises(InputError, match=r"dev\.jsonl:2.*nan"):
        family.predictions(QUESTIONS, rows, [np.float32(0)] * 4 + [np.float32(math.nan)])
    with pytest.raises(InputError, match=r"dev\.jsonl:3.*label"):
        family.scores([question(3, "a", "b")], [{"choice": 0}])
