"""A modern encoder in transformers: as ModernBERT, or with the classes that lie in its folder."""

import json

import numpy as np
import pytest
import torch
import transformers

from electra import files
from electra.errors import InputError
from electra.formats.transformers import find_source, seal, set_tokenizer, write_transformers
from electra.model.encoder import initialise
from electra.model.store import ModelFolder
from electra.prediction.load import load
from electra.seeds import torch_generator
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import PooledFamily
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from electra.tasks.model import FineTuned, TaskModel, save_model

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city", "new music is fast"]
# Sums of fp32 in another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
MODERN = {
    "backbone": "modern",
    "position_embedding_type": "rotary",
    "num_hidden_layers": 3,
    "global_attention_every": 2,
    "local_attention_window": 6,
}
KINDS = {
    # Its name -> what it needs, the classes that load it, what they are told.
    "modernbert": ({"query_key_norm": "none", "embedding_size": 32}, "ModernBert", {}),
    "own code": ({"query_key_norm": "rms"}, "ElectraModern", {"trust_remote_code": True}),
}
EACH = pytest.mark.parametrize("kind", KINDS)
OWN = "own code"


@pytest.fixture(autouse=True)
def code_folder(tmp_path_factory, monkeypatch):
    """Where transformers keeps copies of classes that came with a model."""
    place = str(tmp_path_factory.mktemp("modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", place)


@pytest.fixture(scope="module")
def modern_run(make_run):
    made = {}

    def make(kind, objective="electra", head="plain"):
        key = kind, objective, head
        if key not in made:
            made[key] = make_run(objective, discriminator_head=head, **MODERN, **KINDS[kind][0])
        return made[key]

    return make


def export(path, out, *, part=None):
    source = find_source(str(path), part=part)
    with files.appearing_whole(out) as folder:
        architecture = write_transformers(source, folder)
        set_tokenizer(folder, source)
        seal(folder, source, {})
    return architecture


def loaded(kind, automatic, folder):
    """Model and tokenizer; nothing may be missing or left over."""
    model, report = automatic.from_pretrained(folder, output_loading_info=True, **KINDS[kind][2])
    assert not any(report.values()), report
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **KINDS[kind][2])


@EACH
@pytest.mark.parametrize("part", ["encoder", "generator", "discriminator"])
def test_logits_are_ours(modern_run, kind, part, tmp_path):
    # A narrow generator with wide embeddings is no ModernBERT; the encoder of mlm is one.
    run = modern_run(kind, "mlm" if part == "generator" else "electra")
    prefix = KINDS[kind][1]
    architecture = export(run, tmp_path / "out", part=part)
    assert architecture.startswith(prefix)
    assert (tmp_path / "out" / "modeling_electra_modern.py").is_file() == (kind == "own code")
    automatic = {
        "encoder": transformers.AutoModel,
        "generator": transformers.AutoModelForMaskedLM,
        "discriminator": {
            "modernbert": transformers.AutoModelForTokenClassification,
            "own code": transformers.AutoModelForPreTraining,
        }[kind],
    }[part]
    model, words = loaded(kind, automatic, tmp_path / "out")
    assert type(model).__name__ == architecture
    inputs = words(TEXTS, return_tensors="pt", padding=True)
    assert set(inputs) == {"input_ids", "attention_mask"}
    mask = inputs["attention_mask"] != 0
    with torch.no_grad():
        output = model(**inputs)
        folder = ModelFolder(run / "final" / ("generator" if part == "generator" else "discriminator"))
        encoder, head = folder.encoder().eval(), folder.head().eval()
        hidden = encoder(inputs["input_ids"], attention_mask_BL=inputs["attention_mask"])
        if part == "encoder":
            found, expected = output.last_hidden_state, hidden
        elif part == "generator":
            found, expected = output.logits, head(hidden, encoder.embeddings.word_embeddings.weight)
        else:
            found, expected = output.logits.squeeze(-1), head(hidden)
    torch.testing.assert_close(found[mask], expected[mask], **CLOSE)


