import json
import logging
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

from electra import files
from electra.errors import InputError
from electra.formats.imported import read_transformers, write_imported
from electra.formats.transformers import (
    find_source,
    seal,
    set_tokenizer,
    write_transformers,
)
from electra.prediction.load import load
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city", "new [SEP] music is fast", "café"]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def loud(caplog):
    """What transformers says while it loads; nothing may be missing or left over."""
    transformers_logging.enable_propagation()
    yield caplog
    transformers_logging.disable_propagation()


def export(path, out, *, part=None):
    source = find_source(str(path), part=part)
    with files.appearing_whole(out) as folder:
        write_transformers(source, folder)
        set_tokenizer(folder, source)
        seal(folder, source, {})
    return out


def loaded(kind, folder, loud):
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert not loud.records, loud.text
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def inputs(tokenizer, *texts):
    return tokenizer(*texts, return_tensors="pt")


@torch.no_grad()
def test_a_discriminator_says_the_same(run, tmp_path, loud):
    folder = export(run, tmp_path / "out")
    model, tokenizer = loaded(transformers.ElectraForPreTraining, folder, loud)
    for text, judged in zip(TEXTS, load(run).detect(TEXTS), strict=True):
        (suspicion_L,) = model(**inputs(tokenizer, text)).logits.sigmoid()
        expected = torch.tensor([token["replaced"] for token in judged["tokens"]])
        torch.testing.assert_close(suspicion_L[1:-1], expected, **CLOSE)
    assert load(folder).detect(TEXTS) == load(run).detect(TEXTS)
    assert load(folder).abilities == ("embed", "detect", "score", "choose")


def test_a_generator_fills_the_same_gaps(run, tmp_path, loud):
    folder = export(run, tmp_path / "out", part="generator")
    loaded(transformers.ElectraForMaskedLM, folder, loud)
    text = "the old [MASK] was in a small city"
    found = transformers.pipeline("fill-mask", model=str(folder), top_k=5)(text)
    (expected,) = load(run).fill([text])[0]["masks"]
    for one, candidate in zip(found, expected["candidates"], strict=True):
        assert one["score"] == pytest.approx(candidate["probability"], rel=1e-4)
        assert one["token_str"] == candidate["token"]


@pytest.mark.parametrize("path", ["run", "run/final/generator", "tuned"])
def test_an_encoder_gives_the_same_vectors(run, make_tuned, tmp_path, loud, path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    _, tuned = make_tuned(Classification(("bad", "good")))
    source = tuned if path == "tuned" else run.parent / path
    folder = export(source, tmp_path / "out", part="encoder")
    loaded(transformers.ElectraModel, folder, loud)
    loaded(transformers.AutoModel, folder, loud)
    vectors = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, load(source).embed(TEXTS), atol=1e-5)
    assert load(folder).abilities == ("embed",)
    assert load(folder).embed(TEXTS) == load(source).embed(TEXTS)


