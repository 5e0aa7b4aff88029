"""A machine -> the device, precision and micro-batch that training gets there, and how fast it multiplies.

In this order: the choice of device and precision, memory, the measured speed of matrix products, and what is
known of this machine and of others (hardware.json).
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
Product = tuple[int, int, int]
"""A matrix product: rows of the left matrix, the dimension summed over, columns of the right matrix."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_WORTHWHILE_SPEEDUP = 1.3
"""How much faster bf16 must be before its lower precision is worth it."""
_PROBE_SECONDS, _PEAK_SECONDS = 0.05, 0.3

_USABLE_SHARE = 0.6
"""Share of the free memory that a micro-batch may take; gradients and temporary tensors need some, too."""

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER, _LARGEST_KEPT, _GROWTH = -1, 1 << 30, 1 << 26

# oneDNN, which computes gelu, and in bf16 all products, compiles a kernel for every shape: 0.4 to 0.8 MB
# each. With its default of 1,024 kept kernels a run on texts of all lengths grows by a gigabyte. In fp32 the
# layers of a step share a few. Two networks in bf16 need some fifty in each step, and others where rows have
# other lengths; with too few, all are compiled anew in each step: a quarter of its time, and with half as
# many as now a tenth of that of the demo, whose rows are two thirds full.
_KEPT_KERNELS, _KEPT_KERNELS_IN_BF16 = 16, 256

_CPUINFO = Path("/proc/cpuinfo")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""What Linux calls instructions for bf16, the last one on ARM."""

AUTO_PRECISION = "ELECTRA_AUTO_PRECISION"
"""The environment variable that decides what `precision: auto` is, where the machines of a job differ."""
_AUTO_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def choose_device(name: DeviceName, *, local_rank: int = 0) -> torch.device:
    """The named device, or with `auto` the fastest one there is."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if not available[name]:
        raise InputError(f"train.device is {name}, but torch finds none here: use auto or cpu")
    if name != "cuda":
        return torch.device(name)
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def choose_precision(name: PrecisionName, device: torch.device, world: World) -> Precision:
    """The named precision, or with `auto` the fastest that trains well; the same for all processes."""
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
            fp32 = gemm_speed(device, "fp32", seconds=_PROBE_SECONDS)
            bf16 = gemm_speed(device, "bf16", seconds=_PROBE_SECONDS)
            return "bf16" if bf16 > _WORTHWHILE_SPEEDUP * fp32 else "fp32"
    return "fp32"


def lacks_bf16() -> bool:
    """Whether the processor is known to have no instructions for bf16."""
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.is_file() else []
    for key, _, flags in (line.partition(":") for line in lines):
        if key.strip() in ("flags", "Features"):
            return _BF16_FLAGS.isdisjoint(flags.split())
    return False


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Compute matrix products in the precision; weights stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


def set_up_allocator() -> None:
    """Keep freed memory in the process: glibc returns large tensors to the system and faults them in again.

    Call it before the first matrix product, which is when oneDNN decides how many kernels it keeps.
    """
    # The precision may not be known yet.
    kernels = _KEPT_KERNELS if lacks_bf16() else _KEPT_KERNELS_IN_BF16
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(kernels))
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_TOP_PAD, _GROWTH)


def choose_micro_batch(
    asked: int | Literal["all", "auto"],
    *,
    share: int,
    bytes_per_row: Callable[[], float],
    device: torch.device,
) -> int:
    """How many of a process's `share` of rows it works on at once; `auto` takes as many as fit in memory."""
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
    """Bytes available for new tensors."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """Count the bytes that a forward pass keeps for its backward pass, as the only item of the list."""
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
    """Turn an out-of-memory error into one that names the key to change."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise InputError(
                f"out of memory with {rows} rows at a time: set --train.micro_batch {max(1, rows // 2)}, or "
                "auto, which finds one; the batch keeps its size. --train.checkpoint_activations true makes "
                f"a row need less ({str(error)[:200]})"
            ) from error
        raise


def gemm_speed(device: torch.device, precision: Precision, *, seconds: float = _PEAK_SECONDS) -> float:
    """Peak FLOP/s of the device: a square product that is large enough to be fast."""
    return products_speed({square_product(device): 1}, device, precision, seconds=seconds)


def square_product(device: torch.device) -> Product:
    """A product near the peak of a device; on a CPU short enough to finish between interruptions."""
    size = 512 if device.type == "cpu" else 4096
    return size, size, size


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
    """Seconds of the fastest run of a product: slower ones shared the machine with something else."""
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


def describe_machine() -> dict[str, Any]:
    """The facts about this machine without which a run's figures mean little."""
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


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """A row of hardware.json, whose `about` says where the numbers come from."""

    name: str
    peak: float
    """Dense FLOP/s of matrix products."""
    format: Precision
    memory: float
    """Bytes."""
    achievable: float
    """Share of the peak that training a wide model reaches."""
    price: float
    """Per hour."""
    link: tuple[float, float]
    """Between the devices of a node: Gbit/s in one direction, and microseconds of a message."""
    network: tuple[float, float]
    """Between nodes: the same, of all that a node has."""


def known_hardware() -> dict[str, Hardware]:
    """All rows of hardware.json, by name."""
    text = resources.files("electra.train").joinpath("hardware.json").read_text(encoding="utf-8")
    return {name: Hardware(name=name, **row) for name, row in json.loads(text)["devices"].items()}


def find_hardware(name: str) -> Hardware:
    """The row with a name, in any case."""
    table = known_hardware()
    for known, row in table.items():
        if known.lower() == name.lower():
            return row
    raise InputError(f"hardware is {name!r}, expected this or one of {', '.join(table)}")
