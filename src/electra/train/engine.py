"""A training config -> the device, precision and processes it runs with, and the session that trains.

What pre-training and fine-tuning share: everything between "these are the model, the data and the loss" and
`train.session`, which takes the steps. It also holds what makes a run folder one run: config.yaml and
environment.json, the choices that a run made when it began (such as its precision) and keeps when it is
resumed, and the check that a command continues a run rather than starting another one in its folder.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import yaml
from torch import nn

import electra
from electra import files
from electra.errors import InputError
from electra.model.encoder import Encoder, Layer, ModernLayer
from electra.train import devices, on_cluster
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.cores import fastest_way
from electra.train.devices import DeviceName, Precision
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.loop import LoopConfig, Problem
from electra.train.schedule import Budget, TrainConfig
from electra.train.session import CHECKPOINTS, LogConfig, Session
from electra.train.state import TrainState

CONFIG, ENVIRONMENT, LOCK = "config.yaml", "environment.json", ".lock"
AUTO_CORES = "ELECTRA_AUTO_CORES"
"""The environment variable that decides what `cores: auto` is, where no measurement shall."""


@dataclass(frozen=True, kw_only=True)
class ResumeConfig:
    """What may differ from the run that is resumed."""

    allow_changes: list[str] = field(default_factory=list)
    """Keys whose values may have changed since the run began, such as train.steps, or `all`."""


def stated_cores() -> int | None:
    """The number of cores that the environment names, if it does."""
    stated = os.environ.get(AUTO_CORES)
    if not stated:
        return None
    if not (stated.isdecimal() and int(stated) >= 1):
        raise InputError(f"{AUTO_CORES} is {stated!r}, expected a number of cores: set one, or unset it")
    return int(stated)


@contextmanager
def joined(device: DeviceName) -> Iterator[tuple[World, torch.device]]:
    """This process's place among the processes that torchrun started, connected to them, and its device."""
    world = World.from_environment()
    devices.set_up_allocator()
    chosen = devices.choose_device(device, local_rank=world.local_rank)
    with world.joined(chosen):
        yield world, chosen


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What trains a model: processes, their device, and the precision of its matrix products."""

    train: TrainConfig
    world: World = field(default_factory=World)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    kept: Mapping[str, Any] = field(default_factory=dict)
    """Choices that the run made when it began; they hold for as long as the config says auto."""

    @classmethod
    def choose(
        cls, train: TrainConfig, world: World, device: torch.device, *, run: Path | None = None
    ) -> "Engine":
        """The engine for a config; a run folder that has begun keeps the choices it made."""
        # Others may be on machines that do not see the folder, or see it later.
        kept = {} if run is None else world.first_says(lambda: read_choices(run, on_problem=_warn))
        if kept:
            # A run that began before this was a choice.
            kept = {"cores": 1, **kept}
        kept = {key: value for key, value in kept.items() if getattr(train, key, None) == "auto"}
        precision = devices.choose_precision(kept.get("precision", train.precision), device, world)
        return cls(train=train, world=world, device=device, precision=precision, kept=kept)

    def micro_batch(self, bytes_per_row: Callable[[], float]) -> int:
        """Rows that each process works on at once, with all of its cores."""
        return devices.choose_micro_batch(
            self.kept.get("micro_batch", self.train.micro_batch),
            share=self.train.batch_size // self.world.size,
            bytes_per_row=bytes_per_row,
            device=self.device,
        )

    def num_cores(self, seconds: Callable[[int], float], *, obstacle: str = "") -> int:
        """How many cores compute rows of their own; `seconds(number)` takes a step with so many.

        `obstacle`: why the rows of a batch must stay together, if they must.
        """
        obstacle = obstacle or self._cores_obstacle()
        if self.train.cores != "auto":
            if self.train.cores > 1 and obstacle:
                raise InputError(f"train.cores is {self.train.cores}, but {obstacle}: set it to 1, or auto")
            return self.train.cores
        cores = self.train.threads or torch.get_num_threads()
        # A run may be resumed where it cannot keep what it chose.
        if obstacle:
            return 1
        if chosen := self.kept.get("cores") or stated_cores():
            return int(chosen)
        if cores == 1:
            return 1
        with self.computing():
            return fastest_way(seconds, cores=cores)

    def _cores_obstacle(self) -> str:
        """Why cores cannot compute rows of their own here; empty if they can."""
        train = self.train
        obstacles = {
            f"the device is {self.device.type}": self.device.type != "cpu",
            "several processes train together": self.world.size > 1,
            f"train.compile is {train.compile}": train.compile != "off",
            "train.checkpoint_activations is true": train.checkpoint_activations,
        }
        return next((reason for reason, is_so in obstacles.items() if is_so), "")

    def set_recomputation(self, model: nn.Module) -> None:
        """Let the encoders keep their activations or compute them again, as the config says."""
        for part in model.modules():
            if isinstance(part, Encoder):
                part.recomputes_layers = self.train.checkpoint_activations

    def wrap(self, model: nn.Module, *, idle_weights: bool, methods: Iterable[str] = ()) -> nn.Module:
        """The model with its encoders compiled and its gradients summed over processes, as the config says.

        `idle_weights`: some weights may have no gradient in a step. `methods`: what is called beside forward.
        """
        if self.train.compile != "off":
            for part in model.children():
                if isinstance(part, Encoder):
                    # One graph for all lengths: one each would take minutes, and torch gives up after eight.
                    part.compile(mode=self.train.compile, dynamic=True)
        layers = [part for part in model.modules() if isinstance(part, Layer | ModernLayer)]
        return self.world.wrap(
            model, self.train.parallel, layers=layers, idle_weights=idle_weights, methods=methods
        )

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
        """The state before the first step."""
        scaler = torch.amp.GradScaler(self.device.type) if self.precision == "fp16" else None
        return TrainState(model=model, optimizer=optimizer, scaler=scaler)

    def loop(self, budget: Budget) -> LoopConfig:
        """How steps are taken."""
        return LoopConfig(
            schedule=self.train,
            clip_norm=self.train.clip_norm,
            budget=budget,
            device=self.device,
            precision=self.precision,
        )

    def choices(self, **more: Any) -> dict[str, Any]:
        """What was decided for this machine, to be kept by the run."""
        return {"device": self.device.type, "precision": self.precision, **more}

    def peak(self) -> float:
        """Measured FLOP/s of one process's matrix products; 0 where nobody will ask for it."""
        return devices.gemm_speed(self.device, self.precision) if self.world.writes else 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute with as many threads as the config says, for a while."""
        # How a product is cut decides how its sum is rounded, so the number is a key of the run.
        before = torch.get_num_threads()
        torch.set_num_threads(self.train.threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def holding(self, folder: Path) -> Iterator[None]:
        """Make the folder, keep other commands out of it, and compute as the config says."""
        if not self.world.writes:
            self.world.barrier()
            with self.computing():
                yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        busy = f"{folder} is in use by another process: wait for it, or choose another --out"
        with (
            files.locked(folder / LOCK, busy=busy, seconds=on_cluster.lock_seconds()),
            self.computing(),
        ):
            files.remove_unfinished(folder)
            self.world.barrier()
            yield

    def run(
        self,
        folder: Path,
        settings: "SittingSettings",
        *,
        state: TrainState,
        problem: Problem,
        budget: Budget,
        log: LogConfig,
        facts: Mapping[str, Any],
        free_keys: Sequence[str],
        defaults: Mapping[str, Any],
        describe: Callable[[], None],
        peak: float,
    ) -> None:
        """Train from where the folder stands to the end of the budget, if it is the same run.

        `facts` are in every checkpoint; of their config only `free_keys` may differ from the checkpoint's,
        where keys that are newer than it have the values of `defaults`. `describe` writes
        config.yaml and environment.json once the run may start.
        """
        Session(
            folder=folder,
            state=state,
            problem=problem,
            loop=self.loop(budget),
            log=log,
            checkpoint=settings.checkpoint,
            health=settings.health,
            world=self.world,
            facts=facts,
            check_facts=lambda saved: check_same_run(
                saved,
                facts,
                settings.resume,
                free_keys=free_keys,
                defaults=json_values(defaults),
            ),
            on_start=describe if self.world.writes else lambda: None,
            peak=peak * self.world.size,
        ).run()


class SittingSettings(Protocol):
    """What the configs of both trainings say about one sitting of a run."""

    @property
    def checkpoint(self) -> CheckpointConfig:
        """When to save."""

    @property
    def health(self) -> HealthConfig:
        """When to roll back."""

    @property
    def resume(self) -> ResumeConfig:
        """What may differ from the run that is resumed."""


def write_description(
    out: Path, settings: Mapping[str, Any], *, choices: Mapping[str, Any], **facts: Any
) -> None:
    """Write config.yaml, which repeats the run, and environment.json: the machine, choices and facts."""
    write_config(out, settings)
    environment = {
        **devices.describe_machine(),
        "electra": electra.__version__,
        "command": sys.argv,
        "choices": dict(choices),
        **facts,
    }
    files.write_json(out / ENVIRONMENT, environment)


def write_config(out: Path, settings: Mapping[str, Any]) -> None:
    """Write config.yaml, which `--config` reads."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    files.write_file(out / CONFIG, lambda file: file.write(text.encode()))


