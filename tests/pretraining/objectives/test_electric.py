import dataclasses
import math

import pytest
import torch

from electra.pretraining.masking import Inputs, StepRandom

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def trained(toy):
    objective = toy.objective("electric")
    list(toy.train(objective, 60, learning_rate=4e-3))
    return objective.eval()


def corrupted(inputs: Inputs) -> Inputs:
    """Four words of each row in the reverse order: each of a class that does not belong there."""
    ids_BL = inputs.input_ids_BL.clone()
    ids_BL[:, 2:6] = ids_BL[:, 2:6].flip(1)
    return dataclasses.replace(inputs, input_ids_BL=ids_BL)


@pytest.mark.slow
def test_it_learns(toy, trained, monkeypatch):
    """The generator beats the unigrams; the energies beat one that knows only the number of words."""
    found = toy.evaluate(trained)
    assert found["cloze_loss"] < 0.6 * toy.unigram_entropy
    constant = math.log(toy.tokens.vocab_size - 5)
    monkeypatch.setattr(
        trained, "energy", lambda inputs, ids_BL: torch.full(ids_BL.shape, constant), raising=True
    )
    assert found["discriminator_loss"] < 0.9 * toy.evaluate(trained)["discriminator_loss"]


def test_real_text_is_more_likely_than_corrupted_text(toy, trained):
    inputs = toy.inputs(200, seed=77)
    real_B, wrong_B = (trained.pseudo_log_likelihood(rows) for rows in (inputs, corrupted(inputs)))
    assert (real_B > wrong_B).double().mean() > 0.9


def test_a_score_does_not_depend_on_padding(toy, trained):
    inputs = toy.inputs(4, seed=3)
    together_B = trained.pseudo_log_likelihood(inputs)
    for row, length in enumerate(inputs.lengths_B.tolist()):
        alone = Inputs.of(
            inputs.input_ids_BL[[row], :length],
            inputs.token_type_ids_BL[[row], :length],
            inputs.lengths_B[[row]],
        )
        assert trained.pseudo_log_likelihood(alone).item() == pytest.approx(together_B[row].item(), rel=1e-4)


def test_the_logit_is_energy_and_log_probability_of_the_noise(toy):
    objective = toy.objective("electric").eval()
    inputs, random = toy.inputs(), StepRandom(seed=1, step=1, num_rows=32)
    masked = objective.mask(inputs, random)
    views = objective(inputs, random).views
    ids_BL = views["corrupted_ids_BL"]
    # The context of each token is the original row.
    hidden_BLD = objective.generator(inputs.input_ids_BL, **inputs.context)
    table_VE = objective.generator.embeddings.word_embeddings.weight
    log_q_BLV = objective.generator_head(hidden_BLD, table_VE).log_softmax(-1)
    expected_BL = (
        objective.energy(inputs, ids_BL)
        + log_q_BLV.gather(2, ids_BL[..., None]).squeeze(2)
        + math.log(0.15 / 0.85)
    )
    tokens_BL = inputs.token_mask
    torch.testing.assert_close(views["logits_BL"][tokens_BL], expected_BL[tokens_BL], rtol=0, atol=1e-5)
    # All that was drawn is noise, even where it is the token that stood there.
    noise = torch.zeros(ids_BL.numel(), dtype=torch.bool)
    noise[masked.positions_P] = True
    assert torch.equal(views["replaced_BL"].flatten(), noise)
