"""Sizes of an encoder and of a batch -> FLOPs by the paper's accounting, and bytes of memory for a step.

The paper counts every elementary operation, a matrix product as two for each weight and an embedding look-up
as a product with a one-hot vector, and takes a backward pass to cost as much as a forward pass (it costs
twice). For the FLOPs that torch counts see `pretraining.cost`.

On a CPU the memory of activations is exact: a test compares it with what torch keeps. For GPUs it is derived
from the same graph with fused attention, whose map is never stored, and with layer norms in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from electra.model.heads import LOGITS_PER_CHUNK
from electra.model.sizes import EncoderConfig

# Operations for each number, as the paper counts them.
DROPOUT = 4
NORM = 5
GELU = 8
SOFTMAX = 5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that the paper's count depends on; defaults are BERT's."""

    hidden: int
    layers: int
    length: int = 512
    vocab: int = 30522
    embedding: int | None = None
    """Width of the embeddings; None: as wide as the hidden states."""
    intermediate: int | None = None
    """Width of the feed-forward layer; None: four times the hidden size."""
    heads: int | None = None
    """Number of attention heads; None: of 64 numbers each."""
    predicted: float = 0.15625
    """Fraction of positions at which a token is predicted."""
    matrices: int = 2
    """Of the feed-forward layer: 3 if it is gated."""
    seen: float | None = None
    """Positions that each one sees, the mean over layers; None: the whole sequence."""