def read_environment(run: Path, *, on_problem: Callable[[str], None] | None = None) -> dict[str, Any]:
    """What environment.json says of a run; empty if it has not begun.

    Where the file is damaged or gone, the newest checkpoint says what a resumed run needs of it, and
    `on_problem` hears of that.
    """
    path = run / ENVIRONMENT
    problem = "is missing"
    if path.is_file():
        try:
            found = files.read_json(path)
            if isinstance(found, dict) and isinstance(found.get("choices", {}), dict):
                return found
            problem = "does not hold what this program writes"
        except InputError as error:
            problem = f"cannot be read ({error})"
    facts = CheckpointStore(run / CHECKPOINTS, CheckpointConfig()).latest_facts()
    if path.is_file() and not isinstance(facts.get("choices"), dict):
        raise InputError(
            f"{path} {problem}, and no checkpoint says what the run chose when it began: restore the file "
            "from a copy, or remove it to choose precision and micro-batch anew"
        )
    if facts and on_problem:
        on_problem(f"{path} {problem}: its choices are taken from the newest checkpoint")
    return facts


def read_choices(run: Path, *, on_problem: Callable[[str], None] | None = None) -> dict[str, Any]:
    """What a run chose for itself when it began (precision, micro-batch); nothing if it has not begun."""
    choices: dict[str, Any] = read_environment(run, on_problem=on_problem).get("choices", {})
    return choices


