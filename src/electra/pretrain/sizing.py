"""The name of a size -> the encoder, and the paper's values for everything that goes with the size."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from electra.errors import InputError
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, Position

Size = Literal["tiny", "small", "base", "large"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A named size, and what differs from it; a value that is not given is the size's."""

    size: Size = "small"
    """Names all values below, and batch size, steps, learning rate, warm-up, masking, generator width."""
    embedding_size: int | None = None
    """Width of the embedding tables."""
    hidden_size: int | None = None
    """Width of the hidden states."""
    num_hidden_layers: int | None = None
    """Number of transformer layers."""
    num_attention_heads: int | None = None
    """Number of attention heads."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer."""
    max_position_embeddings: int | None = None
    """Longest sequence, in tokens."""
    position_embedding_type: Position | None = None
    """How order is seen: learned table (the paper's), rotated queries and keys, or a bias to near tokens."""
    dropout: float | None = None
    """Dropout of hidden states and of attention weights."""
    initializer_range: float | None = None
    """Standard deviation of the first weights; the paper's 0.02 is little for widths far below 768."""
    layer_norm_eps: float | None = None
    """Added to the variance in every layer norm."""

    def encoder(self, *, vocab_size: int) -> EncoderConfig:
        """All sizes of the encoder."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        del given["size"]
        if (dropout := given.pop("dropout", None)) is not None:
            given |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        try:
            return EncoderConfig.preset(self.size, vocab_size=vocab_size, **given)
        except InputError as error:
            raise InputError(f"model: {error}") from error


# The paper's table; tiny is for tests and first steps. Warm-up is a fraction, so that it fits other budgets:
# at the paper's number of steps it is the paper's 10,000 steps.
_COLUMNS = ("train.learning_rate", "train.batch_size", "train.steps", "masking.mask_prob")
_PAPER: dict[Size, tuple[float, ...]] = {
    "tiny": (1e-3, 64, 10_000, 0.15),
    "small": (5e-4, 128, 1_000_000, 0.15),
    "base": (2e-4, 256, 766_000, 0.15),
    "large": (2e-4, 2048, 400_000, 0.25),
}
_WARMUP_STEPS: dict[Size, int] = {"tiny": 500, "small": 10_000, "base": 10_000, "large": 10_000}


def paper_values(size: Size) -> dict[str, float]:
    """Dotted key -> the value that the paper gives with this size."""
    values = dict(zip(_COLUMNS, _PAPER[size], strict=True))
    return {
        **values,
        "train.warmup_steps": 0,
        "train.warmup_fraction": _WARMUP_STEPS[size] / values["train.steps"],
        "generator.width": GENERATOR_WIDTH[size],
    }
