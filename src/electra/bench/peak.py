"""This machine -> its peak: FLOP/s of matrix products in two precisions, bytes/s of a large copy."""

import math
import time
from collections.abc import Mapping, Sequence

import torch

from electra.model.sizes import EncoderConfig
from electra.train.devices import Precision
from electra.train.hardware import Product, products_speed

Peak = dict[str, float]
"""FLOP/s by precision, and bytes/s as `copy`."""

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
COPY = "copy"
SQUARE: Product = (512, 512, 512)
"""Near the peak of a CPU, and short enough to get through between two interruptions."""
_PROBE_SECONDS = 0.3
_COPIED_BYTES = 1 << 28
"""More than caches hold."""


def encoder_products(config: EncoderConfig, *, tokens: int) -> tuple[Product, ...]:
    """The matrix products of a layer: into attention and out of it, into the feed-forward layer and out."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return (
        (tokens, hidden, 3 * hidden),
        (tokens, hidden, hidden),
        (tokens, hidden, inner),
        (tokens, inner, hidden),
    )


def measure_peak(products: Sequence[Product], *, seconds: float = _PROBE_SECONDS) -> Peak:
    """The best of these products and of a square one; each is tried for some seconds."""
    device = torch.device("cpu")
    rates: Peak = {
        precision: max(
            products_speed({product: 1}, device, precision, seconds=seconds)
            for product in (SQUARE, *products)
        )
        for precision in PRECISIONS
    }
    return {**rates, COPY: copy_speed(seconds=seconds)}


def copy_speed(*, seconds: float, size: int = _COPIED_BYTES) -> float:
    """Bytes/s, read and written ones together, of the fastest of several copies."""
    source = torch.ones(size // 4)
    # Not empty: the first touch of each page takes far longer than a copy.
    target = source.clone()
    fastest, begun = math.inf, time.perf_counter()
    while math.isinf(fastest) or time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        target.copy_(source)
        fastest = min(fastest, time.perf_counter() - before)
    return 2 * source.nbytes / fastest


def best_of(peaks: Sequence[Peak]) -> Peak:
    """The highest of each kind: the machine may have been busy at other times."""
    return {key: max(peak[key] for peak in peaks) for key in peaks[0]}


def best_flops(peak: Mapping[str, float]) -> float:
    """FLOP/s in the faster precision: what 100 % is."""
    return max(peak[precision] for precision in PRECISIONS)


def describe(peak: Mapping[str, float]) -> str:
    """For a person."""
    rates = ", ".join(f"{peak[precision] / 1e9:.0f} GFLOP/s in {precision}" for precision in PRECISIONS)
    return f"peak here: {rates}; {peak[COPY] / 1e9:.0f} GB/s copied"
