"""Sizes and a batch -> bytes of memory that a training step needs, before anything runs.

On a CPU the count of activations is exact (a test holds it against what torch keeps); for GPUs it is derived
from the same graph with fused attention, whose map is never stored, and layer norms in float32.

T tokens of a batch, each of L in its row; numbers in a hidden state D, the feed-forward layer F; H heads.
"""

from dataclasses import dataclass
from typing import Literal

from electra.model.heads import LOGITS_PER_CHUNK
from electra.model.sizes import EncoderConfig

Attention = Literal["plain", "fused"]

_FLOAT = 4
_NORM_STATISTICS = 2 * 2 * _FLOAT
"""Mean and scale of a token in the two norms of a layer."""
_BYTES_PER_LOGIT = 16
"""Probabilities that are kept, and what loss, entropy, sample and gradient hold at the same time."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What a forward pass keeps for its backward pass, for the rows worked on at once."""
    logits: int
    """Of the generator over the vocabulary, for a chunk of masked positions."""

    @property
    def total(self) -> int:
        """At the peak, when the backward pass begins."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def activation_bytes(
    config: EncoderConfig,
    *,
    rows: int,
    length: int,
    number_size: int,
    attention: Attention,
    recomputes_layers: bool = False,
) -> int:
    """What an encoder keeps of a batch, with numbers of `number_size` bytes in matrix products."""
    layer = _layer_bytes_per_token(config, length=length, number_size=number_size, attention=attention)
    layers = config.num_hidden_layers * layer
    if recomputes_layers:
        # What enters each layer, and all that is kept of the one whose turn it is.
        layers = config.num_hidden_layers * config.hidden_size * _FLOAT + layer
    return rows * length * (layers + _embedding_bytes_per_token(config, number_size))


def _layer_bytes_per_token(
    config: EncoderConfig, *, length: int, number_size: int, attention: Attention
) -> int:
    hidden, heads = config.hidden_size, config.num_attention_heads
    drops, drops_map = config.hidden_dropout_prob > 0, config.attention_probs_dropout_prob > 0
    inner = 2 * config.intermediate_size  # before and after gelu
    if attention == "plain":
        # Input, query, key, value, mixed values, input of the feed-forward layer, inputs of two norms; masks.
        wide = 8 * hidden + 2 * drops * hidden
        maps = (1 + 2 * drops_map) * heads * length
        return number_size * (wide + inner + maps) + _NORM_STATISTICS
    # The input for each projection, query, key, value, mixed values twice, input of the feed-forward layer.
    wide = 9 * hidden
    norms = 2 * hidden * _FLOAT + _NORM_STATISTICS
    masks = 2 * drops * hidden
    return number_size * (wide + inner) + norms + masks + heads * _FLOAT


def _embedding_bytes_per_token(config: EncoderConfig, number_size: int) -> int:
    """Token id, norm and its input, dropout mask, input of the projection."""
    drops = config.hidden_dropout_prob > 0
    projected = number_size if config.embedding_size != config.hidden_size and number_size < _FLOAT else 0
    return 8 + 2 * _FLOAT + config.embedding_size * (_FLOAT * (1 + drops) + projected)


def cast_bytes(config: EncoderConfig, *, number_size: int) -> int:
    """Copies of an encoder's matrices, joined or in the precision of the products."""
    hidden = config.hidden_size
    if number_size == _FLOAT:
        # Query, key and value are one product.
        return _FLOAT * config.num_hidden_layers * 3 * hidden * hidden
    layer = 4 * hidden * hidden + 2 * hidden * config.intermediate_size
    projection = config.embedding_size * hidden if config.embedding_size != hidden else 0
    return number_size * (config.num_hidden_layers * layer + projection)


def logits_bytes(*, masked: int, vocab_size: int) -> int:
    """The generator's logits at the masked positions, of which a bounded number is held at a time."""
    return _BYTES_PER_LOGIT * min(masked * vocab_size, LOGITS_PER_CHUNK)


def training_memory(
    encoders: list[EncoderConfig],
    *,
    parameters: int,
    rows: int,
    length: int,
    mask_prob: float,
    number_size: int,
    attention: Attention,
    recomputes_layers: bool = False,
) -> Memory:
    """A step of all encoders with Adam on `rows` rows at once; weights, gradients, optimizer in float32."""
    kept = sum(
        activation_bytes(
            encoder,
            rows=rows,
            length=length,
            number_size=number_size,
            attention=attention,
            recomputes_layers=recomputes_layers,
        )
        + cast_bytes(encoder, number_size=number_size)
        for encoder in encoders
    )
    return Memory(
        weights=_FLOAT * parameters,
        gradients=_FLOAT * parameters,
        optimizer=2 * _FLOAT * parameters,
        activations=kept,
        logits=logits_bytes(masked=round(mask_prob * rows * length), vocab_size=encoders[0].vocab_size),
    )
