"""Numbers of positions -> few different ones, where each shape of a product costs a compilation.

In bf16 on a CPU, oneDNN compiles a kernel for every shape of a matrix product: 2 to 7 ms and 0.8 MB each,
where a product of a small model takes 1 ms. It keeps some (`train.devices`), which helps only where a shape
comes again. Chosen positions and the text of a batch have another number in every step; a few positions
more, whose results nobody looks at, make it one of four in each doubling. In fp32 no product is compiled.
"""

import torch
from torch import Tensor
from torch.nn import functional

_SIZES_PER_DOUBLING = 4


def compiles_products(device: torch.device) -> bool:
    """Whether products there are computed by kernels that are made for one shape."""
    return (
        device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and not torch.compiler.is_compiling()
    )


def round_up(number: int) -> int:
    """The next of the few numbers: at most a quarter more."""
    step = max(1, (1 << max(0, number - 1).bit_length()) // (2 * _SIZES_PER_DOUBLING))
    return -(-number // step) * step


def lengthen(value_PX: Tensor, number: int) -> Tensor:
    """So many positions more, all zero, after the others: (P + number, ...)."""
    return functional.pad(value_PX, (0, 0) * (value_PX.dim() - 1) + (0, number))
