"""Each objective's own loss falls below what can be had without looking at the context."""

import math

import pytest

from electra.pretraining.config import GeneratorConfig, TwoStageConfig
from electra.pretraining.masking import MaskingConfig


def entropy(probability: float) -> float:
    return -sum(share * math.log(share) for share in (probability, 1 - probability))


def trained(toy, name, steps, *, learning_rate=4e-3, **changes):
    objective = toy.objective(name, **changes)
    list(toy.train(objective, steps, learning_rate=learning_rate))
    return toy.evaluate(objective)


def majority_loss(toy, found) -> float:
    """The best constant verdict on ordinary tokens, with the special ones known to be original."""
    inputs = toy.inputs(512, seed=10**6)
    ordinary = 1 - 2 * len(inputs.lengths_B) / inputs.lengths_B.sum().item()
    return ordinary * entropy(found["replaced_fraction"] / ordinary)


@pytest.mark.slow
def test_electra(toy):
    found = trained(toy, "electra", 40)
    assert found["mlm_loss"] < 0.9 * toy.unigram_entropy
    assert found["discriminator_loss"] < 0.7 * majority_loss(toy, found)
    assert found["discriminator_auc"] > 0.8


def test_mlm(toy):
    assert trained(toy, "mlm", 30)["mlm_loss"] < 0.6 * toy.unigram_entropy


@pytest.mark.slow
def test_electra_15(toy):
    """Of a hot generator's samples some are of a wrong class: those are surely replaced."""
    found = trained(
        toy,
        "electra_15",
        120,
        learning_rate=2e-3,
        masking=MaskingConfig(mask_prob=0.3),
        generator=GeneratorConfig(temperature=2.0),
    )
    assert found["discriminator_loss"] < 0.99 * entropy(found["sampled_accuracy"])
    assert found["discriminator_auc"] > 0.6


def test_replace_mlm(toy):
    found = trained(toy, "replace_mlm", 30)
    assert found["recovery_loss"] < 0.7 * toy.unigram_entropy


@pytest.mark.slow
def test_all_tokens_mlm(toy):
    """Against a gate that knows how many tokens are replaced, and a softmax that knows the unigrams."""
    found = trained(toy, "all_tokens_mlm", 30)
    trivial = majority_loss(toy, found) + found["replaced_fraction"] * toy.unigram_entropy
    assert found["recovery_loss"] < 0.8 * trivial


@pytest.mark.slow
def test_two_stage(toy):
    found = trained(toy, "two_stage", 60, two_stage=TwoStageConfig(first_stage_steps=12))
    assert found["mlm_loss"] < 0.9 * toy.unigram_entropy
    assert found["discriminator_loss"] < 0.7 * majority_loss(toy, found)


def test_single_pass(toy):
    """N-grams propose one of the three words of the right class: masks can be named, nothing detected."""
    found = trained(toy, "single_pass", 40)
    assert found["mlm_loss"] < 0.6 * toy.unigram_entropy
    assert found["sampled_accuracy"] == pytest.approx(1 / 3, abs=0.05)
    assert "generator_entropy" not in found


@pytest.mark.slow
def test_single_pass_detects_what_does_not_fit(toy):
    found = trained(toy, "single_pass", 60, generator=GeneratorConfig(kind="uniform"))
    assert found["mlm_loss"] < 0.9 * toy.unigram_entropy
    assert found["discriminator_loss"] < 0.8 * entropy(found["replaced_fraction"])
    assert found["discriminator_auc"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["electra", "single_pass"])
def test_correction_names_what_was_replaced(toy, name):
    generator = GeneratorConfig(kind="uniform")
    found = trained(toy, name, 60, generator=generator, correction="proposed")
    assert found["recovery_loss"] < 0.8 * toy.unigram_entropy
    assert found["recovery_accuracy"] > 0.2


@pytest.mark.slow
def test_a_head_that_sees_the_first_token_learns_too(toy):
    generator = GeneratorConfig(kind="uniform")
    found = trained(
        toy, "electra", 50, learning_rate=2e-3, generator=generator, discriminator_head="with_cls"
    )
    assert found["discriminator_loss"] < 0.8 * majority_loss(toy, found)
    assert found["discriminator_auc"] > 0.75


@pytest.mark.slow
def test_replaced_span(toy):
    found = trained(toy, "replaced_span", 60)
    assert found["mlm_loss"] < 0.9 * toy.unigram_entropy
    assert found["discriminator_loss"] < 0.8 * majority_loss(toy, found)
    assert found["discriminator_auc"] > 0.8


@pytest.mark.slow
def test_adversarial(toy):
    found = trained(toy, "adversarial", 40)
    assert found["discriminator_loss"] < 0.7 * majority_loss(toy, found)
