"""A state and a problem -> steps, one after the other: the one loop of pre-training and fine-tuning.

The loop is a generator that knows how to take a step. When to log, evaluate, save or stop is decided by
who drives it (`session.py`). What is minimised is told by a `Problem`, which knows models and data.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from electra.train.devices import Precision, autocast, explained_out_of_memory
from electra.train.distributed import World, local_gradients, whole_tensor
from electra.train.health import is_finite
from electra.train.optim import clip_by_global_norm, set_learning_rate
from electra.train.schedule import Budget, ScheduleConfig, learning_rate
from electra.train.state import TrainState

Sums = dict[str, Tensor]

_LOSS = "loss of all parts"


class Part(Protocol):
    """A micro-batch, ready to be worked on."""

    @property
    def rows(self) -> int:
        """How many rows are worked on at once."""

    def __call__(self) -> tuple[Tensor, Sums]:
        """Its share of the loss of the global batch, and its metrics as sums that can be added."""


class Work(Protocol):
    """The part of a global batch that this process works on."""

    @property
    def parts(self) -> Sequence[Part]:
        """Micro-batches."""

    @property
    def tokens(self) -> int:
        """Of the global batch."""


class Problem(Protocol):
    """What is minimised."""

    @property
    def module(self) -> nn.Module:
        """What is called: the model, or its wrapping that sums gradients over processes."""

    @property
    def headlines(self) -> Mapping[str, str]:
        """The metrics that a person wants to see while it runs, each with a short name."""

    @property
    def flops_per_token(self) -> float:
        """Of forward and backward pass."""

    def begin(self, *, step: int, batch_number: int) -> Work:
        """The batch of a step, cut into parts."""

    def end(self, sums: Sums) -> None:
        """Take notice of the sums of the whole global batch, after an update."""

    def phase(self, step: int) -> str:
        """Losses of steps in different phases are not compared."""

    def summarise(self, sums: Sums) -> dict[str, float]:
        """Sums as metrics."""

    def evaluate(self) -> Iterator[Sums]:
        """The sums of one batch of held-out rows after the other, the same rows every time."""

    def samples(self) -> list[dict[str, Any]]:
        """Some held-out rows as the model sees them, for a person to look at."""

    def error(self, metrics: Mapping[str, float]) -> float:
        """What the best state has least of, from the held-out metrics; NaN if nothing was held out."""

    def diagnose(self, metrics: Mapping[str, float], *, step: int, progress: float) -> str | None:
        """What is wrong with the held-out metrics and what helps, or None."""

    def close(self) -> None:
        """Stop reading ahead."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step did."""

    loss: float
    learning_rate: float
    gradient_norm: float
    finite: bool
    """Whether loss and gradient were numbers; if not, no weight was changed."""
    sums: Sums
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How steps are taken."""

    schedule: ScheduleConfig
    clip_norm: float
    budget: Budget
    device: torch.device
    precision: Precision


def training_steps(state: TrainState, problem: Problem, config: LoopConfig, world: World) -> Iterator[Step]:
    """Take one step for each item; endless, and the state may be changed between two steps."""
    while True:
        before = time.perf_counter()
        work = problem.begin(step=state.step, batch_number=state.batch_number)
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
    """Gradients of the global loss, in the weights; the loss, and the sums over all processes."""
    state.optimizer.zero_grad(set_to_none=True)
    problem.module.train()
    totals: Sums = {}
    for number, part in enumerate(work.parts, start=1):
        is_last = number == len(work.parts)
        with (
            explained_out_of_memory(rows=part.rows),
            nullcontext() if is_last else local_gradients(problem.module),
        ):
            with autocast(config.device, config.precision):
                loss, sums = part()
            # Shares are to be added, but gradients are averaged over processes.
            scaled = loss * world.size
            torch.autograd.backward(scaled if state.scaler is None else state.scaler.scale(scaled))
        for name, value in {_LOSS: loss.detach().double(), **sums}.items():
            totals[name] = totals[name] + value if name in totals else value
    totals = world.add(totals)
    return totals.pop(_LOSS), totals


def _update(
    state: TrainState, config: LoopConfig, rate: float, loss_sum: Tensor
) -> tuple[float, float, bool]:
    """Change the weights, unless loss or gradient is no number; both, and whether they were."""
    weights = [weight for group in state.optimizer.param_groups for weight in group["params"]]
    if state.scaler is not None:
        state.scaler.unscale_(state.optimizer)
    gradient_norm = whole_tensor(clip_by_global_norm(weights, clip_norm=config.clip_norm))
    # The one read of a step: a GPU has caught up with the host when it is done. It cannot be put off, since
    # an update with what is no number could not be taken back.
    loss, norm = torch.stack([loss_sum, gradient_norm.double()]).tolist()
    finite = is_finite(loss, norm)
    if finite:
        set_learning_rate(state.optimizer, rate)
        state.optimizer.step()
    if state.scaler is not None:
        state.scaler.update()
    return loss, norm, finite
