"""Token ids -> hidden states: the paper's encoder or a modern one, bottom-up, nothing computed on padding.

Self-attention, feed-forward, layer, embeddings, encoder, and the start of all weights. A module's weights
mean nothing until `initialise` or `load_state_dict` is called on the whole model: two encoders may share one
`Embeddings`.

The backbones `electra` and `modern` (ModernBERT's layers) have the same parts by the same names. They differ
in the feed-forward layer, in where a layer normalises, and in what the modern one leaves out: biases and
segments. The backbone `bag` has word vectors and no other weights: its only layer takes their mean.

B rows, L positions, T positions of text in all rows together, H heads, X numbers at a position; numbers in a
head S, an embedding E, a hidden state D, the feed-forward layer F.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from electra.errors import InputError
from electra.model.attention import (
    Padding,
    alibi_bias,
    attend,
    attend_blocks,
    attend_packed,
    near_bias,
    normalise,
    normalise_and_rotate,
    padding_bias,
    rotary_angles,
    rotate,
    takes_packed,
    takes_packed_window,
    worthwhile_padding,
)
from electra.model.dropout import Dropout
from electra.model.sizes import Backbone, EncoderConfig


class AttentionInputs(NamedTuple):
    """The inputs of attention that all layers of a batch share."""

    bias: Tensor | None
    """Added to the scores: padding and, with alibi, distance; broadcasts to (B, H, L, L)."""
    rotation: tuple[Tensor, Tensor] | None
    """Cosine and sine for queries and keys, with rotary positions."""
    bias_is_padding: bool
    """Whether the bias is about padding only, and so needless for layers that compute on the text alone."""
    padding: Padding | None = None
    """If given, hidden states are (T, D), the text alone; most kinds of attention pad them again."""
    local_bias: Tensor | None = None
    """The bias of layers that see a window; None: they compute in blocks."""


class Projection(NamedTuple):
    """A linear map of hidden states that is derived from a learned one."""

    weight: Tensor
    bias: Tensor | None


class GlorotLinear(nn.Linear):
    """A linear layer that starts glorot-uniform: in the original, each one without an initialiser."""


class ZeroLinear(nn.Linear):
    """A linear layer that starts at zero: what ends with it adds nothing at first."""


class Attention(nn.Module):
    """Self-attention: every position looks at all others, or at those of a window, in several heads."""

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_attention_heads, config.head_size
        self.scale, self.reach = config.attention_scale, config.attention_reach(number)
        self.normalises = config.query_key_norm == "rms"
        self.length = (self.scale * self.head_size) ** 0.5
        width, has_bias = config.hidden_size, not config.is_modern
        self.query = nn.Linear(width, width, bias=has_bias)
        self.key = nn.Linear(width, width, bias=has_bias)
        self.value = nn.Linear(width, width, bias=has_bias)
        self.output = ZeroLinear(width, width, bias=False) if config.is_modern else nn.Linear(width, width)
        self.map_dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """The sum of what each position takes from the others."""
        padding, dropout = inputs.padding, self.map_dropout.active
        projected = self.project(hidden_BLD, self.queries, self.key, self.value)
        if (
            padding
            and inputs.bias_is_padding
            and takes_packed(projected, head_size=self.head_size, dropout=dropout)
            and (self.reach is None or takes_packed_window())
        ):
            mixed = self.mix_packed(projected, padding, inputs.rotation)
        else:
            query_BHLS, key_BHLS, value_BHLS = self.turn(self.split(projected, padding), inputs.rotation)
            if self.reach is not None and inputs.local_bias is None:
                mixed_BHLS = attend_blocks(
                    query_BHLS, key_BHLS, value_BHLS, bias=inputs.bias, reach=self.reach, dropout=dropout
                )
            else:
                bias = inputs.bias if self.reach is None else inputs.local_bias
                mixed_BHLS = attend(query_BHLS, key_BHLS, value_BHLS, bias=bias, dropout=dropout)
            mixed_BLD = mixed_BHLS.transpose(1, 2).flatten(2)
            mixed = padding.remove(mixed_BLD) if padding else mixed_BLD
        output: Tensor = self.output(mixed)
        return output

    def turn(self, stacked: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Sequence[Tensor]:
        """Queries, keys and values, stacked -> each by itself, as attention takes it."""
        if rotation is None:
            return stacked.unbind()
        # What happens to queries and keys happens to both at once; the gradient of a split is one copy.
        pair, value = torch.split_with_sizes(stacked, [2, 1])
        if self.normalises:
            pair = normalise_and_rotate(pair, rotation, length=self.length)
        else:
            pair = rotate(pair, rotation)
        return *pair.unbind(), value.squeeze(0)

    def fit(self, vector: Tensor) -> Tensor:
        """Queries or keys, normalised if they are to be; the scale is then shared among both."""
        return normalise(vector, length=self.length) if self.normalises else vector

    def mix_packed(
        self, projected: Tensor, padding: Padding, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """The mixed values of each position of text (T, D), without any padding."""
        stacked_3THS = projected.view(len(projected), 3, -1, self.head_size).transpose(0, 1)
        if rotation is not None:
            cosine_T1S, sine_T1S = (part_LS[padding.columns][:, None] for part_LS in rotation)
            rotation = (cosine_T1S, sine_T1S)
        query_THS, key_THS, value_THS = self.turn(stacked_3THS, rotation)
        mixed_THS = attend_packed(
            query_THS,
            key_THS,
            value_THS,
            bounds=padding.bounds,
            longest=padding.shape[1],
            reach=self.reach,
        )
        return mixed_THS.flatten(1)

    def first(self, first_B1D: Tensor, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """The same for the first position of each row alone, which is also given by itself: (B, 1, D)."""
        # Rotary positions do not rotate the first one.
        query_BH1S = self.fit(self.split(self.project(first_B1D, self.queries))[0])
        stacked = self.split(self.project(hidden_BLD, self.key, self.value), inputs.padding)
        key_BHLS, value_BHLS = stacked.unbind()
        if inputs.rotation is not None:
            key_BHLS = rotate(self.fit(key_BHLS), inputs.rotation)
        bias = None if inputs.bias is None else inputs.bias[..., :1, :]
        if self.reach is not None:
            seen = slice(self.reach + 1)
            key_BHLS, value_BHLS = key_BHLS[:, :, seen], value_BHLS[:, :, seen]
            bias = None if bias is None else bias[..., seen]
        mixed_BH1S = attend(query_BH1S, key_BHLS, value_BHLS, bias=bias, dropout=self.map_dropout.active)
        output: Tensor = self.output(mixed_BH1S.transpose(1, 2).flatten(2))
        return output

    @property
    def queries(self) -> Projection:
        """Scaled, so that a score is a plain product."""
        if self.normalises:
            return Projection(self.query.weight, None)
        bias = None if self.query.bias is None else self.query.bias * self.scale
        return Projection(self.query.weight * self.scale, bias)

    def project(self, hidden: Tensor, *projections: Projection | nn.Linear) -> Tensor:
        """Several projections of hidden states, side by side."""
        # One product in place of several: the input is read once, and its gradient written once.
        weight = torch.cat([projection.weight for projection in projections])
        biases = [projection.bias for projection in projections if projection.bias is not None]
        return functional.linear(hidden, weight, torch.cat(biases) if biases else None)

    def split(self, projected: Tensor, padding: Padding | None = None) -> Tensor:
        """Each projection by itself, padded, and split among the heads: (projections, B, H, L, S)."""
        if padding:
            projected = padding.restore(projected)
        split = projected.view(*projected.shape[:2], -1, self.num_heads, self.head_size)
        return split.permute(2, 0, 3, 1, 4).contiguous()


class FeedForward(nn.Module):
    """Two linear layers on each position by itself, with the exact (erf) gelu between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """The output at each position."""
        inner_BLF = functional.gelu(self.inner(hidden_BLD))
        output_BLD: Tensor = self.output(inner_BLF)
        return output_BLD


