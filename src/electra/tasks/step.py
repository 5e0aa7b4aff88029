"""A model and batches of its tasks -> the losses, evaluations and samples that the training loop asks for.

`FinetuneProblem` implements the loop's protocol, `train.loop.Problem`. It carries nothing from step to step,
so a resumed run repeats a step exactly.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from electra.model.dropout import seed_dropout
from electra.model.encoder import Encoder, Positions
from electra.seeds import derive, numpy_generator
from electra.tasks.batches import PREDICTION_TOKENS, TaskMixture, Unit, collate, hide_tokens, share_bounds
from electra.tasks.families.family import Example, TaskRow
from electra.tasks.inference import judged_batches, outputs_of
from electra.tasks.model import TaskModel
from electra.text.tokenizer import Tokenizer

Sums = dict[str, Tensor]

_NUM_SAMPLES = 4
_SETTLED = 0.5
"""Fraction of the training after which equal predictions for all examples mean that nothing was learned."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The units of each batch that this process works on."""

    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    """Units at once; None: all of them."""
    cores: int = 1
    """Cores that share these units, so that each has some of its own."""

    def pieces(self, num_units: int) -> list[range]:
        """The units of each micro-batch; all processes have as many, since they wait for each other."""
        first, last = share_bounds(num_units, rank=self.rank, world_size=self.world_size)
        largest_share = -(-num_units // self.world_size)
        size = -(-(self.micro_batch or largest_share) // self.cores)
        return [
            range(num_units)[start : min(start + size, last)]
            for start in range(first, first + largest_share, size)
        ]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Examples to evaluate on during training."""

    task: str
    split: str
    examples: Sequence[Example]
    rows: Sequence[TaskRow]
    main_score: str
    """The score to show."""


@dataclass(frozen=True, kw_only=True)
class FinetunePart:
    """A micro-batch: called, it gives its share of the loss, and sums."""

    task: str
    units: Sequence[Unit]
    weight: float
    """Weight of a unit's loss in the global batch; 0 if this process has no unit and only keeps in step."""
    pad_id: int
    device: torch.device
    dropout_seed: int

    @property
    def rows(self) -> int:
        """Number of units, which is what `micro_batch` counts."""
        return len(self.units)

    def __call__(self, module: nn.Module) -> tuple[Tensor, Sums]:
        """Its share of the global batch's loss, and sums for the loss of its task."""
        rows = [row for unit in self.units for row in unit]
        batch = collate(rows, pad_id=self.pad_id, device=self.device)
        seed_dropout(self.dropout_seed)
        losses_U: Tensor = module(batch, self.task).losses_U
        assert losses_U.shape == (len(self.units),), f"{len(self.units)} units, losses {losses_U.shape}"
        counted_U = losses_U if self.weight else losses_U.new_zeros(0)
        return losses_U.sum() * self.weight, {f"{self.task}/loss": mean_pair(counted_U)}


@dataclass(frozen=True, kw_only=True)
class FinetuneWork:
    """The work of this process in a step."""

    parts: Sequence[FinetunePart]
    tokens: int


@dataclass(kw_only=True)
class FinetuneProblem:
    """Fine-tuning, for the training loop."""

    model: TaskModel
    module: nn.Module
    """The model, or its wrapper that sums gradients over processes."""
    train: TaskMixture
    held_out: Sequence[HeldOut]
    seed: int
    share: Share
    device: torch.device
    tokenizer: Tokenizer
    flops_per_token: float
    mask_prob: float = 0.0
    """Share of the tokens that are hidden while training."""
    max_tokens: int = PREDICTION_TOKENS
    """Tokens of a batch in evaluation, padding included."""
    on_evaluation: Callable[[Mapping[str, float], int], None] | None = None
    """Hears the metrics of each evaluation and its step."""
    _complaints: list[str] = field(default_factory=list, init=False)
    """Signs of the last evaluation that nothing is being learned."""

    @property
    def cores(self) -> int:
        """How many cores work on micro-batches of their own."""
        return self.share.cores

    @property
    def headlines(self) -> dict[str, str]:
        """The main score of each held-out set."""
        names = [f"{prefix}{held.main_score}" for prefix, held in self._named_sets()]
        return {name: name.replace("/", " ") for name in names}

    def begin(self, *, step: int, batch_number: int, progress: float = 0.0) -> FinetuneWork:
        """The units of a step, cut into micro-batches."""
        task, number = self.train.batch(batch_number)
        units = self.train.tasks[task][number]
        if self.mask_prob:
            # Before they are shared out: the same tokens, however many processes there are.
            random = numpy_generator(self.seed, "finetune masks", batch_number)
            units = hide_tokens(units, prob=self.mask_prob, tokenizer=self.tokenizer, random=random)
        parts = [
            FinetunePart(
                task=task,
                units=[units[index] for index in piece] or units[:1],
                weight=1 / len(units) if piece else 0.0,
                pad_id=self.tokenizer.pad_id,
                device=self.device,
                # Torch takes signed 64-bit seeds only.
                dropout_seed=derive(self.seed, "finetune dropout", batch_number, piece.start) >> 1,
            )
            for piece in self.share.pieces(len(units))
        ]
        return FinetuneWork(parts=parts, tokens=sum(len(row.input_ids) for unit in units for row in unit))

    def end(self, sums: Sums) -> None:
        """Nothing changes from step to step."""

    def phase(self, step: int) -> str:
        """Fine-tuning has only one."""
        return ""

    def summarise(self, sums: Sums) -> dict[str, float]:
        """Sums as metrics; with one task, its loss is the loss and is left out."""
        metrics = {name: ratio(pair) for name, pair in sums.items()}
        alone = {f"{task}/loss" for task in self.train.tasks} if len(self.train.tasks) == 1 else set()
        return {name: value for name, value in metrics.items() if name not in alone}

    def evaluate(self) -> Iterator[Sums]:
        """All held-out rows, in every process; `loss` is the mean over units, scores come last."""
        self._complaints = []
        for prefix, held in self._named_sets():
            outputs: list[Any] = [None] * len(held.rows)
            batches = judged_batches(
                self.model, held.task, held.rows, pad_id=self.tokenizer.pad_id, max_tokens=self.max_tokens
            )
            for places, judged in batches:
                for place, output in zip(places, judged.outputs, strict=True):
                    outputs[place] = output
                losses_U = judged.losses_U
                names = {"loss", f"{prefix}loss"} if losses_U is not None else set()
                yield {name: mean_pair(losses_U) for name in sorted(names) if losses_U is not None}
            yield self._scores(prefix, held, outputs)

    def samples(self) -> list[dict[str, Any]]:
        """The first held-out examples, token by token, with their predictions."""
        return [
            {
                "task": held.task,
                "id": example.id,
                "original": self.tokenizer.tokens(row.input_ids.tolist()),
                "prediction": prediction,
            }
            for _, held in self._named_sets()
            for example, row, prediction in self._first_predictions(held)
        ]

    def error(self, metrics: Mapping[str, float]) -> float:
        """The held-out loss."""
        return metrics.get("loss", math.nan)

    def diagnose(self, metrics: Mapping[str, float], *, step: int, progress: float) -> str | None:
        """Whether all predictions are alike or a main score is undefined, and what is known to help."""
        if self.on_evaluation is not None:
            self.on_evaluation(metrics, step)
        if progress < _SETTLED or not self._complaints:
            return None
        return (
            f"{'; '.join(self._complaints)}: the task is not being learned. Known to help: a lower "
            "--train.learning_rate, a longer warm-up, more epochs, another seed"
        )

    def close(self) -> None:
        """Nothing is read ahead."""

    def _named_sets(self) -> Iterator[tuple[str, HeldOut]]:
        """Each held-out set with the prefix of its metrics: empty if there is only one set."""
        splits = Counter(held.task for held in self.held_out)
        for held in self.held_out:
            name = held.task if splits[held.task] == 1 else f"{held.task}/{held.split}"
            yield "" if len(self.held_out) == 1 else f"{name}/", held

    def _scores(self, prefix: str, held: HeldOut, outputs: Sequence[Any]) -> Sums:
        family = self.model.families[held.task]
        predictions = family.predictions(held.examples, held.rows, outputs)
        scores = family.scores(held.examples, predictions)
        main = scores[held.main_score]
        if not main.is_defined:
            self._complaints.append(f"{prefix}{held.main_score} is undefined, {main.undefined}")
        said = {prediction.get("label") for prediction in predictions}
        if len(predictions) > 1 and len(said) == 1 and None not in said:
            self._complaints.append(f"all {len(predictions)} predictions for {held.task} are {said.pop()!r}")
        known = {f"{prefix}{name}": (score.value, 1) for name, score in scores.items() if score.is_defined}
        unknown = {f"{prefix}{name}": (0, 0) for name, score in scores.items() if not score.is_defined}
        return {
            name: torch.tensor(pair, dtype=torch.float64, device=self.device)
            for name, pair in {**known, **unknown}.items()
        }

    def _first_predictions(self, held: HeldOut) -> Iterator[tuple[Example, TaskRow, Any]]:
        examples = held.examples[:_NUM_SAMPLES]
        rows = [row for row in held.rows if row.example < len(examples)]
        outputs = outputs_of(self.model, held.task, rows, pad_id=self.tokenizer.pad_id)
        predictions = self.model.families[held.task].predictions(examples, rows, outputs)
        first_rows = {row.example: row for row in reversed(rows)}
        for index, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
            if index in first_rows:
                yield example, first_rows[index], prediction


def mean_pair(values: Tensor) -> Tensor:
    """The mean of some values as a pair (numerator, denominator), which can be summed over batches."""
    total = values.detach().double().sum()
    return torch.stack([total, torch.full_like(total, values.numel())])


def ratio(pair: Tensor) -> float:
    """Numerator by denominator; NaN where nothing was counted."""
    numerator, denominator = pair.tolist()
    return numerator / denominator if denominator else math.nan


def flops_per_token(model: TaskModel, rows: Sequence[TaskRow]) -> float:
    """FLOPs of a forward and a backward pass of the encoder at the rows' mean length, counted by torch."""
    wanted: set[Positions] = {model.positions(task) for task in model.families}
    length = max(1, round(sum(len(row.input_ids) for row in rows) / len(rows)))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        encoder = Encoder(model.encoder.config).eval()
        positions: Positions = "first" if wanted == {"first"} else "all"
        encoder(torch.zeros(1, length, dtype=torch.long), positions=positions).sum().backward()
    return float(counter.get_total_flops()) / length
