"""Queries, keys and values -> what each position gathers from the others; padding, positions, windows.

Functions without weights. The encoder decides what they get; which kernel is the fastest for it on a device
and in a precision is decided here.

B rows, L positions, T positions of text in all rows together, H heads, X numbers at a position, S numbers in
a head, D in a hidden state. N blocks of W positions.
"""

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from electra.model import shapes
from electra.model.dropout import drop

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

    Some of it may count as text, for a number of positions that comes again. Callers that know the positions
    of text in the flattened batch pass them, so that nothing is searched for.
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
    if num_padded < WORTHWHILE_PADDING * attention_mask_BL.numel():
        return None
    if shapes.compiles_products(attention_mask_BL.device):
        more = min(shapes.round_up(len(text_T)) - len(text_T), num_padded)
        padding_P = (attention_mask_BL == 0).flatten().nonzero().squeeze(1)
        text_T = torch.cat([text_T, padding_P[:more]]).sort().values
    return Padding(attention_mask_BL, text_T)


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


class _NormaliseAndRotate(torch.autograd.Function):
    """`rotate(normalise(...))` with its gradient in half as many passes over memory.

    The result keeps its length, so its gradient is the given one without its part along the result, rotated
    back and scaled as the vector was.
    """

    @staticmethod
    def forward(ctx: Any, vector: Tensor, cosine: Tensor, sine: Tensor, length: float) -> Tensor:
        before = torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp_(min=SHORTEST)
        result = _rotated(vector * (length / before), cosine, sine)
        ctx.save_for_backward(result, before, cosine, sine)
        ctx.length = length
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        result, before, cosine, sine = ctx.saved_tensors
        along = (result * gradient).sum(-1, keepdim=True).div_(-(ctx.length**2))
        # A vector that was too short was not given the length.
        along.masked_fill_(before <= SHORTEST, 0.0)
        across = torch.addcmul(gradient, result, along).mul_(ctx.length / before)
        return _rotated(across, cosine, -sine), None, None, None


def _rotated(vector: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`rotate` without a copy of the vectors with their halves exchanged."""
    result, half = vector * cosine, vector.shape[-1] // 2
    result[..., :half].addcmul_(vector[..., half:], sine[..., :half])
    result[..., half:].addcmul_(vector[..., :half], sine[..., half:])
    return result


def normalise_and_rotate(vector: Tensor, rotation: tuple[Tensor, Tensor], *, length: float) -> Tensor:
    """Vectors of one length, rotated by their positions."""
    # A rotation keeps lengths but for its rounding, which is that of float32; traced graphs stay plain.
    needs_gradient = torch.is_grad_enabled() and vector.requires_grad
    is_exact = vector.device.type == "cpu" and vector.dtype == torch.float32
    if not (needs_gradient and is_exact) or torch.compiler.is_compiling():
        return rotate(normalise(vector, length=length), rotation)
    apply: Callable[..., Tensor] = _NormaliseAndRotate.apply
    return apply(vector, *rotation, length)
