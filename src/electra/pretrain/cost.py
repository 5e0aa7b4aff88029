"""Sizes and an objective -> FLOPs of a token in training, and parameters, before anything runs."""

import dataclasses

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretrain.config import PretrainConfig

_ROWS = 4


def flops_per_token(config: PretrainConfig, encoder: EncoderConfig, *, length: int) -> float:
    """Matrix products of forward and backward pass, as torch counts them, in rows of `length` tokens.

    A second pass for sampling without dropout, and what adversarial and electric compute twice, is left out.
    """
    masked = config.masking.mask_prob
    if config.objective == "mlm":
        return _encoder(encoder, length) + masked * _vocabulary(encoder)
    total = _encoder(encoder, length)
    if config.objective not in ("replace_mlm", "all_tokens_mlm"):
        total += _detection(encoder)
    if config.objective == "replace_mlm":
        total += masked * _vocabulary(encoder)
    if config.objective == "all_tokens_mlm":
        total += _vocabulary(encoder)
    if config.generator.kind in ("uniform", "unigram"):
        return total
    generator = generator_config(encoder, width=config.generator.width, depth=config.generator.depth)
    towers = 2 if config.generator.kind == "two_tower" else 1
    predicted = 1.0 if config.objective == "electric" else masked
    return total + towers * _encoder(generator, length) + predicted * _vocabulary(generator)


def _encoder(config: EncoderConfig, length: int) -> float:
    # All layers are alike: two encoders of few layers tell of any number, in less time.
    one, two = (_counted(dataclasses.replace(config, num_hidden_layers=layers), length) for layers in (1, 2))
    return (one + (config.num_hidden_layers - 1) * (two - one)) / (_ROWS * length)


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


def needs(
    objective: nn.Module,
    *,
    flops_per_token: float,
    tokens_per_step: int,
    kept_bytes: float,
    num_checkpoints: int,
) -> dict[str, str]:
    """What a run needs of a machine, in words; `kept_bytes`: what a forward pass keeps for the backward."""
    weights = parameters_by_part(objective)
    total = sum(weights.values())
    parts = ", ".join(f"{part} {count:,}" for part, count in weights.items())
    # In fp32: weight, gradient and two moments.
    fixed_bytes = 16 * total
    return {
        "parameters": f"{total:,} ({parts})",
        "FLOPs": f"{flops_per_token:.3g} a token, {tokens_per_step * flops_per_token:.3g} a step",
        "memory": f"{(fixed_bytes + kept_bytes) / 1e9:.2f} GB: {fixed_bytes / 1e9:.2f} for weights, "
        f"gradients and optimizer, {kept_bytes / 1e9:.2f} for the rows worked on at once",
        "disk": f"{12 * total * num_checkpoints / 1e9:.2f} GB for {num_checkpoints} checkpoints",
    }
