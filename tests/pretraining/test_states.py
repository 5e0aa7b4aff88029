import math

import pytest
import torch

from electra.pretraining.masking import Inputs
from electra.pretraining.objectives.electra import Electra
from electra.pretraining.states import (
    COSINE,
    RANK,
    StateProbe,
    layer_states,
    moments,
    spread,
    states_warning,
)
from electra.pretraining.step import PretrainProblem, Share

pytestmark = pytest.mark.numeric

# Moments are added up in float64 from numbers of float32: 2**-24 of them, twice as much in their products.
CLOSE = {"rel": 1e-5, "abs": 1e-6}


def by_hand(states_ND):
    """From the states themselves: singular values of the centred ones, and the cosine of every pair."""
    states_ND = states_ND.double()
    variances = torch.linalg.svdvals(states_ND - states_ND.mean(0)).square()
    shares = variances / variances.sum()
    rank = math.exp(-(shares * shares.log()).sum())
    unit = states_ND / states_ND.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T
    others = ~torch.eye(len(unit), dtype=torch.bool)
    return rank, cosines[others].mean().item()


def test_the_spread_is_that_of_all_pairs_and_all_directions():
    states_ND = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) + torch.arange(8)
    found = spread(moments(states_ND))
    assert tuple(found) == pytest.approx(by_hand(states_ND), **CLOSE)
    halves = moments(states_ND[:10]) + moments(states_ND[10:])
    assert tuple(spread(halves)) == pytest.approx(tuple(found), **CLOSE)


def test_known_spreads():
    axes = torch.cat([torch.eye(6), -torch.eye(6)])
    rank, cosine = spread(moments(axes))
    assert rank == pytest.approx(6, **CLOSE)
    # The sum of all is zero: each state has one opposite among eleven others.
    assert cosine == pytest.approx(-1 / 11, **CLOSE)
    line = torch.linspace(1, 2, 9)[:, None] * torch.tensor([0.0, 3.0, 4.0])
    rank, cosine = spread(moments(line))
    assert (rank, cosine) == pytest.approx((1, 1), **CLOSE)
    assert math.isnan(spread(moments(torch.ones(1, 3))).cosine)


@pytest.mark.parametrize("padded", [False, True])
def test_states_of_each_layer_are_those_of_the_text(toy, padded):
    encoder = toy.objective().eval().encoder
    inputs = toy.inputs(6)
    assert inputs.attention_mask_BL is not None
    if not padded:
        length = int(inputs.lengths_B.min())
        inputs = Inputs.of(
            inputs.input_ids_BL[:, :length],
            inputs.token_type_ids_BL[:, :length],
            torch.full((6,), length),
        )
    with torch.no_grad():
        found = layer_states(encoder, inputs)
        last_BLD = encoder(inputs.input_ids_BL, **inputs.context)
    assert len(found) == encoder.config.num_hidden_layers
    assert {states.shape for states in found} == {(len(inputs.text_N), encoder.config.hidden_size)}
    torch.testing.assert_close(found[-1], last_BLD.flatten(0, 1)[inputs.text_N])
    assert not torch.allclose(found[0], found[-1])
    # No hook is left behind.
    assert not any(layer._forward_hooks for layer in encoder.layers)


class OneBatch:
    """The first rows of the toy language, for one or several processes."""

    def __init__(self, toy, rows):
        self.batch, self.rows = toy.sentences(rows, seed=0), rows

    def part(self, step, *, rank, world_size):
        share = self.rows // world_size
        rows = slice(rank * share, (rank + 1) * share)
        fields = ("row_ids_B", "input_ids_BL", "token_type_ids_BL", "lengths_B")
        return type(self.batch)(**{name: getattr(self.batch, name)[rows] for name in fields})


def probed(toy, objective, *, rank=0, world_size=1, add=dict):
    probe = StateProbe(
        batches=OneBatch(toy, 8), rank=rank, world_size=world_size, device=torch.device("cpu"), add=add
    )
    found = [sums for of_layer in probe.sums(objective.states) for sums in of_layer.items()]
    return {name: (pair[0] / pair[1]).item() for name, pair in found}


@torch.no_grad()
def test_several_processes_see_what_one_sees(toy):
    objective = toy.objective().eval()
    alone = probed(toy, objective)
    num_layers = objective.encoder.config.num_hidden_layers
    below = [f"{name}_layer_{number}" for number in range(1, num_layers) for name in (RANK, COSINE)]
    assert list(alone) == [*below, RANK, COSINE]
    # What the other process sends, layer by layer.
    sent = []
    probed(toy, objective, rank=1, world_size=2, add=lambda sums: sent.append(sums["moments"]) or dict(sums))
    waiting = iter(sent)
    both = probed(
        toy,
        objective,
        world_size=2,
        add=lambda sums: {"moments": sums["moments"] + next(waiting)},
    )
    assert both == pytest.approx(alone, **CLOSE)


@torch.no_grad()
def test_the_encoder_whose_turn_it_is_is_looked_at(toy):
    objective = toy.objective("two_stage").eval()
    assert objective.learning_encoder is objective.generator
    objective.begin_step(objective.config.two_stage.first_stage_steps)
    assert objective.learning_encoder is objective.discriminator
    assert isinstance(toy.objective(), Electra)
    assert toy.objective("mlm").learning_encoder.config.num_hidden_layers > 0


COLLAPSED = {RANK: 1.4, COSINE: 0.99}


def test_states_in_one_direction_are_told_with_cures():
    said = states_warning(COLLAPSED)
    assert "effective rank 1.4" in said
    for key in ("--objective mlm", "--output_bias frequencies", "--train.learning_rate"):
        assert key in said


@pytest.mark.parametrize("healthy", [{RANK: 14.0}, {COSINE: 0.7}, {RANK: math.nan}, {COSINE: math.nan}])
def test_other_states_are_not(healthy):
    assert states_warning({**COLLAPSED, **healthy}) is None
    assert states_warning({}) is None


def test_a_run_says_so_after_its_first_steps(toy):
    objective = toy.objective("mlm")
    problem = PretrainProblem(
        objective=objective,
        module=objective,
        train=OneBatch(toy, 8),
        valid=None,
        num_valid=0,
        seed=0,
        share=Share(),
        device=torch.device("cpu"),
        flops_per_token=1.0,
        add=dict,
        tokens=str,
    )
    assert "one direction" in problem.diagnose(COLLAPSED, step=5000, progress=0.5)
    assert problem.diagnose(COLLAPSED, step=5000, progress=0.01) is None
    assert problem.diagnose(COLLAPSED, step=50, progress=0.5) is None
