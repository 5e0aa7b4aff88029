"""A model and rows -> outputs, predictions and scores, in the order of what was asked.

The caller chooses the precision: under autocast all of it runs in that.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from electra.tasks import cores
from electra.tasks.batches import PREDICTION_TOKENS, collate
from electra.tasks.family import Example, Prediction, TaskRow
from electra.tasks.model import Judged, TaskModel
from electra.text.tokenizer import Tokenizer


class Places(NamedTuple):
    """A batch that was judged."""

    places: list[int]
    """Of its rows in the list of all rows."""
    judged: Judged


def judged_batches(
    model: TaskModel,
    task: str,
    rows: Sequence[TaskRow],
    *,
    pad_id: int,
    max_tokens: int = PREDICTION_TOKENS,
) -> Iterator[Places]:
    """One batch after the other, of rows of like length, where the model's weights are."""
    device = next(model.parameters()).device

    # Not around the whole loop: between two batches the caller is at work.
    @torch.no_grad()
    def judge(places: list[int]) -> Places:
        batch = collate([rows[place] for place in places], pad_id=pad_id, device=device)
        return Places(places, model(batch, task))

    yield from cores.spread_rows(judge, rows, device=device, max_tokens=max_tokens)


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


def predict(
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
