"""Sizes and a named way of sharing -> a generator and a discriminator, and the first biases of their heads.

Generators, from the cheapest: proposals without a network (`FixedGenerator`, `HostGenerator`), a small
encoder, and the two towers of Electric. A tower reads from the left or from the right; position t gets the
left one's state at t - 1 and the right one's at t + 1, so that a single pass gives the distribution of every
token given all the others.

Biases that start at frequencies (`start_at_frequencies`) know from the start what needs no context. Adam
moves a bias by about the learning rate in a step, and frequencies lie up to ten apart in logarithms: where
biases begin at zero, the hidden states carry for a long time what is the same at every position.

B rows, L positions, C positions of a chunk, V tokens of the vocabulary, D numbers in a hidden state of one
tower.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from electra.errors import InputError
from electra.model.encoder import AttentionInputs, Embeddings, Encoder
from electra.model.heads import LOGITS_PER_CHUNK, DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig, generator_config
from electra.pretraining.config import UNTRAINED, GeneratorConfig, PretrainConfig
from electra.pretraining.masking import TokenFacts
from electra.pretraining.ngrams import Leaving, NgramIndex, frequency_index
from electra.pretraining.sampling import Unigram, draw_alike

JUDGE_EVERY_POSITION = ("electra", "two_stage", "adversarial", "single_pass", "replaced_span")
"""Objectives whose discriminator does, at least where nothing is masked. The gate of all_tokens_mlm and the
energy of electric are others."""


def start_at_frequencies(objective: nn.Module, config: PretrainConfig, tokens: TokenFacts) -> None:
    """Set the biases of the heads that name tokens, and of the one that judges every position."""
    bias_V, mask_prob = log_frequencies(tokens), config.masking.mask_prob
    with torch.no_grad():
        for part in objective.modules():
            if isinstance(part, GeneratorHead):
                part.bias.copy_(bias_V)
                if config.objective == "replaced_span" and config.replaced_span.length == "own":
                    # It is in no span of the corpus, and ends each: as frequent as the most frequent token.
                    part.bias[tokens.sep_id] = bias_V.max()
            if isinstance(part, DiscriminatorHead) and config.objective in JUDGE_EVERY_POSITION:
                # Almost all that is masked is replaced, while the generator draws by frequency alone.
                single = config.objective == "single_pass"
                replaced = config.single_pass.replace_prob if single else mask_prob
                part.output.bias.fill_(math.log(replaced / (1 - replaced)))


def log_frequencies(tokens: TokenFacts) -> Tensor:
    """Logarithms of the shares of tokens in the corpus; of those that never stand at a mask the lowest."""
    if tokens.counts_V is None:
        raise InputError(
            "output_bias is frequencies, and the data has no token_counts.npy: prepare it again, or take zero"
        )
    counts_V = tokens.counts_V.double().masked_fill(tokens.special_mask, 0.0) + 1
    return (counts_V / counts_V.sum()).log()


class Tower(Encoder):
    """An encoder whose positions see themselves and the tokens on one side."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        side: Literal["left", "right"],
        embeddings: Embeddings | None = None,
    ) -> None:
        super().__init__(config, embeddings=embeddings)
        self.side = side

    def attention_inputs(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> AttentionInputs:
        """Padding, positions, and nothing from the other side."""
        inputs = super().attention_inputs(hidden_BLD, attention_mask_BL)
        length, dtype = hidden_BLD.shape[1], self.attention_dtype(hidden_BLD)
        position_L = torch.arange(length, device=hidden_BLD.device)
        distance_LL = position_L[:, None] - position_L
        unseen_LL = distance_LL < 0 if self.side == "left" else distance_LL > 0
        bias = torch.zeros((), dtype=dtype, device=hidden_BLD.device) if inputs.bias is None else inputs.bias
        # As low as for padding: finite, so that a position that sees nothing gives no NaN.
        bias = bias.masked_fill(unseen_LL, torch.finfo(dtype).min / 2)
        return inputs._replace(bias=bias, bias_is_padding=False)


class TwoTowers(nn.Module):
    """A tower for each side, over one set of embeddings."""

    def __init__(self, config: EncoderConfig, *, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.left = Tower(config, side="left", embeddings=embeddings)
        self.right = Tower(config, side="right", embeddings=self.left.embeddings)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of both towers."""
        return self.left.embeddings

    def forward(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
        text_T: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, 2 D) that do not depend on the token of their own position."""
        left_BLD, right_BLD = (
            tower(
                input_ids_BL,
                token_type_ids_BL=token_type_ids_BL,
                attention_mask_BL=attention_mask_BL,
                text_T=text_T,
            )
            for tower in (self.left, self.right)
        )
        if attention_mask_BL is not None:
            # A row's last token has nothing on its right, as if the row filled the batch.
            right_BLD = right_BLD * attention_mask_BL[..., None]
        # The original wraps round at the ends, where a position would see itself: there is nothing here.
        before_BLD = functional.pad(left_BLD[:, :-1], (0, 0, 1, 0))
        after_BLD = functional.pad(right_BLD[:, 1:], (0, 0, 0, 1))
        return torch.cat([before_BLD, after_BLD], dim=-1)


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

    @torch.no_grad()
    def draw(self, uniform_PN: Tensor, original_P: Tensor, config: GeneratorConfig) -> Tensor:
        """Several tokens for each position (P, N), one for each number."""
        return draw_alike(
            torch.softmax(self.log_probs_V.double() / config.temperature, 0),
            uniform_PN,
            forbidden_P=original_P if config.correct_token == "forbidden" else None,
        )


class HostGenerator(nn.Module):
    """A generator without weights that proposes tokens on the host, where rows are masked."""

    def __init__(self, index: NgramIndex, *, nothing: int, leaving: Leaving) -> None:
        """`nothing`: an id that no row has, such as that of [MASK]."""
        super().__init__()
        self.index, self.nothing, self.leaving = index, nothing, leaving

    @torch.no_grad()
    def propose(self, input_ids_BL: Tensor, positions_P: Tensor, uniform_P: Tensor) -> Tensor:
        """A token for each of some positions in `input_ids_BL.flatten()`."""
        proposed_P = self.index.propose(
            input_ids_BL.numpy(),
            positions_P.numpy(),
            uniform_P.numpy(),
            nothing=self.nothing,
            leaving=self.leaving,
        )
        return torch.from_numpy(proposed_P)


def host_generator(config: GeneratorConfig, tokens: TokenFacts) -> HostGenerator:
    """A generator of a kind that has no network, for rows on the host. It never proposes special tokens."""
    config.require_plain_draws()
    index = tokens.ngrams
    match config.kind:
        case "uniform":
            index = frequency_index(np.ones(tokens.vocab_size, np.int64), special_ids=tokens.special_ids)
        case "unigram":
            index = frequency_index(_counts(tokens).numpy(), special_ids=tokens.special_ids)
    if index is None:
        raise InputError("generator.kind is ngram, but there is no index of the corpus: give --data")
    # In a training row one place of the token is the one that is asked about.
    leaving: Leaving = "one" if config.kind == "ngram" else "nothing"
    return HostGenerator(
        index, nothing=tokens.mask_id, leaving="all" if config.correct_token == "forbidden" else leaving
    )


Generator = Encoder | TwoTowers | FixedGenerator | HostGenerator


class Networks(NamedTuple):
    """The networks of an objective; the generator has a head if it learns."""

    generator: Generator
    generator_head: GeneratorHead | None
    discriminator: Encoder


def build_networks(
    config: GeneratorConfig,
    encoder: EncoderConfig,
    tokens: TokenFacts,
    *,
    make_generator: Callable[[EncoderConfig], Encoder] = Encoder,
) -> Networks:
    """Generator and discriminator, with the weights shared that the config names."""
    if config.kind == "ngram":
        return Networks(host_generator(config, tokens), None, Encoder(encoder))
    if config.kind in UNTRAINED:
        return Networks(_fixed_generator(config, tokens), None, Encoder(encoder))
    if config.sharing == "all":
        both = make_generator(encoder)
        return Networks(both, GeneratorHead(encoder), both)
    size = generator_config(encoder, width=config.width, depth=config.depth)
    generator: Encoder | TwoTowers = make_generator(size)
    if config.kind == "two_tower":
        generator = TwoTowers(size)
        size = dataclasses.replace(size, hidden_size=2 * size.hidden_size)
    return Networks(generator, GeneratorHead(size), _discriminator(config, encoder, generator.embeddings))


def _fixed_generator(config: GeneratorConfig, tokens: TokenFacts) -> FixedGenerator:
    if config.kind == "uniform":
        return FixedGenerator(Unigram.uniform(tokens.vocab_size))
    return FixedGenerator(Unigram(_counts(tokens)))


def _counts(tokens: TokenFacts) -> Tensor:
    if tokens.counts_V is None:
        raise InputError(
            "generator.kind is unigram, but the data set has no token counts: prepare it anew, or use uniform"
        )
    return tokens.counts_V


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
