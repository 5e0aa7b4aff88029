"""Free memory and what a row needs -> how many rows to work on at once; advice when it runs out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from electra.errors import InputError

_USABLE_SHARE = 0.6
"""Part of the free memory that a micro-batch may take: gradients and passing values need some, too."""


def choose_micro_batch(
    asked: int | Literal["all", "auto"],
    *,
    share: int,
    bytes_per_row: Callable[[], float],
    device: torch.device,
) -> int:
    """Rows that a process works on at once, of its `share` of the batch."""
    if asked == "all":
        return share
    if asked != "auto":
        return min(asked, share)
    fitting = int(_USABLE_SHARE * free_memory(device) / bytes_per_row())
    if fitting >= share:
        return share
    # Parts of nearly equal size waste the least.
    num_parts = -(-share // max(1, fitting))
    return -(-share // num_parts)


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors can have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """Count the bytes that a forward pass keeps for its backward pass: the one item of the list."""
    total, seen = [0], set[int]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


@contextmanager
def explained_out_of_memory(*, rows: int) -> Iterator[None]:
    """Say which key to turn when memory runs out."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise InputError(
                f"out of memory with {rows} rows at a time: set --train.micro_batch {max(1, rows // 2)}, or "
                "auto, which finds one; the batch keeps its size. With --train.checkpoint_activations "
                f"true a row needs less ({str(error)[:200]})"
            ) from error
        raise