def _warn(problem: str) -> None:
    print(f"electra: warning: {problem}", file=sys.stderr)


def check_same_run(
    saved: Mapping[str, Any],
    asked: Mapping[str, Any],
    config: ResumeConfig,
    *,
    free_keys: Sequence[str],
    defaults: Mapping[str, Any],
) -> None:
    """Refuse to resume with other data, another tokenizer, or a changed config that was not allowed.

    A key that the checkpoint does not have is newer than the run, which did what the default does.
    """
    if lost := [key for key in ("dataset_sha256", "tokenizer_sha256", "config") if key not in saved]:
        raise InputError(
            f"what the run has stored of itself lacks {', '.join(lost)}: another version of electra wrote "
            "it; resume the run with that version, or choose another --out"
        )
    for key, what in (("dataset_sha256", "data"), ("tokenizer_sha256", "tokenizer")):
        if saved[key] != asked[key]:
            raise InputError(
                f"the run began with another {what}: its checkpoint has {saved[key]}, --data has "
                f"{asked[key]}; give the {what} of the run, or another --out"
            )
    now, known = dict(flatten(asked["config"])), dict(flatten(defaults))
    before = {**{key: known.get(key) for key in now}, **dict(flatten(saved["config"]))}
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    allowed = partial(_is_under, prefixes=config.allow_changes)
    refused = [key for key in changed if not _is_under(key, free_keys) and not allowed(key)]
    if refused and "all" not in config.allow_changes:
        lines = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in refused]
        raise InputError(
            "\n  ".join(["the config differs from that of the run in", *lines])
            + f"\nto continue with it: --resume.allow_changes {' '.join(refused)}\n"
            "to start a new run: another --out"
        )


def _is_under(key: str, prefixes: Sequence[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def json_values(value: Any) -> Any:
    """A config as JSON can hold it: infinite numbers become strings."""
    if isinstance(value, Mapping):
        return {key: json_values(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
