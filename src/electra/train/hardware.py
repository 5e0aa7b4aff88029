"""The name of a device -> its peak, memory and price; matrix products -> how fast this machine does them."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import torch

from electra.errors import InputError
from electra.train.devices import DTYPES, Precision

Product = tuple[int, int, int]
"""Rows of the left matrix, what is summed over, columns of the right one."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A row of the table; `about` in the file says where the numbers come from."""

    name: str
    peak: float
    """Dense FLOP/s of matrix products."""
    format: Precision
    memory: float
    """Bytes."""
    achievable: float
    """Share of the peak that training of a wide model reaches."""
    price: float
    """Per hour."""


def known_hardware() -> dict[str, Hardware]:
    """The table, by name."""
    text = resources.files("electra.train").joinpath("hardware.json").read_text(encoding="utf-8")
    return {name: Hardware(name=name, **row) for name, row in json.loads(text)["devices"].items()}


def find_hardware(name: str) -> Hardware:
    """A row of the table, however its name is capitalised."""
    table = known_hardware()
    for known, row in table.items():
        if known.lower() == name.lower():
            return row
    raise InputError(f"hardware is {name!r}, expected this or one of {', '.join(table)}")


def products_speed(
    counts: Mapping[Product, int], device: torch.device, precision: Precision, *, seconds: float
) -> float:
    """FLOP/s in a mixture of matrix products, each measured for an equal part of the time."""
    flops, spent = 0.0, 0.0
    for product, count in counts.items():
        flops += count * 2 * math.prod(product)
        spent += count * _fastest_product(product, device, precision, seconds=seconds / len(counts))
    return flops / spent


def _fastest_product(
    product: Product, device: torch.device, precision: Precision, *, seconds: float
) -> float:
    """Seconds of the fastest: others are slowed down by what else the machine does."""
    rows, inner, columns = product
    dtype = DTYPES[precision]
    left = torch.full((rows, inner), 0.5, dtype=dtype, device=device)
    # Stored as a linear layer stores its weight.
    right = torch.full((columns, inner), 0.5, dtype=dtype, device=device).t()
    result = torch.empty((rows, columns), dtype=dtype, device=device)
    fastest, begun = math.inf, time.perf_counter()
    while math.isinf(fastest) or time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        torch.mm(left, right, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - before)
    return fastest
