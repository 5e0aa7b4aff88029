"""Token ids -> hidden states: the encoder of the paper, bottom-up.

B rows, L positions, H heads, T positions of text in all rows together; numbers in an embedding E, a hidden
state D, the feed-forward layer F.

A module's weights mean nothing until `initialise` or `load_state_dict`: both are left to who builds the whole
model, since two encoders may share one `Embeddings`.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from electra.errors import InputError
from electra.model.attention import Dropout, alibi_bias, padding_bias, rotary_angles
from electra.model.padding import worthwhile_padding
from electra.model.self_attention import Attention, AttentionInputs
from electra.model.sizes import EncoderConfig

Positions = Literal["all", "first"]
"""Of which the last hidden states are wanted. For [CLS] alone, the last layer has little to compute."""


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
        text_T: Tensor | None = None,
        positions: Positions = "all",
    ) -> Tensor:
        """Hidden states (B, L, D), or of first positions (B, 1, D).

        Where the mask is 0 there is padding, whose hidden states mean nothing. `text_T`: where in the
        flattened mask it is not 0, for who knows it; on a GPU, layers compute on the text alone only then.
        """
        hidden_BLD = self.embed(input_ids_BL, token_type_ids_BL)
        inputs = self.attention_inputs(hidden_BLD, attention_mask_BL)
        padding = worthwhile_padding(attention_mask_BL, text_T)
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
        return AttentionInputs(bias, rotation, bias_is_padding=self.config.position_embedding_type != "alibi")

    def attention_dtype(self, hidden_BLD: Tensor) -> torch.dtype:
        """The precision of queries and keys: autocast may choose another than that of the hidden states."""
        device = hidden_BLD.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return hidden_BLD.dtype
