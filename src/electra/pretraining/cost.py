"""A pre-training config, a batch and a machine -> parameters, FLOPs, memory, disk, time and cost of the run.

Nothing is trained for it: modules are built on `meta`, where they have shapes and no numbers.
"""

import dataclasses
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from electra.model import cost
from electra.model.cost import Attention, Memory, training_memory
from electra.model.encoder import Embeddings, Encoder, Layer, ModernLayer
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.names import is_layer_matrix
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretraining.communication import NONE, Communication, Link, Weights, communication
from electra.pretraining.config import UNTRAINED, PretrainConfig
from electra.pretraining.masking import Masker, TokenFacts
from electra.pretraining.ngrams import NgramIndex
from electra.pretraining.objectives import OBJECTIVES
from electra.pretraining.objectives.protocol import Objective
from electra.train.distributed import Parallel
from electra.train.optim import OptimizerName

_ROWS = 4


def flops_per_token(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> float:
    """Matrix products of forward and backward pass, as torch counts them, in rows of `length` tokens.

    A second pass for sampling without dropout, and what adversarial and electric compute twice, is left out.
    That of replaced_span is the most that it can be: as if no token were the first of its span.
    """
    masked = config.masking.mask_prob
    if config.objective == "mlm":
        return _encoder(encoder, length) + masked * _vocabulary(encoder)
    total = _encoder(encoder, length)
    if config.objective == "negative_sampling":
        # A product of two vectors for each candidate, and two for their gradients.
        return total + masked * (1 + config.negative_sampling.negatives) * 3 * 2 * encoder.hidden_size
    if config.objective == "single_pass":
        named = masked
        if config.correction == "proposed":
            named += (1 - masked) * config.single_pass.replace_prob
        return total + _detection(encoder) + named * _vocabulary(encoder)
    if config.objective not in ("replace_mlm", "all_tokens_mlm"):
        total += _detection(encoder)
    if config.objective == "replace_mlm" or config.correction == "proposed":
        total += masked * _vocabulary(encoder)
    if config.objective == "all_tokens_mlm":
        total += _vocabulary(encoder)
    if config.generator.kind in UNTRAINED:
        return total
    generator = generator_config(encoder, width=config.generator.width, depth=config.generator.depth)
    towers = 2 if config.generator.kind == "two_tower" else 1
    predicted = 1.0 if config.objective == "electric" else masked
    total += towers * _encoder(generator, length) + predicted * _vocabulary(generator)
    if config.objective == "replaced_span" and config.replaced_span.max_tokens > 1:
        total += masked * _spans(config, generator, length)
    return total


def _spans(config: PretrainConfig, generator: EncoderConfig, length: int) -> float:
    """What rewriting spans takes for each masked token."""
    read, written = 1.0, 1.0
    if config.replaced_span.length == "own":
        # As if each word were one token: with the sign of the end, and for as long as the longest span.
        spans = 1 / config.masking.mean_span_words
        read, written = 1 + spans, spans * config.replaced_span.max_tokens
    # Read forward and backward, written forward: a third of a step.
    states = (read + written / 3) * _encoder(generator, length)
    return states + (read - 1 + written / 3) * _vocabulary(generator)


def _encoder(config: EncoderConfig, length: int) -> float:
    if config.is_bag:
        return _counted(config, length) / (_ROWS * length)
    # All layers that see as much are alike: encoders of few layers tell of any number, in less time.
    one, two, with_local = (
        _counted(dataclasses.replace(config, num_hidden_layers=layers, global_attention_every=every), length)
        for layers, every in ((1, 1), (2, 1), (2, config.global_attention_every))
    )
    reaches = [config.attention_reach(number) for number in range(config.num_hidden_layers)]
    num_local = len(reaches) - reaches.count(None)
    num_global = len(reaches) - num_local
    total = one + (num_global - 1) * (two - one) + num_local * (with_local - one)
    return total / (_ROWS * length)


def _counted(config: EncoderConfig, length: int) -> int:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Encoder(config).eval()(torch.zeros(_ROWS, length, dtype=torch.long)).sum().backward()
    return int(counter.get_total_flops())


def _vocabulary(config: EncoderConfig) -> float:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        table = torch.empty(config.vocab_size, config.embedding_size, requires_grad=True)
        hidden = torch.empty(_ROWS, config.hidden_size, requires_grad=True)
        GeneratorHead(config)(hidden, table).sum().backward()
    return float(counter.get_total_flops()) / _ROWS


def _detection(config: EncoderConfig) -> float:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        hidden = torch.empty(1, _ROWS, config.hidden_size, requires_grad=True)
        DiscriminatorHead(config)(hidden).sum().backward()
    return float(counter.get_total_flops()) / _ROWS


def parameters_by_part(objective: nn.Module) -> dict[str, int]:
    """How many weights each part of an objective has; what is shared counts where it comes first."""
    counts: dict[str, int] = {}
    for name, weight in objective.named_parameters():
        part = name.partition(".")[0]
        counts[part] = counts.get(part, 0) + weight.numel()
    return counts


def weights_by_place(objective: nn.Module) -> Weights:
    """How many weights are in layers, in embeddings and elsewhere."""
    layers = [part for part in objective.modules() if isinstance(part, Layer | ModernLayer)]
    tables = [part for part in objective.modules() if isinstance(part, Embeddings)]
    inside, embeddings = (
        # Networks may share them.
        sum(weight.numel() for weight in {weight for part in parts for weight in part.parameters()})
        for parts in (layers, tables)
    )
    total = sum(weight.numel() for weight in objective.parameters())
    return Weights(
        layers=inside, num_layers=len(layers), embeddings=embeddings, rest=total - inside - embeddings
    )


def with_one_moment(objective: nn.Module, optimizer: OptimizerName) -> int:
    """Of how many weights the optimizer keeps one moment: Muon of the layers' matrices, Adam of none."""
    named = objective.named_parameters() if optimizer == "muon" else []
    return sum(weight.numel() for name, weight in named if is_layer_matrix(name))


def needs(
    objective: nn.Module,
    *,
    flops_per_token: float,
    tokens_per_step: int,
    kept_bytes: float,
    num_checkpoints: int,
    optimizer: OptimizerName = "adam_as_google",
) -> dict[str, str]:
    """What a run needs of a machine, in words; `kept_bytes`: what a forward pass keeps for the backward."""
    weights = parameters_by_part(objective)
    total = sum(weights.values())
    parts = ", ".join(f"{part} {count:,}" for part, count in weights.items())
    # In fp32: weight, gradient and moments.
    kept_on_disk = 4 * (3 * total - with_one_moment(objective, optimizer))
    fixed_bytes = kept_on_disk + 4 * total
    return {
        "parameters": f"{total:,} ({parts})",
        "FLOPs": f"{flops_per_token:.3g} a token, {tokens_per_step * flops_per_token:.3g} a step",
        "memory": f"{(fixed_bytes + kept_bytes) / 1e9:.2f} GB: {fixed_bytes / 1e9:.2f} for weights, "
        f"gradients and optimizer, {kept_bytes / 1e9:.2f} for the rows worked on at once",
        "disk": f"{kept_on_disk * num_checkpoints / 1e9:.2f} GB for {num_checkpoints} checkpoints",
    }


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
    nodes: int = 1
    devices: int = 1
    """Of all nodes together."""
    link: Link | None = None
    """What joins the devices; None for a single one."""
    overlaps: bool = True
    """Whether a device computes while it sends."""
    attention: Attention = "fused"

    @property
    def speed(self) -> float:
        """FLOP/s of one device while it trains."""
        return self.peak * self.achievable


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
    optimizer: OptimizerName = "adam_as_google"
    parallel: Parallel = "ddp"

    def micro_batches(self, devices: int) -> int:
        """How many a device computes one after the other in a step."""
        return -(-self.batch_size // (devices * self.rows_at_once))


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
    computing: float
    """Seconds that a device computes in a step."""
    communication: Communication
    """Of a step."""
    tokens_per_second: float
    seconds: float
    cost: float | None
    disk: float
    """Bytes of checkpoints."""


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """What is trained, counted once for all estimates of it."""

    config: PretrainConfig
    encoder: EncoderConfig
    parameters: dict[str, int]
    weights: Weights
    """The same, by when their gradients are sent."""
    matrices: int
    """Weights in the layers' matrices, of which Muon keeps one moment."""
    flops_per_token: float


@cache
def count_model(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> ModelCost:
    """Count the weights and the matrix products of a token: seconds for a large model."""
    objective = _without_weights(config, encoder, length=length)
    return ModelCost(
        config=config,
        encoder=encoder,
        parameters=parameters_by_part(objective),
        weights=weights_by_place(objective),
        matrices=with_one_moment(objective, "muon"),
        flops_per_token=flops_per_token(config, encoder, length=length),
    )


def estimate(model: ModelCost, work: Workload, machine: Machine) -> Estimate:
    """What a run needs."""
    parameters, per_token = model.parameters, model.flops_per_token
    tokens_per_step = work.batch_size * work.length * work.fill
    tokens = work.steps * tokens_per_step
    computing = tokens_per_step * per_token / (machine.speed * machine.devices)
    sending = communication_of(model, work, machine, computing=computing)
    step_seconds = computing + sending.waited
    seconds = work.steps * step_seconds
    total = sum(parameters.values())
    with_one_moment = model.matrices if work.optimizer == "muon" else 0
    hours = seconds / 3600 * machine.devices
    return Estimate(
        parameters=parameters,
        steps=work.steps,
        tokens=tokens,
        flops=tokens * per_token,
        paper_flops=_paper_flops(model.config, model.encoder, work),
        memory=memory_of(model, work, machine),
        computing=computing,
        communication=sending,
        tokens_per_second=tokens_per_step / step_seconds,
        seconds=seconds,
        cost=None if machine.price is None else hours * machine.price,
        # Weights and moments, in float32.
        disk=4 * (3 * total - with_one_moment) * work.checkpoints,
    )


def communication_of(
    model: ModelCost, work: Workload, machine: Machine, *, computing: float
) -> Communication:
    """What a device sends in a step, in which it computes for so many seconds."""
    if machine.link is None:
        return NONE
    return communication(
        model.weights,
        devices=machine.devices,
        link=machine.link,
        parallel=work.parallel,
        computing=computing,
        micro_batches=work.micro_batches(machine.devices),
        overlaps=machine.overlaps,
    )


def memory_of(model: ModelCost, work: Workload, machine: Machine) -> Memory:
    """Of one device; with fsdp it holds its share of what is kept, and all that is gathered is left out."""
    total = sum(model.parameters.values())
    memory = training_memory(
        encoders_of(model.config, model.encoder),
        parameters=total,
        rows=work.rows_at_once,
        length=work.length,
        mask_prob=model.config.masking.mask_prob,
        number_size=4 if machine.format == "fp32" else 2,
        attention=machine.attention,
        recomputes_layers=work.recomputes_layers,
        with_one_moment=model.matrices if work.optimizer == "muon" else 0,
    )
    if work.parallel == "ddp" or machine.devices == 1:
        return memory
    # Gradients are added up whole until the last micro-batch scatters them.
    is_whole = work.micro_batches(machine.devices) > 1
    return dataclasses.replace(
        memory,
        weights=memory.weights // machine.devices,
        gradients=memory.gradients // (1 if is_whole else machine.devices),
        optimizer=memory.optimizer // machine.devices,
    )


def encoders_of(config: PretrainConfig, encoder: EncoderConfig) -> list[EncoderConfig]:
    """The encoders that an objective trains at the same time."""
    if config.objective == "mlm" or config.generator.kind in UNTRAINED:
        return [encoder]
    generator = generator_config(encoder, width=config.generator.width, depth=config.generator.depth)
    return [encoder, *[generator] * (2 if config.generator.kind == "two_tower" else 1)]


def count_parameters(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> dict[str, int]:
    """The weights of each part of the objective, without making them."""
    return parameters_by_part(_without_weights(config, encoder, length=length))


def count_weights(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> Weights:
    """The same by where they are."""
    return weights_by_place(_without_weights(config, encoder, length=length))


def _without_weights(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> Objective:
    special = range(min(4, encoder.vocab_size))
    tokens = TokenFacts(
        vocab_size=encoder.vocab_size,
        mask_id=special[-1],
        special_ids=special,
        sep_id=special[0],
        counts_V=torch.ones(encoder.vocab_size),
        ngrams=NgramIndex.empty(encoder.vocab_size),
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
        return OBJECTIVES[config.objective](config, encoder, masker, tokens)


def _paper_flops(config: PretrainConfig, encoder: EncoderConfig, work: Workload) -> float | None:
    masked = config.masking.mask_prob
    shapes = [
        cost.shape_of(part, length=work.length, predicted=masked) for part in encoders_of(config, encoder)
    ]
    if config.objective == "mlm":
        return cost.training_flops(shapes[0], cost.vocabulary_flops, batch=work.batch_size, steps=work.steps)
    if config.objective in ("electra", "electra_15", "adversarial") and config.generator.kind == "mlm":
        return cost.electra_flops(shapes[0], shapes[1], batch=work.batch_size, steps=work.steps)
    return None
