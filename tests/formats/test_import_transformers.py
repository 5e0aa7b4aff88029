"""Folders as transformers itself writes them."""

import json

import pytest
import safetensors.torch
import torch

from electra.errors import InputError
from electra.formats.transformers import read_transformers
from electra.model import names
from foreign_models import write_vocabulary

SIZES = {
    "vocab_size": 70,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 12,
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is in the extra hf")


@pytest.fixture
def save(transformers, tmp_path):
    """A class of transformers -> the folder and the weights of a random model."""

    def save_model(name, folder="theirs", vocab_size=70, **changes):
        kind = "Electra" if name.startswith("Electra") else "Bert"
        extra = {"embedding_size": 16} if kind == "Electra" else {}
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, **extra, **changes})
        torch.manual_seed(0)
        model = getattr(transformers, name)(config)
        model.save_pretrained(tmp_path / folder)
        write_vocabulary(tmp_path / folder / "vocab.txt", vocab_size)
        return tmp_path / folder, model

    return save_model


@pytest.mark.parametrize(
    ("name", "part"), [("ElectraForPreTraining", "discriminator"), ("ElectraForMaskedLM", "generator")]
)
def test_a_part_of_electra_with_its_head(name, part, save):
    folder, model = save(name)
    imported = read_transformers([folder])
    assert list(imported.sizes) == [part]
    assert imported.sizes[part].num_attention_heads == 4
    theirs = names.to_transformers(imported.state, part)
    assert theirs.keys() == model.state_dict().keys()
    assert all(torch.equal(theirs[key], tensor) for key, tensor in model.state_dict().items())
    assert imported.left_out == ()
    assert len(imported.source["sha256"][0]) == 64


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("BertModel", {"pooler.dense.weight", "pooler.dense.bias"}),
        ("BertForTokenClassification", {"classifier.weight", "classifier.bias"}),
        ("ElectraModel", set()),
        ("ElectraForTokenClassification", {"classifier.weight", "classifier.bias"}),
    ],
)
def test_anything_else_of_that_shape_is_an_encoder(name, left_out, save):
    folder, model = save(name)
    imported = read_transformers([folder])
    assert list(imported.sizes) == ["encoder"]
    assert set(imported.left_out) == left_out
    body = getattr(model, model.base_model_prefix, model).state_dict()
    key = "encoder.layer.1.attention.self.query.weight"
    assert torch.equal(imported.state["encoder.layers.1.attention.query.weight"], body[key])
    expected = {key for key in body if "pooler" not in key and not key.endswith("position_ids")}
    assert len(imported.state) == len(expected)


def test_a_pair_becomes_one_model(save):
    pair = [save("ElectraForMaskedLM", "generator")[0], save("ElectraForPreTraining", "discriminator")[0]]
    imported = read_transformers(pair)
    assert list(imported.sizes) == ["discriminator", "generator"]
    assert imported.source["paths"] == [str(folder) for folder in pair]


def test_pairs_that_do_not_belong_together(save):
    one, _ = save("ElectraForPreTraining", "one")
    with pytest.raises(InputError, match="is a second discriminator"):
        read_transformers([one, one])
    with pytest.raises(InputError, match="do not belong together"):
        read_transformers([one, save("BertModel", "bert")[0]])
    other, _ = save("ElectraForMaskedLM", "other", vocab_size=69)
    with pytest.raises(InputError, match="different tokenizers"):
        read_transformers([one, other])


def test_a_head_that_is_not_tied_is_refused(save):
    folder, model = save("ElectraForMaskedLM")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["generator_lm_head.weight"] += 1
    safetensors.torch.save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"generator_lm_head\.weight differs"):
        read_transformers([folder])


def test_folders_that_cannot_be_imported(save, tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json.*hf download"):
        read_transformers([tmp_path / "google/electra-small"])
    folder, _ = save("ElectraForPreTraining", vocab_size=90)
    with pytest.raises(InputError, match="90 tokens, the model only 70"):
        read_transformers([folder])
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"lacks weight discriminator\.layers\.2"):
        read_transformers([folder])
    (folder / "config.json").write_text(json.dumps({**values, "model_type": "electra-own"}))
    with pytest.raises(InputError, match="a model of ours already"):
        read_transformers([folder])
