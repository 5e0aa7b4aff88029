"""A model and rows -> outputs and predictions in the order of the rows; on a CPU, a batch for each core.

Cores that share a batch wait for each other after every operation, some hundred times a batch: with texts as
short as sentences that took 1.15 times as long (small's shape, two cores; docs/log.md). So, top to bottom:

predict, outputs_of, judged_batches   rows -> what the model makes of them
spread_rows                           cuts rows into batches, as many as keep all cores busy (`core_batches`)
train.cores.spread                    gives the batches to threads that compute with one core each
On a GPU, and where several processes share a model, batches are computed one after the other.

The caller chooses the precision: all threads compute under the caller's autocast.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from electra.tasks.batches import PREDICTION_TOKENS, collate, prediction_batches, unit_lengths, units_of
from electra.tasks.families.family import Example, Prediction, TaskRow
from electra.tasks.model import Judged, TaskModel
from electra.text.tokenizer import Tokenizer
from electra.train.cores import num_cores, spread

Result = TypeVar("Result")

CORE_TOKENS = 2048
"""Tokens of a batch that one core computes: no faster with more or, down to 512, with fewer."""
LEAST_TOKENS = 256
"""Tokens of a batch that is worth a core of its own: fewer are ready sooner if the cores share them."""


def spread_rows(
    compute: Callable[[list[int]], Result],
    rows: Sequence[TaskRow],
    *,
    device: torch.device,
    max_tokens: int,
) -> Iterator[Result]:
    """The result of each batch, which `compute` gets as the places of its rows; the longest rows first."""
    cores = num_cores(device)
    batches = core_batches(rows, cores=cores, max_tokens=max_tokens)
    return spread(compute, batches, cores=cores)


def core_batches(rows: Sequence[TaskRow], *, cores: int, max_tokens: int) -> list[list[int]]:
    """The places of each batch's rows; few rows are divided among the cores evenly."""
    if cores == 1:
        return list(prediction_batches(rows, max_tokens=max_tokens))
    size = min(max_tokens, CORE_TOKENS)
    total = sum(len(row.input_ids) for row in rows)
    if LEAST_TOKENS < total <= cores * size:
        shares = even_shares(rows, count=min(cores, -(-total // LEAST_TOKENS)))
        if all(
            len(share) * max(len(rows[place].input_ids) for place in share) <= max_tokens for share in shares
        ):
            return shares
    return list(prediction_batches(rows, max_tokens=size))


def even_shares(rows: Sequence[TaskRow], *, count: int) -> list[list[int]]:
    """Places of rows in `count` shares of about as many tokens, of like length, the longest first."""
    # Padding does not count: where there is much of it, layers compute on the text alone.
    units = units_of(rows)
    shares: list[list[int]] = [[] for _ in range(count)]
    total, done = sum(len(row.input_ids) for row in rows), 0
    for index in np.argsort(-unit_lengths(rows, units), kind="stable"):
        shares[done * count // total] += units[index]
        done += sum(len(rows[place].input_ids) for place in units[index])
    return [share for share in shares if share]


class JudgedBatch(NamedTuple):
    """A batch, and what the model made of it."""

    places: list[int]
    """Its rows' places in the list of all rows."""
    judged: Judged


def judged_batches(
    model: TaskModel,
    task: str,
    rows: Sequence[TaskRow],
    *,
    pad_id: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> Iterator[JudgedBatch]:
    """One batch after the other, of rows of like length, on the device of the model."""
    device = next(model.parameters()).device

    # Not around the whole loop: the caller computes between two batches.
    @torch.no_grad()
    def judge(places: list[int]) -> JudgedBatch:
        batch = collate([rows[place] for place in places], pad_id=pad_id, device=device)
        return JudgedBatch(places, model(batch, task))

    yield from spread_rows(judge, rows, device=device, max_tokens=max_tokens)


def outputs_of(
    model: TaskModel,
    task: str,
    rows: Sequence[TaskRow],
    *,
    pad_id: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> list[Any]:
    """What the head says of each row."""
    model.eval()
    outputs: list[Any] = [None] * len(rows)
    for places, judged in judged_batches(model, task, rows, pad_id=pad_id, max_tokens=max_tokens):
        for place, output in zip(places, judged.outputs, strict=True):
            outputs[place] = output
    return outputs


def predict_examples(
    model: TaskModel,
    task: str,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> list[Prediction]:
    """What the model says of each example."""
    family = model.families[task]
    rows = family.rows(examples, tokenizer, max_length=max_length)
    outputs = outputs_of(model, task, rows, pad_id=tokenizer.pad_id, max_tokens=max_tokens)
    return family.predictions(examples, rows, outputs)