@EACH
def test_a_detection_head_that_looks_at_cls_has_a_class(modern_run, kind, tmp_path, assert_alike):
    run = modern_run(kind, head="with_cls")
    # ModernBERT has no such head.
    assert export(run, tmp_path / "out") == "ElectraModernForPreTraining"
    model, words = loaded(OWN, transformers.AutoModelForPreTraining, tmp_path / "out")
    inputs = words(TEXTS, return_tensors="pt", padding=True)
    mask = inputs["attention_mask"]
    before, after = ModelFolder(run / "final" / "discriminator"), ModelFolder(tmp_path / "out")
    with torch.no_grad():
        hidden = before.encoder().eval()(inputs["input_ids"], attention_mask_BL=mask)
        expected = before.head().eval()(hidden)
        found = model(**inputs).logits
    torch.testing.assert_close(found[mask != 0], expected[mask != 0], **CLOSE)
    assert after.head_state().keys() == before.head_state().keys() >= {"context_norm.weight", "norm.weight"}
    assert all(torch.equal(one, after.head_state()[name]) for name, one in before.head_state().items())
    assert_alike(load(tmp_path / "out").detect(TEXTS), load(run).detect(TEXTS))
    assert export(run, tmp_path / "encoder", part="encoder") == f"{KINDS[kind][1]}Model"


@pytest.mark.parametrize(("key", "value"), [("classifier_pooling", "max"), ("discriminator_head", "other")])
def test_the_classes_refuse_what_they_do_not_have(modern_run, key, value, tmp_path):
    export(modern_run(OWN), tmp_path / "out", part="encoder")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    files.write_json(tmp_path / "out" / "config.json", {**values, key: value})
    with pytest.raises(ValueError, match=f"{key} is '{value}'"):
        transformers.AutoConfig.from_pretrained(tmp_path / "out", trust_remote_code=True)


def test_a_generator_narrower_than_its_embeddings_brings_its_classes(modern_run, tmp_path):
    architecture = export(modern_run("modernbert"), tmp_path / "out", part="generator")
    assert architecture == "ElectraModernForMaskedLM"


@EACH
def test_what_was_exported_is_read_again(modern_run, kind, tmp_path, assert_alike):
    run = modern_run(kind)
    export(run, tmp_path / "discriminator")
    export(run, tmp_path / "generator", part="generator")
    for part in ("discriminator", "generator"):
        before, after = (ModelFolder(place) for place in (run / "final" / part, tmp_path / part))
        assert after.config == before.config
        assert after.role == part
        for one, other in (
            (before.encoder_state(), after.encoder_state()),
            (before.head_state(), after.head_state()),
        ):
            assert one.keys() == other.keys()
            assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert_alike(load(tmp_path / "discriminator").detect(TEXTS), load(run).detect(TEXTS))
    export(tmp_path / "discriminator", tmp_path / "again")
    first, second = (ModelFolder(tmp_path / name).tensors for name in ("discriminator", "again"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.slow
@EACH
def test_gaps_are_filled_by_a_pipeline(modern_run, kind, tmp_path):
    run = modern_run(kind, "mlm")
    export(run, tmp_path / "out", part="generator")
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), **KINDS[kind][2])
    said = fill("the old [MASK] was in a city")
    ours = load(run).fill(["the old [MASK] was in a city"])
    assert said[0]["token_str"] == ours[0]["masks"][0]["candidates"][0]["token"]
    # Told with few decimals.
    assert said[0]["score"] == pytest.approx(ours[0]["masks"][0]["candidates"][0]["probability"], abs=1e-4)


@EACH
def test_vectors_are_those_of_sentence_transformers(modern_run, kind, tmp_path):
    from sentence_transformers import SentenceTransformer

    export(modern_run(kind), tmp_path / "out", part="encoder")
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu", **KINDS[kind][2]).encode(TEXTS)
    ours = load(tmp_path / "out").embed(TEXTS)
    cosines = (theirs * ours).sum(1) / np.linalg.norm(theirs, axis=1) / np.linalg.norm(ours, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-5)


FAMILIES = [
    (Classification(["good", "bad", "ugly"]), transformers.AutoModelForSequenceClassification),
    (MultiLabel(["red", "blue"]), transformers.AutoModelForSequenceClassification),
    (Regression(low=1.0, high=5.0), transformers.AutoModelForSequenceClassification),
    (Tagging(("ADJ", "DET", "NOUN"), "tokens"), transformers.AutoModelForTokenClassification),
    (QuestionAnswering(head="plain", answerability="off"), transformers.AutoModelForQuestionAnswering),
    (MultipleChoice(), transformers.AutoModelForMultipleChoice),
]
BY_MEAN = [
    (family.pooled_by("mean"), automatic)
    for family, automatic in FAMILIES
    if isinstance(family, PooledFamily)
]


