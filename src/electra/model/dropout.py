"""Dropout whose masks depend on a seed alone, also in threads that compute at the same time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional


def drop(value: Tensor, probability: float) -> Tensor:
    """Set each number to zero with the given probability and scale the others up, so that the mean stays.

    Call `seed_dropout` before a step to make the step repeatable.
    """
    if probability == 0:
        return value
    if value.device.type != "cpu":
        return functional.dropout(value, probability)
    return value * _byte_mask(value, dropped=min(255, round(probability * 256)))


_OWN = threading.local()
"""The generator of a thread that draws its dropout masks from one of its own."""


@contextmanager
def own_dropout() -> Iterator[None]:
    """Let this thread draw its masks from a generator of its own, while other threads draw theirs."""
    before = getattr(_OWN, "generator", None)
    _OWN.generator = torch.Generator()
    try:
        yield
    finally:
        _OWN.generator = before


def seed_dropout(seed: int) -> None:
    """Decide all masks of this thread from here on; a seed gives the same ones in every thread.

    Unless the thread has a generator of its own, masks come from torch's default generators, as those of
    torch's own dropout and fused attention do and as activation checkpointing expects.
    """
    generator: torch.Generator | None = getattr(_OWN, "generator", None)
    if generator is None:
        torch.manual_seed(seed)
    else:
        generator.manual_seed(seed)


class Dropout(nn.Module):
    """`drop` in training, the identity otherwise; a module so that `train()` and `eval()` reach it."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    @property
    def active(self) -> float:
        """The probability in the current mode."""
        return self.probability if self.training else 0.0

    def forward(self, value: Tensor) -> Tensor:
        """Drop numbers at random."""
        return drop(value, self.active)


def _byte_mask(value: Tensor, *, dropped: int) -> Tensor:
    """A mask that is 0 in `dropped` of 256 cases, and otherwise the number that keeps the mean at 1."""
    # One 64-bit draw decides on eight numbers, and the comparison writes the result's type in one pass over
    # the bytes: a tenth of the time of Bernoulli draws.
    draw = torch.empty((value.numel() + 7) // 8, dtype=torch.int64)
    draw.random_(-(2**63), None, generator=getattr(_OWN, "generator", None))
    mask = torch.empty_like(value, memory_format=torch.contiguous_format)
    torch.ge(draw.view(torch.uint8)[: value.numel()].view(value.shape), dropped, out=mask)
    return mask.mul_(256 / (256 - dropped))
