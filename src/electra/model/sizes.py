"""A name such as "small" -> every size of an encoder, and of the generator that goes with it."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from electra.errors import InputError
from electra.schema import Within, check

Position = Literal["absolute", "rotary", "alibi", "none"]
Backbone = Literal["electra", "modern", "bag"]
QueryKeyNorm = Literal["none", "rms"]

NORMALISED_SCALE = 0.35
"""What products of normalised queries and keys are multiplied by. Both have the length √S in a head of S
numbers, so scores lie within ±0.35 S: 5.6, 11 or 22 in heads of 16, 32 or 64, enough to look at one token of
a row of 128. Those of random vectors have a spread of 0.35 √S: 1.4 to 2.8. The ordinary S**-0.5 would leave
±4 in a head of 16, too little to look at one token."""
LARGEST_SIZE = 2**31 - 1
"""Of anything that an encoder is told: what is larger no kernel of torch can count."""
_SIZE = Annotated[int, Within(1, LARGEST_SIZE)]
GATED_SHARE = 2 / 3
"""Width of a gated feed-forward layer, which has three matrices, beside one of two with as many weights."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of one encoder, named as in transformers' ElectraConfig; the defaults are ELECTRA-small."""

    vocab_size: int = 30522
    """Number of token ids."""
    embedding_size: int = 128
    """Width of the embedding tables, which two encoders of different width may share."""
    hidden_size: int = 256
    """Width of the hidden states."""
    num_hidden_layers: int = 12
    """Number of transformer layers."""
    num_attention_heads: int = 4
    """Number of attention heads, which share the hidden size equally."""
    intermediate_size: int = 1024
    """Width of the feed-forward layer."""
    hidden_dropout_prob: float = 0.1
    """Dropout of embeddings and of the output of each sub-layer; rounded to 1/256 on a CPU."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout of the attention weights; rounded to 1/256 on a CPU."""
    max_position_embeddings: int = 512
    """Longest sequence, in tokens."""
    type_vocab_size: int = 2
    """Number of segments that can be distinguished."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal that weights are drawn from."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in every layer norm."""
    position_embedding_type: Position = "absolute"
    """How the order of tokens is seen: a learned table (the paper's), rotated queries and keys, or a bias
    towards near tokens; none, of backbone bag."""
    backbone: Backbone = "electra"
    """The paper's layers (post-norm, biases, gelu), or those of ModernBERT: pre-norm, no biases and no
    segments, rotary positions, a gated feed-forward layer, sub-layers that add nothing at the start; or no
    layers of weights at all (bag): a state is the mean of the word vectors around it, its own left out."""
    query_key_norm: QueryKeyNorm = "none"
    """Whether queries and keys have a fixed length; of backbone modern."""
    global_attention_every: int = 1
    """Of each so many layers the first one sees the whole row, the others a window; of backbone modern."""
    local_attention_window: int = 128
    """Tokens that a position of such a layer, or of backbone bag, sees, half of them on each side."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            form = _SIZE if field.type is int else field.type
            check(getattr(self, field.name), form, where="", key=field.name)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected a probability from 0 to below 1")
        for name in ("initializer_range", "layer_norm_eps"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected a number above 0")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} cannot be divided among num_attention_heads "
                f"{self.num_attention_heads}: choose a multiple"
            )
        if self.position_embedding_type == "rotary" and self.head_size % 2:
            raise InputError(
                f"rotary positions turn pairs of numbers: a head size of {self.head_size} is odd"
            )
        self._check_backbone()

    def _check_backbone(self) -> None:
        if self.backbone != "electra" and self.local_attention_window < 2:
            raise InputError(
                f"local_attention_window is {self.local_attention_window}, expected 2 tokens or more: one on "
                "each side"
            )
        if self.backbone == "modern":
            if self.position_embedding_type != "rotary":
                raise InputError(
                    f"position_embedding_type is {self.position_embedding_type!r}, but backbone modern has "
                    "rotary positions only: leave it out, or choose backbone electra"
                )
            return
        only: dict[str, Any] = {"query_key_norm": "none", "global_attention_every": 1}
        if self.is_bag:
            only |= {**BAG, "embedding_size": self.hidden_size}
        for name, value in only.items():
            if getattr(self, name) != value:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but backbone {self.backbone} has {value!r} only: "
                    "leave it out, or choose another backbone, such as modern"
                )
        if self.position_embedding_type == "none" and not self.is_bag:
            raise InputError("position_embedding_type none is of backbone bag only: choose another")

    @property
    def is_modern(self) -> bool:
        """Whether layers are those of ModernBERT."""
        return self.backbone == "modern"

    @property
    def is_bag(self) -> bool:
        """Whether a state is a mean of word vectors, without attention."""
        return self.backbone == "bag"

    @property
    def attention_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return NORMALISED_SCALE if self.query_key_norm == "rms" else self.head_size**-0.5

    def attention_reach(self, layer: int) -> int | None:
        """How many tokens away a position of a layer sees on each side; None: the whole row."""
        return None if layer % self.global_attention_every == 0 else self.local_attention_window // 2

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named size with some values changed: `EncoderConfig.preset("small", vocab_size=8000)`.

        With backbone modern it has as many weights in its layers, rotary positions, and normalised queries
        and keys, unless the changes say otherwise. With backbone bag vectors of words are as wide as
        hidden states are otherwise.
        """
        if name not in PRESETS:
            raise InputError(f"there is no size {name!r}, expected one of {', '.join(PRESETS)}")
        values: dict[str, Any] = dict(PRESETS[name])
        if changes.get("backbone") == "bag":
            width = changes.get("hidden_size") or changes.get("embedding_size") or values["hidden_size"]
            values |= {**BAG, "hidden_size": width, "embedding_size": width, "local_attention_window": 10}
        if changes.get("backbone") == "modern":
            values |= {
                "intermediate_size": 8 * round(GATED_SHARE * values["intermediate_size"] / 8),
                "position_embedding_type": "rotary",
                "query_key_norm": "rms",
            }
        return cls(**{**values, **changes})


