"""Token ids -> hidden states: the encoder of the paper, bottom-up.

B rows, L positions, H heads, T positions of text in all rows together; numbers in an embedding E, a hidden
state D, the feed-forward layer F, a head S.

A module's weights mean nothing until `initialise` or `load_state_dict`: both are left to who builds the whole
model, since two encoders may share one `Embeddings`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from electra.errors import InputError
from electra.model.attention import (
    alibi_bias,
    attend,
    attention_map,
    drop,
    padding_bias,
    rotary_angles,
    rotate,
)
from electra.model.sizes import EncoderConfig

Positions = Literal["all", "first"]
"""Of which the last hidden states are wanted. For [CLS] alone, the last layer has little to compute."""

WORTHWHILE_PADDING = 0.1
"""Share of padding from which layers compute on the text alone: 0.93 of the speed without any, 1.05 times at
a tenth, 1.2 at a third, 1.7 at a half (small's shape, 32 x 128, forward and backward on one core)."""


class GlorotLinear(nn.Linear):
    """A linear layer that starts glorot-uniform: in the original, each one that names no initialiser."""


def initialise(module: nn.Module, *, std: float, generator: torch.Generator | None = None) -> None:
    """Give all weights their start, as in the original: truncated normal or glorot-uniform."""
    for part in module.modules():
        match part:
            case GlorotLinear():
                nn.init.xavier_uniform_(part.weight, generator=generator)
            case nn.Linear() | nn.Embedding():
                nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            case nn.LayerNorm():
                nn.init.ones_(part.weight)
        bias = getattr(part, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)


class Dropout(nn.Module):
    """`drop` while training, nothing else; a module so that `train()` and `eval()` reach it."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    @property
    def active(self) -> float:
        """The probability that holds now."""
        return self.probability if self.training else 0.0

    def forward(self, value: Tensor) -> Tensor:
        """Drop numbers at random."""
        return drop(value, self.active)


class Embeddings(nn.Module):
    """Word, segment and (if learned) position tables with their norm, which two encoders may share."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # As in the original the row of [PAD] is trained like any other, so there is no padding_idx.
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.position_embeddings: nn.Embedding | None = None
        if config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None = None) -> Tensor:
        """Look up, add and normalise; without segments all tokens are in segment 0."""
        vector_BLE: Tensor = self.word_embeddings(input_ids_BL)
        if token_type_ids_BL is None:
            vector_BLE = vector_BLE + self.token_type_embeddings.weight[0]
        else:
            vector_BLE = vector_BLE + self.token_type_embeddings(token_type_ids_BL)
        if self.position_embeddings is not None:
            vector_BLE = vector_BLE + self.position_embeddings.weight[: input_ids_BL.shape[1]]
        normal_BLE: Tensor = self.norm(vector_BLE)
        return normal_BLE


class Padding:
    """Where text stands in a padded batch, so that layers compute on nothing else (T tokens of text)."""

    def __init__(self, attention_mask_BL: Tensor) -> None:
        self.shape = attention_mask_BL.shape
        self.text_T = attention_mask_BL.flatten().nonzero().squeeze(1)

    def remove(self, value_BLX: Tensor) -> Tensor:
        """The values at text: (T, X)."""
        return value_BLX.flatten(0, 1).index_select(0, self.text_T)

    def first(self, value_TX: Tensor) -> Tensor:
        """The values at the first position of each row, where text begins: (B, 1, X)."""
        start_B = torch.arange(self.shape[0]) * self.shape[1]
        place_B = torch.searchsorted(self.text_T, start_B)
        return value_TX.index_select(0, place_B.clamp(max=len(self.text_T) - 1))[:, None]

    def restore(self, value_TX: Tensor) -> Tensor:
        """Back in their places, zero at padding: (B, L, X)."""
        flat = value_TX.new_zeros(self.shape.numel(), value_TX.shape[-1])
        return flat.index_copy(0, self.text_T, value_TX).view(*self.shape, -1)


def worthwhile_padding(attention_mask_BL: Tensor | None) -> Padding | None:
    """The padding if computing without it is faster, else None: it is then computed on and ignored."""
    # Finding the text takes a look at the data: a GPU would have to stop for it, a traced graph has none.
    if attention_mask_BL is None or attention_mask_BL.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    share = 1 - attention_mask_BL.float().mean().item()
    return Padding(attention_mask_BL) if share >= WORTHWHILE_PADDING else None


