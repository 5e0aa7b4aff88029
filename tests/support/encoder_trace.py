"""An encoder and a batch -> every layer's output and attention map, for comparison with other encoders.

N layers, B rows, L positions, H heads, D numbers in a hidden state.
"""

from typing import NamedTuple

from torch import Tensor

from electra.model.attention import attention_map, rotate
from electra.model.encoder import Attention, AttentionInputs, Encoder


class Trace(NamedTuple):
    """All that happens in an encoder."""

    embedded_BLD: Tensor
    """Input of the first layer."""
    hidden_NBLD: list[Tensor]
    map_NBHLL: list[Tensor]


def trace(
    encoder: Encoder,
    input_ids_BL: Tensor,
    *,
    token_type_ids_BL: Tensor | None = None,
    attention_mask_BL: Tensor | None = None,
) -> Trace:
    """Layer by layer, on padding too."""
    embedded_BLD = encoder.embed(input_ids_BL, token_type_ids_BL)
    inputs = encoder.attention_inputs(embedded_BLD, attention_mask_BL)
    found = Trace(embedded_BLD, [], [])
    hidden_BLD = embedded_BLD
    for layer in encoder.layers:
        found.map_NBHLL.append(map_of(layer.attention, hidden_BLD, inputs))
        hidden_BLD = layer(hidden_BLD, inputs)
        found.hidden_NBLD.append(hidden_BLD)
    return found


def map_of(attention: Attention, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
    """How much each position looks at each other one (B, H, L, L), without dropout."""
    projected = attention.project(hidden_BLD, attention.queries, attention.key)
    query_BHLS, key_BHLS = attention.split(projected, inputs.padding)
    if inputs.rotation is not None:
        query_BHLS, key_BHLS = rotate(query_BHLS, inputs.rotation), rotate(key_BHLS, inputs.rotation)
    return attention_map(query_BHLS, key_BHLS, bias=inputs.bias)
