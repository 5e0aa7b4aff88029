"""Our fine-tuning step beside transformers': a classifier of short texts, with the lengths of SST-2.

    ours      `electra finetune` itself, on the same batches as the others
    grouped   the same with batches of texts of similar length, as `electra finetune` makes them
    plain     transformers' ElectraForSequenceClassification in a loop: fp32, AdamW, batches in random order,
              padded to their longest text
    bf16      the same under bf16 autocast
    trainer   transformers' Trainer with its defaults, where accelerate is installed

All use the same encoder, examples, learning rate, decay and clipping. The tokens are random: speed does not
depend on them.
"""

import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.bench.turns import (
    WARMUP_STEPS,
    Contest,
    Turn,
    Work,
    bench_engine,
    chosen,
    encoder_products,
    engine_work,
    own_peak,
    time_steps,
)
from electra.errors import InputError, import_extra
from electra.model import names
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import numpy_generator, torch_generator
from electra.tasks.batches import TaskMixture, TrainBatches, collate
from electra.tasks.config import EpochTrainConfig
from electra.tasks.data.glue import load_glue
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TaskRow, TextExample
from electra.tasks.finetuning import build_seed
from electra.tasks.model import TaskModel
from electra.tasks.task import TRAIN
from electra.text.tokenizer import TokenizerConfig, train
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


def loop_step(sizes: EncoderConfig, batches: TrainBatches, precision: devices.Precision) -> Work:
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

    return Work(step, precision)


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
    return Turn([end - begun for begun, end in itertools.pairwise(after)], own_peak(), precision="fp32")


CONTESTANTS = ("ours", "grouped", "plain", "bf16", "trainer")
_TASK = "sst2"
_LAYER_DECAY = 0.8
_NUM_STEPS = 10_000
_MEAN_LENGTH, _LONGEST = 13.3, 66
"""Of SST-2's training texts in tokens, special ones included."""
_FIRST_WORD = 5


@dataclass(frozen=True, kw_only=True)
class FinetuneBenchConfig:
    """The fine-tuning step."""

    data: str | None = None
    """Folder of SST-2, for the lengths of its texts; without it, lengths are drawn with the same mean."""
    size: Literal["tiny", "small", "base"] = "small"
    """Size of the model."""
    batch_size: int = 32
    """Examples of a step."""
    vocab_size: int = 30522
    """Size of the vocabulary."""
    repeats: int = 3
    """Turns of each contestant."""
    steps: int = 40
    """Timed steps of a turn, after some that are not timed."""

    def __post_init__(self) -> None:
        for key in ("batch_size", "vocab_size", "repeats", "steps"):
            if getattr(self, key) < 1:
                raise InputError(f"finetune.{key} is {getattr(self, key)}, expected 1 or more")


def contest(settings: FinetuneBenchConfig, folder: Path) -> Contest:
    """What is measured; nothing is put into the folder."""
    import_extra("transformers", extra="hf")
    obstacle = trainer_obstacle()
    left_out = {} if obstacle is None else {"trainer": obstacle}
    tokens = round(settings.batch_size * _MEAN_LENGTH)
    return Contest(
        title=f"fine-tuning ELECTRA-{settings.size} on texts like SST-2's, {settings.batch_size} a step",
        contestants=tuple(name for name in CONTESTANTS if name not in left_out),
        ours=("ours", "grouped"),
        left_out=left_out,
        unit="examples",
        units_per_step=settings.batch_size,
        products=encoder_products(sizes(settings), tokens=tokens),
        repeats=settings.repeats,
    )


def take_turn(settings: FinetuneBenchConfig, name: str, folder: Path) -> Turn:
    """Train some steps."""
    rows, size = random_rows(settings), settings.batch_size
    if name == "trainer":
        return trainer_turn(sizes(settings), rows, batch_size=size, steps=settings.steps)
    same = RandomOrder(rows, task=_TASK, seed=0, batch_size=size)
    alike = TrainBatches(rows, task=_TASK, seed=0, batch_size=size)
    loop = loop_step
    ways: dict[str, Callable[[], Work]] = {
        "ours": lambda: our_step(settings, same),
        "grouped": lambda: our_step(settings, alike),
        "plain": lambda: loop(sizes(settings), same, "fp32"),
        "bf16": lambda: loop(sizes(settings), same, "bf16"),
    }
    return time_steps(chosen(ways, name)(), count=settings.steps)


def sizes(settings: FinetuneBenchConfig) -> EncoderConfig:
    """Of the encoder."""
    return EncoderConfig.preset(settings.size, vocab_size=settings.vocab_size)


def text_lengths(settings: FinetuneBenchConfig) -> NDArray[np.int64]:
    """How many tokens the texts have, special ones included, as many as an epoch of the steps needs."""
    num_texts = 4 * settings.batch_size * (settings.steps + WARMUP_STEPS)
    random = numpy_generator(0, "lengths")
    if settings.data is None:
        return np.minimum(2 + random.geometric(1 / (_MEAN_LENGTH - 2), num_texts), _LONGEST)
    texts = [
        example.text
        for example in load_glue(_TASK, Path(settings.data)).examples(TRAIN)
        if isinstance(example, TextExample)
    ]
    words = np.array([2 + len(text.split()) for text in texts])
    return random.choice(words, num_texts)


def random_rows(settings: FinetuneBenchConfig) -> list[TaskRow]:
    """Texts of random tokens with random labels."""
    random = numpy_generator(0, "texts")
    return [
        TaskRow(
            input_ids=random.integers(_FIRST_WORD, settings.vocab_size, length, dtype=np.uint32),
            token_type_ids=np.zeros(length, np.uint8),
            example=number,
            unit=number,
            targets={"label": int(random.integers(2))},
        )
        for number, length in enumerate(text_lengths(settings))
    ]


class RandomOrder(TrainBatches):
    """Batches of texts of any length, as transformers' users have them by default."""

    def _arrange(self, epoch: int) -> list[NDArray[np.int64]]:
        order = numpy_generator(self._seed, "random order", epoch).permutation(len(self._units))
        return [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]


def our_step(settings: FinetuneBenchConfig, batches: TrainBatches) -> Work:
    """`electra finetune`, from rows to updated weights."""
    config = sizes(settings)
    encoder = Encoder(config)
    initialise(encoder, std=config.initializer_range, generator=torch_generator(0, "bench"))
    engine = bench_engine(
        EpochTrainConfig(
            steps=_NUM_STEPS,
            batch_size=settings.batch_size,
            learning_rate=LEARNING_RATE,
            warmup_fraction=0.0,
            layer_decay=_LAYER_DECAY,
            clip_norm=CLIP_NORM,
            weight_decay=WEIGHT_DECAY,
        )
    )
    problem, state = build_seed(
        TaskModel(encoder, {_TASK: Classification(("negative", "positive"))}),
        TaskMixture({_TASK: batches}, seed=0),
        engine,
        seed=0,
        tokenizer=train(["a text"], TokenizerConfig(vocab_size=256)),
    )
    return engine_work(engine, state, problem)
