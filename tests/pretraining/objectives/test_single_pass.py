"""What one encoder sees, judges and names in one pass."""

from dataclasses import replace

import pytest
import torch

from electra.pretraining.config import GeneratorConfig, PretrainConfig, SinglePassConfig
from electra.pretraining.masking import Inputs, MaskingConfig, StepRandom
from electra.pretraining.metrics import add, summarise
from electra.pretraining.sampling import draw_tokens

pytestmark = pytest.mark.numeric

ROWS = 512
RANDOM = StepRandom(seed=0, step=0, num_rows=ROWS)
ALL_MASKS = MaskingConfig(mask_token_prob=1.0)


@pytest.fixture
def objective(toy):
    return toy.objective("single_pass", masking=ALL_MASKS).eval()


def test_masked_and_corrupted_positions_share_a_row_and_no_place(toy, objective):
    inputs = toy.inputs(ROWS)
    masked = objective.mask(inputs, RANDOM)
    views = objective(inputs, RANDOM).views
    chosen, proposed, judged = (
        set(values.tolist()) for values in (masked.positions_P, masked.proposed_R, masked.judged_N)
    )
    assert chosen | judged == set(inputs.text_N.tolist())
    assert not chosen & judged
    assert proposed <= judged & set(masked.ordinary_M.tolist())
    seen, original = views["corrupted_ids_BL"].flatten(), inputs.input_ids_BL.flatten()
    assert (seen[masked.positions_P] == toy.tokens.mask_id).all()
    assert torch.equal(seen[masked.proposed_R], masked.proposals_R)
    untouched = [place for place in range(len(seen)) if place not in chosen | proposed]
    assert torch.equal(seen[untouched], original[untouched])
    replaced = views["replaced_BL"].flatten()
    assert torch.equal(replaced[masked.judged_N], (seen != original)[masked.judged_N])
    assert not replaced[masked.positions_P].any()
    assert not torch.isin(masked.proposals_R, torch.tensor(toy.tokens.special_ids)).any()


@pytest.mark.parametrize(("mask_prob", "replace_prob"), [(0.15, 0.1), (0.3, 0.25)])
def test_shares_are_as_configured(toy, mask_prob, replace_prob):
    masking = MaskingConfig(mask_prob=mask_prob, mask_token_prob=1.0)
    objective = toy.objective(
        "single_pass", masking=masking, single_pass=SinglePassConfig(replace_prob=replace_prob)
    )
    inputs = toy.inputs(ROWS)
    masked = objective.mask(inputs, RANDOM)
    others = len(masked.ordinary_M) - len(masked.positions_P)
    # Of some 4,000 tokens; three standard deviations are 0.02.
    assert len(masked.proposed_R) / others == pytest.approx(replace_prob, abs=0.02)
    counts = objective.count(inputs, masked)
    assert (counts.masked, counts.tokens) == (len(masked.positions_P), len(inputs.text_N))
    assert (counts.judged, counts.proposed) == (counts.tokens - counts.masked, len(masked.proposed_R))


def test_both_losses_are_means_over_their_own_positions(toy):
    objective = toy.objective(
        "single_pass", masking=ALL_MASKS, correction="proposed", recovery_weight=3.0
    ).eval()
    output = objective(toy.inputs(ROWS), RANDOM)
    found = summarise(output.sums)
    expected = found["mlm_loss"] + 10 * found["discriminator_loss"] + 3 * found["recovery_loss"]
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_masked_token_has_no_verdict_in_the_loss(toy, objective):
    """Whatever the head says at masks: the gradient of its loss there is 0."""
    inputs = toy.inputs(32)
    random = StepRandom(seed=0, step=0, num_rows=32)
    masked = objective.mask(inputs, random)
    kept = {}

    def keep(_module, _arguments, logits):
        logits.retain_grad()
        kept["logits"] = logits

    objective.discriminator_head.register_forward_hook(keep)
    objective(inputs, random).loss.backward()
    touched = kept["logits"].grad.flatten().nonzero().squeeze(1)
    assert torch.equal(touched, masked.judged_N)


def test_tokens_that_are_chosen_twice_count_once_where_they_are_judged(toy):
    masking = MaskingConfig(mask_token_prob=1.0, replacement="as_google", mask_prob=0.4)
    objective = toy.objective("single_pass", masking=masking)
    inputs = toy.inputs(ROWS)
    masked = objective.mask(inputs, RANDOM)
    counts = objective.count(inputs, masked)
    assert counts.judged == counts.tokens - len(masked.chosen_U) > counts.tokens - counts.masked
    assert objective(inputs, RANDOM).loss.isfinite()


def test_one_encoder_is_both_networks(objective):
    state = objective.state_dict()
    assert objective.generator is objective.discriminator is objective.encoder
    assert objective.sizes().keys() == {"generator", "discriminator"}
    table = "embeddings.word_embeddings.weight"
    assert state[f"generator.{table}"].data_ptr() == state[f"discriminator.{table}"].data_ptr()
    assert {name.partition(".")[0] for name, _ in objective.named_parameters()} == {
        "generator",
        "generator_head",
        "discriminator_head",
    }


def test_a_forbidden_token_is_never_proposed(toy):
    for kind in ("ngram", "uniform"):
        generator = GeneratorConfig(kind=kind, correct_token="forbidden")
        objective = toy.objective("single_pass", generator=generator, masking=ALL_MASKS)
        inputs = toy.inputs(ROWS)
        masked = objective.mask(inputs, RANDOM)
        assert (masked.proposals_R != inputs.input_ids_BL.flatten()[masked.proposed_R]).all()


