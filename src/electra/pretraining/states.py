"""Hidden states of held-out rows -> in how many directions they differ, and how alike they are, by layer.

What fine-tuning builds on are the hidden states of the encoder. A loss says nothing of them: that of replaced
token detection falls while all states turn into one direction, from which a task can be told apart no longer.
Two numbers show it, for each layer:

    effective rank   exp of the entropy of the eigenvalues of the states' covariance, as shares of their sum:
                     as many directions as an even spread with this entropy would have. At most hidden_size
    mean cosine      of the states of two different positions; 1 if all point the same way

They are measured at evaluations only, on a fixed and small number of held-out rows as they were written.
Processes add up the moments of their states: the numbers are those of all rows together.

N positions of the text, D numbers in a hidden state.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.model.encoder import Encoder
from electra.pretraining import metrics
from electra.pretraining.masking import Inputs, pick
from electra.pretraining.metrics import Sums
from electra.text.batches import Batches

RANK, COSINE = "states_rank", "states_cosine"
"""Metrics of the last hidden states; those of the layers below have the number of the layer at their end."""
STATE_ROWS = 16
"""Rows that are looked at: 2,000 positions in rows of 128, enough for the rank of any hidden size."""
LOWEST_RANK, HIGHEST_COSINE = 4.0, 0.95
"""With both beyond it, the last states have fallen onto one direction."""


def layer_states(encoder: Encoder, inputs: Inputs) -> list[Tensor]:
    """The states (N, D) of the text after each layer; those after the last as heads read them."""
    found: list[Tensor] = []

    def keep(_layer: Any, _given: Any, output: Tensor) -> None:
        found.append(output)

    handles = [layer.register_forward_hook(keep) for layer in encoder.layers]
    try:
        # Not by calling the module: a compiled one was traced without these hooks.
        last_BLD = encoder.forward(
            inputs.input_ids_BL,
            token_type_ids_BL=inputs.token_type_ids_BL,
            attention_mask_BL=inputs.attention_mask_BL,
            text_T=inputs.text_N,
        )
    finally:
        for handle in handles:
            handle.remove()
    # Where padding was left out, a layer's output is the text alone.
    lower = [states if states.dim() == 2 else pick(states, inputs.text_N) for states in found[:-1]]
    return [*lower, pick(last_BLD, inputs.text_N)]


class Spread(NamedTuple):
    """How states lie in their space."""

    rank: float
    """NaN for states that are no numbers."""
    cosine: float
    """NaN for less than two states, too."""


def moments(states_ND: Tensor) -> Tensor:
    """What can be added up over processes: (D + 3, D) on the host, in float64."""
    states_ND = states_ND.detach().float().cpu().double()
    unit_ND = torch.nn.functional.normalize(states_ND, dim=-1)
    total_D, unit_D = states_ND.sum(0), unit_ND.sum(0)
    rows = (total_D, unit_D, torch.full_like(total_D, len(states_ND)))
    return torch.cat([states_ND.T @ states_ND, torch.stack(rows)])


def spread(sums: Tensor) -> Spread:
    """Effective rank and mean cosine, out of moments."""
    product_DD, (total_D, unit_D, count_D) = sums[:-3], sums[-3:]
    count = float(count_D[0])
    mean_D = total_D / count
    covariance_DD = product_DD / count - torch.outer(mean_D, mean_D)
    if not covariance_DD.isfinite().all():
        # A network that has diverged: there is nothing to decompose.
        return Spread(math.nan, math.nan)
    # What is negative is rounding.
    variance_D = torch.linalg.eigvalsh(covariance_DD).clamp(min=0)
    share_D = variance_D / variance_D.sum()
    rank = math.exp(-float(torch.special.xlogy(share_D, share_D).sum()))
    pairs = count * (count - 1)
    return Spread(rank, float(unit_D.square().sum() - count) / pairs if pairs else math.nan)


@dataclass(frozen=True, kw_only=True)
class StateProbe:
    """Held-out rows whose states are looked at, the same in every run of the same data."""

    batches: Batches
    """Of which the first is taken."""
    rank: int
    world_size: int
    device: torch.device
    add: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Sums over all processes."""

    def sums(self, states: Callable[[Inputs], list[Tensor]]) -> Iterator[Sums]:
        """The metrics of each layer; all processes come to the same numbers, whose mean they are."""
        batch = self.batches.part(0, rank=self.rank, world_size=self.world_size)
        by_layer = states(Inputs.from_batch(batch).to(self.device))
        for number, states_ND in enumerate(by_layer, 1):
            # One layer at a time: the moments of all would be as large as the encoder.
            found = spread(self.add({"moments": moments(states_ND)})["moments"])
            suffix = "" if number == len(by_layer) else f"_layer_{number}"
            yield {
                f"{name}{suffix}": metrics.mean(torch.tensor([value], device=self.device))
                for name, value in zip((RANK, COSINE), found, strict=True)
            }


def states_warning(values: Mapping[str, float]) -> str | None:
    """What is wrong with the last hidden states, and what is known to help; None if nothing is."""
    rank, cosine = values.get(RANK, math.nan), values.get(COSINE, math.nan)
    # A comparison with NaN is false.
    if not (rank < LOWEST_RANK and cosine > HIGHEST_COSINE):
        return None
    return (
        f"the last hidden states lie in one direction (effective rank {rank:.1f}, mean cosine {cosine:.3f}): "
        "a task has little to tell texts apart by, and may be learned worse than from random weights. Known "
        "to help: a loss that names tokens (--objective mlm), --output_bias frequencies, a lower "
        "--train.learning_rate, a lower --discriminator_weight"
    )
