import pytest
import torch

from electra.model import heads
from electra.pretraining.config import GeneratorConfig
from electra.pretraining.masking import StepRandom
from electra.pretraining.metrics import summarise
from electra.pretraining.networks import FixedGenerator
from electra.pretraining.objectives.electra import proposal_sums, run_generator
from electra.pretraining.sampling import Unigram

pytestmark = pytest.mark.numeric

RANDOM = StepRandom(seed=0, step=0, num_rows=256)


def proposal_of(toy, *, dropout=0.0, seed=0, **changes):
    config = GeneratorConfig(**changes)
    objective = toy.objective(generator=config, dropout=dropout, seed=seed).train()
    inputs = toy.inputs(256)
    masked = objective.mask(inputs, RANDOM)
    torch.manual_seed(seed)
    proposal = run_generator(objective.generator, objective.generator_head, inputs, masked, config)
    return objective, inputs, masked, proposal


def test_a_proposal_is_what_its_logits_say(toy):
    objective, inputs, masked, proposal = proposal_of(toy, width=1.0)
    generator = objective.generator
    hidden_PD = generator(masked.masked_ids_BL, **inputs.context).flatten(0, 1)[masked.positions_P]
    logits_PV = objective.generator_head(hidden_PD, generator.embeddings.word_embeddings.weight)
    probs_PV = logits_PV.softmax(-1)
    torch.testing.assert_close(
        proposal.loss_P, -probs_PV.log().gather(1, masked.original_P[:, None]).squeeze(1)
    )
    torch.testing.assert_close(proposal.entropy_P, -(probs_PV * probs_PV.log()).sum(-1))
    assert torch.equal(proposal.correct_P, logits_PV.argmax(-1) == masked.original_P)
    found = summarise(proposal_sums(proposal, masked, toy.tokens.mask_id))
    assert found["mlm_loss"] == pytest.approx(proposal.loss_P.mean().item())
    assert found["sampled_accuracy"] == (proposal.sampled_P == masked.original_P).double().mean()


def test_what_is_seen_as_it_is_does_not_count_at_masks(toy):
    _, _, masked, proposal = proposal_of(toy, width=1.0)
    seen_P = masked.masked_ids_BL.flatten()[masked.positions_P]
    is_mask_P = seen_P == toy.tokens.mask_id
    assert 0 < is_mask_P.sum() < len(is_mask_P)
    assert torch.equal(seen_P[~is_mask_P], masked.original_P[~is_mask_P])
    # A generator that copies what it sees and guesses nothing.
    copying = proposal._replace(correct_P=~is_mask_P, loss_P=torch.where(is_mask_P, 5.0, 0.0))
    found = summarise(proposal_sums(copying, masked, toy.tokens.mask_id))
    assert found["masked_accuracy"] == 0
    assert found["masked_loss"] == 5
    share = is_mask_P.double().mean().item()
    assert found["mlm_accuracy"] == pytest.approx(1 - share)
    assert found["mlm_loss"] == pytest.approx(5 * share)


def test_chunks_change_nothing(toy, monkeypatch):
    whole = proposal_of(toy)[3]
    # Twenty positions at a time.
    monkeypatch.setattr(heads.GeneratorHead.reduce, "__kwdefaults__", {"logits_per_chunk": 20 * 26})
    chunked = proposal_of(toy)[3]
    for ours, theirs in zip(chunked, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_fixed_generator_works_in_chunks_too(monkeypatch):
    generator = FixedGenerator(Unigram.uniform(10))
    monkeypatch.setattr("electra.pretraining.networks.LOGITS_PER_CHUNK", 30)
    numbers_P = torch.arange(8)
    found_P, sizes_P = generator.reduce(
        lambda logits_CV, numbers_C: (numbers_C, torch.full_like(numbers_C, len(logits_CV))), numbers_P
    )
    assert torch.equal(found_P, numbers_P)
    assert sizes_P.tolist() == [3, 3, 3, 3, 3, 3, 2, 2]


def test_the_correct_token_can_be_forbidden_and_the_best_be_taken(toy):
    _, _, masked, proposal = proposal_of(toy, correct_token="forbidden")
    assert (proposal.sampled_P != masked.original_P).all()
    _, _, masked, proposal = proposal_of(toy, sampling="most_probable")
    assert torch.equal(proposal.sampled_P == masked.original_P, proposal.correct_P)


def test_temperature_flattens(toy):
    cold, hot = (proposal_of(toy, width=1.0, temperature=value)[3].sampled_P for value in (0.02, 1.0))
    assert len(cold.unique()) < len(hot.unique())


def test_without_sampling_dropout_samples_are_those_of_the_calm_network(toy):
    calm = proposal_of(toy, dropout=0.0)[3]
    off = proposal_of(toy, dropout=0.5, sampling_dropout="off")[3]
    on = proposal_of(toy, dropout=0.5, sampling_dropout="on")[3]
    assert torch.equal(off.sampled_P, calm.sampled_P)
    assert not torch.equal(on.sampled_P, calm.sampled_P)
    assert torch.equal(off.loss_P, on.loss_P)
    assert not torch.equal(off.loss_P, calm.loss_P)


def test_the_network_trains_on_after_a_calm_pass(toy):
    objective = proposal_of(toy, dropout=0.5, sampling_dropout="off")[0]
    assert all(module.training for module in objective.modules())
