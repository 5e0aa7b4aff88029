"""Our pre-training step beside transformers': generator and discriminator of the paper's sizes.

    ours    `electra pretrain` itself: rows from disk, prefetch, masking, metrics, clipping
    plain   transformers' ElectraForMaskedLM and ElectraForPreTraining sharing embeddings: fp32, AdamW, the
            logits as they come, masked and sampled with torch's own functions
    tuned   the same by hand: logits at masked positions only, fused AdamW, allocator set, bf16 where fast

All have the same learning rate, decay and clipping, and full rows of random tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from electra import files, seeds
from electra.bench.turns import (
    Contest,
    Turn,
    Work,
    bench_engine,
    chosen,
    encoder_products,
    engine_work,
    time_steps,
)
from electra.errors import InputError, import_extra
from electra.model import names
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, generator_config
from electra.pretraining import cost
from electra.pretraining.build import build
from electra.pretraining.config import (
    GeneratorConfig,
    ModelConfig,
    PretrainConfig,
    PretrainRunConfig,
    PretrainTrainConfig,
)
from electra.text import tokenizer as tokenizers
from electra.text.batches import Batches
from electra.text.rows import FORMAT_VERSION, KIND, Rows, write_shard
from electra.text.tokenizer import SPECIAL_TOKENS
from electra.train import devices
from electra.train.distributed import World

CONTESTANTS = ("ours", "plain", "tuned")
_PAD, _UNK, _CLS, _SEP, _MASK = range(5)
_LEARNING_RATE, _CLIP_NORM, _WEIGHT_DECAY = 5e-4, 1.0, 0.01
_NUM_STEPS = 10_000
_MOST_NEIGHBOURS = 64


@dataclass(frozen=True, kw_only=True)
class PretrainBenchConfig:
    """The pre-training step."""

    size: Literal["tiny", "small", "base"] = "small"
    """Size of the model."""
    batch_size: int = 32
    """Rows of a step."""
    seq_length: int = 128
    """Tokens of a row."""
    vocab_size: int = 30522
    """Size of the vocabulary."""
    repeats: int = 3
    """Turns of each contestant."""
    steps: int = 5
    """Timed steps of a turn, after some that are not timed."""
    neighbours: list[int] = field(default_factory=list)
    """Numbers of busy processes of one thread each, such as 1 2: all contestants also take their turns beside
    them, and the table has the share of its speed that is left to each. Default: none."""

    def __post_init__(self) -> None:
        for key in ("batch_size", "seq_length", "vocab_size", "repeats", "steps"):
            if getattr(self, key) < 1:
                raise InputError(f"{key} is {getattr(self, key)}, expected 1 or more")
        for number in self.neighbours:
            if not 1 <= number <= _MOST_NEIGHBOURS:
                raise InputError(f"pretrain.neighbours has {number}, expected 1 to {_MOST_NEIGHBOURS}")
        if len(set(self.neighbours)) < len(self.neighbours):
            raise InputError(f"pretrain.neighbours is {self.neighbours}, expected each number once")


def contest(settings: PretrainBenchConfig, folder: Path) -> Contest:
    """What is measured; the rows that all train on are written to the folder."""
    import_extra("transformers", extra="hf")
    write_random_data(folder, settings)
    tokens = settings.batch_size * settings.seq_length
    return Contest(
        title=f"pre-training ELECTRA-{settings.size}, {settings.batch_size} x {settings.seq_length} tokens",
        contestants=CONTESTANTS,
        unit="tokens",
        units_per_step=tokens,
        flops_per_step=flops_per_step(settings),
        products=encoder_products(sizes(settings)[1], tokens=tokens),
        repeats=settings.repeats,
        neighbours=tuple(settings.neighbours),
    )


def take_turn(settings: PretrainBenchConfig, name: str, folder: Path) -> Turn:
    """Train some steps."""
    work = chosen({"ours": our_step, "plain": plain_step, "tuned": tuned_step}, name)
    return time_steps(work(settings, folder), count=settings.steps)


def write_random_data(folder: Path, settings: PretrainBenchConfig) -> None:
    """A dataset of full rows of random tokens, with a vocabulary of the right size."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(settings.vocab_size - len(SPECIAL_TOKENS))]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n", encoding="utf-8")
    tokenizers.load_tokenizer(vocabulary).save(folder / "tokenizer")
    random = seeds.numpy_generator(0, "bench")
    shape = (8 * settings.batch_size, settings.seq_length - 2)
    ids = random.integers(_MASK + 1, settings.vocab_size, shape, dtype=np.uint32)
    nothing = np.empty(0, np.uint32)
    num_rows, num_tokens = write_shard(
        folder,
        "train-00000",
        ((row, nothing) for row in ids),
        cls_id=_CLS,
        sep_id=_SEP,
        vocab_size=settings.vocab_size,
    )
    shards = [{"name": "train-00000", "rows": num_rows, "tokens": num_tokens}]
    facts = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "seq_length": settings.seq_length,
        "tokenizer": {"special_ids": {"[PAD]": _PAD}},
        "splits": {"train": {"shards": shards}, "valid": {"shards": []}},
    }
    files.write_manifest(folder, facts)


