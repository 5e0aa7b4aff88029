"""The step of ELECTRA written down plainly with transformers' classes gives the same loss and gradients."""

import pytest
import torch
from torch.nn import functional
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra.model import names
from electra.model.sizes import generator_config
from electra.pretraining.config import GeneratorConfig
from electra.pretraining.masking import StepRandom

pytestmark = pytest.mark.numeric


def transformers_networks(toy, objective):
    """Their two classes with our weights, sharing embeddings."""
    size = generator_config(toy.encoder, width=objective.config.generator.width)
    networks = []
    for part, kind, config in (
        ("generator", ElectraForMaskedLM, size),
        ("discriminator", ElectraForPreTraining, toy.encoder),
    ):
        network = kind(ElectraConfig(**names.to_transformers_config(config))).eval()
        network.load_state_dict(names.to_transformers(objective.state_dict(), part), strict=False)
        networks.append(network)
    generator, discriminator = networks
    generator.electra.embeddings = discriminator.electra.embeddings
    table = discriminator.electra.embeddings.word_embeddings
    generator.generator_lm_head.weight = table.weight
    # They would not train the row of [PAD].
    table.padding_idx = None
    return generator, discriminator


@pytest.mark.parametrize("width", [0.5, 1.0])
def test_loss_and_gradients_are_those_of_a_plain_loop(toy, width):
    objective = toy.objective(generator=GeneratorConfig(width=width), seed=3).eval()
    # Away from the start, where logits are all but equal.
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)) * 0.1)
    inputs, random = toy.inputs(), StepRandom(seed=5, step=2, num_rows=32)
    output = objective(inputs, random)
    output.loss.backward()

    masked = objective.mask(inputs, random)
    generator, discriminator = transformers_networks(toy, objective)
    context = {"token_type_ids": inputs.token_type_ids_BL, "attention_mask": inputs.attention_mask_BL}
    labels = torch.full_like(inputs.input_ids_BL, -100).flatten()
    labels[masked.positions_P] = masked.original_P
    mlm_loss = generator(
        input_ids=masked.masked_ids_BL, labels=labels.view_as(inputs.input_ids_BL), **context
    ).loss
    corrupted_BL = output.views["corrupted_ids_BL"]
    logits_BL = discriminator(input_ids=corrupted_BL, **context).logits
    losses_BL = functional.binary_cross_entropy_with_logits(
        logits_BL, (corrupted_BL != inputs.input_ids_BL).float(), reduction="none"
    )
    loss = mlm_loss + 50 * losses_BL[inputs.attention_mask_BL.bool()].mean()
    torch.testing.assert_close(output.loss, loss, rtol=1e-5, atol=0)

    loss.backward()
    gradients = {
        name: parameter.grad for name, parameter in objective.named_parameters(remove_duplicate=False)
    }
    for part, network in (("generator", generator), ("discriminator", discriminator)):
        ours = names.to_transformers(gradients, part)
        theirs = dict(network.named_parameters(remove_duplicate=False))
        assert ours.keys() == theirs.keys()
        for name, parameter in theirs.items():
            difference = (ours[name] - parameter.grad).norm()
            # The true gradient of a key's bias is zero.
            scale = 1.0 if name.endswith("key.bias") else parameter.grad.norm()
            assert difference <= 2e-5 * scale, name
