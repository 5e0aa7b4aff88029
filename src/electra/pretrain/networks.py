"""Sizes and a named way of sharing -> a generator and a discriminator.

V tokens, C positions of a chunk.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from electra.errors import InputError
from electra.model.encoder import Embeddings, Encoder
from electra.model.heads import LOGITS_PER_CHUNK, GeneratorHead
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretrain.config import GeneratorConfig
from electra.pretrain.inputs import TokenFacts
from electra.pretrain.sampling import Unigram
from electra.pretrain.towers import TwoTowers


class FixedGenerator(nn.Module):
    """A generator without context and without weights: the same distribution at each position."""

    def __init__(self, unigram: Unigram) -> None:
        super().__init__()
        self.log_probs_V: Tensor
        # Finite, so that losses and entropies are: exp(-10,000) is 0 as well. No part of a checkpoint: the
        # distribution follows from the corpus.
        self.register_buffer("log_probs_V", unigram.logits(1)[0].clamp(min=-1e4), persistent=False)

    def reduce(self, function: Callable[..., tuple[Tensor, ...]], *columns_P: Tensor) -> tuple[Tensor, ...]:
        """`function(logits_CV, *columns_C)` chunk by chunk, as `GeneratorHead.reduce` does."""
        chunk_size = max(1, LOGITS_PER_CHUNK // len(self.log_probs_V))
        results = []
        for first in range(0, max(1, len(columns_P[0])), chunk_size):
            columns_C = [column_P[first : first + chunk_size] for column_P in columns_P]
            results.append(function(self.log_probs_V.expand(len(columns_C[0]), -1), *columns_C))
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


Generator = Encoder | TwoTowers | FixedGenerator


class Networks(NamedTuple):
    """The networks of an objective; the generator has a head unless it is fixed."""

    generator: Generator
    generator_head: GeneratorHead | None
    discriminator: Encoder


def build_networks(config: GeneratorConfig, encoder: EncoderConfig, tokens: TokenFacts) -> Networks:
    """Generator and discriminator, with the weights shared that the config names."""
    if config.kind in ("uniform", "unigram"):
        return Networks(_fixed_generator(config, tokens), None, Encoder(encoder))
    if config.sharing == "all":
        both = Encoder(encoder)
        return Networks(both, GeneratorHead(encoder), both)
    size = generator_config(encoder, width=config.width, depth=config.depth)
    generator: Encoder | TwoTowers = Encoder(size)
    if config.kind == "two_tower":
        generator = TwoTowers(size)
        size = dataclasses.replace(size, hidden_size=2 * size.hidden_size)
    return Networks(generator, GeneratorHead(size), _discriminator(config, encoder, generator.embeddings))


def _fixed_generator(config: GeneratorConfig, tokens: TokenFacts) -> FixedGenerator:
    if config.kind == "uniform":
        return FixedGenerator(Unigram.uniform(tokens.vocab_size))
    if tokens.counts_V is None:
        raise InputError(
            "generator.kind is unigram, but the data set has no token counts: prepare it anew, or use uniform"
        )
    return FixedGenerator(Unigram(tokens.counts_V))


def _discriminator(config: GeneratorConfig, encoder: EncoderConfig, embeddings: Embeddings) -> Encoder:
    match config.sharing:
        case "embeddings":
            return Encoder(encoder, embeddings=embeddings)
        case "disentangled":
            discriminator = Encoder(encoder)
            disentangle(discriminator.embeddings, embeddings)
            return discriminator
    return Encoder(encoder)


class PlusDelta(nn.Module):
    """A table as another table, which gets no gradient from here, plus a delta that is learned."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        assert isinstance(base, nn.Embedding)
        # In a tuple the table stays the generator's own: it is no parameter of the discriminator.
        self._base = (base,)

    def forward(self, delta: Tensor) -> Tensor:
        """The whole table."""
        return self._base[0].weight.detach() + delta


def disentangle(embeddings: Embeddings, base: Embeddings) -> None:
    """Make the tables the base's plus deltas that start at zero (DeBERTaV3); the norm stays their own."""
    for name, table in embeddings.named_children():
        if isinstance(table, nn.Embedding):
            nn.init.zeros_(table.weight)
            parametrize.register_parametrization(table, "weight", PlusDelta(base.get_submodule(name)))


def plain_tables(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module in which tables are tables again, whatever they were made of."""
    state = module.state_dict()
    for name, part in module.named_modules():
        if parametrize.is_parametrized(part):
            del state[f"{name}.parametrizations.weight.original"]
            state[f"{name}.weight"] = part.weight.detach()
    return state