class GatedFeedForward(nn.Module):
    """Half of the inner layer through gelu, as a gate of the other half (GeGLU); no biases."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = ZeroLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """The output at each position."""
        gate_BLF, inner_BLF = self.inner(hidden_BLD).chunk(2, dim=-1)
        # On a CPU gelu of numbers that do not lie side by side takes three times as long.
        output_BLD: Tensor = self.output(functional.gelu(gate_BLF.contiguous()) * inner_BLF)
        return output_BLD


Positions = Literal["all", "first"]
"""Positions whose last hidden states are wanted. For [CLS] alone, the last layer has little to compute."""


class Layer(nn.Module):
    """Attention, then feed-forward; each is added to its input and the sum is normalised (post-norm)."""

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        self.attention = Attention(config, number)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs, positions: Positions = "all") -> Tensor:
        """The next layer's input, or the last hidden state of the first position of each row: (B, 1, D)."""
        if positions == "all":
            mixed_BLD = self.attention(hidden_BLD, inputs)
        else:
            first_B1D = inputs.padding.first(hidden_BLD) if inputs.padding else hidden_BLD[:, :1]
            mixed_BLD = self.attention.first(first_B1D, hidden_BLD, inputs)
            hidden_BLD = first_B1D
        middle_BLD = self.attention_norm(hidden_BLD + self.dropout(mixed_BLD))
        output_BLD: Tensor = self.feed_forward_norm(middle_BLD + self.dropout(self.feed_forward(middle_BLD)))
        return output_BLD