def test_vectors_for_similarity_are_the_same(make_tuned, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    _, tuned = make_tuned(Similarity(pooling="cls"))
    folder = export(tuned, tmp_path / "out")
    vectors = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, load(tuned).embed(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    "family",
    [Classification(("bad", "fair", "good")), MultiLabel(("red", "blue")), Regression(low=1.0, high=5.0)],
    ids=lambda family: family.name,
)
@torch.no_grad()
def test_a_classifier_says_the_same(make_tuned, tmp_path, loud, family):
    _, tuned = make_tuned(family)
    folder = export(tuned, tmp_path / "out")
    model, tokenizer = loaded(transformers.ElectraForSequenceClassification, folder, loud)
    pairs = ["a small city", "", "water"]
    expected = load(tuned).classify(TEXTS, pairs)
    for text, pair, said in zip(TEXTS, pairs, expected, strict=True):
        (logits_C,) = model(**inputs(tokenizer, text, *([pair] if pair else []))).logits
        match family.name:
            case "classification":
                found = logits_C.softmax(-1)
            case "multi_label":
                found = logits_C.sigmoid()
            case "regression":
                found = logits_C
        values = [said["value"]] if family.name == "regression" else list(said["probabilities"].values())
        torch.testing.assert_close(found, torch.tensor(values), **CLOSE)
    assert load(folder).classify(TEXTS, pairs) == expected


@torch.no_grad()
def test_a_tagger_says_the_same(make_tuned, tmp_path, loud):
    _, tuned = make_tuned(Tagging(("ADJ", "DET", "NOUN"), "tokens"))
    folder = export(tuned, tmp_path / "out")
    model, tokenizer = loaded(transformers.ElectraForTokenClassification, folder, loud)
    words = ["The", "old", "café", "日本"]
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    (share_LC,) = model(**encoded).logits.softmax(-1)
    firsts = [encoded.word_ids().index(number) for number in range(len(words))]
    (said,) = load(tuned).tag([words])
    for place, word in zip(firsts, said["words"], strict=True):
        assert model.config.id2label[share_LC[place].argmax().item()] == word["tag"]
        # We round it to four digits.
        assert share_LC[place].max().item() == pytest.approx(word["confidence"], abs=6e-5)


@torch.no_grad()
def test_plain_answers_are_the_same(make_tuned, tmp_path, loud):
    _, tuned = make_tuned(QuestionAnswering(head="plain", answerability="off"))
    folder = export(tuned, tmp_path / "out")
    model, tokenizer = loaded(transformers.ElectraForQuestionAnswering, folder, loud)
    question, context = "the old river", "music is fast to read"
    encoded = inputs(tokenizer, question, context)
    output = model(**encoded)
    in_context_L = torch.tensor([place == 1 for place in encoded.sequence_ids()])
    starts, ends = (
        logits_BL[0].masked_fill(~in_context_L, -torch.inf).log_softmax(-1)
        for logits_BL in (output.start_logits, output.end_logits)
    )
    scores_LL = (starts[:, None] + ends[None]).triu()
    scores_LL[scores_LL == 0] = -torch.inf
    first, last = divmod(scores_LL.argmax().item(), len(starts))
    place = encoded.token_to_chars(first).start, encoded.token_to_chars(last).end
    (answer,) = load(tuned).answer([question], [context])
    assert (answer["start"], answer["end"]) == place
    assert load(folder).answer([question], [context]) == [answer]


@pytest.mark.parametrize(
    "family",
    [
        QuestionAnswering(head="joint", answerability="on"),
        Classification([f"class {number}" for number in range(20)]),
    ],
    ids=["joint answers", "more classes than fit"],
)
def test_a_head_that_transformers_does_not_have_lies_beside(make_tuned, tmp_path, loud, family):
    original, tuned = make_tuned(family)
    folder = export(tuned, tmp_path / "out")
    loaded(transformers.ElectraModel, folder, loud)
    head = load_file(folder / "head.safetensors")
    own = original.model.head("task").state_dict()
    assert head.keys() == own.keys()
    assert all(torch.equal(head[name], tensor) for name, tensor in own.items())
    again, model = load(folder), load(tuned)
    if family.name == "classification":
        assert again.classify(TEXTS) == model.classify(TEXTS)
    else:
        assert again.answer(TEXTS, TEXTS) == model.answer(TEXTS, TEXTS)


def test_choices_load_too(make_tuned, tmp_path, loud):
    _, tuned = make_tuned(MultipleChoice())
    loaded(transformers.ElectraForMultipleChoice, export(tuned, tmp_path / "out"), loud)


def assert_same_tensors(folder, other):
    tensors, others = (load_file(place / "model.safetensors") for place in (folder, other))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("part", ["discriminator", "generator", "encoder"])
def test_there_and_back_again_is_bit_for_bit_the_same(run, tmp_path, part):
    first = export(run, tmp_path / "first", part=part)
    write_imported(read_transformers([first]), tmp_path / "imported")
    second = export(tmp_path / "imported", tmp_path / "second", part=part)
    assert_same_tensors(first, second)
    settings = [(folder / "config.json").read_text() for folder in (first, second)]
    assert settings[0] == settings[1]
    third = export(second, tmp_path / "third")
    assert_same_tensors(first, third)
    if part != "encoder":
        assert_same_tensors(first, run / "final" / part)


def test_a_fine_tuned_model_goes_through_bit_for_bit(make_tuned, tmp_path):
    _, tuned = make_tuned(Classification(("bad", "good")))
    first = export(tuned, tmp_path / "first")
    assert_same_tensors(tuned / "final", first)
    assert_same_tensors(first, export(first, tmp_path / "second"))


def test_an_encoder_of_bert_becomes_one_of_electra(tokenizer, tmp_path, loud):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=tokenizer.vocab_size, **sizes)).eval()
    bert.save_pretrained(tmp_path / "bert")
    tokenizer.save(tmp_path / "bert")
    loud.clear()
    model, theirs = loaded(transformers.AutoModel, export(tmp_path / "bert", tmp_path / "out"), loud)
    assert isinstance(model, transformers.ElectraModel)
    with torch.no_grad():
        found, expected = (one(**inputs(theirs, TEXTS[0])).last_hidden_state for one in (model, bert))
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("position", ["alibi", "rotary"])
def test_positions_that_transformers_does_not_know(make_run, tmp_path, position):
    path = make_run(position_embedding_type=position)
    with pytest.raises(InputError, match=rf"{position}.*--to onnx.*position_embedding_type absolute"):
        export(path, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_part_must_be_there(run, make_run, make_tuned, tmp_path):
    _, tuned = make_tuned(Classification(("bad", "good")))
    with pytest.raises(InputError, match=r"\btask\b.*generator.*--part encoder"):
        find_source(str(tuned), part="generator")
    alone = shutil.copytree(run / "final" / "discriminator", tmp_path / "alone")
    with pytest.raises(InputError, match=r"generator.*discriminator.*--part encoder"):
        find_source(str(alone), part="generator")
    assert find_source(str(run / "final" / "generator")).part == "generator"
    assert find_source(str(run / "final" / "generator"), part="discriminator").folder.name == "discriminator"
    masked = make_run("mlm")
    assert find_source(str(masked)).part == "generator"


def test_what_electric_gives_is_not_called_a_discriminator(make_run):
    path = str(make_run("electric", kind="two_tower"))
    assert find_source(path).part == "encoder"
    with pytest.raises(InputError, match=r"discriminator.*encoder.*--part encoder"):
        find_source(path, part="discriminator")


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_damaged_weights_are_refused(run, tmp_path, part):
    copied = shutil.copytree(run, tmp_path / "run")
    weights = copied / "final" / part / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=rf"{part}/model\.safetensors.*damaged"):
        find_source(str(copied), part=part)