def layer_flops(shape: Shape) -> float:
    """Forward pass of one layer over one sequence.

    What a modern one has instead of biases, rotated queries and keys and a gate, costs about as much.
    """
    hidden, length = shape.hidden, shape.seen or shape.length
    heads = shape.heads or max(hidden // 64, 1)
    inner = shape.intermediate or 4 * hidden
    attention = (
        3 * (2 * hidden * hidden + hidden)  # queries, keys and values
        + 2 * hidden * length  # scores
        + (SOFTMAX + DROPOUT + 1) * length * heads  # 1: their scale
        + 2 * hidden * length  # mixing the values
        + 2 * hidden * hidden
        + (1 + DROPOUT + 1) * hidden  # bias, residual
        + NORM  # As in the original: once, where the other norm counts for each number.
    )
    products = shape.matrices * 2 * hidden * inner
    feed_forward = products + (GELU + 1) * inner + (1 + DROPOUT + 1 + NORM) * hidden
    return shape.length * (attention + feed_forward)


def embedding_flops(shape: Shape) -> int:
    """Forward pass from token ids to the first layer."""
    embedding = shape.embedding or shape.hidden
    look_up = 2 * embedding * shape.vocab + 2 * embedding * (shape.length + 2)
    flops = look_up + (2 + NORM + DROPOUT) * embedding
    if embedding != shape.hidden:
        flops += 2 * shape.hidden * embedding + shape.hidden
    return shape.length * flops


def vocabulary_flops(shape: Shape) -> float:
    """Forward pass of the vocabulary head at the predicted positions."""
    embedding = shape.embedding or shape.hidden
    transform = 2 * shape.hidden * embedding + (1 + GELU + NORM) * embedding
    logits = 2 * embedding * shape.vocab + (SOFTMAX + 2) * shape.vocab
    return shape.predicted * (transform + logits) * shape.length


def detection_flops(shape: Shape) -> int:
    """Forward pass of the discriminator's head."""
    hidden = shape.hidden
    return shape.length * (2 * hidden * hidden + (1 + GELU) * hidden + 2 * hidden)


def training_flops(shape: Shape, head: Callable[[Shape], float], *, batch: int, steps: float) -> float:
    """Forward and backward passes of a whole training."""
    forward = shape.layers * layer_flops(shape) + embedding_flops(shape) + head(shape)
    return 2 * batch * steps * forward


def electra_flops(discriminator: Shape, generator: Shape, *, batch: int, steps: float) -> float:
    """Pre-training of both encoders."""
    return training_flops(discriminator, detection_flops, batch=batch, steps=steps) + training_flops(
        generator, vocabulary_flops, batch=batch, steps=steps
    )


def shape_of(config: EncoderConfig, *, length: int, predicted: float = 0.15625) -> Shape:
    """One of our encoders in the terms of the paper's count."""
    return Shape(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        length=length,
        vocab=config.vocab_size,
        embedding=config.embedding_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        predicted=predicted,
        matrices=3 if config.is_modern else 2,
        seen=sum(seen_positions(config, number, length) for number in range(config.num_hidden_layers))
        / config.num_hidden_layers,
    )


def seen_positions(config: EncoderConfig, number: int, length: int) -> int:
    """How many positions a layer computes scores for at each: a window is computed in three blocks."""
    reach = config.attention_reach(number)
    return length if reach is None else min(length, 3 * reach)


Attention = Literal["plain", "fused"]

_FLOAT = 4
_NORM_STATISTICS = 2 * 2 * _FLOAT
"""Mean and scale of a token in the two norms of a layer."""
_BYTES_PER_LOGIT = 16
"""The probabilities, which are kept, and what loss, entropy, sample and gradient hold at the same time."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Kept by a forward pass for its backward pass, for the rows worked on at once."""
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
    """Bytes that an encoder keeps of a batch, with numbers of `number_size` bytes in matrix products."""
    each = [
        _layer_bytes_per_token(
            config, seen=seen_positions(config, number, length), number_size=number_size, attention=attention
        )
        for number in range(config.num_hidden_layers)
    ]
    layers = sum(each)
    if recomputes_layers:
        # The input of each layer, and all that is kept of the one that is being computed.
        layers = config.num_hidden_layers * config.hidden_size * _FLOAT + max(each)
    return rows * length * (layers + _embedding_bytes_per_token(config, number_size))


def _layer_bytes_per_token(
    config: EncoderConfig, *, seen: int, number_size: int, attention: Attention
) -> int:
    if config.is_bag:
        # Where text is, and the sum of its weights.
        return 2 * _FLOAT
    if config.is_modern:
        return _modern_layer_bytes_per_token(config, seen=seen, number_size=number_size, attention=attention)
    hidden, heads = config.hidden_size, config.num_attention_heads
    drops, drops_map = config.hidden_dropout_prob > 0, config.attention_probs_dropout_prob > 0
    inner = 2 * config.intermediate_size  # before and after gelu
    if attention == "plain":
        # Input, query, key, value, mixed values, input of the feed-forward layer, inputs of two norms; masks.
        wide = 8 * hidden + 2 * drops * hidden
        maps = (1 + 2 * drops_map) * heads * seen
        return number_size * (wide + inner + maps) + _NORM_STATISTICS
    # The input for each projection, query, key, value, mixed values twice, input of the feed-forward layer.
    wide = 9 * hidden
    norms = 2 * hidden * _FLOAT + _NORM_STATISTICS
    masks = 2 * drops * hidden
    return number_size * (wide + inner) + norms + masks + heads * _FLOAT


def _modern_layer_bytes_per_token(
    config: EncoderConfig, *, seen: int, number_size: int, attention: Attention
) -> int:
    hidden, heads = config.hidden_size, config.num_attention_heads
    drops, drops_map = config.hidden_dropout_prob > 0, config.attention_probs_dropout_prob > 0
    # Layers add to what the embeddings gave them, in float32 unless a product made it narrower. The first
    # layer has one norm less, and the encoder one more after its last layer.
    is_projected = config.embedding_size != hidden
    norms = 2 * hidden * (number_size if is_projected else _FLOAT) + _NORM_STATISTICS
    # Input of the projections, query, key, value, both of them rotated, mixed values, input of the
    # feed-forward layer; the lengths of queries and keys; masks.
    wide = 8 * hidden + (config.query_key_norm == "rms") * 6 * heads + 2 * drops * hidden
    # Both halves, one of them again side by side, its gelu, and their product.
    inner = 5 * config.intermediate_size
    maps = (1 + 2 * drops_map) * heads * seen
    if attention == "fused":
        wide, maps = wide + hidden, 0
        norms += heads * _FLOAT
    return number_size * (wide + inner + maps) + norms


def _embedding_bytes_per_token(config: EncoderConfig, number_size: int) -> int:
    """Token id, norm and its input, dropout mask, input of the projection."""
    if config.is_bag:
        return 8 + config.embedding_size * _FLOAT * (config.hidden_dropout_prob > 0)
    drops = config.hidden_dropout_prob > 0
    projected = number_size if config.embedding_size != config.hidden_size and number_size < _FLOAT else 0
    return 8 + 2 * _FLOAT + config.embedding_size * (_FLOAT * (1 + drops) + projected)


def cast_bytes(config: EncoderConfig, *, number_size: int) -> int:
    """Copies of an encoder's matrices, joined or in the precision of the products."""
    if config.is_bag:
        return 0
    hidden = config.hidden_size
    if number_size == _FLOAT:
        # Query, key and value are one product.
        return _FLOAT * config.num_hidden_layers * 3 * hidden * hidden
    layer = 4 * hidden * hidden + (3 if config.is_modern else 2) * hidden * config.intermediate_size
    projection = config.embedding_size * hidden if config.embedding_size != hidden else 0
    return number_size * (config.num_hidden_layers * layer + projection)


def logits_bytes(*, masked: int, vocab_size: int) -> int:
    """The generator's logits at masked positions, of which a bounded number is held at a time."""
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
    with_one_moment: int = 0,
) -> Memory:
    """A step of all encoders on `rows` rows at once; weights, gradients, optimizer in float32.

    Adam keeps two moments of each weight; of how many Muon keeps one is `with_one_moment`.
    """
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
        optimizer=_FLOAT * (2 * parameters - with_one_moment),
        activations=kept,
        logits=logits_bytes(masked=round(mask_prob * rows * length), vocab_size=encoders[0].vocab_size),
    )
