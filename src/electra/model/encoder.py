"""Token ids -> hidden states: the paper's encoder or a modern one, bottom-up, nothing computed on padding.

Padding, attention and its positions, dropout, self-attention, feed-forward, layer, embeddings, encoder, and
the start of all weights. A module's weights mean nothing until `initialise` or `load_state_dict` is called on
the whole model: two encoders may share one `Embeddings`.

The backbones `electra` and `modern` (ModernBERT's layers) have the same parts by the same names. They differ
in the feed-forward layer, in where a layer normalises, and in what the modern one leaves out: biases and
segments.

B rows, L positions, T positions of text in all rows together, H heads, X numbers at a position; numbers in a
head S, an embedding E, a hidden state D, the feed-forward layer F. N blocks of W positions.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from electra.errors import InputError
from electra.model.sizes import EncoderConfig

WORTHWHILE_PADDING = 0.1
"""Share of padding from which layers compute on the text alone. Doing so gives 0.93 of the speed where there
is none, 1.05 times at a tenth, 1.2 at a third, 1.7 at a half (small's shape, 32 x 128, forward and backward
on one core)."""


class Padding:
    """Where the text is in a padded batch."""

    def __init__(self, attention_mask_BL: Tensor, text_T: Tensor) -> None:
        self.shape = attention_mask_BL.shape
        self.text_T = text_T
        self._attention_mask_BL = attention_mask_BL

    def remove(self, value_BLX: Tensor) -> Tensor:
        """The values at text: (T, X)."""
        return value_BLX.flatten(0, 1).index_select(0, self.text_T)

    def first(self, value_TX: Tensor) -> Tensor:
        """The values at the first position of each row, where text begins: (B, 1, X)."""
        start_B = torch.arange(self.shape[0], device=self.text_T.device) * self.shape[1]
        place_B = torch.searchsorted(self.text_T, start_B)
        return value_TX.index_select(0, place_B.clamp(max=len(self.text_T) - 1))[:, None]

    def restore(self, value_TX: Tensor) -> Tensor:
        """Back in their places, zero at padding: (B, L, X)."""
        flat = value_TX.new_zeros(self.shape.numel(), value_TX.shape[-1])
        return flat.index_copy(0, self.text_T, value_TX).view(*self.shape, -1)

    @cached_property
    def bounds(self) -> Tensor:
        """Where each row's text begins among all text, and the end of the last: (B + 1), in 32 bits."""
        lengths_B = (self._attention_mask_BL != 0).sum(1)
        return functional.pad(lengths_B.cumsum(0), (1, 0)).int()

    @cached_property
    def columns(self) -> Tensor:
        """The position of each token in its row: (T)."""
        return self.text_T % self.shape[1]


def worthwhile_padding(attention_mask_BL: Tensor | None, text_T: Tensor | None = None) -> Padding | None:
    """The padding if computing without it is faster, else None: it is then computed on and ignored.

    Callers that know the positions of text in the flattened batch pass them, so that nothing is searched for.
    """
    # A traced graph serves all batches, so it cannot be cut to the text of one.
    if attention_mask_BL is None or torch.compiler.is_compiling():
        return None
    if text_T is None:
        # Finding the text means reading the data, and a GPU would have to stop for that.
        if attention_mask_BL.device.type != "cpu":
            return None
        text_T = attention_mask_BL.flatten().nonzero().squeeze(1)
    num_padded = attention_mask_BL.numel() - len(text_T)
    is_worthwhile = num_padded >= WORTHWHILE_PADDING * attention_mask_BL.numel()
    return Padding(attention_mask_BL, text_T) if is_worthwhile else None


_HAS_PACKED_KERNEL = find_spec("torch.nn.attention.varlen") is not None
_LEAST_CAPABILITY = (8, 0)
_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8
"""Limits of the kernel for packed rows: GPUs from Ampere on, and these sizes of a head."""


def attend(
    query_BHLS: Tensor, key_BHLS: Tensor, value_BHLS: Tensor, *, bias: Tensor | None, dropout: float
) -> Tensor:
    """Dot-product attention of scaled queries; `bias` is added to the scores, broadcast to (B, H, L, L)."""
    if plain_is_faster(query_BHLS, dropout=dropout):
        map_BHLL = attention_map(query_BHLS, key_BHLS, bias=bias)
        return drop(map_BHLL, dropout) @ value_BHLS
    return functional.scaled_dot_product_attention(
        query_BHLS, key_BHLS, value_BHLS, attn_mask=bias, dropout_p=dropout, scale=1.0
    )


