"""An objective and batches of rows -> what the training loop minimises, evaluates and shows.

It answers to the loop's protocol (`train.loop.Problem`) without knowing it: this room and that one meet in
the command.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from electra.pretrain import metrics
from electra.pretrain.fixed_set import FixedSet
from electra.pretrain.inputs import Inputs
from electra.pretrain.masking import Masked
from electra.pretrain.metrics import Sums
from electra.pretrain.objectives.protocol import Counts, Objective
from electra.pretrain.pieces import Piece, Pieces, Share
from electra.pretrain.randomness import StepRandom
from electra.pretrain.views import collapse, readable_row
from electra.text.batches import Batches

_NUM_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class PretrainPart:
    """A micro-batch: called, it gives its share of the loss, and sums."""

    module: nn.Module
    inputs: Inputs
    masked: Masked
    random: StepRandom
    totals: Counts

    @property
    def rows(self) -> int:
        """How many rows are worked on at once."""
        return len(self.inputs.input_ids_BL)

    def __call__(self) -> tuple[Tensor, Sums]:
        """Its share of the loss of the global batch, and its metrics as sums."""
        loss, sums, _ = self.module(self.inputs, self.random, self.totals, self.masked)
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
    """Sums over all processes, where they are: on the host or on a device."""
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
        self._pieces = self._pieces_of(self.train, self.share)
        self._ahead: Iterator[tuple[int, list[Piece]]] | None = None
        self._next = -1

    def begin(self, *, step: int, batch_number: int) -> PretrainWork:
        """The rows of a step, cut into micro-batches."""
        self.objective.begin_step(step)
        pieces = self._next_pieces(batch_number)
        totals = self._totals(pieces)
        parts = [
            PretrainPart(
                module=self.module,
                inputs=inputs.to(self.device),
                masked=masked.to(self.device),
                random=random,
                totals=totals,
            )
            for inputs, masked, random in pieces
        ]
        return PretrainWork(parts=parts, tokens=totals.tokens)

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
        whole = replace(self.share, micro_batch=None)
        (piece,) = self._pieces_of(self.valid, whole, purpose="valid")[number]
        inputs, masked = piece.inputs.to(self.device), piece.masked.to(self.device)
        output = self.objective(inputs, piece.random, self._totals([piece]), masked)
        return output.loss, output.sums, output.views

    def _pieces_of(self, batches: Batches, share: Share, *, purpose: str = "train") -> Pieces:
        return Pieces(batches=batches, mask=self.objective.mask, seed=self.seed, share=share, purpose=purpose)

    def _next_pieces(self, number: int) -> list[Piece]:
        """The micro-batches of a batch; a thread gets the next ones ready meanwhile."""
        if self._ahead is None or number != self._next:
            self.close()
            self._ahead = self._pieces.ahead(number)
        found, pieces = next(self._ahead)
        assert found == number, f"batch {found} in place of {number}"
        self._next = number + 1
        return pieces

    def _totals(self, pieces: Sequence[Piece]) -> Counts:
        """What losses are means over, in the global batch."""
        counts = [self.objective.count(piece.inputs, piece.masked) for piece in pieces]
        # A tensor of the host: processes add it up there, and no device has to stop for it to be read.
        sums = self.add({"counts": torch.tensor(counts).sum(0)})
        return Counts(*sums["counts"].tolist())
