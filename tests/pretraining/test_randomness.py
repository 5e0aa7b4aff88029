import pytest
import torch

from electra.pretraining.masking import StepRandom


def random_of(**changes) -> StepRandom:
    return StepRandom(**{"seed": 1, "step": 2, "num_rows": 32, **changes})


def test_rows_take_their_slice_of_the_global_noise(toy):
    masker = toy.objective().masker
    whole = random_of().noise(masker, 32)
    assert torch.equal(random_of(first_row=8).noise(masker, 10), whole[8:18])
    with pytest.raises(AssertionError, match=r"30.*33.*32"):
        random_of(first_row=30).noise(masker, 3)


@pytest.mark.parametrize("change", [{"seed": 2}, {"step": 3}, {"purpose": "evaluate"}])
def test_seed_step_and_purpose_give_other_noise_and_other_dropout(toy, change):
    masker = toy.objective().masker
    assert not torch.equal(random_of().noise(masker, 32), random_of(**change).noise(masker, 32))
    assert not torch.equal(dropout_of(random_of()), dropout_of(random_of(**change)))


def dropout_of(random: StepRandom) -> torch.Tensor:
    random.seed_dropout()
    return torch.rand(8)


def test_dropout_belongs_to_the_first_row_of_a_micro_batch():
    assert torch.equal(dropout_of(random_of(first_row=8)), dropout_of(random_of(first_row=8)))
    assert not torch.equal(dropout_of(random_of(first_row=8)), dropout_of(random_of(first_row=16)))


@pytest.mark.parametrize("name", ["electra", "electric", "adversarial"])
def test_a_step_repeats_itself_bit_for_bit(toy, name):
    """Whatever was drawn before: what a resumed run needs."""
    results = []
    for disturbance in (1, 2):
        objective = toy.objective(name, dropout=0.1).train()
        torch.manual_seed(disturbance)
        output = objective(toy.inputs(), random_of())
        output.loss.backward()
        results.append([output.loss, *(parameter.grad for parameter in objective.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    other = toy.objective(name, dropout=0.1).train()(toy.inputs(), random_of(first_row=0, step=3))
    assert other.loss != results[0][0]


def test_evaluation_leaves_the_default_generator_alone(toy):
    objective = toy.objective(dropout=0.1).eval()
    state = torch.get_rng_state()
    objective(toy.inputs(), random_of())
    assert torch.equal(torch.get_rng_state(), state)
