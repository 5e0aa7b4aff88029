"""A run config and a machine -> parameters, FLOPs, memory, disk, time and cost of the run, before it runs.

With a budget it goes the other way: how many steps of each size of model fit into it.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from electra import files
from electra.config import Given
from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.communication import Link
from electra.pretraining.config import PretrainConfig, PretrainRunConfig, Size, paper_defaults, paper_values
from electra.pretraining.cost import Estimate, Machine, ModelCost, Workload, count_model, estimate
from electra.text.rows import KIND
from electra.train import devices
from electra.train.devices import find_hardware, products_speed
from electra.train.distributed import World
from electra.train.schedule import parse_duration

SIZES: tuple[Size, ...] = get_args(Size)
PAPER_LENGTH: dict[Size, int] = {"tiny": 128, "small": 128, "base": 512, "large": 512}
FULL_WIDTH = 1024
"""Hidden size at which a GPU reaches the table's share of its peak; narrower models reach less."""
MOST_PROBED_TOKENS = 8192
HERE_ACHIEVABLE = 0.5
"""Share of the measured speed of matrix products that whole training steps reach on a CPU."""
REACHED_BANDWIDTH = 0.8
"""Share of its bandwidth that a link reaches; an assumption."""
Wire = tuple[float, float]
"""Gbit/s in one direction, and microseconds of a message."""
HERE_LINK: Wire = (200.0, 10.0)
HERE_NETWORK: Wire = (10.0, 50.0)
"""Of machines that are not in the table: assumptions. A bus, and usual Ethernet."""
USABLE_MEMORY = 0.8
"""Share of the memory; libraries, buffers and fragmentation take the rest: 0.1 to 0.4 GB where measured."""
ENOUGH_TRAINING = 1 / 16
"""Share of the paper's steps that makes a size worthwhile: ELECTRA-small has 74.1 of its 79.9 GLUE there."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig(PretrainRunConfig):
    """A pre-training run and a machine to plan it for. Takes any key and file of `electra pretrain`."""

    seq_length: int | None = None
    """Tokens of a row. Default: those of the data, or the paper's for the size."""
    vocab_size: int = 30522
    """Number of tokens in the vocabulary, if no data is given."""
    hardware: str = "this"
    """This machine, measured, or a device of the table, such as A100."""
    nodes: int = 1
    """Number of machines that train together."""
    devices: int = 1
    """Number of devices of each of them."""
    bandwidth: float | None = None
    """Gbit/s in one direction of what joins the devices: the network of a node if there are several, else the
    link between its devices. Default: the table's."""
    latency: float | None = None
    """Microseconds that a message takes there beside its bytes. Default: the table's."""
    achievable: float | None = None
    """Share of its peak that a device reaches in training. Default: the table's, less for narrow models."""
    price_per_hour: float | None = None
    """Price of one device per hour. Default: the table's, a rough assumption."""
    budget_time: str | None = None
    """Print what fits into this time, such as 2h, for every size of model."""
    budget_money: float | None = None
    """Print what fits into this sum at the price per hour, for every size of model."""
    probe_seconds: float = 10.0
    """Seconds to spend on measuring this machine."""
    json: str | None = None
    """File to write the numbers to, in addition to the table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (
            "seq_length",
            "vocab_size",
            "nodes",
            "devices",
            "bandwidth",
            "achievable",
            "probe_seconds",
        )
        for key in (*above_zero, "budget_money"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{key} is {value}, expected a number above 0")
        for key in ("price_per_hour", "latency"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{key} is {value}, expected 0 or more")
        for key in ("bandwidth", "latency"):
            if getattr(self, key) is not None and self.all_devices == 1:
                raise InputError(
                    f"{key} is given, but one device sends nothing: give --nodes or --devices, too"
                )
        if self.budget_time is not None:
            parse_duration(self.budget_time, key="budget_time")

    @property
    def all_devices(self) -> int:
        """Of all nodes."""
        return self.nodes * self.devices

    @property
    def has_budget(self) -> bool:
        """Whether the question is what fits into a budget."""
        return self.budget_time is not None or self.budget_money is not None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, a machine, and what the run needs there."""

    size: Size
    model: ModelCost
    machine: Machine
    work: Workload
    needs: Estimate

    @property
    def share_of_schedule(self) -> float:
        """Steps as a share of the paper's number of steps for the size."""
        return self.work.steps / paper_values(self.size)["train.steps"]

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory."""
        return _fits(self.needs, self.machine)

    def facts(self) -> dict[str, Any]:
        """Every number, for JSON."""
        return {**dataclasses.asdict(self), "memory_total": self.needs.memory.total}


def make_plans(given: Given[PlanConfig]) -> list[Plan]:
    """One plan, or with a budget one for each size: as many steps as fit into it."""
    settings = given.config(paper_defaults(given))
    if not settings.has_budget:
        return [make_plan(settings)]
    sized = [given.changed({"model.size": size}) for size in SIZES]
    return [make_plan(one.config(paper_defaults(one)), probe_share=1 / len(SIZES)) for one in sized]


def recommended(plans: Sequence[Plan]) -> tuple[Plan, bool]:
    """The largest model that gets enough training, or the smallest one; whether it does get enough."""
    enough = [one for one in plans if one.share_of_schedule >= ENOUGH_TRAINING and one.fits]
    return (enough[-1], True) if enough else (plans[0], False)


def make_plan(settings: PlanConfig, *, probe_share: float = 1.0) -> Plan:
    """What a run with these settings needs; with a budget, as many steps of it as fit."""
    if settings.train.batch_size % settings.all_devices and not settings.has_budget:
        raise InputError(
            f"train.batch_size is {settings.train.batch_size}, which {settings.all_devices} devices cannot "
            "share evenly: choose a multiple of their number"
        )
    length, fill, vocab_size = _rows(settings)
    encoder = settings.model.encoder(vocab_size=vocab_size)
    if length > encoder.max_position_embeddings:
        encoder = dataclasses.replace(encoder, max_position_embeddings=length)
    work = Workload(
        batch_size=settings.train.batch_size,
        rows_at_once=-(-settings.train.batch_size // settings.all_devices),
        length=length,
        fill=fill,
        steps=1,
        checkpoints=settings.checkpoint.most_at_once,
        recomputes_layers=settings.train.checkpoint_activations,
        optimizer=settings.train.optimizer,
        parallel=settings.train.parallel,
    )
    parts = {entry.name: getattr(settings, entry.name) for entry in dataclasses.fields(PretrainConfig)}
    model = count_model(PretrainConfig(**parts), encoder, length=length)
    machine = find_machine(settings, encoder, work, seconds=settings.probe_seconds * probe_share)
    work = _with_micro_batch(settings, model, work, machine)
    steps = _num_steps(settings, estimate(model, work, machine), machine)
    work = dataclasses.replace(work, steps=steps)
    return Plan(
        size=settings.model.size,
        model=model,
        machine=machine,
        work=work,
        needs=estimate(model, work, machine),
    )


def _with_micro_batch(settings: PlanConfig, model: ModelCost, work: Workload, machine: Machine) -> Workload:
    """The rows at once that were asked for; with auto or with a budget, as many as fit into memory."""
    asked = settings.train.micro_batch
    if isinstance(asked, int):
        return dataclasses.replace(work, rows_at_once=min(asked, work.rows_at_once))
    is_open = asked == "auto" or settings.has_budget
    while is_open and work.rows_at_once > 1 and not _fits(estimate(model, work, machine), machine):
        work = dataclasses.replace(work, rows_at_once=-(-work.rows_at_once // 2))
    return work


def _fits(needs: Estimate, machine: Machine) -> bool:
    return needs.memory.total < USABLE_MEMORY * machine.memory


def _rows(settings: PlanConfig) -> tuple[int, float, int]:
    """Tokens of a row, the share of them that are not padding, and the size of the vocabulary."""
    if not settings.data:
        return settings.seq_length or PAPER_LENGTH[settings.model.size], 1.0, settings.vocab_size
    manifest = files.read_manifest(Path(settings.data), kind=KIND)
    train, length = manifest["splits"]["train"], int(manifest["seq_length"])
    fill = train["tokens"] / (train["rows"] * length)
    return length, float(fill), int(manifest["tokenizer"]["vocab_size"])


def _num_steps(settings: PlanConfig, one_step: Estimate, machine: Machine) -> int:
    """Steps until the first of the budgets is used up; a budget of the plan replaces those of the run."""
    limits: list[float] = []
    if not settings.has_budget:
        budget = settings.train.budget
        limits += [] if budget.steps is None else [budget.steps]
        limits += [] if budget.tokens is None else [budget.tokens / one_step.tokens]
        limits += [] if budget.seconds is None else [budget.seconds / one_step.seconds]
    if settings.budget_time is not None:
        limits.append(parse_duration(settings.budget_time, key="budget_time") / one_step.seconds)
    if settings.budget_money is not None:
        if not machine.price:
            raise InputError("budget_money needs a price: give --price_per_hour")
        limits.append(settings.budget_money / (machine.price * machine.devices) * 3600 / one_step.seconds)
    return int(min(limits))


def find_machine(settings: PlanConfig, encoder: EncoderConfig, work: Workload, *, seconds: float) -> Machine:
    """A device of the table, or this machine, measured with the matrix products of the model."""
    if settings.hardware == "this":
        return measure_here(settings, encoder, work, seconds=seconds)
    row = find_hardware(settings.hardware)
    narrow = min(1.0, encoder.hidden_size / FULL_WIDTH)
    return Machine(
        name=row.name,
        peak=row.peak,
        format=row.format,
        memory=row.memory,
        achievable=settings.achievable or row.achievable * narrow,
        price=row.price if settings.price_per_hour is None else settings.price_per_hour,
        nodes=settings.nodes,
        devices=settings.all_devices,
        link=find_link(settings, inside=row.link, between=row.network),
    )


def find_link(settings: PlanConfig, *, inside: Wire, between: Wire) -> Link | None:
    """What joins the devices of a node, and nodes, as one ring: its slowest part, and its mean latency."""
    devices, nodes = settings.all_devices, settings.nodes
    if devices == 1:
        return None
    slowest = between if nodes > 1 else inside
    bandwidth = settings.bandwidth if settings.bandwidth is not None else slowest[0]
    latency = settings.latency if settings.latency is not None else slowest[1]
    if nodes > 1:
        # A message that has gone round has left each node once.
        latency = (nodes * latency + (devices - nodes) * min(latency, inside[1])) / devices
    return Link(bandwidth=REACHED_BANDWIDTH * bandwidth * 1e9 / 8, latency=latency * 1e-6)


def measure_here(settings: PlanConfig, encoder: EncoderConfig, work: Workload, *, seconds: float) -> Machine:
    """This machine at its current speed."""
    devices.set_up_allocator()
    device = devices.choose_device(settings.train.device)
    precision = devices.choose_precision(settings.train.precision, device, World.from_environment())
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    tokens = min(work.rows_at_once * work.length, MOST_PROBED_TOKENS)
    # Of a layer: queries, keys, values and output; both products of the feed-forward layer.
    counts = {(tokens, hidden, hidden): 4, (tokens, hidden, inner): 1, (tokens, inner, hidden): 1}
    is_gpu = device.type == "cuda"
    return Machine(
        name="this",
        peak=products_speed(counts, device, precision, seconds=seconds),
        format=precision,
        memory=torch.cuda.mem_get_info(device)[1] if is_gpu else devices.describe_machine()["memory_bytes"],
        achievable=settings.achievable or HERE_ACHIEVABLE,
        price=settings.price_per_hour,
        nodes=settings.nodes,
        devices=settings.all_devices,
        link=find_link(settings, inside=HERE_LINK, between=HERE_NETWORK),
        overlaps=is_gpu,
        attention="fused" if is_gpu else "plain",
    )
