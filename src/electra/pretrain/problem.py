"""An objective and batches of rows -> what the training loop minimises, evaluates and shows.

It answers to the loop's protocol (`train.loop.Problem`) without knowing it: this room and that one meet in
the command.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from electra.pretrain import metrics
from electra.pretrain.fixed_set import FixedSet
from electra.pretrain.inputs import Inputs
from electra.pretrain.metrics import Sums
from electra.pretrain.objectives.protocol import Counts, Objective
from electra.pretrain.randomness import StepRandom
from electra.pretrain.views import collapse, readable_row
from electra.text.batches import Batch, Batches

_NUM_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of each batch that this process works on."""

    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    """Rows at once; None: all of them."""


@dataclass(frozen=True, kw_only=True)
class PretrainPart:
    """A micro-batch: called, it gives its share of the loss, and sums."""

    module: nn.Module
    inputs: Inputs
    random: StepRandom
    totals: Counts

    @property
    def rows(self) -> int:
        """How many rows are worked on at once."""
        return len(self.inputs.input_ids_BL)

    def __call__(self) -> tuple[Tensor, Sums]:
        """Its share of the loss of the global batch, and its metrics as sums."""
        loss, sums, _ = self.module(self.inputs, self.random, self.totals)
        return loss, sums


@dataclass(frozen=True, kw_only=True)
class PretrainWork:
    """What this process does in a step."""

    parts: Sequence[PretrainPart]
    tokens: int


@dataclass(kw_only=True)
class PretrainProblem:
    """Pre-training, as the loop sees it."""

    objective: Objective
    module: nn.Module
    """The objective, or its wrapping that sums gradients over processes."""
    train: Batches
    valid: Batches | None
    num_valid: int
    """Held-out batches to look at."""
    seed: int
    share: Share
    device: torch.device
    flops_per_token: float
    add: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Sums over all processes."""
    tokens: Callable[[Sequence[int]], list[str]]
    """Token ids as a person reads them."""
    fixed_set: FixedSet | None = None
    """Held-out rows that are corrupted alike in every run."""
    headlines: ClassVar[Mapping[str, str]] = {
        "mlm_loss": "generator",
        "mlm_accuracy": "accuracy",
        "recovery_loss": "recovery",
        "discriminator_loss": "discriminator",
        "discriminator_auc": "AUC",
        "fixed_auc": "on a fixed set",
    }

    def __post_init__(self) -> None:
        self._ahead: Iterator[tuple[int, Batch]] | None = None
        self._next = -1

    def begin(self, *, step: int, batch_number: int) -> PretrainWork:
        """The rows of a step, cut into micro-batches."""
        self.objective.begin_step(step)
        batch = self._read(batch_number)
        pieces = list(self._cut(batch, batch_number))
        totals = self._totals(pieces)
        parts = [
            PretrainPart(module=self.module, inputs=inputs, random=random, totals=totals)
            for inputs, random in pieces
        ]
        return PretrainWork(parts=parts, tokens=int(totals.tokens))

    def end(self, sums: Sums) -> None:
        """Let the objective take notice."""
        self.objective.end_step(sums)

    def phase(self, step: int) -> str:
        """The stage of two-stage training."""
        config = self.objective.config
        staged = config.objective == "two_stage" and step >= config.two_stage.first_stage_steps
        return "second stage" if staged else ""

    def summarise(self, sums: Sums) -> dict[str, float]:
        """Sums as metrics."""
        return metrics.summarise(sums)

    @torch.no_grad()
    def evaluate(self) -> Iterator[Sums]:
        """Held-out rows with the same masks every time; `loss` is the mean of their batches' losses."""
        # Each process has a share of a batch's loss, and counts for as much of the batch.
        of_batch = torch.tensor(1 / self.share.world_size, device=self.device)
        for number in range(self.num_valid if self.valid else 0):
            loss, sums, _ = self._look(number)
            yield {"loss": metrics.fraction(loss.double(), of_batch), **sums}
        if self.fixed_set is not None:
            yield from self.fixed_set.sums(self.objective)

    @torch.no_grad()
    def samples(self) -> list[dict[str, Any]]:
        """Held-out rows as the networks see them, token by token."""
        if not self.valid or not self.num_valid:
            return []
        self.objective.eval()
        _, _, views = self._look(0)
        batch = self.valid.part(0, rank=self.share.rank, world_size=self.share.world_size)
        return [
            readable_row(row, int(batch.lengths_B[row]), batch.input_ids_BL, views, self.tokens)
            for row in range(min(_NUM_SAMPLES, len(batch.lengths_B)))
        ]

    def error(self, values: Mapping[str, float]) -> float:
        """What is missing of a full area on the fixed set, or the loss of what detects nothing.

        A loss against one's own generator tells nothing: it is lowest while the generator is still bad.
        """
        area = values.get("fixed_auc", math.nan)
        return values.get("loss", math.nan) if math.isnan(area) else 1 - area

    def diagnose(self, values: Mapping[str, float], *, step: int, progress: float) -> str | None:
        """Whether the discriminator has collapsed, and what is known to help."""
        return collapse(values, step=step, progress=progress)

    def close(self) -> None:
        """Stop reading ahead."""
        if isinstance(self._ahead, Generator):
            self._ahead.close()
        self._ahead = None

    def _look(self, number: int) -> tuple[Tensor, Sums, dict[str, Tensor]]:
        """One batch of held-out rows; not through the wrapping, which would wait for other processes."""
        assert self.valid is not None
        batch = self.valid.part(number, rank=self.share.rank, world_size=self.share.world_size)
        random = StepRandom(
            seed=self.seed,
            step=number,
            num_rows=self.valid.batch_size,
            first_row=self.share.rank * len(batch.lengths_B),
            purpose="valid",
        )
        inputs = Inputs.from_batch(batch, device=self.device)
        output = self.objective(inputs, random, self._totals([(inputs, random)]))
        return output.loss, output.sums, output.views

    def _totals(self, pieces: Sequence[tuple[Inputs, StepRandom]]) -> Counts:
        """What losses are means over, in the global batch."""
        # Masking is cheap and repeats exactly, so it is done once only to count.
        counts = [self.objective.counts(inputs, random) for inputs, random in pieces]
        sums = {
            name: torch.stack([getattr(count, name) for count in counts]).sum() for name in Counts._fields
        }
        return Counts(**self.add(sums))

    def _read(self, number: int) -> Batch:
        """The rows of this process in a batch; a thread reads the next ones meanwhile."""
        if self._ahead is None or number != self._next:
            self.close()
            self._ahead = self.train.prefetch(number, rank=self.share.rank, world_size=self.share.world_size)
        found, batch = next(self._ahead)
        assert found == number, f"batch {found} in place of {number}"
        self._next = number + 1
        return batch

    def _cut(self, batch: Batch, number: int) -> Iterator[tuple[Inputs, StepRandom]]:
        num_rows = len(batch.lengths_B)
        size = self.share.micro_batch or num_rows
        for first in range(0, num_rows, size):
            rows = slice(first, first + size)
            piece = Batch(
                row_ids_B=batch.row_ids_B[rows],
                input_ids_BL=batch.input_ids_BL[rows],
                token_type_ids_BL=batch.token_type_ids_BL[rows],
                lengths_B=batch.lengths_B[rows],
            )
            random = StepRandom(
                seed=self.seed,
                step=number,
                num_rows=self.train.batch_size,
                first_row=self.share.rank * num_rows + first,
            )
            yield Inputs.from_batch(piece, device=self.device), random