def test_schedules_are_functions_of_progress(toy):
    config = PretrainConfig(
        discriminator_weight=50.0, discriminator_weight_start=10.0, discriminator_weight_ramp=0.5
    )
    assert [config.discriminator_weight_at(done) for done in (0, 0.25, 0.5, 1)] == [10, 30, 50, 50]
    assert PretrainConfig().discriminator_weight_at(0.3) == 50
    generator = GeneratorConfig(temperature=2.0, temperature_end=1.0)
    assert [generator.at(done).temperature for done in (0, 0.5, 1)] == [2, 1.5, 1]
    assert (generator.at(0.5).draws_as_is, generator.at(1.0).draws_as_is) == (False, True)

    objective = toy.objective(
        "electra", discriminator_weight_start=0.0, discriminator_weight_ramp=1.0, generator=generator
    ).eval()
    inputs, random = toy.inputs(32), StepRandom(seed=0, step=0, num_rows=32)
    for progress in (0.0, 0.5):
        objective.begin_step(3, progress)
        output = objective(inputs, random)
        found = summarise(output.sums)
        expected = found["mlm_loss"] + 50 * progress * found["discriminator_loss"]
        assert output.loss.item() == pytest.approx(expected, rel=1e-5)


OWN = SinglePassConfig(proposals="own", replace_prob=0.1)


def first_and_second(step, *, rows=ROWS):
    return [StepRandom(seed=0, step=number, num_rows=rows) for number in (step, step + 1)]


@pytest.fixture
def guessing(toy):
    return toy.objective("single_pass", masking=ALL_MASKS, single_pass=OWN, batch_size=ROWS).train()


def test_the_second_time_guesses_of_the_first_are_proposed(toy, guessing):
    inputs = toy.inputs(ROWS)
    first, second = first_and_second(6)
    before = guessing.mask(inputs, first)
    output = guessing(inputs, first, masked=before)
    guessing.end_step(output.sums)
    masked = guessing.mask(inputs, second)
    proposed = set(masked.proposed_R.tolist())
    assert proposed
    assert proposed <= set(before.positions_P.tolist()) - set(masked.positions_P.tolist())
    seen = guessing(inputs, second, masked=masked).views["corrupted_ids_BL"].flatten()
    width = inputs.input_ids_BL.shape[1]
    kept = guessing.guesses[:-1].view(ROWS, -1)[:, :width].flatten().long() - 1
    assert torch.equal(seen[masked.proposed_R], kept[masked.proposed_R])
    assert set((kept >= 0).nonzero().flatten().tolist()) == set(before.positions_P.tolist())
    # About as many as without guesses: a tenth of what is not masked.
    share = len(proposed) / (len(masked.ordinary_M) - len(masked.positions_P))
    assert share == pytest.approx(0.1, abs=0.02)


def test_guesses_are_drawn_from_what_the_head_says(toy, guessing):
    inputs = toy.inputs(ROWS)
    first, _ = first_and_second(0)
    masked = guessing.mask(inputs, first)
    hidden_BLD = guessing.discriminator(masked.seen_ids_BL, **inputs.context)
    logits_PV = guessing.generator_head(
        hidden_BLD.flatten(0, 1)[masked.positions_P], guessing.discriminator.embeddings.word_embeddings.weight
    )
    expected_P = draw_tokens(logits_PV.softmax(-1), masked.uniform_P)
    guessing.end_step(guessing(inputs, first, masked=masked).sums)
    assert torch.equal(guessing.guesses[masked.remembered_P].long() - 1, expected_P)


def test_guesses_at_another_batch_are_not_taken(toy, guessing):
    """A rollback leaves batches out, and may come back between the two times that rows are seen."""
    inputs = toy.inputs(ROWS)
    (first, _), (_, later) = first_and_second(0), first_and_second(4)
    guessing.end_step(guessing(inputs, first).sums)
    masked = guessing.mask(inputs, later)
    seen = guessing(inputs, later, masked=masked).views["corrupted_ids_BL"].flatten()
    assert torch.equal(seen[masked.proposed_R], masked.proposals_R)


def test_parts_of_a_batch_guess_together(toy, guessing):
    inputs = toy.inputs(ROWS)
    first, _ = first_and_second(2)
    sums = guessing(inputs, first).sums
    half = ROWS // 2
    parts = [
        guessing(
            Inputs.of(
                *(values[rows] for values in (inputs.input_ids_BL, inputs.token_type_ids_BL)),
                inputs.lengths_B[rows],
            ),
            replace(first, first_row=rows.start),
        ).sums
        for rows in (slice(0, half), slice(half, ROWS))
    ]
    guessing.end_step(add(parts))
    together = guessing.guesses.clone()
    guessing.end_step(sums)
    assert torch.equal(guessing.guesses, together)
    assert guessing.guesses[-1] == 2
    assert not any(name.startswith("_") for name in summarise(sums))


def test_held_out_rows_are_seen_once(toy, guessing):
    for step in (0, 1):
        random = StepRandom(seed=0, step=step, num_rows=ROWS, purpose="valid")
        masked = guessing.mask(toy.inputs(ROWS), random)
        assert masked.remembered_P is None
        assert masked.recalled_R is None