def run_config(settings: PretrainBenchConfig, folder: Path | None = None) -> PretrainRunConfig:
    """The run whose steps are timed: the paper's, on this machine's processor, without an end in sight."""
    return PretrainRunConfig(
        data="" if folder is None else str(folder),
        model=ModelConfig(size=settings.size),
        generator=GeneratorConfig(width=GENERATOR_WIDTH[settings.size]),
        train=PretrainTrainConfig(
            steps=_NUM_STEPS,
            batch_size=settings.batch_size,
            learning_rate=_LEARNING_RATE,
            clip_norm=_CLIP_NORM,
            weight_decay=_WEIGHT_DECAY,
        ),
    )


def sizes(settings: PretrainBenchConfig) -> tuple[PretrainConfig, EncoderConfig]:
    """Objective and discriminator."""
    config = run_config(settings)
    return config, config.model.encoder(vocab_size=settings.vocab_size)


def flops_per_step(settings: PretrainBenchConfig) -> float:
    """FLOPs that no way of computing the step can avoid."""
    per_token = cost.flops_per_token(*sizes(settings), length=settings.seq_length)
    return per_token * settings.batch_size * settings.seq_length


def our_step(settings: PretrainBenchConfig, folder: Path, world: World | None = None) -> Work:
    """`electra pretrain`, from rows on disk to updated weights; `world`: the processes that share them."""
    config = run_config(settings, folder)
    engine = bench_engine(config.train, world)
    run = build(config, engine)
    return engine_work(engine, run.state, run.problem)


class _Networks:
    """transformers' generator and discriminator with one set of embeddings."""

    def __init__(self, settings: PretrainBenchConfig) -> None:
        transformers = import_extra("transformers", extra="hf")
        pretrain, encoder = sizes(settings)
        torch.manual_seed(0)
        small = generator_config(encoder, width=pretrain.generator.width)
        self.generator, self.discriminator = (
            network(transformers.ElectraConfig(**names.to_transformers_config(sizes)))
            for network, sizes in (
                (transformers.ElectraForMaskedLM, small),
                (transformers.ElectraForPreTraining, encoder),
            )
        )
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        table = self.discriminator.electra.embeddings.word_embeddings.weight
        self.generator.generator_lm_head.weight = table
        self.generator.train()
        self.discriminator.train()
        weights = {*self.generator.parameters(), *self.discriminator.parameters()}
        self.parameters = list(weights)

    def loss(self, ids_BL: Tensor, logits: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Mask, fill, detect; `logits` gives the generator's at the masked positions."""
        masked_BL = torch.bernoulli(torch.full(ids_BL.shape, 0.15)).bool() & (ids_BL > _MASK)
        logits_PV = logits(ids_BL.masked_fill(masked_BL, _MASK), masked_BL)
        sampled_P = torch.multinomial(logits_PV.detach().float().softmax(-1), 1).squeeze(1)
        corrupted_BL = ids_BL.clone()
        corrupted_BL[masked_BL] = sampled_P
        verdict_BL = self.discriminator(corrupted_BL).logits.float()
        replaced_BL = (corrupted_BL != ids_BL).float()
        generator_loss = functional.cross_entropy(logits_PV.float(), ids_BL[masked_BL])
        return generator_loss + 50 * functional.binary_cross_entropy_with_logits(verdict_BL, replaced_BL)


def _transformers_step(
    settings: PretrainBenchConfig,
    folder: Path,
    networks: _Networks,
    optimizer: torch.optim.Optimizer,
    logits: Callable[[Tensor, Tensor], Tensor],
    precision: devices.Precision,
) -> Work:
    batches = Batches(Rows(folder), seed=0, batch_size=settings.batch_size).prefetch()

    def step() -> None:
        _, batch = next(batches)
        optimizer.zero_grad()
        with devices.autocast(torch.device("cpu"), precision):
            loss = networks.loss(torch.from_numpy(batch.input_ids_BL), logits)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(networks.parameters, _CLIP_NORM)
        optimizer.step()

    return Work(step, precision)


def plain_step(settings: PretrainBenchConfig, folder: Path) -> Work:
    """The loop that one writes first."""
    networks = _Networks(settings)
    optimizer = torch.optim.AdamW(networks.parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)

    def logits(masked_ids_BL: Tensor, masked_BL: Tensor) -> Tensor:
        everywhere_BLV: Tensor = networks.generator(masked_ids_BL).logits
        return everywhere_BLV[masked_BL]

    return _transformers_step(settings, folder, networks, optimizer, logits, "fp32")


def tuned_step(settings: PretrainBenchConfig, folder: Path) -> Work:
    """The loop after an afternoon of tuning."""
    devices.set_up_allocator()
    networks = _Networks(settings)
    optimizer = torch.optim.AdamW(
        networks.parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY, fused=True
    )
    precision = devices.choose_precision("auto", torch.device("cpu"), World())

    def logits(masked_ids_BL: Tensor, masked_BL: Tensor) -> Tensor:
        generator = networks.generator
        hidden_PD = generator.electra(masked_ids_BL).last_hidden_state[masked_BL]
        at_masked_PV: Tensor = generator.generator_lm_head(generator.generator_predictions(hidden_PD))
        return at_masked_PV

    return _transformers_step(settings, folder, networks, optimizer, logits, precision)
