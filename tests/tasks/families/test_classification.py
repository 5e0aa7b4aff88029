import math
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.model import names
from electra.model.encoder import initialise
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import collate
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TaskRow, TextExample
from electra.tasks.inference import predict_examples
from electra.tasks.model import TaskModel
from original_heads import TASK_HEADS

pytestmark = pytest.mark.numeric

HIDDEN_16 = EncoderConfig.preset("tiny", hidden_size=16)
CPU = torch.device("cpu")


def texts(*labels, pair=None):
    return [
        TextExample(id=str(number), where=f"dev.tsv:{number}", text="the film", text_pair=pair, label=label)
        for number, label in enumerate(labels)
    ]


def batch_of(*targets):
    """Rows that say nothing, with targets."""
    rows = [
        TaskRow(
            input_ids=np.zeros(3, np.uint32),
            token_type_ids=np.zeros(3, np.uint8),
            example=place,
            unit=place,
            targets=target,
        )
        for place, target in enumerate(targets)
    ]
    return collate(rows, pad_id=0, device=CPU)


def head_of(family, **weights):
    """A head of 16 numbers, whose bias is all that counts unless weights are given."""
    head = family.head(HIDDEN_16).eval()
    initialise(head, std=0.0)
    head.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()}, strict=False)
    return head


