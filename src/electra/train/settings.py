"""The keys of `--train.…`: how any loss is minimised, for how long, and with what."""

from dataclasses import dataclass
from typing import Literal

from electra.errors import InputError
from electra.train.budget import Budget, parse_duration
from electra.train.devices import DeviceName, PrecisionName
from electra.train.distributed import Parallel
from electra.train.optim import OptimizerConfig
from electra.train.schedule import ScheduleConfig, unfinished_warmup


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ScheduleConfig, OptimizerConfig):
    """Budget, batches, learning rate, optimizer and machine."""

    steps: int | None = None
    """Updates to make; of several budgets the one that is used up first ends the run."""
    max_time: str | None = None
    """Wall-clock time to use, such as 30m or 1h30m; the schedule ends with it."""
    max_tokens: float | None = None
    """Tokens to see, padding not counted."""
    batch_size: int = 128
    """Rows of an update, of all processes together."""
    micro_batch: int | Literal["all", "auto"] = "all"
    """Rows worked on at once by a process: a number, its whole share, or as many as fit into memory."""
    device: DeviceName = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Of matrix products; auto takes bf16 where the device is fast at it, fp16 on older GPUs, else fp32,
    unless ELECTRA_AUTO_PRECISION=fp32|bf16 says which."""
    parallel: Parallel = "ddp"
    """With several processes: each holds all weights (ddp), or a part of weights and optimizer (fsdp)."""
    checkpoint_activations: bool = False
    """Compute what happens in each layer a second time for the gradient, instead of keeping it: the same
    numbers, less memory, about a third more time."""
    compile: Literal["off", "default", "max-autotune"] = "off"
    """Whether torch compiles the encoders, and how hard it tries; pays on GPUs in long runs."""

    def __post_init__(self) -> None:
        ScheduleConfig.__post_init__(self)
        OptimizerConfig.__post_init__(self)
        for key in ("steps", "max_tokens", "batch_size"):
            value = getattr(self, key)
            if value is not None and not value >= 1:
                raise InputError(f"train.{key} is {value}, expected 1 or more")
        if isinstance(self.micro_batch, int) and self.micro_batch < 1:
            raise InputError(f"train.micro_batch is {self.micro_batch}, expected 1 or more rows, all or auto")
        if self.max_time is not None:
            parse_duration(self.max_time, key="train.max_time")
        if self.steps and (problem := unfinished_warmup(self, step=self.steps, progress=1.0)):
            raise InputError(f"train.{problem}")

    @property
    def budget(self) -> Budget:
        """When the run is over."""
        seconds = None if self.max_time is None else parse_duration(self.max_time, key="train.max_time")
        return Budget(steps=self.steps, seconds=seconds, tokens=self.max_tokens)
