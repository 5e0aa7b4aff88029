"""An objective and batches of rows -> the steps that the training loop takes, evaluates and shows.

One step, from rows on disk to updated weights, is six files:

    text/batches.py             the number of a step -> its rows, padded
    pretraining/step.py         -> micro-batches of this process, masked by a thread ahead of time
    pretraining/objectives/     electra.py: generator, samples, discriminator -> loss and sums
    model/encoder.py            the networks
    train/loop.py               gradients of all micro-batches -> learning rate -> update, if all is finite
    train/optim.py              the update itself

`PretrainProblem` answers to the loop's protocol (`train.loop.Problem`). Held-out rows are also judged on a
`FixedSet`: what a discriminator detects of its own generator's work says little of how good it is, for both
get better together. There the replacements come from the corpus's word frequencies and depend on the row
alone: not on the seed, the objective, the batch size or the number of processes.

B rows, L positions, P of them replaced.
"""

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from electra.pretraining import metrics
from electra.pretraining.masking import Inputs, Masked, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import Sums, area_sums
from electra.pretraining.objectives.protocol import Counts, Objective
from electra.pretraining.sampling import Corrupted, Unigram, corrupt
from electra.pretraining.spans import NOTHING
from electra.pretraining.states import StateProbe, states_warning
from electra.seeds import numpy_generator
from electra.text.batches import Batch, Batches, made_ahead
from electra.train.cores import use_one_core


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows of each batch that this process works on."""

    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    """Rows at once; None: all of them."""
    cores: int = 1
    """Cores that share these rows, so that each has some of its own."""


class Piece(NamedTuple):
    """The rows of a micro-batch."""

    inputs: Inputs
    masked: Masked
    random: StepRandom


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The micro-batches of any batch."""

    batches: Batches
    mask: Callable[[Inputs, StepRandom], Masked]
    seed: int
    share: Share
    purpose: str = "train"
    visits: int = 1
    """Steps in a row that have the same rows."""

    def __getitem__(self, number: int) -> list[Piece]:
        batch = self.batches.part(
            number // self.visits, rank=self.share.rank, world_size=self.share.world_size
        )
        num_rows = len(batch.lengths_B)
        size = -(-(self.share.micro_batch or num_rows) // self.share.cores)
        pieces = []
        for first in range(0, num_rows, size):
            rows = slice(first, first + size)
            inputs = Inputs.from_batch(
                Batch(
                    row_ids_B=batch.row_ids_B[rows],
                    input_ids_BL=batch.input_ids_BL[rows],
                    token_type_ids_BL=batch.token_type_ids_BL[rows],
                    lengths_B=batch.lengths_B[rows],
                )
            )
            random = StepRandom(
                seed=self.seed,
                step=number,
                num_rows=self.batches.batch_size,
                first_row=self.share.rank * num_rows + first,
                purpose=self.purpose,
            )
            pieces.append(Piece(inputs, self.mask(inputs, random), random))
        return pieces

    def ahead(self, start: int) -> Iterator[tuple[int, list[Piece]]]:
        """Endless (number, micro-batches) from `start` on, made by a thread before they are asked for."""

        def made() -> Iterator[tuple[int, list[Piece]]]:
            use_one_core()
            for number in itertools.count(start):
                yield number, self[number]

        return made_ahead(made())


def readable_row(
    row: int,
    length: int,
    input_ids_BL: np.ndarray[Any, Any],
    views: Mapping[str, Tensor],
    tokens: Callable[[Sequence[int]], list[str]],
) -> dict[str, Any]:
    """A row as the generator and the discriminator see it, with what they make of it."""
    places = np.arange(length)
    rows = {"original": input_ids_BL[row]}
    for name in ("original", "masked", "corrupted"):
        if f"{name}_ids_BL" in views:
            rows[name] = views[f"{name}_ids_BL"][row].cpu().numpy()
    if "original_ids_BL" in views:
        # Rows whose lengths differ are shown side by side, with gaps: places without any token are none.
        places = np.flatnonzero((rows["original"] != NOTHING) | (rows["corrupted"] != NOTHING))
    shown: dict[str, Any] = {
        name: [tokens([token])[0] if token != NOTHING else "" for token in ids_L[places].tolist()]
        for name, ids_L in rows.items()
    }
    if "replaced_BL" in views:
        shown["replaced"] = views["replaced_BL"][row, places].int().tolist()
    if "logits_BL" in views:
        shown["suspicion"] = [round(p, 4) for p in views["logits_BL"][row, places].sigmoid().tolist()]
    return shown


_EARLY_SHARE, _EARLY_STEPS = 0.1, 500
"""Of a run: before them every discriminator is at chance, and states are still those of random weights."""


def collapse_warning(values: Mapping[str, float], *, step: int, progress: float) -> str | None:
    """What is wrong with the discriminator, and the cures that users of ELECTRA found; None if nothing is."""
    if progress < _EARLY_SHARE or step < _EARLY_STEPS or "discriminator_auc" not in values:
        return None
    recall, auc = values["discriminator_recall"], values["discriminator_auc"]
    replaced = values.get("replaced_fraction", math.nan)
    cures = "known cures: lower --train.learning_rate, raise --masking.mask_prob, lower --generator.width"
    if replaced < 0.005:
        return (
            f"only {replaced:.2%} of the tokens are replaced: the generator guesses nearly all, which leaves "
            f"the discriminator nothing to learn; {cures}"
        )
    if auc < 0.53 and not recall > 0.01:
        return (
            f"the discriminator calls nothing replaced (recall {recall:.3f}, AUC {auc:.3f}) while "
            f"{replaced:.1%} are; {cures}; with little text, --model.position_embedding_type alibi leaves "
            "this plateau sooner"
        )
    return None


def show_row(row: Mapping[str, Any]) -> str:
    """A row on four lines: what stood there, what the generator saw and made of it, what was replaced."""
    lines = [
        f"  {name:<10} {' '.join(row[name])}" for name in ("original", "masked", "corrupted") if name in row
    ]
    if "replaced" in row:
        changes = [
            f"{before or '(nothing)'} -> {after}"
            + (f" (suspicion {row['suspicion'][place]:.2f})" if "suspicion" in row else "")
            for place, (before, after) in enumerate(zip(row["original"], row["corrupted"], strict=True))
            if row["replaced"][place]
        ]
        lines.append(f"  {'replaced':<10} {'; '.join(changes) or 'nothing'}")
    return "\n".join(lines)


FIXED_SET_SEED = 0
NUM_ROWS = 512
"""Rows that are looked at, if so many are held out: about 8,000 replaced tokens."""
_REPLACED_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class FixedSet:
    """Held-out rows with some tokens replaced by others of the corpus."""

    batches: Batches
    num_batches: int
    unigram: Unigram
    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def of(
        cls,
        batches: Batches,
        tokens: TokenFacts,
        *,
        num_held_out: int,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> Self:
        """The first of the held-out rows, which come in the order of `SEED`."""
        return cls(
            batches=batches,
            num_batches=max(1, min(NUM_ROWS, num_held_out) // batches.batch_size),
            unigram=Unigram.uniform(tokens.vocab_size)
            if tokens.counts_V is None
            else Unigram(tokens.counts_V),
            rank=rank,
            world_size=world_size,
            device=device,
        )

    def sums(self, objective: Objective) -> Iterator[Sums]:
        """How suspicious replaced tokens look beside original ones; nothing if that is not learned."""
        for number in range(self.num_batches):
            batch = self.batches.part(number, rank=self.rank, world_size=self.world_size)
            inputs = Inputs.from_batch(batch).to(self.device)
            corrupted = self.corrupted(batch, objective.ordinary_mask(inputs).cpu())
            suspicion_BL = objective.suspicion(inputs, corrupted.corrupted_ids_BL.to(self.device))
            if suspicion_BL is None:
                return
            replaced_BL = corrupted.replaced_BL.to(self.device)
            suspicion_N, replaced_N = (pick(values, inputs.text_N) for values in (suspicion_BL, replaced_BL))
            yield {"fixed_auc": area_sums(suspicion_N, replaced_N)}

    def corrupted(self, batch: Batch, ordinary_BL: Tensor) -> Corrupted:
        """The rows of a batch with replaced tokens, on the CPU."""
        length = batch.input_ids_BL.shape[1]
        # A row's numbers go position by position, so that it does not matter how far the batch is padded.
        noise_BL2 = torch.from_numpy(
            np.stack(
                [
                    numpy_generator(FIXED_SET_SEED, "fixed set", int(row)).random((length, 2))
                    for row in batch.row_ids_B
                ]
            )
        )
        positions_P = ((noise_BL2[..., 0] < _REPLACED_SHARE) & ordinary_BL).flatten().nonzero().squeeze(1)
        sampled_P = self.unigram.sample(noise_BL2[..., 1].flatten()[positions_P])
        return corrupt(torch.from_numpy(batch.input_ids_BL), positions_P, sampled_P)


_NUM_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class PretrainPart:
    """A micro-batch: called, it gives its share of the loss, and sums."""

    inputs: Inputs
    masked: Masked
    random: StepRandom
    totals: Counts

    @property
    def rows(self) -> int:
        """How many rows are worked on at once."""
        return len(self.inputs.input_ids_BL)

    def __call__(self, module: nn.Module) -> tuple[Tensor, Sums]:
        """Its share of the loss of the global batch, and its metrics as sums."""
        loss, sums, _ = module(self.inputs, self.random, self.totals, self.masked)
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
    probe: StateProbe | None = None
    """Held-out rows whose hidden states are looked at."""
    headlines: ClassVar[Mapping[str, str]] = {
        "mlm_loss": "generator",
        "mlm_accuracy": "accuracy",
        "masked_accuracy": "at masks",
        "recovery_loss": "recovery",
        "discriminator_loss": "discriminator",
        "discriminator_auc": "AUC",
        "fixed_auc": "on a fixed set",
    }

    def __post_init__(self) -> None:
        self._pieces = replace(self._pieces_of(self.train, self.share), visits=self.objective.visits)
        self._ahead: Iterator[tuple[int, list[Piece]]] | None = None
        self._next = -1

    @property
    def cores(self) -> int:
        """How many cores work on micro-batches of their own."""
        return self.share.cores

    def begin(self, *, step: int, batch_number: int, progress: float = 0.0) -> PretrainWork:
        """The rows of a step, cut into micro-batches."""
        self.objective.begin_step(step, progress)
        pieces = self._next_pieces(batch_number)
        totals = self._totals(pieces)
        parts = [
            PretrainPart(
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
        if self.probe is not None:
            yield from self.probe.sums(self.objective.states)

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
        """Whether the discriminator or the hidden states have collapsed, and what is known to help."""
        is_early = progress < _EARLY_SHARE or step < _EARLY_STEPS
        of_discriminator = collapse_warning(values, step=step, progress=progress)
        of_states = None if is_early else states_warning(values)
        return "; ".join(filter(None, (of_discriminator, of_states))) or None

    def close(self) -> None:
        """Stop reading ahead."""
        if isinstance(self._ahead, Generator):
            self._ahead.close()
        self._ahead = None

    def _look(self, number: int) -> tuple[Tensor, Sums, dict[str, Tensor]]:
        """One batch of held-out rows; not through the wrapping, which would wait for other processes."""
        assert self.valid is not None
        whole = replace(self.share, micro_batch=None, cores=1)
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