class AttentionInputs(NamedTuple):
    """What is the same for all layers of a batch."""

    bias: Tensor | None
    """Added to the scores: padding and, with alibi, distance; broadcasts to (B, H, L, L)."""
    rotation: tuple[Tensor, Tensor] | None
    """Cosine and sine for queries and keys, with rotary positions."""
    padding: Padding | None
    """If given, hidden states are (T, D), the text alone, and only attention sees them padded."""


class Projection(NamedTuple):
    """A linear map of hidden states, made of a learned one."""

    weight: Tensor
    bias: Tensor


class Attention(nn.Module):
    """Every position looks at all others, in several heads."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.map_dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """What each position takes from the others."""
        query_BHLS, key_BHLS, value_BHLS = self.project(hidden_BLD, inputs)
        mixed_BHLS = attend(
            query_BHLS, key_BHLS, value_BHLS, bias=inputs.bias, dropout=self.map_dropout.active
        )
        mixed_BLD = mixed_BHLS.transpose(1, 2).flatten(2)
        output: Tensor = self.output(inputs.padding.remove(mixed_BLD) if inputs.padding else mixed_BLD)
        return output

    def first(self, first_B1D: Tensor, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """What the first position of each row, given by itself too, takes from the others: (B, 1, D)."""
        # Rotary positions leave it as it is.
        (query_BH1S,) = self.heads(first_B1D, self.queries)
        key_BHLS, value_BHLS = self.heads(hidden_BLD, self.key, self.value, padding=inputs.padding)
        if inputs.rotation is not None:
            key_BHLS = rotate(key_BHLS, inputs.rotation)
        bias = None if inputs.bias is None else inputs.bias[..., :1, :]
        mixed_BH1S = attend(query_BH1S, key_BHLS, value_BHLS, bias=bias, dropout=self.map_dropout.active)
        output: Tensor = self.output(mixed_BH1S.transpose(1, 2).flatten(2))
        return output

    def map(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """The attention map (B, H, L, L) of these hidden states, without dropout."""
        query_BHLS, key_BHLS, _ = self.project(hidden_BLD, inputs)
        return attention_map(query_BHLS, key_BHLS, bias=inputs.bias)

    def project(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, scaled, keys and values, split among the heads."""
        query_BHLS, key_BHLS, value_BHLS = self.heads(
            hidden_BLD, self.queries, self.key, self.value, padding=inputs.padding
        )
        if inputs.rotation is not None:
            query_BHLS, key_BHLS = rotate(query_BHLS, inputs.rotation), rotate(key_BHLS, inputs.rotation)
        return query_BHLS, key_BHLS, value_BHLS

    @property
    def queries(self) -> Projection:
        """Scaled, so that a score is a plain product."""
        scale = self.head_size**-0.5
        return Projection(self.query.weight * scale, self.query.bias * scale)

    def heads(
        self, hidden_BLD: Tensor, *projections: Projection | nn.Linear, padding: Padding | None = None
    ) -> Sequence[Tensor]:
        """Several projections, each split among the heads: (B, H, L, S)."""
        # One product in place of several: the input is read once, and its gradient written once.
        weight = torch.cat([projection.weight for projection in projections])
        bias = torch.cat([projection.bias for projection in projections])
        projected = functional.linear(hidden_BLD, weight, bias)
        if padding:
            projected = padding.restore(projected)
        split = projected.view(*projected.shape[:2], len(projections), -1, self.head_size)
        return split.permute(2, 0, 3, 1, 4).contiguous().unbind()


class FeedForward(nn.Module):
    """Two linear layers on every position by itself, with the exact (erf) gelu between."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """What each position makes of itself."""
        inner_BLF = functional.gelu(self.inner(hidden_BLD))
        output_BLD: Tensor = self.output(inner_BLF)
        return output_BLD


class Layer(nn.Module):
    """Attention, then feed-forward; each is added to its input and the sum is normalised (post-norm)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs, positions: Positions = "all") -> Tensor:
        """The next layer's input, or what becomes of the first position of each row: (B, 1, D)."""
        if positions == "all":
            mixed_BLD = self.attention(hidden_BLD, inputs)
        else:
            first_B1D = inputs.padding.first(hidden_BLD) if inputs.padding else hidden_BLD[:, :1]
            mixed_BLD = self.attention.first(first_B1D, hidden_BLD, inputs)
            hidden_BLD = first_B1D
        middle_BLD = self.attention_norm(hidden_BLD + self.dropout(mixed_BLD))
        output_BLD: Tensor = self.feed_forward_norm(middle_BLD + self.dropout(self.feed_forward(middle_BLD)))
        return output_BLD


