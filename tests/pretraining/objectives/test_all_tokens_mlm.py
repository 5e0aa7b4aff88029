import math

import pytest
import torch

from electra.pretraining.objectives.mlm import copy_losses

pytestmark = pytest.mark.numeric


def test_the_copy_gate_mixes_probabilities():
    gate_N = torch.tensor([-2.0, -0.5, 0.0, 1.5])
    vocabulary_losses_N = torch.tensor([0.1, 3.0, 1.0, 0.7])
    replaced_N = torch.tensor([False, True, False, True])
    copy_N = 1 - gate_N.sigmoid()
    probs_N = copy_N * ~replaced_N + (1 - copy_N) * (-vocabulary_losses_N).exp()
    torch.testing.assert_close(copy_losses(gate_N, vocabulary_losses_N, replaced_N), -probs_N.log())


@pytest.mark.parametrize("gate", [-200.0, 200.0])
@pytest.mark.parametrize("replaced", [False, True])
def test_extreme_gates_have_finite_losses_and_gradients(gate, replaced):
    gate_N = torch.tensor([gate], requires_grad=True)
    vocabulary_losses_N = torch.tensor([300.0], requires_grad=True)
    loss = copy_losses(gate_N, vocabulary_losses_N, torch.tensor([replaced])).sum()
    loss.backward()
    expected = {(-200, False): 0.0, (-200, True): 500.0, (200, False): 200.0, (200, True): 300.0}
    assert loss.item() == pytest.approx(expected[gate, replaced])
    assert math.isfinite(gate_N.grad.item())
    assert math.isfinite(vocabulary_losses_N.grad.item())
