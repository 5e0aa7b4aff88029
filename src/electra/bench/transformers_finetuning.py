"""transformers' ways to fine-tune a classifier -> the seconds of their steps: a loop, and its Trainer."""

import importlib.util
import itertools
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from electra.bench.processes import own_peak
from electra.bench.turns import WARMUP_STEPS, Step, Turn
from electra.errors import import_extra
from electra.model import names
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import TrainBatches, collate
from electra.tasks.family import TaskRow
from electra.train import devices

LEARNING_RATE, CLIP_NORM, WEIGHT_DECAY = 3e-4, 1.0, 0.01
"""The same for all who fine-tune."""


def classifier(sizes: EncoderConfig) -> Any:
    """An ElectraForSequenceClassification with random weights."""
    transformers = import_extra("transformers", extra="hf")
    torch.manual_seed(0)
    return transformers.ElectraForSequenceClassification(
        transformers.ElectraConfig(**names.to_transformers_config(sizes), num_labels=2)
    )


def inputs(rows: Sequence[TaskRow]) -> dict[str, Tensor]:
    """A batch as transformers' models take it, padded to its longest text."""
    batch = collate(rows, pad_id=0, device=torch.device("cpu"))
    return {
        "input_ids": batch.input_ids_BL,
        "token_type_ids": batch.token_type_ids_BL,
        "attention_mask": batch.attention_mask_BL,
        "labels": batch.target("label"),
    }


def loop_step(sizes: EncoderConfig, batches: TrainBatches, precision: devices.Precision) -> Step:
    """The loop of transformers' own examples."""
    model = classifier(sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    numbers = iter(range(10**9))

    def step() -> None:
        rows = [row for unit in batches[next(numbers)] for row in unit]
        optimizer.zero_grad()
        with devices.autocast(torch.device("cpu"), precision):
            loss: Tensor = model(**inputs(rows)).loss
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()

    return step


def trainer_obstacle() -> str | None:
    """Why the Trainer cannot take part, or None if it can."""
    if importlib.util.find_spec("accelerate") is None:
        return "accelerate is not installed, which transformers' Trainer needs"
    return None


def trainer_turn(sizes: EncoderConfig, rows: Sequence[TaskRow], *, batch_size: int, steps: int) -> Turn:
    """transformers' Trainer with its defaults, but for what all have alike and for saving and logging."""
    transformers = import_extra("transformers", extra="hf")
    ends: list[float] = []

    def note_the_time(*_: Any, **__: Any) -> None:
        ends.append(time.perf_counter())

    clock = type("Clock", (transformers.TrainerCallback,), {"on_step_end": note_the_time})
    with tempfile.TemporaryDirectory(prefix="electra-bench-") as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch_size,
            max_steps=WARMUP_STEPS + steps,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=CLIP_NORM,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        transformers.Trainer(
            model=classifier(sizes),
            args=arguments,
            train_dataset=rows,
            data_collator=inputs,
            callbacks=[clock()],
        ).train()
    after = ends[WARMUP_STEPS - 1 :]
    return Turn([end - begun for begun, end in itertools.pairwise(after)], own_peak())
