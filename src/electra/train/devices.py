"""A machine -> the device, the precision and the memory that training gets there, and its measured peak.

The name of a device -> its peak, memory and price; matrix products -> how fast this machine does them.

Free memory and what a row needs -> how many rows to work on at once; advice when it runs out.
"""

import ctypes
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from electra.errors import InputError
from electra.train.distributed import World

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]
Precision = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER, _LARGEST_KEPT, _GROWTH = -1, 1 << 30, 1 << 26

# Of oneDNN, which computes gelu. Each takes 0.4 MB, and every number of tokens wants its own: with the 1,024
# that it would keep, a run on texts of all lengths grows by a gigabyte. The layers of a step share these few,
# and it takes no longer.
_KEPT_KERNELS = "16"

AUTO_PRECISION = "ELECTRA_AUTO_PRECISION"
"""The environment variable that says what `precision: auto` is, for machines of one job that are unlike."""
_AUTO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")

_WORTHWHILE_SPEEDUP = 1.3
_PROBE_SIZE = 512
# Near the peak, and on a CPU short enough to get through between two interruptions.
_CPU_PEAK_SIZE, _GPU_PEAK_SIZE = 512, 4096


def set_up_allocator() -> None:
    """Keep freed memory in the process: glibc gives large tensors back, and faults their pages in again.

    To be called before the first product of matrices, when oneDNN decides how much it remembers.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KEPT_KERNELS)
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_TOP_PAD, _GROWTH)


def choose_device(name: DeviceName, *, local_rank: int = 0) -> torch.device:
    """The named device, or the fastest there is."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if not available[name]:
        raise InputError(f"train.device is {name}, but torch sees none here: use auto or cpu")
    if name != "cuda":
        return torch.device(name)
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def choose_precision(name: PrecisionName, device: torch.device, world: World) -> Precision:
    """The named precision, or the fastest that trains well on the device; the same for all processes."""
    if name == "fp16" and device.type != "cuda":
        raise InputError(f"train.precision is fp16, which needs a CUDA device, not {device.type}: use auto")
    if name != "auto":
        return name
    order: list[Precision] = ["fp32", "fp16", "bf16"]
    found = _stated_precision() or _fastest_precision(device)
    return order[int(world.largest(order.index(found)))]


def _stated_precision() -> Precision | None:
    stated = os.environ.get(AUTO_PRECISION)
    if not stated:
        return None
    for precision in _AUTO_PRECISIONS:
        if stated == precision:
            return precision
    allowed = " or ".join(_AUTO_PRECISIONS)
    raise InputError(f"{AUTO_PRECISION} is {stated!r}, expected {allowed}: set one of them, or unset it")


def _fastest_precision(device: torch.device) -> Precision:
    match device.type:
        case "cuda":
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        case "cpu":
            # Without instructions for it (AVX512-bf16, AMX) a product in bf16 takes ten times as long.
            faster = _WORTHWHILE_SPEEDUP * gemm_speed(device, "fp32", size=_PROBE_SIZE, seconds=0.05)
            return "bf16" if gemm_speed(device, "bf16", size=_PROBE_SIZE, seconds=0.05) > faster else "fp32"
    return "fp32"


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Matrix products in the precision; weights stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


def gemm_speed(
    device: torch.device, precision: Precision, *, size: int | None = None, seconds: float = 0.3
) -> float:
    """FLOP/s of the fastest square matrix product seen within some time: what 100 % of the machine is."""
    size = size or (_CPU_PEAK_SIZE if device.type == "cpu" else _GPU_PEAK_SIZE)
    left = torch.full((size, size), 0.5, dtype=DTYPES[precision], device=device)
    right = left.t().contiguous()
    fastest, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < seconds or fastest == float("inf"):
        before = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - before)
    return 2 * size**3 / fastest


def describe_machine() -> dict[str, Any]:
    """What a reader of the run's figures must know of the machine."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


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