@pytest.fixture(scope="module")
def dump(shared: Path):
    with np.load(shared / "oracles/google-electra/finetune_oracle.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files if name[:3] in ("mnl", "sts")}


def load(head, dump, scope):
    table = list(names.tensors(TASK_HEADS[type(head).__name__]))
    variables = {row.tensorflow: dump[scope + row.tensorflow].numpy() for row in table}
    head.load_state_dict(names.from_tensorflow(variables, table))
    return head.eval()


def test_losses_and_predictions_of_classes_as_the_authors(dump):
    family = Classification(("contradiction", "entailment", "neutral"))
    head = load(family.head(HIDDEN_16), dump, "mnli/w/task_specific/mnli/")
    labels = dump["mnli/in/mnli_label_ids"].tolist()
    batch = batch_of(*({"label": label} for label in labels))
    losses = family.losses(head, dump["mnli/hidden"], batch)
    torch.testing.assert_close(losses, dump["mnli/losses"], rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        outputs = family.outputs(head, dump["mnli/hidden"], batch)
    predictions = family.predictions(texts(*labels), batch.rows, outputs)
    expected = [family.labels()[number] for number in dump["mnli/out/predictions"].tolist()]
    assert [prediction["label"] for prediction in predictions] == expected


def test_losses_and_predictions_of_values_as_the_authors(dump):
    # Their targets are divided by 5 already: the same must come of values from 0 to 5.
    family = Regression(low=0, high=5)
    head = load(family.head(HIDDEN_16), dump, "sts/w/task_specific/sts/")
    examples = texts(*(5 * dump["sts/in/sts_targets"].double()).tolist())
    batch = batch_of(*map(family.targets, examples))
    losses = family.losses(head, dump["sts/hidden"], batch)
    torch.testing.assert_close(losses, dump["sts/losses"], rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        outputs = family.outputs(head, dump["sts/hidden"], batch)
    values = [prediction["value"] for prediction in family.predictions(examples, batch.rows, outputs)]
    assert values == pytest.approx((5 * dump["sts/out/predictions"]).tolist(), rel=1e-5)


def test_class_losses_by_hand():
    family = Classification(("a", "b"))
    bias = [0.0, math.log(3)]
    head, hidden = head_of(family, **{"output.bias": bias}), torch.zeros(2, 3, 16)
    batch = batch_of({"label": 0}, {"label": 1})
    losses = family.losses(head, hidden, batch)
    assert losses.tolist() == pytest.approx([math.log(4), math.log(4 / 3)])
    with torch.inference_mode():
        outputs = family.outputs(head, hidden, batch)
    prediction = family.predictions(texts(0, 1), batch.rows, outputs)[0]
    assert prediction["label"] == "b"
    assert prediction["probabilities"] == pytest.approx({"a": 0.25, "b": 0.75})


@pytest.mark.parametrize(
    ("family", "target"),
    [
        (Classification(("a", "b")), {"label": 1}),
        (MultiLabel(("a", "b")), {"labels": np.array([1, 0])}),
        (Regression(), {"value": 0.5}),
    ],
)
def test_losses_are_float32_also_where_the_encoder_is_not(family, target):
    head = head_of(family).to(torch.bfloat16)
    losses = family.losses(head, torch.zeros(2, 3, 16, dtype=torch.bfloat16), batch_of(target, target))
    assert losses.dtype == torch.float32
    assert losses.shape == (2,)


def test_scores_of_classes_are_those_asked_for_in_order():
    family = Classification(("no", "yes"), ("f1", "accuracy", "auc", "mcc"))
    probabilities = (0.1, 0.8, 0.6, 0.4)
    outputs = [np.array([1 - p, p], np.float32) for p in probabilities]
    examples = texts(0, 1, 0, 1)
    scores = family.scores(examples, family.predictions(examples, [], outputs))
    assert list(scores) == ["f1", "accuracy", "auc", "mcc"]
    assert {name: score.value for name, score in scores.items()} == pytest.approx(
        {"f1": 0.5, "accuracy": 0.5, "auc": 0.75, "mcc": 0.0}
    )


def test_several_labels():
    family = MultiLabel(("red", "green", "blue"))
    # A logit of 0 is a probability of one half, which is enough.
    head = head_of(family, **{"output.bias": [math.log(3), 0.0, -math.log(3)]})
    batch = batch_of(*map(family.targets, texts((0, 2), ())))
    losses = family.losses(head, torch.zeros(2, 3, 16), batch)
    small, half, large = -math.log(0.75), -math.log(0.5), -math.log(0.25)
    assert losses.tolist() == pytest.approx([(small + half + large) / 3, (large + half + small) / 3])
    with torch.inference_mode():
        outputs = family.outputs(head, torch.zeros(2, 3, 16), batch)
    examples = texts((0, 1), ())
    predictions = family.predictions(examples, batch.rows, outputs)
    assert predictions[0]["labels"] == ["red", "green"]
    assert predictions[0]["probabilities"] == pytest.approx({"red": 0.75, "green": 0.5, "blue": 0.25})
    scores = family.scores(examples, predictions)
    assert scores["exact_match"].value == 0.5
    assert scores["micro_f1"].value == pytest.approx(2 * 2 / (2 * 2 + 2))
    assert scores["macro_f1"].value == pytest.approx(2 / 3)


def test_values_are_learned_as_their_place_in_the_range():
    family = Regression(low=-10, high=30, metrics=("spearman", "pearson"))
    examples = texts(-10.0, 10.0, 30)
    assert [family.targets(example)["value"] for example in examples] == [0, 0.5, 1]
    predictions = family.predictions(examples, [], [np.float32(x) for x in (0.0, 0.25, 1.5)])
    assert [prediction["value"] for prediction in predictions] == [-10, 0, 50]
    scores = family.scores(examples, predictions)
    assert list(scores) == ["spearman", "pearson"]
    assert scores["spearman"].value == pytest.approx(1)
    equal = family.scores(examples, [{"value": 1.0}] * 3)
    assert "predictions" in equal["pearson"].undefined


def test_rows_of_texts_and_pairs(tokenizer):
    family = Classification(("a", "b"))
    examples = [*texts(1), *texts(None, pair="the story")]
    single, pair = family.rows(examples, tokenizer, max_length=10)
    assert tokenizer.tokens(single.input_ids) == ["[CLS]", "the", "film", "[SEP]"]
    assert tokenizer.tokens(pair.input_ids) == ["[CLS]", "the", "film", "[SEP]", "the", "story", "[SEP]"]
    assert pair.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (single.targets, pair.targets) == ({"label": 1}, {})
    assert [(row.example, row.unit) for row in (single, pair)] == [(0, 0), (1, 1)]
    (cut,) = family.rows(texts(0, pair="the story"), tokenizer, max_length=6)
    assert tokenizer.tokens(cut.input_ids) == ["[CLS]", "the", "film", "[SEP]", "the", "[SEP]"]


@pytest.mark.parametrize(
    ("family", "label", "score"),
    [
        (Classification(("bad", "good")), lambda sign: int(sign > 0), "accuracy"),
        (MultiLabel(("bad", "good")), lambda sign: (int(sign > 0),), "exact_match"),
        (Regression(low=-1, high=1), float, "pearson"),
    ],
)
def test_what_the_losses_teach_is_what_is_predicted(family, label, score):
    torch.manual_seed(0)
    hidden = torch.randn(40, 3, 16)
    # Only [CLS] tells.
    signs = hidden[:, 0, 5].sign().tolist()
    examples = texts(*map(label, signs))
    batch = batch_of(*map(family.targets, examples))
    head = head_of(family)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        family.losses(head, hidden, batch).mean().backward()
        optimizer.step()
    with torch.inference_mode():
        predictions = family.predictions(examples, batch.rows, family.outputs(head, hidden, batch))
    assert family.scores(examples, predictions)[score].value > 0.85


def test_predictions_of_a_model_are_in_the_order_of_the_examples(tokenizer, tiny_encoder, make_opinions):
    family = Classification(("bad", "good"))
    model = TaskModel(tiny_encoder, {"task": family})
    examples = make_opinions(6)
    together = predict_examples(model, "task", examples, tokenizer, max_length=32)
    for example, prediction in zip(examples, together, strict=True):
        (alone,) = predict_examples(model, "task", [example], tokenizer, max_length=32)
        assert alone["probabilities"] == pytest.approx(prediction["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification(("a",)), "two"),
        (lambda: MultiLabel(()), "two"),
        (lambda: Classification(("a", "b", "c"), ("f1",)), "macro_f1"),
        (lambda: Classification(("a", "b"), ("rouge",)), "'rouge'.*accuracy"),
        (lambda: Regression(metrics=("accuracy",)), "'accuracy'.*pearson"),
        (lambda: Regression(low=1, high=1), r"\b1\b.*\b1\b"),
        (lambda: Regression(high=math.nan), "nan"),
    ],
)
def test_what_cannot_be_a_family(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("family", [Classification(("a", "b")), MultiLabel(("a", "b")), Regression()])
def test_unlabelled_examples_are_not_scored(family):
    with pytest.raises(InputError, match=r"dev\.tsv:0.*label"):
        family.scores(texts(None), [{"label": "a", "labels": ["a"], "value": 0.0}])


def test_a_damaged_model_predicts_nothing():
    for family in (Classification(("a", "b")), MultiLabel(("a", "b")), Regression()):
        with pytest.raises(InputError, match="damaged"):
            family.predictions(texts(None), [], [np.array([math.nan, 1.0], np.float32)])