def plain_is_faster(query_BHLS: Tensor, *, dropout: float) -> bool:
    """Whether three plain operations beat torch's fused attention on this device and precision."""
    # Measured for L from 64 to 512, forward and backward. On a CPU the fused kernel has no dropout, and its
    # fallback takes 1.3 to 1.5 times as long as ours. In bfloat16 (AVX512, L = 128) it took 38 ms, ours 10.5.
    # In float32 without dropout it is faster, forward alone by 1.3 to 1.7. On `meta` FLOPs are counted, and
    # the counter sees only plain operations.
    device = query_BHLS.device.type
    return device == "meta" or (device == "cpu" and (dropout > 0 or query_BHLS.dtype != torch.float32))


def takes_packed(projected: Tensor, *, head_size: int, dropout: float) -> bool:
    """Whether torch has a kernel for rows of several lengths, end to end, on this device and precision."""
    return (
        projected.device.type == "cuda"
        and projected.dtype in (torch.float16, torch.bfloat16)
        and dropout == 0
        and head_size <= _LARGEST_HEAD
        and head_size % _HEAD_MULTIPLE == 0
        and _HAS_PACKED_KERNEL
        and torch.cuda.get_device_capability(projected.device) >= _LEAST_CAPABILITY
    )


def takes_packed_window() -> bool:
    """Whether that kernel can also look at a window, which it could not at first."""
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in signature(varlen_attn).parameters


def attend_packed(
    query_THS: Tensor,
    key_THS: Tensor,
    value_THS: Tensor,
    *,
    bounds: Tensor,
    longest: int,
    reach: int | None = None,
) -> Tensor:
    """`attend` for rows laid end to end, from one of `bounds` (B + 1) to the next, at most `longest` each.

    `reach`: how far a position sees on each side; None: everything.
    """
    # Imported here, since the oldest torch that we support has no such module.
    from torch.nn.attention.varlen import varlen_attn

    window: dict[str, Any] = {} if reach is None else {"window_size": (reach, reach)}
    mixed_THS = varlen_attn(
        query_THS, key_THS, value_THS, bounds, bounds, longest, longest, scale=1.0, **window
    )
    assert isinstance(mixed_THS, Tensor)
    return mixed_THS


