"""Logits over the vocabulary -> the loss of the true tokens, with all probabilities as a by-product.

torch's cross-entropy passes over the logits six times, forward and backward; with a vocabulary of 30,000 each
pass costs as much as a layer of a small encoder. Here the softmax that the loss needs is the one that is
sampled from and the one that the gradient is made of.

C positions, V tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class TokenLoss(NamedTuple):
    """How well distributions over the vocabulary tell the true tokens; only the loss has a gradient."""

    loss_C: Tensor
    """Cross-entropy."""
    probs_CV: Tensor
    best_C: Tensor
    """The most probable token."""
    log_normaliser_C: Tensor
    """The logarithm of the sum of all exponentials of logits: a log-probability is a logit less this."""


def token_loss(logits_CV: Tensor, target_C: Tensor) -> TokenLoss:
    """Compare distributions with the true tokens, in float32."""
    apply: Callable[..., tuple[Tensor, ...]] = _TokenLoss.apply
    return TokenLoss(*apply(logits_CV.float(), target_C.long()))


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_CV: Tensor, target_C: Tensor) -> tuple[Tensor, ...]:
        probs_CV = logits_CV.softmax(-1)
        best_C = logits_CV.argmax(-1)
        # By way of the most probable token, whose probability never vanishes: no pass over all logits.
        log_normaliser_C = _at(logits_CV, best_C) - _at(probs_CV, best_C).log()
        loss_C = log_normaliser_C - _at(logits_CV, target_C)
        ctx.save_for_backward(probs_CV, target_C)
        ctx.mark_non_differentiable(probs_CV, best_C, log_normaliser_C)
        ctx.set_materialize_grads(False)
        return loss_C, probs_CV, best_C, log_normaliser_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        probs_CV, target_C = ctx.saved_tensors
        loss_gradient_C = gradients[0]
        if loss_gradient_C is None:
            return None, None
        gradient_CV = probs_CV * loss_gradient_C[:, None]
        gradient_CV.scatter_add_(1, target_C[:, None], -loss_gradient_C[:, None])
        return gradient_CV, None


def _at(values_CV: Tensor, index_C: Tensor) -> Tensor:
    return values_CV.gather(1, index_C[:, None]).squeeze(1)
