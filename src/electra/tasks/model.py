"""Batches of rows -> losses and outputs: one encoder with a head for each task.

B rows, L positions, U units, D numbers in a hidden state.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.model.encoder import Encoder, Positions, initialise
from electra.seeds import torch_generator
from electra.tasks.families.family import Family, TaskBatch


class Judged(NamedTuple):
    """The model's results for a batch."""

    losses_U: Tensor | None
    """The loss of each unit; None if its targets are unknown."""
    outputs: list[Any]
    """One for each row; empty while training."""


class TaskModel(nn.Module):
    """An encoder that several tasks share; each has a head of its own."""

    def __init__(self, encoder: Encoder, families: Mapping[str, Family[Any]], *, seed: int = 0) -> None:
        super().__init__()
        assert families, "no task to have a head for"
        self.encoder = encoder
        self.families = dict(families)
        self.heads = nn.ModuleDict()
        for task, family in families.items():
            head = family.head(encoder.config)
            generator = torch_generator(seed, "head", task)
            initialise(head, std=encoder.config.initializer_range, generator=generator)
            assert _key(task) not in self.heads, f"two tasks have names like {task}"
            self.heads[_key(task)] = head

    def head(self, task: str) -> nn.Module:
        """The head of a task."""
        return self.heads[_key(task)]

    def positions(self, task: str) -> Positions:
        """Whose hidden states the head of a task reads."""
        return self.families[task].positions

    # Wrappers for several processes only see calls of the module, so one call gives both losses and outputs.
    def forward(self, batch: TaskBatch, task: str) -> Judged:
        """Losses while training; else outputs, and losses where the targets are known."""
        hidden_BLD = self.encoder(
            batch.input_ids_BL,
            token_type_ids_BL=batch.token_type_ids_BL,
            attention_mask_BL=batch.attention_mask_BL,
            positions=self.positions(task),
        )
        family, head = self.families[task], self.head(task)
        if self.training:
            return Judged(family.losses(head, hidden_BLD, batch), [])
        is_known = all(row.targets for row in batch.rows)
        losses_U = family.losses(head, hidden_BLD, batch) if is_known else None
        with torch.no_grad():
            return Judged(losses_U, family.outputs(head, hidden_BLD, batch))


def _key(task: str) -> str:
    """A valid name for a module: without dots, and unlike `train` and other attributes of modules."""
    return "task_" + re.sub(r"\W", "_", task)
