"""Hidden states -> what each position takes from the others: attention with its projections.

B rows, L positions, H heads, T positions of text in all rows together; numbers in a hidden state D, a head S.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.model.attention import Dropout, attend, attend_packed, attention_map, rotate, takes_packed
from electra.model.padding import Padding
from electra.model.sizes import EncoderConfig


class AttentionInputs(NamedTuple):
    """What is the same for all layers of a batch."""

    bias: Tensor | None
    """Added to the scores: padding and, with alibi, distance; broadcasts to (B, H, L, L)."""
    rotation: tuple[Tensor, Tensor] | None
    """Cosine and sine for queries and keys, with rotary positions."""
    bias_is_padding: bool
    """Whether the bias says nothing else: then who computes on the text alone needs none."""
    padding: Padding | None = None
    """If given, hidden states are (T, D), the text alone; most kinds of attention see them padded."""


class Projection(NamedTuple):
    """A linear map of hidden states, made of a learned one."""

    weight: Tensor
    bias: Tensor


class Attention(nn.Module):
    """Every position looks at all others, in several heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_attention_heads, config.head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.map_dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """What each position takes from the others."""
        padding, dropout = inputs.padding, self.map_dropout.active
        projected = self.project(hidden_BLD, self.queries, self.key, self.value)
        if (
            padding
            and inputs.bias_is_padding
            and takes_packed(projected, head_size=self.head_size, dropout=dropout)
        ):
            mixed = self.mix_packed(projected, padding, inputs.rotation)
        else:
            query_BHLS, key_BHLS, value_BHLS = self.split(projected, padding)
            if inputs.rotation is not None:
                query_BHLS, key_BHLS = rotate(query_BHLS, inputs.rotation), rotate(key_BHLS, inputs.rotation)
            mixed_BHLS = attend(query_BHLS, key_BHLS, value_BHLS, bias=inputs.bias, dropout=dropout)
            mixed_BLD = mixed_BHLS.transpose(1, 2).flatten(2)
            mixed = padding.remove(mixed_BLD) if padding else mixed_BLD
        output: Tensor = self.output(mixed)
        return output

    def mix_packed(
        self, projected: Tensor, padding: Padding, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """What each position of the text takes from the others of its row (T, D), without any padding."""
        query_THS, key_THS, value_THS = projected.view(len(projected), 3, -1, self.head_size).unbind(1)
        if rotation is not None:
            cosine_T1S, sine_T1S = (part_LS[padding.columns][:, None] for part_LS in rotation)
            query_THS = rotate(query_THS, (cosine_T1S, sine_T1S))
            key_THS = rotate(key_THS, (cosine_T1S, sine_T1S))
        mixed_THS = attend_packed(
            query_THS, key_THS, value_THS, bounds=padding.bounds, longest=padding.shape[1]
        )
        return mixed_THS.flatten(1)

    def first(self, first_B1D: Tensor, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """What the first position of each row, given by itself too, takes from the others: (B, 1, D)."""
        # Rotary positions leave it as it is.
        (query_BH1S,) = self.split(self.project(first_B1D, self.queries))
        key_BHLS, value_BHLS = self.split(self.project(hidden_BLD, self.key, self.value), inputs.padding)
        if inputs.rotation is not None:
            key_BHLS = rotate(key_BHLS, inputs.rotation)
        bias = None if inputs.bias is None else inputs.bias[..., :1, :]
        mixed_BH1S = attend(query_BH1S, key_BHLS, value_BHLS, bias=bias, dropout=self.map_dropout.active)
        output: Tensor = self.output(mixed_BH1S.transpose(1, 2).flatten(2))
        return output

    def map(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """The attention map (B, H, L, L) of these hidden states, without dropout."""
        query_BHLS, key_BHLS = self.split(self.project(hidden_BLD, self.queries, self.key), inputs.padding)
        if inputs.rotation is not None:
            query_BHLS, key_BHLS = rotate(query_BHLS, inputs.rotation), rotate(key_BHLS, inputs.rotation)
        return attention_map(query_BHLS, key_BHLS, bias=inputs.bias)

    @property
    def queries(self) -> Projection:
        """Scaled, so that a score is a plain product."""
        scale = self.head_size**-0.5
        return Projection(self.query.weight * scale, self.query.bias * scale)

    def project(self, hidden: Tensor, *projections: Projection | nn.Linear) -> Tensor:
        """Several projections of hidden states, side by side."""
        # One product in place of several: the input is read once, and its gradient written once.
        weight = torch.cat([projection.weight for projection in projections])
        bias = torch.cat([projection.bias for projection in projections])
        return functional.linear(hidden, weight, bias)

    def split(self, projected: Tensor, padding: Padding | None = None) -> Sequence[Tensor]:
        """Each projection by itself, padded, and split among the heads: (B, H, L, S)."""
        if padding:
            projected = padding.restore(projected)
        split = projected.view(*projected.shape[:2], -1, self.num_heads, self.head_size)
        return split.permute(2, 0, 3, 1, 4).contiguous().unbind()