class ModernLayer(nn.Module):
    """Attention, then feed-forward; each is added to what it was given the norm of (pre-norm).

    As in ModernBERT attention in the first layer takes the embeddings, which have a norm of their own.
    """

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        self.attention_norm = norm_of(config, config.hidden_size) if number else nn.Identity()
        self.attention = Attention(config, number)
        self.feed_forward_norm = norm_of(config, config.hidden_size)
        self.feed_forward = GatedFeedForward(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs, positions: Positions = "all") -> Tensor:
        """The next layer's input, or the last hidden state of the first position of each row: (B, 1, D)."""
        normal_BLD = self.attention_norm(hidden_BLD)
        if positions == "all":
            mixed_BLD = self.attention(normal_BLD, inputs)
        else:
            first = inputs.padding.first if inputs.padding else first_positions
            mixed_BLD = self.attention.first(first(normal_BLD), normal_BLD, inputs)
            hidden_BLD = first(hidden_BLD)
        middle_BLD = hidden_BLD + self.dropout(mixed_BLD)
        output_BLD: Tensor = middle_BLD + self.dropout(self.feed_forward(self.feed_forward_norm(middle_BLD)))
        return output_BLD


class BagLayer(nn.Module):
    """The mean of the vectors around each position, its own left out; without weights.

    A vector counts the more the nearer it is: so it is on average in word2vec, which draws the size of each
    window anew, between one token and the largest.
    """

    def __init__(self, config: EncoderConfig, number: int = 0) -> None:
        super().__init__()
        self.reach = config.local_attention_window // 2

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs, positions: Positions = "all") -> Tensor:
        """The means at all positions, or at the first of each row: (B, 1, D); 0 where nothing is around."""
        padding = inputs.padding
        if padding:
            hidden_BLD = padding.restore(hidden_BLD)
        near_LL = nearness(hidden_BLD.shape[1], reach=self.reach, like=hidden_BLD)
        if positions == "first":
            near_LL = near_LL[:1]
        text_BL1 = torch.ones_like(hidden_BLD[..., :1])
        if inputs.bias is not None:
            text_BL1 = (inputs.bias[:, 0, 0] == 0)[..., None].to(hidden_BLD.dtype)
        total_BLD, weight_BL1 = near_LL @ (hidden_BLD * text_BL1), near_LL @ text_BL1
        # The farthest that is seen weighs 1 / reach: below that there is nobody, and the sum is 0.
        mean_BLD = total_BLD / weight_BL1.clamp(min=0.5 / self.reach)
        return padding.remove(mean_BLD) if padding and positions == "all" else mean_BLD


def nearness(length: int, *, reach: int, like: Tensor) -> Tensor:
    """1 next to a position, evenly less up to `reach` away, 0 beyond and for the position itself: (L, L)."""
    position_L = torch.arange(length, device=like.device)
    distance_LL = (position_L[:, None] - position_L).abs()
    near_LL = (reach + 1 - distance_LL).clamp(min=0) * (distance_LL > 0)
    return (near_LL / reach).to(like.dtype)


def first_positions(value_BLX: Tensor) -> Tensor:
    """The values at the first position of each row: (B, 1, X)."""
    return value_BLX[:, :1]


def norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm:
    """A layer norm, without a bias in the modern backbone."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=not config.is_modern)


class Embeddings(nn.Module):
    """Word, segment and (if learned) position tables with their norm, which two encoders may share.

    The modern backbone has no segments: [SEP] tells them apart. That of a bag has words alone, without
    a norm.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # As in the original the row of [PAD] is trained like any other, so there is no padding_idx.
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.token_type_embeddings: nn.Embedding | None = None
        if config.backbone == "electra":
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.position_embeddings: nn.Embedding | None = None
        if config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.norm = nn.Identity() if config.is_bag else norm_of(config, config.embedding_size)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None = None) -> Tensor:
        """Look up, add and normalise; without segments all tokens are in segment 0."""
        vector_BLE: Tensor = self.word_embeddings(input_ids_BL)
        if self.token_type_embeddings is None:
            pass
        elif token_type_ids_BL is None:
            vector_BLE = vector_BLE + self.token_type_embeddings.weight[0]
        else:
            vector_BLE = vector_BLE + self.token_type_embeddings(token_type_ids_BL)
        if self.position_embeddings is not None:
            vector_BLE = vector_BLE + self.position_embeddings.weight[: input_ids_BL.shape[1]]
        normal_BLE: Tensor = self.norm(vector_BLE)
        return normal_BLE


