"""A pre-training config, a batch and a machine -> parameters, FLOPs, memory, disk, time, cost of the run."""

from dataclasses import dataclass
from functools import cache

import torch

from electra.model import flops
from electra.model.memory import Attention, Memory, training_memory
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretrain.config import PretrainConfig
from electra.pretrain.cost import flops_per_token, parameters_by_part
from electra.pretrain.inputs import TokenFacts
from electra.pretrain.masking import Masker
from electra.pretrain.objectives import OBJECTIVES

SEVERAL_DEVICES = 0.9
"""Share of their speed that several devices keep together."""
_CHECKPOINT_BYTES_PER_WEIGHT = 12  # the weight and two moments of Adam, in float32


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a device can do, and how many there are."""

    name: str
    peak: float
    """FLOP/s of matrix products."""
    format: str
    """Of the numbers in them: fp32, fp16 or bf16."""
    memory: float
    """Bytes."""
    achievable: float
    """Share of the peak that training reaches."""
    price: float | None
    """Per hour, of one device."""
    devices: int = 1
    attention: Attention = "fused"

    @property
    def speed(self) -> float:
        """FLOP/s of a whole training."""
        together = self.devices * (SEVERAL_DEVICES if self.devices > 1 else 1)
        return self.peak * self.achievable * together


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is done in a step, and how often."""

    batch_size: int
    """Rows of all devices together."""
    rows_at_once: int
    """Rows that one device works on at once."""
    length: int
    """Tokens of a row, padding included."""
    fill: float = 1.0
    """Share of them that is no padding."""
    steps: int = 0
    checkpoints: int = 1
    """How many are on the disk at the same time."""
    recomputes_layers: bool = False
    """Whether layers are computed a second time for the gradient instead of being kept."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run needs."""

    parameters: dict[str, int]
    """By part of the objective."""
    steps: int
    tokens: float
    flops: float
    """Matrix products of forward and backward passes, as they are."""
    paper_flops: float | None
    """As the paper counts; None for objectives that it does not count."""
    memory: Memory
    """Of one device."""
    tokens_per_second: float
    seconds: float
    cost: float | None
    disk: float
    """Bytes of checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained, counted once for all estimates of it."""

    config: PretrainConfig
    encoder: EncoderConfig
    parameters: dict[str, int]
    flops_per_token: float


@cache
def count_model(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> Model:
    """Count the weights and the matrix products of a token: seconds for a large model."""
    return Model(
        config=config,
        encoder=encoder,
        parameters=count_parameters(config, encoder, length=length),
        flops_per_token=flops_per_token(config, encoder, length=length),
    )


def estimate(model: Model, work: Workload, machine: Machine) -> Estimate:
    """What a run needs."""
    parameters, per_token = model.parameters, model.flops_per_token
    tokens = work.steps * work.batch_size * work.length * work.fill
    seconds = tokens * per_token / machine.speed
    total = sum(parameters.values())
    hours = seconds / 3600 * machine.devices
    return Estimate(
        parameters=parameters,
        steps=work.steps,
        tokens=tokens,
        flops=tokens * per_token,
        paper_flops=_paper_flops(model.config, model.encoder, work),
        memory=training_memory(
            encoders_of(model.config, model.encoder),
            parameters=total,
            rows=work.rows_at_once,
            length=work.length,
            mask_prob=model.config.masking.mask_prob,
            number_size=4 if machine.format == "fp32" else 2,
            attention=machine.attention,
            recomputes_layers=work.recomputes_layers,
        ),
        tokens_per_second=machine.speed / per_token,
        seconds=seconds,
        cost=None if machine.price is None else hours * machine.price,
        disk=_CHECKPOINT_BYTES_PER_WEIGHT * total * work.checkpoints,
    )


def encoders_of(config: PretrainConfig, encoder: EncoderConfig) -> list[EncoderConfig]:
    """The encoders that an objective trains at the same time."""
    if config.objective == "mlm" or config.generator.kind in ("uniform", "unigram"):
        return [encoder]
    generator = generator_config(encoder, width=config.generator.width, depth=config.generator.depth)
    return [encoder, *[generator] * (2 if config.generator.kind == "two_tower" else 1)]


def count_parameters(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> dict[str, int]:
    """The weights of each part of the objective, without making them."""
    special = range(min(4, encoder.vocab_size))
    with torch.device("meta"):
        counts_V = torch.ones(encoder.vocab_size)
    tokens = TokenFacts(
        vocab_size=encoder.vocab_size, mask_id=special[-1], special_ids=special, counts_V=counts_V
    )
    masker = Masker(
        config.masking,
        seq_length=length,
        vocab_size=encoder.vocab_size,
        mask_id=special[-1],
        never_chosen=special,
        continues_word_V=torch.zeros(encoder.vocab_size, dtype=torch.bool),
    )
    with torch.device("meta"):
        return parameters_by_part(OBJECTIVES[config.objective](config, encoder, masker, tokens))


def _paper_flops(config: PretrainConfig, encoder: EncoderConfig, work: Workload) -> float | None:
    masked = config.masking.mask_prob
    shapes = [
        flops.shape_of(part, length=work.length, predicted=masked) for part in encoders_of(config, encoder)
    ]
    if config.objective == "mlm":
        return flops.training_flops(
            shapes[0], flops.vocabulary_flops, batch=work.batch_size, steps=work.steps
        )
    if config.objective in ("electra", "electra_15", "adversarial") and config.generator.kind == "mlm":
        return flops.electra_flops(shapes[0], shapes[1], batch=work.batch_size, steps=work.steps)
    return None
