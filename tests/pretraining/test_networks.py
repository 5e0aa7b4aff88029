import copy

import pytest
import torch

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import StepRandom, TokenFacts
from electra.pretraining.networks import build_networks
from electra.pretraining.objectives import build_objective

pytestmark = pytest.mark.numeric

RANDOM = StepRandom(seed=0, step=0, num_rows=32)


def shared_names(objective):
    """Names of parameters that both networks hold."""
    generator = dict(objective.generator.named_parameters())
    return {
        name
        for name, parameter in objective.discriminator.named_parameters()
        if any(parameter is other for other in generator.values())
    }


def test_sharing_embeddings_leaves_each_network_its_projection(toy):
    objective = toy.objective()
    assert shared_names(objective) == {
        f"embeddings.{name}"
        for name in (
            "word_embeddings.weight",
            "token_type_embeddings.weight",
            "position_embeddings.weight",
            "norm.weight",
            "norm.bias",
        )
    }
    assert objective.discriminator.projection is not objective.generator.projection


def test_sharing_none_and_all(toy):
    separate = toy.objective(generator=GeneratorConfig(sharing="none"))
    assert shared_names(separate) == set()
    one = toy.objective(generator=GeneratorConfig(sharing="all", width=1.0))
    assert one.generator is one.discriminator
    with pytest.raises(InputError, match=r"generator\.sharing.*all.*0\.25.*\b1\b"):
        GeneratorConfig(sharing="all")


def test_disentangled_tables_begin_as_the_generators_and_get_no_gradient_to_it(toy):
    config = GeneratorConfig(sharing="disentangled")
    objective = toy.objective(generator=config, generator_weight=0.0)
    ours, base = objective.discriminator.embeddings, objective.generator.embeddings
    assert shared_names(objective) == set()
    assert torch.equal(ours.word_embeddings.weight, base.word_embeddings.weight)
    objective(toy.inputs(), RANDOM).loss.backward()
    assert not base.word_embeddings.weight.grad.any()
    deltas = [parameter for name, parameter in objective.named_parameters() if "parametrizations" in name]
    assert len(deltas) == 3
    assert all(delta.grad.any() for delta in deltas)

    # The table follows the generator's and keeps its delta.
    with torch.no_grad():
        deltas[0].add_(1.0)
        base.word_embeddings.weight.mul_(2.0)
    assert torch.equal(ours.word_embeddings.weight, base.word_embeddings.weight + 1.0)


def test_plain_state_of_disentangled_tables_is_that_of_a_plain_encoder(toy):
    objective = toy.objective(generator=GeneratorConfig(sharing="disentangled"))
    list(toy.train(objective, 3))
    state = objective.plain_state()
    plain = Encoder(toy.encoder).eval()
    plain.load_state_dict(
        {
            name.removeprefix("discriminator."): value
            for name, value in state.items()
            if name.startswith("discriminator.")
        }
    )
    inputs = toy.inputs()
    objective.eval()
    expected = objective.encoder(inputs.input_ids_BL, **inputs.context)
    assert torch.equal(plain(inputs.input_ids_BL, **inputs.context), expected)
    assert toy.objective().plain_state().keys() == state.keys()


def test_a_disentangled_objective_can_be_copied_and_restored(toy):
    objective = toy.objective(generator=GeneratorConfig(sharing="disentangled"))
    list(toy.train(objective, 2))
    twin = toy.objective(generator=GeneratorConfig(sharing="disentangled"), seed=9)
    twin.load_state_dict(objective.state_dict())
    losses = [each.eval()(toy.inputs(), RANDOM).loss for each in (objective, twin, copy.deepcopy(objective))]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("sharing", ["embeddings", "none", "disentangled"])
@pytest.mark.parametrize("kind", ["mlm", "two_tower"])
def test_each_parameter_has_one_owner(toy, kind, sharing):
    objective = toy.objective(generator=GeneratorConfig(kind=kind, sharing=sharing))
    owned = objective.parameters_by_owner()
    together = [parameter for named in owned.values() for _, parameter in named]
    assert {id(parameter) for parameter in together} == {
        id(parameter) for parameter in objective.parameters()
    }
    assert len(together) == len(set(map(id, together)))
    tables = [name for name, _ in owned["discriminator"] if "word_embeddings" in name]
    assert len(tables) == (0 if sharing == "embeddings" else 1)


def test_generator_sizes_are_fractions(toy):
    config = GeneratorConfig(width=0.5, depth=0.5)
    generator, head, _ = build_networks(config, toy.encoder, toy.tokens)
    assert (generator.config.hidden_size, generator.config.num_hidden_layers) == (32, 1)
    assert head.dense.in_features == 32


def test_generators_without_context_propose_what_they_are_told(toy):
    counts_V = torch.zeros(toy.tokens.vocab_size)
    counts_V[7], counts_V[8] = 3, 1
    tokens = TokenFacts(
        vocab_size=toy.tokens.vocab_size, mask_id=4, special_ids=(0, 2, 3, 4), counts_V=counts_V
    )
    inputs, random = toy.inputs(512), StepRandom(seed=0, step=0, num_rows=512)
    samples = {}
    for kind in ("unigram", "uniform"):
        config = PretrainConfig(generator=GeneratorConfig(kind=kind))
        objective = build_objective(config, toy.encoder, tokens, seq_length=16, seed=0).eval()
        masked = objective.mask(inputs, random)
        output = objective(inputs, random)
        samples[kind] = output.views["corrupted_ids_BL"].flatten()[masked.positions_P]
        assert not [name for name, _ in objective.named_parameters() if name.startswith("generator")]
    share_of_7 = (samples["unigram"] == 7).double().mean().item()
    assert set(samples["unigram"].tolist()) == {7, 8}
    assert share_of_7 == pytest.approx(0.75, abs=0.05)
    assert set(samples["uniform"].tolist()) == set(range(toy.tokens.vocab_size))


def test_a_unigram_generator_needs_counts(toy):
    with pytest.raises(InputError, match="counts"):
        toy.objective(generator=GeneratorConfig(kind="unigram"))