LAYERS: dict[Backbone, type[Layer | ModernLayer | BagLayer]] = {
    "electra": Layer,
    "modern": ModernLayer,
    "bag": BagLayer,
}


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
            self.projection = GlorotLinear(
                config.embedding_size, config.hidden_size, bias=not config.is_modern
            )
        build = LAYERS[config.backbone]
        self.layers = nn.ModuleList(build(config, number) for number in range(config.num_hidden_layers))
        self.norm = norm_of(config, config.hidden_size) if config.is_modern else None
        self.recomputes_layers = False
        """Keep only the input of each layer and compute the rest again for the gradient: the same numbers."""

    def forward(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
        text_T: Tensor | None = None,
        positions: Positions = "all",
    ) -> Tensor:
        """Hidden states (B, L, D), or those of first positions (B, 1, D).

        Where the mask is 0 there is padding, whose hidden states mean nothing. `text_T`: the places of the
        flattened mask that are not 0, if known; on a GPU, layers compute on the text alone only if they are.
        """
        hidden_BLD = self.embed(input_ids_BL, token_type_ids_BL)
        inputs = self.add_window(self.attention_inputs(hidden_BLD, attention_mask_BL), hidden_BLD)
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
        return hidden if self.norm is None else self.norm(hidden)

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
        """Which ids are not in the tables."""
        segments = 0 if token_type_ids_BL is None else int(token_type_ids_BL.max())
        return (
            f"token ids from {int(input_ids_BL.min())} to {int(input_ids_BL.max())}, segments to {segments} "
            f"do not fit vocab_size {self.config.vocab_size} and type_vocab_size "
            f"{self.config.type_vocab_size}: is the tokenizer the one this model was trained with?"
        )

    def attention_inputs(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> AttentionInputs:
        """Padding and positions in the form that every attention takes."""
        length, device, dtype = hidden_BLD.shape[1], hidden_BLD.device, self.attention_dtype(hidden_BLD)
        bias, rotation = None, None
        if attention_mask_BL is not None:
            bias = padding_bias(attention_mask_BL, dtype=dtype)
        match self.config.position_embedding_type:
            case "alibi":
                near_HLL = alibi_bias(self.config.num_attention_heads, length, dtype=dtype, device=device)
                bias = near_HLL if bias is None else near_HLL + bias
            case "rotary":
                rotation = rotary_angles(self.config.head_size, length, device=device, dtype=dtype)
        return AttentionInputs(bias, rotation, bias_is_padding=self.config.position_embedding_type != "alibi")

    def add_window(self, inputs: AttentionInputs, hidden_BLD: Tensor) -> AttentionInputs:
        """The same with a bias for the layers that see a window, unless they are to compute in blocks."""
        length, reach = hidden_BLD.shape[1], self.config.attention_reach(1)
        if reach is None:
            return inputs
        # Blocks see three times as far as they must, and an exported graph is for rows of any length.
        if inputs.bias_is_padding and not torch.compiler.is_exporting() and length > 3 * reach:
            return inputs
        dtype = self.attention_dtype(hidden_BLD)
        bias = near_bias(length, reach=reach, dtype=dtype, device=hidden_BLD.device)
        return inputs._replace(local_bias=bias if inputs.bias is None else bias + inputs.bias)

    def attention_dtype(self, hidden_BLD: Tensor) -> torch.dtype:
        """The precision of queries and keys: autocast may choose another than that of the hidden states."""
        device = hidden_BLD.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return hidden_BLD.dtype


def initialise(module: nn.Module, *, std: float, generator: torch.Generator | None = None) -> None:
    """Draw all weights as the original does: from a truncated normal, or glorot-uniform.

    What ends a sub-layer of the modern backbone starts at zero: each layer is then the identity.
    """
    for part in module.modules():
        match part:
            case ZeroLinear():
                nn.init.zeros_(part.weight)
            case GlorotLinear():
                nn.init.xavier_uniform_(part.weight, generator=generator)
            case nn.Linear() | nn.Embedding():
                nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            case nn.LayerNorm():
                nn.init.ones_(part.weight)
        bias = getattr(part, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)
