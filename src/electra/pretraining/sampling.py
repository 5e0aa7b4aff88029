"""Logits, counts and uniform numbers -> sampled token ids -> corrupted rows and their labels.

Shapes: B rows, L tokens, P positions sampled for, V vocabulary.

Sampling is a pure function of the logits and of one uniform number in [0, 1) per position, in double
precision: `Masked.uniform_P`, or `torch.rand(P, generator=..., dtype=torch.float64)`. No gradient passes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from electra.errors import InputError

Sampling = Literal["categorical", "most_probable"]

# Near the root of the vocabulary size: as many sums to search as entries in the one that is searched next.
_BLOCK = 256


@torch.no_grad()
def sample(
    logits_PV: Tensor,
    uniform_P: Tensor,
    *,
    method: Sampling = "categorical",
    temperature: float = 1.0,
    forbidden_P: Tensor | None = None,
) -> Tensor:
    """One token id per position from softmax(logits / temperature); `forbidden_P` has probability 0 there.

    A token of probability 0 is never returned, provided that a row has a token of another probability.
    """
    if not temperature > 0:
        raise InputError(
            f"temperature is {temperature}, expected above 0; for always the best token use most_probable"
        )
    if forbidden_P is not None:
        # Before the softmax, which would leave nothing beside a forbidden token that is all but certain.
        logits_PV = logits_PV.scatter(1, forbidden_P[:, None], -torch.inf)
    if method == "most_probable":
        return logits_PV.argmax(-1)
    scaled_PV = logits_PV if temperature == 1 else logits_PV.float() / temperature
    return draw_tokens(torch.softmax(scaled_PV, -1, dtype=torch.float32), uniform_P)


@torch.no_grad()
def draw_tokens(weights_PV: Tensor, uniform_P: Tensor) -> Tensor:
    """The token in whose share of a row's total weight the uniform number falls.

    Two levels, block then token, in double precision: a running sum over the whole vocabulary would cost more
    than the softmax, and in single precision its rounding errors would exceed the rare tokens' probabilities.
    """
    num_positions, vocab_size = weights_PV.shape
    whole_blocks = (vocab_size - 1) // _BLOCK
    blocks_PNE = weights_PV[:, : whole_blocks * _BLOCK].view(num_positions, whole_blocks, _BLOCK)
    rest_P1 = weights_PV[:, whole_blocks * _BLOCK :].sum(1, keepdim=True)
    sums_PN = torch.cat([blocks_PNE.sum(-1), rest_P1], dim=1).double()
    block_P1, place_P1 = _find(sums_PN, uniform_P[:, None])
    columns_PE = block_P1 * _BLOCK + torch.arange(_BLOCK, device=weights_PV.device)
    beyond_PE = columns_PE >= vocab_size
    entries_PE = weights_PV.gather(1, columns_PE.masked_fill(beyond_PE, 0)).masked_fill(beyond_PE, 0)
    entry_P1, _ = _find(entries_PE.double(), place_P1)
    # Not even a row of NaN leads beyond the vocabulary.
    return (block_P1 * _BLOCK + entry_P1).squeeze(1).clamp(max=vocab_size - 1)


@torch.no_grad()
def draw_alike(probs_V: Tensor, uniform_PN: Tensor, *, forbidden_P: Tensor | None = None) -> Tensor:
    """Tokens of one distribution in double precision for all positions, but never the forbidden one."""
    if forbidden_P is not None:
        # What lies beyond the forbidden token's share moves up by as much.
        share_P1 = probs_V[forbidden_P][:, None]
        before_P1 = probs_V.cumsum(0)[forbidden_P][:, None] - share_P1
        uniform_PN = uniform_PN * (1 - share_P1)
        uniform_PN = uniform_PN + share_P1 * (uniform_PN >= before_P1)
    index_1P, _ = _find(probs_V[None], uniform_PN.flatten()[None])
    return index_1P.view(uniform_PN.shape)


def _find(weights_PN: Tensor, uniform_P1: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of the running sum that holds `uniform` of the total -> its index, the place within it."""
    ends_PN = weights_PN.cumsum(1)
    total_P1 = ends_PN[:, -1:]
    # Rounding may bring the product up to the total, which lies in no interval.
    target_P1 = torch.minimum(uniform_P1 * total_P1, torch.nextafter(total_P1, torch.zeros_like(total_P1)))
    # The first end beyond the target: an interval of length 0 never has it.
    index_P1 = torch.searchsorted(ends_PN, target_P1, right=True).clamp(max=weights_PN.shape[1] - 1)
    weight_P1 = weights_PN.gather(1, index_P1)
    place_P1 = (target_P1 - (ends_PN.gather(1, index_P1) - weight_P1)) / weight_P1
    return index_P1, place_P1.clamp(0, 1)


class Unigram:
    """The generator that knows only how often tokens occur. Equal counts make it the uniform generator."""

    def __init__(self, counts_V: Tensor) -> None:
        if not (counts_V.min() >= 0 and counts_V.sum() > 0):
            raise InputError(
                "token counts are expected to be 0 or more, and not all 0: prepare the data set anew"
            )
        self.probs_V = counts_V.double() / counts_V.sum()

    @classmethod
    def uniform(cls, vocab_size: int) -> "Unigram":
        """Every token of the vocabulary alike, the special ones too."""
        return cls(torch.ones(vocab_size))

    @torch.no_grad()
    def sample(self, uniform_P: Tensor) -> Tensor:
        """One token id per uniform number."""
        return draw_alike(self.probs_V, uniform_P)

    def logits(self, num_positions: int) -> Tensor:
        """Log-probabilities, the same at each position: for losses, and to sample with a forbidden token."""
        return self.probs_V.log().float().expand(num_positions, -1)


@dataclass(frozen=True, kw_only=True)
class Corrupted:
    """Rows as the discriminator sees them."""

    corrupted_ids_BL: Tensor
    """The original rows with the samples in their places."""
    replaced_BL: Tensor
    """Where that changed a token; a sample equal to the original counts as original."""


@torch.no_grad()
def corrupt(input_ids_BL: Tensor, positions_P: Tensor, sampled_P: Tensor) -> Corrupted:
    """Put samples at their positions in `input_ids_BL.flatten()`.

    As in the original, a position that was chosen twice gets the mean of its sampled ids, rounded down: a
    token that nobody sampled. Masking without replacement has no such position.
    """
    flat = input_ids_BL.flatten()
    sums = torch.zeros_like(flat).index_add_(0, positions_P, sampled_P)
    times = torch.zeros_like(flat).index_add_(0, positions_P, torch.ones_like(sampled_P))
    corrupted = torch.where(times > 0, sums // times.clamp(min=1), flat).view_as(input_ids_BL)
    return Corrupted(corrupted_ids_BL=corrupted, replaced_BL=corrupted != input_ids_BL)
