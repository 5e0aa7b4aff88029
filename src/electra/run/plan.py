"""`electra plan`: a config and a machine -> parameters, FLOPs, memory, disk, time and cost of the run.

Takes the keys and files of `electra pretrain`. With a budget it goes the other way: what fits into it.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from electra import config, files
from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import ModelConfig, PretrainConfig, Size, paper_values
from electra.pretraining.cost import (
    SEVERAL_DEVICES,
    Estimate,
    Machine,
    Model,
    Workload,
    count_model,
    estimate,
)
from electra.show import duration, short, table
from electra.text.rows import KIND
from electra.train import devices
from electra.train.checkpoint import CheckpointConfig
from electra.train.devices import find_hardware, products_speed
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.resume import ResumeConfig
from electra.train.schedule import TrainConfig, parse_duration
from electra.train.session import LogConfig

SIZES: tuple[Size, ...] = get_args(Size)
PAPER_LENGTH: dict[Size, int] = {"tiny": 128, "small": 128, "base": 512, "large": 512}
FULL_WIDTH = 1024
"""Hidden size at which a GPU reaches the share of its peak that the table says; narrower ones reach less."""
MOST_PROBED_TOKENS = 8192
HERE_ACHIEVABLE = 0.5
"""Share of the measured speed of matrix products that whole steps reach on a CPU."""
USABLE_MEMORY = 0.8
"""The rest is for libraries, gradients on their way and fragments: 0.1 to 0.4 GB where it was measured."""
ENOUGH_TRAINING = 1 / 16
"""Part of the paper's steps from which a size is worth it: ELECTRA-small has 74.1 of its 79.9 GLUE there."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig(PretrainConfig):
    """What a run will need. Values that are not given are the paper's for the size of the model."""

    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    data: str = ""
    """Folder made by `electra prepare`, to take row length, padding and vocabulary from."""
    seq_length: int | None = None
    """Tokens of a row; by default those of the data, else the paper's for the size."""
    vocab_size: int = 30522
    """Number of tokens, where no data is given."""
    hardware: str = "this"
    """This machine, measured, or a name from the table, such as A100."""
    devices: int = 1
    """How many of them work together."""
    achievable: float | None = None
    """Share of the peak that training reaches; by default the table's, less for narrow models."""
    price_per_hour: float | None = None
    """Of one device; by default the table's, a rough assumption."""
    budget_time: str | None = None
    """Say what fits into this time, such as 2h."""
    budget_money: float | None = None
    """Say what fits into this sum, at the price per hour."""
    probe_seconds: float = 10.0
    """How long this machine is measured."""
    json: str | None = None
    """File to write the numbers to as well."""
    out: str = ""
    """Plays no part in a plan: this key and those below are here so that any file of a run can be given."""
    seed: int = 0
    valid_rows: int = 0
    max_restarts: int = 0
    dry_run: bool = False
    log: LogConfig = field(default_factory=LogConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("seq_length", "vocab_size", "devices", "achievable", "probe_seconds", "budget_money"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{key} is {value}, expected a number above 0")
        if self.price_per_hour is not None and not self.price_per_hour >= 0:
            raise InputError(f"price_per_hour is {self.price_per_hour}, expected 0 or more")
        if self.budget_time is not None:
            parse_duration(self.budget_time, key="budget_time")

    @property
    def has_budget(self) -> bool:
        """Whether the question is what fits."""
        return self.budget_time is not None or self.budget_money is not None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, and what it needs where."""

    size: Size
    model: Model
    machine: Machine
    work: Workload
    needs: Estimate

    @property
    def part(self) -> float:
        """Of the steps that go with the size."""
        return self.work.steps / paper_values(self.size)["train.steps"]


def main(arguments: Sequence[str]) -> None:
    """Estimate and print."""
    settings = read_settings(arguments)
    if not settings.has_budget:
        plans = [make_plan(settings)]
        table = plan_table(plans[0], settings)
    else:
        every = [read_settings([*arguments, f"--model.size={size}"]) for size in SIZES]
        plans = [make_plan(part, probe_share=1 / len(SIZES)) for part in every]
        table = budget_table(plans)
    notes = [f"  - {note}" for note in assumptions(plans[0])]
    print("\n".join([table, "", "Assumptions", *notes]))
    if settings.json:
        files.write_json(Path(settings.json), {"plans": [_plain(plan) for plan in plans]})


def _plain(plan: Plan) -> dict[str, Any]:
    return {**dataclasses.asdict(plan), "memory_total": plan.needs.memory.total}


def read_settings(arguments: Sequence[str]) -> PlanConfig:
    """The size's values first, then the file's, then the command line's."""
    asks = ("--print_config", "--help", "-h")
    words = [word for word in arguments if word.partition("=")[0] not in asks]
    size = config.parse(PlanConfig, words, prog="electra plan").model.size
    preset = [f"--{key}={value!r}" for key, value in paper_values(size).items()]
    return config.parse(PlanConfig, [*preset, *arguments], prog="electra plan")


def make_plan(settings: PlanConfig, *, probe_share: float = 1.0) -> Plan:
    """What a run of these settings needs; with a budget, of as many steps as fit into it."""
    length, fill, vocab_size = _rows(settings)
    encoder = settings.model.encoder(vocab_size=vocab_size)
    if length > encoder.max_position_embeddings:
        encoder = dataclasses.replace(encoder, max_position_embeddings=length)
    work = Workload(
        batch_size=settings.train.batch_size,
        rows_at_once=-(-settings.train.batch_size // settings.devices),
        length=length,
        fill=fill,
        steps=1,
        checkpoints=settings.checkpoint.most_at_once,
        recomputes_layers=settings.train.checkpoint_activations,
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


def _with_micro_batch(settings: PlanConfig, model: Model, work: Workload, machine: Machine) -> Workload:
    """As many rows at once as are asked for; if that is left open, or there is a budget, as many as fit."""
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
    """Tokens of a row, the share of them that is no padding, and the size of the vocabulary."""
    if not settings.data:
        return settings.seq_length or PAPER_LENGTH[settings.model.size], 1.0, settings.vocab_size
    manifest = files.read_manifest(Path(settings.data), kind=KIND)
    train, length = manifest["splits"]["train"], int(manifest["seq_length"])
    fill = train["tokens"] / (train["rows"] * length)
    return length, float(fill), int(manifest["tokenizer"]["vocab_size"])


def _num_steps(settings: PlanConfig, one_step: Estimate, machine: Machine) -> int:
    """Of the budgets that are given the one that is used up first; the plan's own replace the run's."""
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
    """A row of the table, or this machine as measured in the model's own matrix products."""
    if settings.hardware == "this":
        return measure(settings, encoder, work, seconds=seconds)
    row = find_hardware(settings.hardware)
    narrow = min(1.0, encoder.hidden_size / FULL_WIDTH)
    return Machine(
        name=row.name,
        peak=row.peak,
        format=row.format,
        memory=row.memory,
        achievable=settings.achievable or row.achievable * narrow,
        price=row.price if settings.price_per_hour is None else settings.price_per_hour,
        devices=settings.devices,
    )


def measure(settings: PlanConfig, encoder: EncoderConfig, work: Workload, *, seconds: float) -> Machine:
    """This machine, as it is now."""
    devices.set_up_allocator()
    device = devices.choose_device(settings.train.device)
    precision = devices.choose_precision(settings.train.precision, device, World.from_environment())
    hidden, inner = encoder.hidden_size, encoder.intermediate_size
    tokens = min(work.rows_at_once * work.length, MOST_PROBED_TOKENS)
    # Of a layer: queries, keys, values and output; into and out of the feed-forward layer.
    counts = {(tokens, hidden, hidden): 4, (tokens, hidden, inner): 1, (tokens, inner, hidden): 1}
    is_gpu = device.type == "cuda"
    return Machine(
        name="this",
        peak=products_speed(counts, device, precision, seconds=seconds),
        format=precision,
        memory=torch.cuda.mem_get_info(device)[1] if is_gpu else devices.describe_machine()["memory_bytes"],
        achievable=settings.achievable or HERE_ACHIEVABLE,
        price=settings.price_per_hour,
        devices=settings.devices,
        attention="fused" if is_gpu else "plain",
    )


def plan_table(plan: Plan, settings: PlanConfig) -> str:
    """The needs of one run."""
    needs, work, machine = plan.needs, plan.work, plan.machine
    memory = needs.memory
    room = "" if _fits(needs, machine) else "; that is TOO MUCH: set --train.micro_batch auto"
    parts = ", ".join(f"{name.replace('_', ' ')} {short(count)}" for name, count in needs.parameters.items())
    paper = "" if needs.paper_flops is None else f", {needs.paper_flops:.3g} by the paper's accounting"
    lines = {
        "run": f"{plan.size}, {settings.objective}, {work.steps:,} steps of {work.batch_size:,} rows of "
        f"{work.length} tokens",
        "parameters": f"{sum(needs.parameters.values()):,} ({parts})",
        "tokens": f"{short(needs.tokens)}, {work.fill:.0%} of the rows is text",
        "FLOPs": f"{needs.flops:.3g} in matrix products{paper}",
        "machine": f"{machine.devices} x {machine.name}: {short(machine.peak)}FLOP/s in {machine.format}, "
        f"{machine.memory / 1e9:.0f} GB each",
        "memory": f"{memory.total / 1e9:.2f} GB each: weights {memory.weights / 1e9:.2f}, gradients "
        f"{memory.gradients / 1e9:.2f}, optimizer {memory.optimizer / 1e9:.2f}, activations of "
        f"{work.rows_at_once} rows {memory.activations / 1e9:.2f}, logits {memory.logits / 1e9:.2f}{room}",
        "speed": f"{short(needs.tokens_per_second)} tokens/s",
        "time": duration(needs.seconds),
        "cost": "no price is given" if needs.cost is None else f"{needs.cost:,.2f}",
        "disk": f"{needs.disk / 1e9:.2f} GB for {work.checkpoints} checkpoints",
    }
    return table(lines)


def budget_table(plans: Sequence[Plan]) -> str:
    """What fits, by size, and which size to take."""
    rows = [("size", "steps", "of its schedule", "tokens", "FLOPs", "memory each", "time", "cost")]
    for plan in plans:
        needs = plan.needs
        memory = f"{needs.memory.total / 1e9:.1f} GB{'' if _fits(needs, plan.machine) else ' (too much)'}"
        cost = "–" if needs.cost is None else f"{needs.cost:,.2f}"
        numbers = (f"{plan.work.steps:,}", f"{plan.part:.2g} x", short(needs.tokens), f"{needs.flops:.2g}")
        rows.append((plan.size, *numbers, memory, duration(needs.seconds), cost))
    enough = [plan for plan in plans if plan.part >= ENOUGH_TRAINING and _fits(plan.needs, plan.machine)]
    taken = enough[-1] if enough else plans[0]
    why = "the largest size that gets" if enough else "nothing larger comes nearer to"
    advice = (
        f"Take {taken.size}: {why} a sixteenth of its full schedule.\n"
        f"  electra pretrain --model.size {taken.size} --train.steps {taken.work.steps} "
        f"--train.micro_batch {taken.work.rows_at_once} --data DATA --out RUN"
    )
    return "\n".join([table(rows), "", advice])


def assumptions(plan: Plan) -> list[str]:
    """What the numbers rest on."""
    machine = plan.machine
    speed = f"training reaches {machine.achievable:.1%} of the "
    if machine.name == "this":
        speed += "speed measured here in the model's matrix products"
    else:
        speed += (
            f"peak; below a width of {FULL_WIDTH} the share falls with the width. The paper's 4 days for "
            "ELECTRA-small on a V100 are 2.7 % of its 16-bit peak, or 21 % of its 32-bit peak"
        )
    notes = [
        f"{speed}; give --achievable",
        f"memory: Adam, float32 weights, products in {machine.format}; measured peaks are 10 to 25 % higher",
    ]
    if machine.devices > 1:
        notes.append(f"{machine.devices} devices keep {SEVERAL_DEVICES:.0%} of their speed together")
    if machine.price is not None:
        notes.append(
            f"a device costs {machine.price:g} an hour; the table's prices are rough: give --price_per_hour"
        )
    return notes
