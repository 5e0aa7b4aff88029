"""(seed, purpose, ...) -> independent random streams, the same on every machine and process.

Everything random in the program takes its generator from here, keyed by what it is for. No state is
carried from step to step, so any step can be reached at once and a resumed run repeats it exactly.
"""

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 64-bit seed that depends on every part of the purpose: `derive(seed, "mask", step)`."""
    key = repr((seed, *purpose)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def python_random(seed: int, *purpose: str | int) -> random.Random:
    """Python's generator for one purpose."""
    return random.Random(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """NumPy's generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))


def torch_generator(seed: int, *purpose: str | int, device: str = "cpu") -> "torch.Generator":
    """PyTorch's generator for one purpose. torch is imported here: preparing text does not need it."""
    import torch

    # torch accepts signed 64-bit seeds only.
    return torch.Generator(device=device).manual_seed(derive(seed, *purpose) >> 1)
