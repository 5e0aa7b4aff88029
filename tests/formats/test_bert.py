"""BERTs as transformers itself writes them, with random weights -> the same numbers here."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

import electra
from electra import cli
from electra.errors import InputError
from electra.formats.imported import read_transformers
from electra.model.store import open_model

pytestmark = pytest.mark.numeric

# Two layers of 32 numbers in fp32, computed in another order by another program.
CLOSE = {"rtol": 0, "atol": 1e-5}
SENTENCE = "the The old river Paris paris was in a small city new music is fast water cafe"
LETTERS = "abcdefghijklmnopqrstuvwxyzP日本"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".", *SENTENCE.split()]
VOCABULARY += [f"{mark}{letter}" for mark in ("", "##") for letter in LETTERS if f"{mark}{letter}" != "a"]
TEXTS = ["The old river was in Paris.", "new music is [MASK] fast , café", "日本 water"]
PAIRS = ["in a small city", "the river", "Cafe"]
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}


@pytest.fixture
def save(tmp_path):
    """`save(architecture, cased=True, form="safetensors")`: a folder of transformers, and its model."""

    def write(architecture, *, cased=False, form="safetensors", **changes):
        # Some rows of the table have no token, as in models whose vocabulary was padded to a round number.
        sizes = {"vocab_size": len(VOCABULARY) + 3, "hidden_size": 32, "intermediate_size": 48}
        more = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
        # Wide, so that numbers differ as those of a trained model.
        config = transformers.BertConfig(**{**sizes, **more, "initializer_range": 0.3, **changes})
        torch.manual_seed(0)
        model = getattr(transformers, architecture)(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("bias") or "LayerNorm" in name:
                    weight.add_(0.2 * torch.randn(weight.shape))
        folder = tmp_path / f"{architecture} {form}"
        model.save_pretrained(folder)
        words = {token: number for number, token in enumerate(VOCABULARY)}
        transformers.BertTokenizer(vocab=words, do_lower_case=not cased).save_pretrained(folder)
        in_form(form, folder, model)
        return folder, model

    return write


def in_form(form, folder, model):
    """The weights as they lie in other people's folders."""
    if form == "safetensors":
        return
    (folder / "model.safetensors").unlink()
    state = dict(model.state_dict())
    if form == "old bin":
        # As early conversions from TensorFlow have them.
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in old.items():
            state = {key.replace(new, name): one for key, one in state.items()}
        scope = "bert." if hasattr(model, "bert") else ""
        state[f"{scope}embeddings.position_ids"] = torch.arange(32)[None]
        state.pop("cls.predictions.decoder.bias", None)
    torch.save(state, folder / "pytorch_model.bin")


def batch(folder):
    """Pairs of texts, padded, with segments, by the tokenizer of transformers."""
    words = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = words(TEXTS, PAIRS, padding=True, return_tensors="pt")
    assert encoded["token_type_ids"].any()
    assert not encoded["attention_mask"].all()
    return dict(encoded)


@torch.no_grad()
def our_hidden(folder, inputs):
    encoder = open_model(folder).encoder().eval()
    mask = inputs["attention_mask"]
    hidden = encoder(inputs["input_ids"], token_type_ids_BL=inputs["token_type_ids"], attention_mask_BL=mask)
    return hidden * mask[..., None]


@torch.no_grad()
def their_hidden(model, inputs):
    body = getattr(model, "bert", model)
    return body(**inputs).last_hidden_state * inputs["attention_mask"][..., None]


def bring(folder, out, *words, code=cli.OK):
    assert cli.main(["import", "--from", "transformers", str(folder), "--out", str(out), *words]) == code
    return out