def test_the_tokenizer_knows_how_much_is_read(make_run, make_tuned, tmp_path):
    _, tuned = make_tuned(Classification(("bad", "good")))
    lengths = {make_run(facts={"seq_length": 16}): 16, make_run(): 32, tuned: 24}
    for number, (path, length) in enumerate(lengths.items()):
        folder = export(path, tmp_path / str(number))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer.model_max_length == length
        assert len(tokenizer("river " * 40, truncation=True)["input_ids"]) == length


def test_nothing_tells_of_the_machine_that_it_was_made_on(make_tuned, tmp_path):
    _, tuned = make_tuned(Classification(("bad", "good")))
    path = tuned / "final" / "config.json"
    values = json.loads(path.read_text())
    values["electra_task"]["start"] = "/home/someone/secret/run"
    path.write_text(json.dumps(values))
    (tuned / "final" / "manifest.json").unlink()
    folder = export(tuned, tmp_path / "out")
    texts = [file.read_text() for file in folder.iterdir() if file.suffix in (".json", ".md", ".txt")]
    assert not any("secret" in text for text in texts)
    assert json.loads((folder / "config.json").read_text())["electra_task"]["start"] == "run"
    assert load(folder).classify(TEXTS) == load(tuned).classify(TEXTS)


def test_the_log_is_watched(loud):
    logging.getLogger("transformers").warning("something is missing")
    assert loud.records