class Trace(NamedTuple):
    """All that happens in an encoder, for looking inside."""

    embedded_BLD: Tensor
    """Input of the first layer."""
    hidden_NBLD: list[Tensor]
    """Output of each layer."""
    map_NBHLL: list[Tensor]
    """Attention map of each layer."""


class Encoder(nn.Module):
    """Token ids -> hidden states; `embeddings` may be shared with an encoder of another width."""

    def __init__(self, config: EncoderConfig, *, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config) if embeddings is None else embeddings
        assert self.embeddings.word_embeddings.embedding_dim == config.embedding_size
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.projection: GlorotLinear | None = None
        if config.embedding_size != config.hidden_size:
            self.projection = GlorotLinear(config.embedding_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.recomputes_layers = False
        """Keep only what enters each layer, and compute the rest again for the gradient: the same numbers."""

    def forward(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
        positions: Positions = "all",
    ) -> Tensor:
        """Hidden states (B, L, D), or of first positions (B, 1, D).

        Where the mask is 0 there is padding, whose hidden states mean nothing.
        """
        hidden_BLD = self.embed(input_ids_BL, token_type_ids_BL)
        inputs = self.attention_inputs(hidden_BLD, attention_mask_BL)
        padding = worthwhile_padding(attention_mask_BL)
        if padding is None:
            return self.run_layers(hidden_BLD, inputs, positions)
        inputs = inputs._replace(padding=padding)
        hidden = self.run_layers(padding.remove(hidden_BLD), inputs, positions)
        return hidden if positions == "first" else padding.restore(hidden)

    def run_layers(self, hidden: Tensor, inputs: AttentionInputs, positions: Positions) -> Tensor:
        """Hidden states, (B, L, D) or (T, D), through all layers."""
        for layer in self.layers:
            wanted = positions if layer is self.layers[-1] else "all"
            if self.recomputes_layers and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, inputs, wanted, use_reentrant=False)
            else:
                hidden = layer(hidden, inputs, wanted)
        return hidden

    def trace(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
    ) -> Trace:
        """The same with every layer's output and attention map kept."""
        embedded_BLD = self.embed(input_ids_BL, token_type_ids_BL)
        inputs = self.attention_inputs(embedded_BLD, attention_mask_BL)
        trace = Trace(embedded_BLD, [], [])
        hidden_BLD = embedded_BLD
        for layer in self.layers:
            assert isinstance(layer, Layer)
            trace.map_NBHLL.append(layer.attention.map(hidden_BLD, inputs))
            hidden_BLD = layer(hidden_BLD, inputs)
            trace.hidden_NBLD.append(hidden_BLD)
        return trace

    def embed(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None = None) -> Tensor:
        """The input of the first layer."""
        length, longest = input_ids_BL.shape[1], self.config.max_position_embeddings
        if length > longest:
            raise InputError(
                f"a sequence of {length} tokens is longer than max_position_embeddings {longest}: "
                f"cut the text, or train with a larger max_position_embeddings"
            )
        try:
            hidden: Tensor = self.dropout(self.embeddings(input_ids_BL, token_type_ids_BL))
        except IndexError as error:
            raise InputError(self.explain_ids(input_ids_BL, token_type_ids_BL)) from error
        return hidden if self.projection is None else self.projection(hidden)

    def explain_ids(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None) -> str:
        """Which ids the tables do not have."""
        segments = 0 if token_type_ids_BL is None else int(token_type_ids_BL.max())
        return (
            f"token ids from {int(input_ids_BL.min())} to {int(input_ids_BL.max())}, segments to {segments} "
            f"do not fit vocab_size {self.config.vocab_size} and type_vocab_size "
            f"{self.config.type_vocab_size}: is the tokenizer the one this model was trained with?"
        )

    def attention_inputs(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> AttentionInputs:
        """Padding and positions in the form that every layer's attention takes."""
        length, device, dtype = hidden_BLD.shape[1], hidden_BLD.device, self.attention_dtype(hidden_BLD)
        bias, rotation = None, None
        if attention_mask_BL is not None:
            bias = padding_bias(attention_mask_BL, dtype=dtype)
        match self.config.position_embedding_type:
            case "alibi":
                near_HLL = alibi_bias(self.config.num_attention_heads, length, dtype=dtype, device=device)
                bias = near_HLL if bias is None else near_HLL + bias
            case "rotary":
                rotation = rotary_angles(self.config.head_size, length, device=device)
        return AttentionInputs(bias, rotation, padding=None)

    def attention_dtype(self, hidden_BLD: Tensor) -> torch.dtype:
        """The precision of queries and keys: autocast may choose another than that of the hidden states."""
        device = hidden_BLD.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return hidden_BLD.dtype
