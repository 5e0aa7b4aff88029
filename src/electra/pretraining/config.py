"""The name of a size -> the encoder, and the paper's values for everything that goes with the size.

Names and numbers -> what is pre-trained and how, checked.

One page for all objectives: a value that belongs to one of them only stands in that objective's own group.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from electra.errors import InputError
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, Position
from electra.pretraining.masking import MaskingConfig
from electra.pretraining.sampling import Sampling

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


ObjectiveName = Literal[
    "electra",
    "mlm",
    "electra_15",
    "replace_mlm",
    "all_tokens_mlm",
    "two_stage",
    "adversarial",
    "electric",
]
GeneratorKind = Literal["mlm", "uniform", "unigram", "two_tower"]
Sharing = Literal["embeddings", "none", "all", "disentangled"]


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The network that proposes tokens, and how a proposal is drawn from it."""

    kind: GeneratorKind = "mlm"
    """Small masked language model, all tokens alike, tokens as often as in the corpus, or two towers."""
    width: float = 0.25
    """Hidden size, feed-forward size and heads as a fraction of the discriminator's."""
    depth: float = 1.0
    """Layers as a fraction of the discriminator's."""
    sharing: Sharing = "embeddings"
    """One set of embeddings for both, one each, one whole encoder, or the generator's plus a delta."""
    sampling: Sampling = "categorical"
    """Draw a token from the generator's distribution, or always take its most probable one."""
    temperature: float = 1.0
    """The generator's logits are divided by it before a token is drawn."""
    correct_token: Literal["allowed", "forbidden"] = "allowed"
    """Whether the token that stood there may be drawn."""
    sampling_dropout: Literal["on", "off"] = "on"
    """Draw from the training pass itself, as the original, or from a second pass without dropout."""

    def __post_init__(self) -> None:
        for key in ("width", "depth", "temperature"):
            _expect_positive(f"generator.{key}", getattr(self, key))
        if self.sharing == "all" and (self.kind, self.width, self.depth) != ("mlm", 1, 1):
            raise InputError(
                f"generator.sharing is all, but the generator is {self.kind} of width {self.width} and depth "
                f"{self.depth}: one encoder for both needs kind mlm, width 1 and depth 1"
            )

    @property
    def draws_as_is(self) -> bool:
        """Whether tokens are drawn from the very distribution that the loss is computed with."""
        return (self.sampling, self.temperature, self.correct_token) == ("categorical", 1, "allowed")


@dataclass(frozen=True, kw_only=True)
class TwoStageConfig:
    """First the generator alone, then the discriminator against the frozen generator."""

    first_stage_steps: int = 500_000
    """Steps that train the generator; all later ones train the discriminator."""
    discriminator_start: Literal["generator", "fresh"] = "generator"
    """The discriminator's encoder begins as a copy of the generator's, or from its own initial weights."""

    def __post_init__(self) -> None:
        if self.first_stage_steps < 1:
            raise InputError(
                f"two_stage.first_stage_steps is {self.first_stage_steps}, expected 1 or more steps"
            )


@dataclass(frozen=True, kw_only=True)
class AdversarialConfig:
    """What a reward is compared with before the generator follows it."""

    baseline: Literal["learned", "moving"] = "learned"
    """The reward expected at the position, read from the generator's hidden state, or a moving average."""
    baseline_decay: float = 0.99
    """Part of the moving average that is kept from step to step."""

    def __post_init__(self) -> None:
        if not 0 <= self.baseline_decay < 1:
            raise InputError(
                f"adversarial.baseline_decay is {self.baseline_decay}, expected at least 0 and below 1"
            )


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """What is learned from the corpus; the defaults are the paper's ELECTRA."""

    objective: ObjectiveName = "electra"
    """What the encoder learns by."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    generator_weight: float = 1.0
    """Weight of the generator's loss."""
    discriminator_weight: float = 50.0
    """Weight of the loss of telling replaced from original tokens (the paper's λ)."""
    recovery_weight: float = 1.0
    """Weight of the loss of naming original tokens, in replace_mlm and all_tokens_mlm."""
    output_bias: Literal["zero", "frequencies"] = "zero"
    """Last biases of the heads at the start: zero as in the original, or such that they know how frequent
    tokens and replacements are."""
    two_stage: TwoStageConfig = field(default_factory=TwoStageConfig)
    adversarial: AdversarialConfig = field(default_factory=AdversarialConfig)

    def __post_init__(self) -> None:
        for key in ("generator_weight", "discriminator_weight", "recovery_weight"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{key} is {value}, expected 0 or more")


def _expect_positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{key} is {value}, expected a number above 0 (such as 1)")
