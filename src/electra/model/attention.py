"""Queries, keys, values -> mixed values, by the fastest exact way; dropout; positions that act in attention.

B rows, L positions, T positions of text in all rows together, H heads, S numbers per head. Queries come
scaled: a score is a plain product.
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

_HAS_PACKED_KERNEL = find_spec("torch.nn.attention.varlen") is not None
_LEAST_CAPABILITY = (8, 0)
_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8
"""What the kernel for packed rows takes: GPUs from Ampere on, and these numbers per head."""


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
    # Measured for L from 64 to 512, forward and backward. On a CPU the fused kernel knows no dropout: its
    # fallback takes 1.3 to 1.5 times as long as ours. In bfloat16 (AVX512, L = 128) it took 38 ms for our
    # 10.5. In float32 without dropout it is faster, forward alone by 1.3 to 1.7. The FLOP counter, on `meta`,
    # sees only plain operations.
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


def attend_packed(
    query_THS: Tensor, key_THS: Tensor, value_THS: Tensor, *, bounds: Tensor, longest: int
) -> Tensor:
    """The same for rows end to end, from one of `bounds` (B + 1) to the next, of up to `longest` tokens."""
    # Not with the other imports: the first torch that we run with has no such module.
    from torch.nn.attention.varlen import varlen_attn

    mixed_THS = varlen_attn(query_THS, key_THS, value_THS, bounds, bounds, longest, longest, scale=1.0)
    assert isinstance(mixed_THS, Tensor)
    return mixed_THS


def attention_map(query_BHLS: Tensor, key_BHLS: Tensor, *, bias: Tensor | None) -> Tensor:
    """How much each position looks at each other one: the reference, and the plain path of `attend`."""
    score_BHLL = query_BHLS @ key_BHLS.transpose(-1, -2)
    if bias is not None:
        # In place: nothing needs the unbiased scores again.
        score_BHLL += bias
    return torch.softmax(score_BHLL, dim=-1)


def padding_bias(attention_mask_BL: Tensor, *, dtype: torch.dtype) -> Tensor:
    """0 where there is text and, where there is padding, a number so low that nothing of it comes through."""
    bias_BL = torch.zeros(attention_mask_BL.shape, dtype=dtype, device=attention_mask_BL.device)
    # Finite, so that a row of nothing but padding gives no NaN; half, so that it stays finite in sums.
    bias_BL.masked_fill_(attention_mask_BL == 0, torch.finfo(dtype).min / 2)
    return bias_BL[:, None, None, :]


def alibi_bias(num_heads: int, length: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A penalty that grows with the distance in both directions, at another rate for each head: (H, L, L)."""
    # ALiBi's rates, but from the middle of each head's interval: a generator's only head is local too.
    head_H = torch.arange(num_heads, device=device)
    slope_H = 2.0 ** (-8 * (head_H + 0.5) / num_heads)
    position_L = torch.arange(length, device=device)
    distance_LL = (position_L[:, None] - position_L[None, :]).abs()
    return (-slope_H[:, None, None] * distance_LL).to(dtype)


def rotary_angles(head_size: int, length: int, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's rotation, (L, S) each and in float32."""
    frequency = 10000.0 ** (-torch.arange(0, head_size, 2, device=device) / head_size)
    angle = torch.arange(length, device=device)[:, None] * frequency
    angle_LS = torch.cat([angle, angle], dim=-1)
    return angle_LS.cos(), angle_LS.sin()


def rotate(vector_BHLS: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn pairs of numbers by an angle that grows with the position: products then see only distances."""
    cosine_LS, sine_LS = (part.to(vector_BHLS.dtype) for part in rotation)
    first, second = vector_BHLS.chunk(2, dim=-1)
    return vector_BHLS * cosine_LS + torch.cat([-second, first], dim=-1) * sine_LS


def drop(value: Tensor, probability: float) -> Tensor:
    """Set each number to zero with the given probability and scale the others up, so that the mean stays.

    Draws from torch's default generator, as torch's own dropout and fused attention do and as activation
    checkpointing expects: who wants a step to be repeatable seeds that generator before the step.
    """
    if probability == 0:
        return value
    if value.device.type != "cpu":
        return functional.dropout(value, probability)
    return value * _byte_mask(value, dropped=min(255, round(probability * 256)))


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


def _byte_mask(value: Tensor, *, dropped: int) -> Tensor:
    """A mask of 0 in `dropped` of 256 cases, else of what keeps the mean at 1."""
    # One 64-bit draw decides for eight numbers, and comparing into a tensor of the result's type passes over
    # bytes once: a tenth of the time of Bernoulli draws.
    draw = torch.empty((value.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    mask = torch.empty_like(value, memory_format=torch.contiguous_format)
    torch.ge(draw.view(torch.uint8)[: value.numel()].view(value.shape), dropped, out=mask)
    return mask.mul_(256 / (256 - dropped))