@pytest.mark.parametrize("form", ["safetensors", "bin", "old bin"])
@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_hidden_states_are_the_same(architecture, form, save, tmp_path):
    folder, model = save(architecture, form=form)
    inputs = batch(folder)
    expected = their_hidden(model, inputs)
    assert expected.std() > 0.1
    torch.testing.assert_close(our_hidden(folder, inputs), expected, **CLOSE)
    ours = bring(folder, tmp_path / "ours")
    torch.testing.assert_close(our_hidden(ours, inputs), expected, **CLOSE)


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("has_json", [True, False])
def test_its_words_have_the_ids_that_transformers_gives_them(cased, has_json, save, tmp_path):
    folder, _ = save("BertModel", cased=cased)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [text.replace("[MASK]", "Paris") for text in TEXTS]
    expected = [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    if not has_json:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
        (folder / "tokenizer.json").unlink()
    ours = bring(folder, tmp_path / "ours")
    for place in (folder, ours):
        tokenizer = open_model(place).tokenizer
        assert [ids.tolist() for ids in tokenizer.encode(texts).split()] == expected
        assert tokenizer.describe()["case"] == ("keep" if cased else "lower")


@pytest.mark.parametrize("form", ["safetensors", "bin", "old bin"])
@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining"])
@torch.no_grad()
def test_a_masked_language_model_is_a_generator(architecture, form, save, tmp_path):
    folder, model = save(architecture, form=form)
    inputs = batch(folder)
    output = model(**inputs)
    logits = output.logits if architecture == "BertForMaskedLM" else output.prediction_logits
    ours = bring(folder, tmp_path / "ours")
    for place in (folder, ours):
        found = open_model(place)
        assert found.role == "generator"
        encoder, head = found.encoder(), found.head()
        table = encoder.embeddings.word_embeddings.weight
        said = head(our_hidden(place, inputs), table)
        at_text = inputs["attention_mask"].bool()
        torch.testing.assert_close(said[at_text], logits[at_text], **CLOSE)
    opened = transformers.ElectraForMaskedLM.from_pretrained(ours / "generator").eval()
    torch.testing.assert_close(opened(**inputs).logits[at_text], logits[at_text], **CLOSE)


@torch.no_grad()
def test_a_gap_is_filled_as_transformers_fills_it(save, tmp_path):
    folder, model = save("BertForMaskedLM")
    text = "the old [MASK] was in a small city"
    words = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = words(text, return_tensors="pt")
    place = encoded["input_ids"][0].tolist().index(words.mask_token_id)
    shares = model(**encoded).logits[0, place, : len(VOCABULARY)].softmax(-1)
    best = shares.topk(5)
    for folder_or_ours in (folder, bring(folder, tmp_path / "ours")):
        loaded = electra.load(folder_or_ours, precision="fp32")
        assert loaded.abilities == ("embed", "fill", "score", "choose")
        (said,) = loaded.fill([text], top=5)
        candidates = said["masks"][0]["candidates"]
        assert [one["token"] for one in candidates] == words.convert_ids_to_tokens(best.indices.tolist())
        found = [one["probability"] for one in candidates]
        assert found == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "left_out"),
    [
        ("BertModel", POOLER),
        ("BertForMaskedLM", set()),
        (
            "BertForPreTraining",
            {f"bert.{name}" for name in POOLER}
            | {"cls.seq_relationship.weight", "cls.seq_relationship.bias"},
        ),
    ],
)
def test_what_has_no_place_here_is_named(architecture, left_out, save, tmp_path, capsys):
    folder, _ = save(architecture)
    assert set(read_transformers([folder]).left_out) == left_out
    bring(folder, tmp_path / "ours")
    assert ("left out" in capsys.readouterr().out) == bool(left_out)
    alone = read_transformers([folder], part="encoder")
    assert list(alone.sizes) == ["encoder"]
    if architecture == "BertForMaskedLM":
        assert "cls.predictions.transform.dense.weight" in alone.left_out
    ours = bring(folder, tmp_path / "encoder", "--part", "encoder")
    assert electra.load(ours).abilities == ("embed",)


def test_a_head_with_a_table_of_its_own_is_left_out(save):
    folder, model = save("BertForMaskedLM", form="bin")
    state = {**model.state_dict()}
    state["cls.predictions.decoder.weight"] = state["cls.predictions.decoder.weight"] + 1
    torch.save(state, folder / "pytorch_model.bin")
    imported = read_transformers([folder])
    assert list(imported.sizes) == ["encoder"]
    assert "cls.predictions.decoder.weight" in imported.left_out
    assert electra.load(folder).abilities == ("embed",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, expected 2"),
    ],
)
def test_berts_of_another_build_are_refused(changes, reason, save, tmp_path):
    folder = shutil.copytree(save("BertForMaskedLM")[0], tmp_path / "bert")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(InputError, match=reason):
        electra.load(folder)
    bring(folder, tmp_path / "never", code=cli.BAD_INPUT)
    assert not (tmp_path / "never").exists()


def test_vectors_are_those_of_transformers(save):
    folder, model = save("BertModel")
    words = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The old river was in Paris."
    with torch.no_grad():
        mean = model(**words(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    expected = (mean / mean.norm()).numpy()
    (found,) = electra.load(folder, precision="fp32").embed([text])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