@pytest.fixture
def modern_tuned(modern_run, tokenizer, tmp_path):
    def make(kind, family):
        encoder = ModelFolder(modern_run(kind) / "final" / "discriminator").encoder()
        model = TaskModel(encoder, {"task": family}).eval()
        initialise(model.head("task"), std=0.4, generator=torch_generator(2))
        save_model(
            FineTuned(model=model, task="task", tokenizer=tokenizer, max_length=24), tmp_path / "tuned"
        )
        return model

    return make


def pooling(family):
    return getattr(family, "head_pooling", "")


@EACH
@pytest.mark.parametrize(
    ("family", "automatic"),
    [*FAMILIES, *BY_MEAN],
    ids=lambda one: f"{pooling(one)} {one.name}" if hasattr(one, "name") else "",
)
def test_heads_of_tasks_give_our_logits(modern_tuned, kind, family, automatic, tmp_path):
    ours = modern_tuned(kind, family)
    assert family.transformers_obstacle(ours.encoder.config) is None
    architecture = export(tmp_path / "tuned", tmp_path / "out")
    if pooling(family) == "mean":
        # ModernBERT would normalise the mean once more, and no linear layer gives its length back.
        kind = OWN
    assert architecture.startswith(f"{KINDS[kind][1]}For")
    model, words = loaded(kind, automatic, tmp_path / "out")
    inputs = words(TEXTS, return_tensors="pt", padding=True)
    mask = inputs["attention_mask"]
    with torch.no_grad():
        hidden = ours.encoder(inputs["input_ids"], attention_mask_BL=mask)
        expected = family.onnx_outputs(ours.head("task"), hidden, mask)
        if family.name == "multiple_choice":
            inputs = {name: value[None] for name, value in inputs.items()}
            expected["logits"] = expected["logits"].T
        output = model(**inputs)
    assert expected
    for name, logits in expected.items():
        found = output[name]
        if found.shape == mask.shape or found.dim() == 3:
            found, logits = found[mask != 0], logits[mask != 0]
        torch.testing.assert_close(found, logits, **CLOSE)
    again = load(tmp_path / "out").tuned.model
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


@EACH
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_is_a_pipeline(modern_tuned, kind, pooling, tmp_path, assert_alike):
    modern_tuned(kind, Classification(["good", "bad"], head_pooling=pooling))
    export(tmp_path / "tuned", tmp_path / "out")
    trusted = KINDS[OWN if pooling == "mean" else kind][2]
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "out"), **trusted)
    ours = load(tmp_path / "tuned").classify(TEXTS)
    assert_alike(load(tmp_path / "out").classify(TEXTS), ours)
    # As a batch, in which the second text is padded.
    for theirs, own in zip(classify(TEXTS, top_k=None, batch_size=2), ours, strict=True):
        found = {said["label"]: said["score"] for said in theirs}
        assert found == pytest.approx(own["probabilities"], abs=1e-5)


@EACH
def test_a_head_that_no_class_has_lies_beside_the_encoder(modern_tuned, kind, tmp_path):
    ours = modern_tuned(kind, QuestionAnswering(head="joint", answerability="on"))
    assert export(tmp_path / "tuned", tmp_path / "out") == f"{KINDS[kind][1]}Model"
    loaded(kind, transformers.AutoModel, tmp_path / "out")
    again = load(tmp_path / "out").tuned.model
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in ours.state_dict().items())


@EACH
def test_a_model_for_similarity_is_one_of_sentence_transformers(modern_tuned, kind, tmp_path):
    from sentence_transformers import SentenceTransformer

    modern_tuned(kind, Similarity())
    export(tmp_path / "tuned", tmp_path / "out")
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu", **KINDS[kind][2]).encode(TEXTS)
    np.testing.assert_allclose(theirs, load(tmp_path / "tuned").embed(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_parameters", {"full_attention": {"rope_theta": 160000.0}}),
        ("norm_bias", True),
        ("layer_types", ["full_attention", "full_attention", "sliding_attention"]),
    ],
)
def test_another_modernbert_is_refused(modern_run, key, value, tmp_path):
    export(modern_run("modernbert"), tmp_path / "out", part="encoder")
    (tmp_path / "out" / "manifest.json").unlink()
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    files.write_json(tmp_path / "out" / "config.json", {**values, key: value})
    with pytest.raises(InputError, match=key if key != "rope_parameters" else "rope_theta"):
        load(tmp_path / "out")
