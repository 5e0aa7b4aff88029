"""The authors' own numbers: embeddings, layers, attention maps, logits and gradients of their tiny models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from electra.model import names
from electra.model.heads import gather_positions, token_loss
from electra.model.sizes import EncoderConfig, generator_config
from encoder_trace import trace

pytestmark = pytest.mark.numeric

DISCRIMINATOR_WEIGHT = 50.0


@pytest.fixture(scope="module", params=["pretrain_mini", "pretrain_mini_gen2layers"])
def dump(request, shared: Path):
    """Arrays of the dump, with its facts."""
    folder = shared / "oracles" / "google-electra"
    with np.load(folder / f"{request.param}.npz") as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.startswith("step")}
    return kept, json.loads((folder / f"{request.param}.json").read_text())


@pytest.fixture
def model(dump, build):
    arrays, facts = dump
    embedding_size = facts["pretraining_config"]["embedding_size"]
    configs = [
        names.from_transformers_config({**facts[part], "embedding_size": embedding_size})
        for part in ("disc", "gen")
    ]
    model = build(*configs)
    variables = {name[2:]: array for name, array in arrays.items() if name.startswith("w/")}
    model.load_state_dict(names.from_tensorflow(variables))
    return model


def tensor(arrays, name):
    found = torch.from_numpy(arrays[name])
    return found.long() if found.dtype == torch.int32 else found


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("part", "short", "ids"),
    [("discriminator", "disc", "out/fake_input_ids"), ("generator", "gen", "out/masked_input_ids")],
)
def test_embeddings_layers_and_attention_maps(part, short, ids, dump, model):
    arrays, _ = dump
    traced = trace(
        model[part],
        tensor(arrays, ids),
        token_type_ids_BL=tensor(arrays, "in/segment_ids"),
        attention_mask_BL=tensor(arrays, "in/input_mask"),
    )
    close(traced.embedded_BLD, tensor(arrays, f"out/{short}_embedding_output"))
    close(torch.stack(traced.hidden_NBLD), tensor(arrays, f"out/{short}_all_layers"))
    close(torch.stack(traced.map_NBHLL), tensor(arrays, f"out/{short}_attn_maps"))


def forward(model, arrays):
    """Logits of both heads, from the dump's masked and corrupted inputs."""
    inputs = {
        "token_type_ids_BL": tensor(arrays, "in/segment_ids"),
        "attention_mask_BL": tensor(arrays, "in/input_mask"),
    }
    generator, discriminator = model["generator"], model["discriminator"]
    generator_BLD = generator(tensor(arrays, "out/masked_input_ids"), **inputs)
    masked_BPD = gather_positions(generator_BLD, tensor(arrays, "out/masked_lm_positions"))
    token_logits = model["generator_head"](masked_BPD, generator.embeddings.word_embeddings.weight)
    detection_logits = model["discriminator_head"](
        discriminator(tensor(arrays, "out/fake_input_ids"), **inputs)
    )
    return token_logits, detection_logits


def test_logits(dump, model):
    arrays, _ = dump
    token_logits, detection_logits = forward(model, arrays)
    close(token_logits, tensor(arrays, "out/mlm_logits"))
    is_text = tensor(arrays, "in/input_mask").bool()
    close(detection_logits[is_text], tensor(arrays, "out/disc_logits")[is_text])


def test_losses_and_all_gradients(dump, model):
    arrays, _ = dump
    token_logits_BPV, detection_logits_BL = forward(model, arrays)
    (token_losses_P,) = token_loss(
        token_logits_BPV.flatten(0, 1), tensor(arrays, "out/masked_lm_ids").flatten()
    )
    weight_P = tensor(arrays, "out/masked_lm_weights").flatten()
    mlm_loss = (token_losses_P * weight_P).sum() / (weight_P.sum() + 1e-6)
    mask_BL = tensor(arrays, "in/input_mask").float()
    replaced_BL = tensor(arrays, "out/is_fake").float()
    detection_losses_BL = functional.binary_cross_entropy_with_logits(
        detection_logits_BL, replaced_BL, reduction="none"
    )
    detection_loss = (detection_losses_BL * mask_BL).sum() / (mask_BL.sum() + 1e-6)
    close(mlm_loss, tensor(arrays, "out/mlm_loss"))
    close(detection_loss, tensor(arrays, "out/disc_loss"))

    (mlm_loss + DISCRIMINATOR_WEIGHT * detection_loss).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)}
    ours = names.to_tensorflow(gradients)
    theirs = {name[2:]: array for name, array in arrays.items() if name.startswith("g/")}
    assert ours.keys() == theirs.keys()
    # A key's bias moves all scores of a query alike: its true gradient is zero, and both sides hold rounding.
    # The scale there is the norm of all gradients.
    total = float(arrays["out/grad_global_norm"])
    for name, array in theirs.items():
        scale = total if name.endswith("key/bias") else np.linalg.norm(array)
        assert np.linalg.norm(ours[name] - array) <= 1e-5 * scale, name


@pytest.mark.slow
def test_initial_weights_are_distributed_like_the_authors(shared: Path, build):
    statistics = json.loads((shared / "oracles/google-electra/init_stats_small.json").read_text())
    # All layers start alike: two show it.
    discriminator = EncoderConfig.preset("small", num_hidden_layers=2)
    model = build(discriminator, generator_config(discriminator, width=0.25))
    for name, array in names.to_tensorflow(model.state_dict()).items():
        theirs = statistics[name]
        assert list(array.shape) == theirs["shape"], name
        # Four standard errors of the difference.
        error = 4 * theirs["std"] * (2 / array.size) ** 0.5
        assert abs(array.mean() - theirs["mean"]) <= error, name
        assert abs(array.std() - theirs["std"]) <= error, name
        assert abs(np.abs(array).max() - theirs["absmax"]) <= 0.1 * theirs["absmax"], name
