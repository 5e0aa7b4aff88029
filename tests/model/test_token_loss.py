import pytest
import torch
from torch.nn import functional

from electra.model.heads import token_loss

pytestmark = pytest.mark.numeric


def test_loss_and_gradient_are_those_of_torch():
    torch.manual_seed(0)
    logits_CV = (5 * torch.randn(7, 300, dtype=torch.float32)).requires_grad_()
    target_C = torch.randint(300, (7,))
    weight_C = torch.randn(7)
    ours = token_loss(logits_CV, target_C)
    theirs_C = functional.cross_entropy(logits_CV, target_C, reduction="none")
    torch.testing.assert_close(ours.loss_C, theirs_C)
    (ours_CV,) = torch.autograd.grad((ours.loss_C * weight_C).sum(), logits_CV, retain_graph=True)
    (again_CV,) = torch.autograd.grad((ours.loss_C * weight_C).sum(), logits_CV)
    (theirs_CV,) = torch.autograd.grad((theirs_C * weight_C).sum(), logits_CV)
    torch.testing.assert_close(ours_CV, theirs_CV, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours_CV, again_CV)


def test_by_products_need_no_gradient_and_are_right():
    logits_CV = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]], requires_grad=True)
    loss = token_loss(logits_CV, torch.tensor([2, 0]))
    torch.testing.assert_close(loss.probs_CV, logits_CV.softmax(-1))
    torch.testing.assert_close(loss.log_normaliser_C, logits_CV.logsumexp(-1))
    assert loss.best_C.tolist() == [1, 0]
    assert not any(part.requires_grad for part in (loss.probs_CV, loss.best_C, loss.log_normaliser_C))


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_a_probability_that_vanishes_gives_a_finite_loss(scale):
    logits_CV = torch.tensor([[scale, 0.0]], requires_grad=True)
    loss = token_loss(logits_CV, torch.tensor([1]))
    assert loss.loss_C.item() == pytest.approx(scale)
    loss.loss_C.sum().backward()
    assert logits_CV.grad is not None
    assert logits_CV.grad.tolist() == [[1.0, -1.0]]


def test_half_precision_is_computed_in_float32():
    logits_CV = torch.randn(3, 50, dtype=torch.bfloat16, requires_grad=True)
    loss = token_loss(logits_CV, torch.tensor([1, 2, 3]))
    assert loss.loss_C.dtype == torch.float32
    loss.loss_C.sum().backward()
    assert logits_CV.grad is not None
    assert logits_CV.grad.dtype == torch.bfloat16


def test_a_logit_that_is_no_number_is_not_hidden():
    logits_CV = torch.tensor([[torch.nan, 0.0]])
    assert token_loss(logits_CV, torch.tensor([1])).loss_C.isnan().all()
