"""A state and a problem -> training steps: the one loop of pre-training and fine-tuning.

A step takes its batch, cut into micro-batches, runs forward and backward passes, adds up over processes,
clips and updates. `training_steps` is a generator of steps and decides nothing else: when to log, evaluate,
save or stop is up to its caller (`session.py`), and what to minimise is up to a `Problem`, which knows model
and data.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from electra.train import cores
from electra.train.devices import Precision, autocast, explained_out_of_memory
from electra.train.distributed import World, local_gradients, whole_tensor
from electra.train.health import is_finite
from electra.train.optim import clip_gradients, set_learning_rate
from electra.train.schedule import Budget, ScheduleConfig, learning_rate
from electra.train.state import TrainState

Sums = dict[str, Tensor]

_LOSS = "loss of all parts"
"""Name of the loss among the sums while they are added up; no metric has it."""


class Part(Protocol):
    """A micro-batch, ready for its forward pass."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def __call__(self, module: nn.Module) -> tuple[Tensor, Sums]:
        """Run the forward pass: its share of the loss of the global batch, and its metrics as sums.

        `module` is the problem's, or a replica of it.
        """


class Work(Protocol):
    """This process's part of a global batch."""

    @property
    def parts(self) -> Sequence[Part]:
        """Its micro-batches."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the global batch."""


class Problem(Protocol):
    """What is minimised: the loss of a model on data."""

    @property
    def module(self) -> nn.Module:
        """The model, or its wrapper that averages gradients over processes."""

    @property
    def cores(self) -> int:
        """How many cores work on micro-batches of their own."""

    @property
    def headlines(self) -> Mapping[str, str]:
        """The metrics to show while it runs, each with a short name."""

    @property
    def flops_per_token(self) -> float:
        """FLOPs of the forward and backward pass."""

    def begin(self, *, step: int, batch_number: int, progress: float) -> Work:
        """The batch of a step, cut into micro-batches; `progress` is the share of the run done before it."""

    def end(self, sums: Sums) -> None:
        """Receive the sums of the global batch after an update."""

    def phase(self, step: int) -> str:
        """Name of the phase a step is in; losses are compared only within a phase."""

    def summarise(self, sums: Sums) -> dict[str, float]:
        """Turn sums into metrics."""

    def evaluate(self) -> Iterator[Sums]:
        """Yield the sums of each batch of held-out rows; the rows are the same every time."""

    def samples(self) -> list[dict[str, Any]]:
        """Some held-out rows as the model sees them, for a person to look at."""

    def error(self, metrics: Mapping[str, float]) -> float:
        """The held-out error, which the best checkpoint has the least of; NaN if nothing was held out."""

    def diagnose(self, metrics: Mapping[str, float], *, step: int, progress: float) -> str | None:
        """What is wrong with the held-out metrics and what helps, or None if nothing is."""

    def close(self) -> None:
        """Stop reading ahead."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The outcome of a step."""

    loss: float
    learning_rate: float
    gradient_norm: float
    finite: bool
    """Whether loss and gradient were finite; if not, no weight was changed."""
    sums: Sums
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How to take steps."""

    schedule: ScheduleConfig
    clip_norm: float
    budget: Budget
    device: torch.device
    precision: Precision


def training_steps(state: TrainState, problem: Problem, config: LoopConfig, world: World) -> Iterator[Step]:
    """Take one step per item, endlessly; the caller may change the state between two steps."""
    while True:
        before = time.perf_counter()
        done = config.budget.progress(steps=state.step, seconds=state.seconds, tokens=state.tokens)
        work = problem.begin(step=state.step, batch_number=state.batch_number, progress=done)
        loss_sum, sums = _gradients(state, problem, config, world, work)
        # As in the original's recorded runs, the first update reads step 1.
        progress = config.budget.progress(
            steps=state.step + 1, seconds=state.seconds, tokens=state.tokens + work.tokens
        )
        rate = learning_rate(config.schedule, step=state.step + 1, progress=progress)
        loss, norm, finite = _update(state, config, rate, loss_sum)
        if finite:
            problem.end(sums)
        state.step += 1
        state.tokens += work.tokens
        state.flops += work.tokens * problem.flops_per_token
        yield Step(
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            finite=finite,
            sums=sums,
            tokens=work.tokens,
            seconds=time.perf_counter() - before,
        )


def _gradients(
    state: TrainState, problem: Problem, config: LoopConfig, world: World, work: Work
) -> tuple[Tensor, Sums]:
    """Compute the gradients of the global loss -> the loss and the sums over all processes."""
    state.optimizer.zero_grad(set_to_none=True)
    problem.module.train()

    def backward(part: Part, module: nn.Module) -> Sums:
        is_last = part is work.parts[-1]
        with (
            explained_out_of_memory(rows=part.rows),
            nullcontext() if is_last else local_gradients(module),
        ):
            with autocast(config.device, config.precision):
                loss, sums = part(module)
            # Losses of processes are shares, to be added up, but gradients get averaged over processes.
            scaled = loss * world.size
            torch.autograd.backward(scaled if state.scaler is None else state.scaler.scale(scaled))
        return {_LOSS: loss.detach().double(), **sums}

    if problem.cores == 1:
        found = [backward(part, problem.module) for part in work.parts]
    else:
        found = cores.gradients(problem.module, work.parts, backward, cores=problem.cores)
    totals: Sums = {}
    for sums in found:
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    totals = world.add(totals)
    return totals.pop(_LOSS), totals


def _update(
    state: TrainState, config: LoopConfig, rate: float, loss_sum: Tensor
) -> tuple[float, float, bool]:
    """Update the weights if loss and gradient are finite -> loss, gradient norm, whether they were."""
    if state.scaler is not None:
        state.scaler.unscale_(state.optimizer)
    gradient_norm = whole_tensor(clip_gradients(state.optimizer, clip_norm=config.clip_norm))
    # The only read of a step, for which the host waits until the GPU has caught up. It cannot be put off: an
    # update with NaN could not be undone.
    loss, norm = torch.stack([loss_sum, gradient_norm.double()]).tolist()
    finite = is_finite(loss, norm)
    if finite:
        set_learning_rate(state.optimizer, rate)
        state.optimizer.step()
    if state.scaler is not None:
        state.scaler.update()
    return loss, norm, finite
