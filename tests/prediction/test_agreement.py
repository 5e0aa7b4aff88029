"""Models in bf16 and in fp32: every ability works in both, and auto is bf16 only where both say the same."""

import pytest
import torch
from torch import nn

import electra
from electra.errors import InputError
from electra.prediction import agreement
from electra.prediction.agreement import MadeTexts, modules_of, sayings
from electra.tasks import precision as precisions
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from electra.train import devices

pytestmark = pytest.mark.numeric

RUNS = {
    "electra": {},
    "rotary": {"position_embedding_type": "rotary"},
    "modern": {"backbone": "modern", "position_embedding_type": "rotary"},
    "electric": {"objective": "electric", "kind": "two_tower"},
    "mlm": {"objective": "mlm"},
}
FAMILIES = {
    "classify": Classification(("bad", "fair", "good")),
    "labels": MultiLabel(("red", "blue")),
    "value": Regression(low=1.0, high=5.0),
    "similarity": Similarity(),
    "tag": Tagging(("DET", "NOUN"), "tokens"),
    "answer": QuestionAnswering(answerability="on"),
    "choose": MultipleChoice(),
}
# These weights are large and random: two layers of sums of 32 products, each rounded to 2**-9, after which a
# softmax of logits up to 10 still tells a probability to a tenth or so. Trained models are nearer.
FAR = 0.25


@pytest.fixture
def auto_is_bf16(monkeypatch):
    """As on a processor that is fast at it."""
    monkeypatch.setenv(devices.AUTO_PRECISION, "bf16")


def tolerate(monkeypatch, tolerance):
    monkeypatch.setattr(precisions, "TOLERANCE", tolerance)


@pytest.mark.parametrize("name", RUNS)
def test_every_ability_of_a_run_works_in_bf16(make_run, name, monkeypatch):
    run = make_run(**RUNS[name])
    models = [electra.load(run, precision=precision) for precision in ("fp32", "bf16")]
    assert [model.precision for model in models] == ["fp32", "bf16"]
    assert {weight.dtype for weight in weights_of(models[1])} == {torch.bfloat16}
    expected, found = map(sayings, models)
    assert expected.keys() == found.keys() == {*models[0].abilities} - {"corrupt", "choose"}
    tolerate(monkeypatch, FAR)
    assert precisions.difference(expected["embed"], found["embed"]) is None
    assert precisions.difference(expected.get("detect"), found.get("detect")) is None
    assert precisions.difference(expected.get("score"), found.get("score")) is None
    if "fill" in expected:
        assert all(0 < p <= 1 for ranking in found["fill"] for p in ranking.values())
    if "corrupt" in models[1].abilities:
        (turn,) = models[1].corrupt(["the old river was in a small city"], mask_prob=0.5)
        assert turn["text"] == "the old river was in a small city"
        assert turn == models[1].corrupt([turn["text"]], mask_prob=0.5)[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_ability_of_a_task_works_in_bf16(tuned_once, name):
    _, folder = tuned_once(FAMILIES[name])
    model = electra.load(folder, precision="bf16")
    ability = FAMILIES[name].ability
    found = sayings(model)[ability.name]
    expected = sayings(electra.load(folder, precision="fp32"))[ability.name]
    assert len(found) == len(expected) >= agreement.NUM_TEXTS
    assert shape_of(found[0]) == shape_of(expected[0])
    # It did compute in another precision.
    assert found != expected


def shape_of(value):
    """The keys of an answer, and what kind of value each has."""
    return {key: float if isinstance(one, float) else type(one) for key, one in value.items()}


def weights_of(model):
    return [
        weight
        for module in modules_of(model)
        for part in module.modules()
        if isinstance(part, nn.Linear)
        for weight in part.parameters()
    ]


def test_two_cores_compute_in_the_same_precision(run, make_text, monkeypatch):
    model = electra.load(run, precision="bf16")
    texts = [make_text(20, seed=seed) for seed in range(40)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert all(len(answer["tokens"]) >= 20 for answer in model.detect(texts))
        assert all(answer["scores"] for answer in model.score(texts, by="detection"))
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("auto_is_bf16")
def test_auto_is_bf16_where_the_model_says_the_same(run, monkeypatch):
    monkeypatch.setattr(agreement, "sayings", lambda model: {"detect": [0.5], "on": model.path})
    model = electra.load(run)
    assert model.precision == model.reader.precision == model.discriminator.reader.precision == "bf16"
    assert model.generator.word_embeddings_VE.dtype == torch.bfloat16
    assert model.precision_reason.startswith("auto")


@pytest.mark.usefixtures("auto_is_bf16")
@pytest.mark.parametrize("kind", ["run", "tuned"])
def test_auto_is_fp32_where_it_says_something_else(run, tuned_once, monkeypatch, kind, assert_alike):
    tolerate(monkeypatch, 0.0)
    folder = run if kind == "run" else tuned_once(FAMILIES["classify"])[1]
    model, plain = electra.load(folder), electra.load(folder, precision="fp32")
    assert model.precision == model.reader.precision == "fp32"
    # It says what differs: here the first number that was compared.
    assert "embed[0]" in model.precision_reason
    assert {weight.dtype for weight in weights_of(model)} == {torch.float32}
    assert_alike(model.embed(["the old river"]), plain.embed(["the old river"]))


def test_a_graph_of_onnx_has_its_own_precision(run, export_once, auto_is_bf16):
    folder, _ = export_once(run)
    for precision in ("auto", "fp32"):
        model = electra.load(folder, engine="onnx", precision=precision)
        assert (model.precision, model.reader.precision) == ("fp32", "fp32")
    with pytest.raises(InputError, match=r"precision is bf16.*ONNX"):
        electra.load(folder, engine="onnx", precision="bf16")


def test_a_precision_that_does_not_exist_is_refused(run):
    with pytest.raises(InputError, match="precision is 'fp8', expected one of auto, fp32, bf16"):
        electra.load(run, precision="fp8")
    with pytest.raises(InputError, match=r"fp16.*CUDA"):
        electra.load(run, precision="fp16")


def test_made_texts_are_the_same_each_time_and_known_to_the_vocabulary(tokenizer):
    first, again = (MadeTexts(tokenizer) for _ in range(2))
    texts = [first.draw(12) for _ in range(4)]
    assert texts == [again.draw(12) for _ in range(4)]
    assert len(set(texts)) == 4
    ids = tokenizer.encode(texts).ids
    assert tokenizer.mask_id not in ids
    assert (ids == tokenizer.unk_id).mean() < 0.1


def test_a_made_request_has_the_form_of_the_example(tokenizer):
    example = {"texts": ["a text", ["two", "words"]], "top": 3, "name": "as it is"}
    found = MadeTexts(tokenizer).request_like(example)
    assert (found["top"], found["name"]) == (3, "as it is")
    assert len(found["texts"]) == 2 * agreement.NUM_TEXTS
    assert [len(item) for item in found["texts"][1::2]] == [2] * agreement.NUM_TEXTS
    assert all(" " not in word for item in found["texts"][1::2] for word in item)
    assert all(isinstance(item, str) and " " in item for item in found["texts"][::2])