BAG: dict[str, Any] = {
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "position_embedding_type": "none",
}
"""What backbone bag, which has neither attention nor a feed-forward layer, must have in the keys for them."""


PRESETS: dict[str, dict[str, int]] = {
    # For tests and first steps; the other three are the paper's.
    "tiny": {
        "num_hidden_layers": 2,
        "embedding_size": 64,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_attention_heads": 2,
    },
    "small": {
        "num_hidden_layers": 12,
        "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
    },
    "base": {
        "num_hidden_layers": 12,
        "embedding_size": 768,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
    },
    "large": {
        "num_hidden_layers": 24,
        "embedding_size": 1024,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
    },
}

GENERATOR_WIDTH = {"tiny": 1 / 4, "small": 1 / 4, "base": 1 / 3, "large": 1 / 4}
"""The generator's width as a fraction of the discriminator's, by size."""


def generator_config(discriminator: EncoderConfig, *, width: float, depth: float = 1.0) -> EncoderConfig:
    """A generator whose width and depth are fractions of the discriminator's; embeddings stay as wide."""
    hidden_size = round(discriminator.hidden_size * width)
    num_hidden_layers = round(discriminator.num_hidden_layers * depth)
    if hidden_size < 1 or num_hidden_layers < 1:
        raise InputError(
            f"a generator of width {width} x {discriminator.hidden_size} and depth {depth} x "
            f"{discriminator.num_hidden_layers} has nothing left: choose larger fractions"
        )
    return dataclasses.replace(
        discriminator,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        intermediate_size=round(discriminator.intermediate_size * width),
        # As in the original: heads keep their size, so a narrow generator has fewer.
        num_attention_heads=max(1, hidden_size // discriminator.head_size),
    )


MODERN_KEYS = ("backbone", "query_key_norm", "global_attention_every", "local_attention_window")
"""What an encoder of the paper has no use for."""


def transformers_obstacle(config: EncoderConfig) -> str | None:
    """Why transformers' ELECTRA classes cannot express this encoder, or None if they can."""
    if config.is_bag:
        return "transformers' ELECTRA has attention, this encoder has backbone='bag'"
    if config.is_modern:
        return "transformers' ELECTRA has the paper's layers only, this encoder has backbone='modern'"
    if config.position_embedding_type != "absolute":
        return (
            f"transformers' ELECTRA has learned absolute positions only, this encoder has "
            f"position_embedding_type={config.position_embedding_type!r}"
        )
    return None