def attend_blocks(
    query_BHLS: Tensor,
    key_BHLS: Tensor,
    value_BHLS: Tensor,
    *,
    bias: Tensor | None,
    reach: int,
    dropout: float,
) -> Tensor:
    """`attend` where each position sees `reach` others on each side; `bias` is about padding, (B, 1, 1, L).

    Rows are cut into blocks as long as the reach, of which each sees itself and its two neighbours: the cost
    grows with the length, not with its square.
    """
    B, H, length, S = query_BHLS.shape
    N = -(-length // reach)
    after = N * reach - length
    query_BHNWS = functional.pad(query_BHLS, (0, 0, 0, after)).view(B, H, N, reach, S)
    # One more block of nothing before the first and after the last, so that all have neighbours.
    sides = (0, 0, reach, reach + after)
    key_BHNSX, value_BHNSX = (
        functional.pad(part, sides).unfold(2, 3 * reach, reach) for part in (key_BHLS, value_BHLS)
    )
    dtype, device = query_BHLS.dtype, query_BHLS.device
    low = torch.finfo(dtype).min / 2
    if bias is None:
        bias = torch.zeros(1, 1, 1, length, dtype=dtype, device=device)
    bias_BN1X = functional.pad(bias[:, 0], (reach, reach + after), value=low).unfold(2, 3 * reach, reach)
    bias_BN1X = bias_BN1X.transpose(1, 2)
    place_W, place_X = (torch.arange(size, device=device) for size in (reach, 3 * reach))
    unseen_WX = (place_X - reach - place_W[:, None]).abs() > reach
    near_WX = torch.zeros(unseen_WX.shape, dtype=dtype, device=device).masked_fill_(unseen_WX, low)
    mixed = attend(
        query_BHNWS.transpose(1, 2).flatten(0, 1),
        key_BHNSX.permute(0, 2, 1, 4, 3).flatten(0, 1),
        value_BHNSX.permute(0, 2, 1, 4, 3).flatten(0, 1),
        bias=(bias_BN1X + near_WX).expand(B, N, -1, -1).flatten(0, 1)[:, None],
        dropout=dropout,
    )
    return mixed.view(B, N, H, reach, S).transpose(1, 2).flatten(2, 3)[:, :, :length]


def attention_map(query_BHLS: Tensor, key_BHLS: Tensor, *, bias: Tensor | None) -> Tensor:
    """How much each position looks at each other one: the reference, and the plain path of `attend`."""
    score_BHLL = query_BHLS @ key_BHLS.transpose(-1, -2)
    if bias is not None:
        # In place: nothing needs the unbiased scores again.
        score_BHLL += bias
    return torch.softmax(score_BHLL, dim=-1)


def padding_bias(attention_mask_BL: Tensor, *, dtype: torch.dtype) -> Tensor:
    """0 at text and, at padding, a number so low that no attention goes there."""
    bias_BL = torch.zeros(attention_mask_BL.shape, dtype=dtype, device=attention_mask_BL.device)
    # Finite, so that a row of nothing but padding gives no NaN; half, so that it stays finite in sums.
    bias_BL.masked_fill_(attention_mask_BL == 0, torch.finfo(dtype).min / 2)
    return bias_BL[:, None, None, :]


def alibi_bias(num_heads: int, length: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A penalty that grows with the distance in both directions, at its own rate in each head: (H, L, L)."""
    # ALiBi's rates, but from the middle of each head's interval: so a generator's only head is local too.
    head_H = torch.arange(num_heads, device=device)
    slope_H = 2.0 ** (-8 * (head_H + 0.5) / num_heads)
    position_L = torch.arange(length, device=device)
    distance_LL = (position_L[:, None] - position_L[None, :]).abs()
    return (-slope_H[:, None, None] * distance_LL).to(dtype)


def near_bias(length: int, *, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 up to `reach` positions away and, beyond, a number so low that no attention goes there: (L, L)."""
    position_L = torch.arange(length, device=device)
    unseen_LL = (position_L[:, None] - position_L).abs() > reach
    bias_LL = torch.zeros(length, length, dtype=dtype, device=device)
    return bias_LL.masked_fill_(unseen_LL, torch.finfo(dtype).min / 2)


ROTARY_BASE = 10000.0
"""The slowest pair of numbers turns once in 2π times as many positions."""


def rotary_angles(
    head_size: int, length: int, *, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's rotation, (L, S) each; the first half of the sines is negative."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_size, 2, device=device) / head_size)
    angle = torch.arange(length, device=device)[:, None] * frequency
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([cosine, cosine], dim=-1).to(dtype), torch.cat([-sine, sine], dim=-1).to(dtype)


def rotate(vector_BHLS: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of numbers by an angle that grows with the position: products then depend on distances."""
    cosine_LS, sine_LS = rotation
    return vector_BHLS * cosine_LS + vector_BHLS.roll(vector_BHLS.shape[-1] // 2, -1) * sine_LS


SHORTEST = 1e-3
"""Vectors of padding are zero and stay it: nothing is divided by less."""


def normalise(vector_BHLS: Tensor, *, length: float) -> Tensor:
    """Vectors of a head with the same direction and one length: √S for an RMS of 1."""
    # In this order there are two passes over the vectors, a third of the time of torch's rms_norm on a CPU.
    length_BHL1: Tensor = torch.linalg.vector_norm(vector_BHLS, dim=-1, keepdim=True)
    factor_BHL1 = length / length_BHL1.clamp(min=SHORTEST)
    return vector_BHLS * factor_BHL1.to(vector_BHLS.dtype)


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
        query, key = rotate(self.fit(pair), rotation).unbind()
        return query, key, value.squeeze(0)

    def fit(self, vector: Tensor) -> Tensor:
        """Queries or keys, normalised if they are to be; the scale is then shared among both."""
        return normalise(vector, length=(self.scale * self.head_size) ** 0.5) if self.normalises else vector

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


def first_positions(value_BLX: Tensor) -> Tensor:
    """The values at the first position of each row: (B, 1, X)."""
    return value_BLX[:, :1]


def norm_of(config: EncoderConfig, width: int) -> nn.LayerNorm:
    """A layer norm, without a bias in the modern backbone."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=not config.is_modern)


class Embeddings(nn.Module):
    """Word, segment and (if learned) position tables with their norm, which two encoders may share.

    The modern backbone has no segments: [SEP] tells them apart.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # As in the original the row of [PAD] is trained like any other, so there is no padding_idx.
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.token_type_embeddings: nn.Embedding | None = None
        if not config.is_modern:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.position_embeddings: nn.Embedding | None = None
        if config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.norm = norm_of(config, config.embedding_size)

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
        build = ModernLayer if config.is_modern else Layer
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
