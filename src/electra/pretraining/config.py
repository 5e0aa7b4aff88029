"""Keys of `electra pretrain` -> what is pre-trained, how, on what and where, checked.

One class for all objectives: a value that belongs to one objective only stands in that objective's group.
Keys that nobody gave have the paper's values for the size of the model (`paper_defaults`).
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from electra import files
from electra.cluster import check_address
from electra.config import Given
from electra.errors import InputError
from electra.model.heads import DetectionHead, detection_head_of
from electra.model.names import Role
from electra.model.sizes import (
    GENERATOR_WIDTH,
    PRESETS,
    Backbone,
    EncoderConfig,
    Position,
    QueryKeyNorm,
    generator_config,
)
from electra.pretraining.masking import MaskingConfig
from electra.pretraining.ngrams import SAMPLE_TOKENS
from electra.pretraining.sampling import Sampling
from electra.pretraining.start import is_run, read_networks, read_start, run_keys, shared_weights
from electra.train.checkpoint import CheckpointConfig
from electra.train.engine import ResumeConfig
from electra.train.health import HealthConfig
from electra.train.schedule import TrainConfig
from electra.train.session import LogConfig

Size = Literal["tiny", "small", "base", "large"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A size of the paper, and where the encoder differs from it."""

    size: Size = "small"
    """Sets the default of every key below, and of batch size, steps, learning rate, warm-up, mask_prob and
    generator width."""
    backbone: Backbone | None = None
    """The paper's layers (electra), or those of ModernBERT (modern): pre-norm, rotary positions, a gated
    feed-forward layer, no biases, no segments, sub-layers that add nothing at the start. Or no layers
    at all (bag): the mean of the vectors of words nearby, for the objective negative_sampling. Default:
    electra."""
    embedding_size: int | None = None
    """Width of the embedding tables."""
    hidden_size: int | None = None
    """Width of the hidden states."""
    num_hidden_layers: int | None = None
    """Number of transformer layers."""
    num_attention_heads: int | None = None
    """Number of attention heads."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer. With backbone modern by default two thirds of the size's, a multiple
    of 8: its three matrices then have as many weights as two."""
    max_position_embeddings: int | None = None
    """Longest sequence, in tokens."""
    position_embedding_type: Position | None = None
    """How the encoder knows the order of tokens: a learned table (the paper's), rotated queries and keys (the
    only one of backbone modern), or a bias towards near tokens; none with backbone bag."""
    query_key_norm: QueryKeyNorm | None = None
    """Of backbone modern: give queries and keys a fixed length (rms, its default), or leave them (none), as
    transformers' ModernBERT does."""
    global_attention_every: int | None = None
    """Of backbone modern, for long rows: of each so many layers the first sees the whole row, the others a
    window. Default: 1, all see everything."""
    local_attention_window: int | None = None
    """Tokens that a position of such a layer, or of backbone bag, sees, half of them on each side. Default:
    128; with bag 10."""
    dropout: float | None = None
    """Dropout of hidden states and of attention weights."""
    initializer_range: float | None = None
    """Standard deviation of the initial weights; the paper's 0.02 is small for widths far below 768."""
    layer_norm_eps: float | None = None
    """Added to the variance in every layer norm, for numerical stability."""
    embedding_start: Literal["random", "spectral"] = "random"
    """First vectors of tokens: random, or by what stands near what in the data, so that tokens with the same
    neighbours begin alike (spectral: seconds of counting, kept in the data's folder `cache`)."""

    def encoder(self, *, vocab_size: int) -> EncoderConfig:
        """All sizes of the encoder."""
        given = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        del given["size"], given["embedding_start"]
        if (dropout := given.pop("dropout", None)) is not None:
            given |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        try:
            return EncoderConfig.preset(self.size, vocab_size=vocab_size, **given)
        except InputError as error:
            raise InputError(f"model: {error}") from error


# The paper's table; tiny is for tests and first steps. Warm-up is a fraction, so that it suits any budget:
# of the paper's number of steps it is the paper's 10,000 steps.
_COLUMNS = ("train.learning_rate", "train.batch_size", "train.steps", "masking.mask_prob")
_PAPER: dict[Size, tuple[float, ...]] = {
    "tiny": (1e-3, 64, 10_000, 0.15),
    "small": (5e-4, 128, 1_000_000, 0.15),
    "base": (2e-4, 256, 766_000, 0.15),
    "large": (2e-4, 2048, 400_000, 0.25),
}
_WARMUP_STEPS: dict[Size, int] = {"tiny": 500, "small": 10_000, "base": 10_000, "large": 10_000}


def paper_values(size: Size) -> dict[str, float]:
    """Dotted key -> the value that the paper uses with this size."""
    values = dict(zip(_COLUMNS, _PAPER[size], strict=True))
    return {
        **values,
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
    "single_pass",
    "replaced_span",
    "negative_sampling",
]
GeneratorKind = Literal["mlm", "uniform", "unigram", "two_tower", "ngram"]
LARGEST_GENERATOR = 10
"""Times the discriminator; a larger number is a size in place of a fraction."""
UNTRAINED: tuple[GeneratorKind, ...] = ("uniform", "unigram", "ngram")
"""Generators without a network."""
DETECTING: tuple[ObjectiveName, ...] = (
    *("electra", "electra_15", "two_stage", "adversarial", "electric", "single_pass", "replaced_span"),
)
"""Objectives with a head that tells replaced tokens."""
NAMING: tuple[ObjectiveName, ...] = ("mlm", "replace_mlm", "all_tokens_mlm", *DETECTING)
"""Objectives with heads whose biases can begin at frequencies."""
CORRECTING: tuple[ObjectiveName, ...] = ("electra", "electra_15", "single_pass")
"""Objectives that can also name the original tokens."""
Sharing = Literal["embeddings", "none", "all", "disentangled"]


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The network that proposes replacements, and how they are sampled from it."""

    kind: GeneratorKind = "mlm"
    """A small masked language model, tokens at random (uniform), tokens as frequent as in the corpus
    (unigram), the two towers of Electric, or tokens that stand elsewhere in the corpus between the same
    neighbours (ngram)."""
    ngram_tokens: int = SAMPLE_TOKENS
    """Most tokens of the corpus to look for neighbours in, with kind ngram."""
    width: float = 0.25
    """Hidden size, feed-forward size and number of heads, as a fraction of the discriminator's."""
    depth: float = 1.0
    """Number of layers, as a fraction of the discriminator's."""
    sharing: Sharing = "embeddings"
    """What generator and discriminator share: embeddings, nothing, the whole encoder, or the generator's
    embeddings plus a difference that the discriminator learns (disentangled)."""
    sampling: Sampling = "categorical"
    """Sample a token from the generator's distribution, or always take the most probable one."""
    temperature: float = 1.0
    """Divides the generator's logits before a token is sampled."""
    temperature_end: float | None = None
    """Temperature at the end of the run, which it falls or rises to evenly. Default: it stays."""
    correct_token: Literal["allowed", "forbidden"] = "allowed"
    """Whether the original token may be sampled."""
    sampling_dropout: Literal["on", "off"] = "on"
    """Sample from the training pass itself, as the original does, or from a second pass without dropout."""

    def __post_init__(self) -> None:
        for key in ("width", "depth", "temperature"):
            _expect_positive(f"generator.{key}", getattr(self, key))
        for key in ("width", "depth"):
            if getattr(self, key) > LARGEST_GENERATOR:
                raise InputError(
                    f"generator.{key} is {getattr(self, key):g}, expected a fraction of the discriminator's, "
                    f"such as 0.25; at most {LARGEST_GENERATOR}"
                )
        if self.temperature_end is not None:
            _expect_positive("generator.temperature_end", self.temperature_end)
        if self.ngram_tokens < 1:
            raise InputError(f"generator.ngram_tokens is {self.ngram_tokens}, expected 1 or more tokens")
        if self.kind == "ngram":
            self.require_plain_draws()
        if self.sharing == "all" and (self.kind, self.width, self.depth) != ("mlm", 1, 1):
            raise InputError(
                f"generator.sharing is all, but the generator is {self.kind} of width {self.width} and depth "
                f"{self.depth}: one encoder for both needs kind mlm, width 1 and depth 1"
            )

    def require_plain_draws(self) -> None:
        """Refuse what needs a distribution: places of the corpus are drawn, each as likely as any other."""
        for key, needed in (("sampling", "categorical"), ("temperature", 1.0), ("temperature_end", None)):
            if getattr(self, key) != needed:
                raise InputError(
                    f"generator.{key} is {getattr(self, key)}, but generator.kind {self.kind} draws places "
                    f"of the corpus, not from a distribution: set it to {needed}"
                )

    def at(self, progress: float) -> "GeneratorConfig":
        """With the temperature that it has when a share of the run is done."""
        if self.temperature_end is None:
            return self
        temperature = self.temperature + (self.temperature_end - self.temperature) * progress
        return dataclasses.replace(self, temperature=temperature, temperature_end=None)

    @property
    def draws_as_is(self) -> bool:
        """Whether tokens are sampled from the same distribution that the loss is computed with."""
        return (self.sampling, self.temperature, self.correct_token) == ("categorical", 1, "allowed")


@dataclass(frozen=True, kw_only=True)
class TwoStageConfig:
    """First the generator alone, then the discriminator against the frozen generator."""

    first_stage_steps: int = 500_000
    """Steps that train the generator; all later ones train the discriminator."""
    discriminator_start: Literal["generator", "fresh"] = "generator"
    """Start the discriminator's encoder as a copy of the generator's, or from its own initial weights."""

    def __post_init__(self) -> None:
        if self.first_stage_steps < 1:
            raise InputError(
                f"two_stage.first_stage_steps is {self.first_stage_steps}, expected 1 or more steps"
            )


@dataclass(frozen=True, kw_only=True)
class AdversarialConfig:
    """The baseline that the generator's reward is compared with."""

    baseline: Literal["learned", "moving"] = "learned"
    """The reward predicted from the generator's hidden state at the position, or a moving average."""
    baseline_decay: float = 0.99
    """Share of the moving average that is kept from step to step."""

    def __post_init__(self) -> None:
        if not 0 <= self.baseline_decay < 1:
            raise InputError(
                f"adversarial.baseline_decay is {self.baseline_decay}, expected at least 0 and below 1"
            )


@dataclass(frozen=True, kw_only=True)
class SinglePassConfig:
    """Masked and corrupted tokens in one row, for one encoder."""

    replace_prob: float = 0.1
    """Fraction of the tokens that are not masked which proposals replace."""
    proposals: Literal["generator", "own"] = "generator"
    """Where proposals come from: generator.kind; or, at every second step, the encoder's own guesses at the
    masks of the step before, which has the same rows (own), as SAS does from one epoch to the next."""

    def __post_init__(self) -> None:
        if not 0 < self.replace_prob < 1:
            raise InputError(
                f"single_pass.replace_prob is {self.replace_prob}, expected above 0 and below 1 (such as 0.1)"
            )


@dataclass(frozen=True, kw_only=True)
class ReplacedSpanConfig:
    """Spans that the generator rewrites from left to right. Which tokens are masked `masking` says."""

    max_tokens: int = 8
    """Longest span that is rewritten as one, in tokens: a longer run of masked tokens is cut into several.
    Each token beyond the first takes one more pass of the generator, over the spans alone."""
    length: Literal["original", "own"] = "original"
    """How long a rewritten span is: as the original one, or as the generator decides (own), from 1 token to
    max_tokens. It then sees one [MASK] for a whole span."""
    boundaries: Literal["off", "on"] = "off"
    """Whether the discriminator must also tell at which tokens rewritten spans begin and end."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"replaced_span.max_tokens is {self.max_tokens}, expected 1 or more tokens")


@dataclass(frozen=True, kw_only=True)
class NegativeSamplingConfig:
    """The true token of a position among drawn ones. At which positions `masking` says."""

    negatives: int = 5
    """Tokens that are drawn for each position, as generator says."""

    def __post_init__(self) -> None:
        if self.negatives < 1:
            raise InputError(f"negative_sampling.negatives is {self.negatives}, expected 1 or more tokens")


OBJECTIVE_DEFAULTS: dict[ObjectiveName, dict[str, Any]] = {
    "single_pass": {
        "generator.kind": "ngram",
        "masking.mask_token_prob": 1.0,
        "discriminator_weight": 10.0,
    },
    "replaced_span": {"masking.strategy": "span", "masking.mask_token_prob": 1.0},
    "negative_sampling": {
        "model.backbone": "bag",
        "generator.kind": "unigram",
        "generator.temperature": 4 / 3,
        "generator.correct_token": "forbidden",
        "discriminator_weight": 1.0,
    },
}
"""What an objective has in place of the paper's values, where nobody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """What is learned from the corpus; the defaults are the paper's ELECTRA."""

    objective: ObjectiveName = "electra"
    """What the encoder is trained to do."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    generator_weight: float = 1.0
    """Weight of the generator's loss."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss (the paper's λ). Default with single_pass: 10, with
    negative_sampling: 1."""
    discriminator_weight_start: float | None = None
    """Weight of the discriminator's loss in the first step, from which it goes to discriminator_weight.
    Default: it is the same all the time."""
    discriminator_weight_ramp: float = 0.1
    """Share of the run in which it gets there, with discriminator_weight_start."""
    discriminator_head: DetectionHead = "plain"
    """What detects replaced tokens: a head that looks at the token's hidden state, as the original's, or one
    that looks at that of [CLS] as well, as DeBERTaV3's."""
    correction: Literal["none", "proposed"] = "none"
    """Whether the encoder that detects replaced tokens must also name the original token wherever one was
    proposed, as COCO-LM's: in electra, electra_15 and single_pass."""
    recovery_weight: float = 1.0
    """Weight of the loss for recovering original tokens: of correction, replace_mlm and all_tokens_mlm."""
    output_bias: Literal["zero", "frequencies"] = "zero"
    """Initial output biases of the heads: zero as in the original, or the frequencies of tokens and
    replacements."""
    two_stage: TwoStageConfig = field(default_factory=TwoStageConfig)
    adversarial: AdversarialConfig = field(default_factory=AdversarialConfig)
    single_pass: SinglePassConfig = field(default_factory=SinglePassConfig)
    replaced_span: ReplacedSpanConfig = field(default_factory=ReplacedSpanConfig)
    negative_sampling: NegativeSamplingConfig = field(default_factory=NegativeSamplingConfig)

    def __post_init__(self) -> None:
        for key in ("generator_weight", "discriminator_weight", "recovery_weight"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{key} is {value}, expected 0 or more")
        start, ramp = self.discriminator_weight_start, self.discriminator_weight_ramp
        if start is not None and not (math.isfinite(start) and start >= 0):
            raise InputError(f"discriminator_weight_start is {start}, expected 0 or more")
        if not 0 < ramp <= 1:
            raise InputError(f"discriminator_weight_ramp is {ramp}, expected a share of the run: 0.1, or 1")
        for key, plain, known in (
            ("correction", "none", CORRECTING),
            ("discriminator_head", "plain", DETECTING),
            ("discriminator_weight_start", None, DETECTING),
            ("output_bias", "zero", NAMING),
        ):
            if getattr(self, key) != plain and self.objective not in known:
                raise InputError(
                    f"{key} is {getattr(self, key)}, which {self.objective} has no use for: leave it out, or "
                    f"set objective to one of {', '.join(known)}"
                )

    def discriminator_weight_at(self, progress: float) -> float:
        """The weight of the discriminator's loss when a share of the run is done."""
        start, end = self.discriminator_weight_start, self.discriminator_weight
        if start is None:
            return end
        return start + (end - start) * min(1.0, progress / self.discriminator_weight_ramp)


@dataclass(frozen=True, kw_only=True)
class PretrainTrainConfig(TrainConfig):
    """Budget, batches, learning rate, optimizer and machine of a pre-training run."""

    optimizers: Literal["joint", "separate"] = "joint"
    """Whether generator and discriminator have one learning rate and one gradient norm, or each its own."""
    generator_learning_rate: float | None = None
    """Peak learning rate of the generator, with optimizers separate; default: learning_rate. The schedule is
    the same for both. The generator owns the embeddings that both share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.generator_learning_rate
        if rate is not None:
            _expect_positive("train.generator_learning_rate", rate)
            if self.optimizers == "joint":
                raise InputError(
                    f"train.generator_learning_rate is {rate}, but train.optimizers is joint: set it to "
                    "separate"
                )


@dataclass(frozen=True, kw_only=True)
class PretrainRunConfig(PretrainConfig):
    """A pre-training run. Keys that are not given have the paper's values for the size of the model."""

    data: str = ""
    """Folder made by `electra prepare`, here or in an object store (s3://BUCKET/NAME)."""
    out: str = ""
    """Run folder. Run the same command again to resume the run."""
    start: str = ""
    """Run or model to take the first weights from; default: random weights. Its tokenizer may be another than
    the data's: tokens that both know keep their vectors, new ones start from the pieces they were made of."""
    seed: int = 0
    """Seed for all randomness: weights, order of rows, masks, samples, dropout."""
    model: ModelConfig = field(default_factory=ModelConfig)
    train: PretrainTrainConfig = field(default_factory=PretrainTrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    valid_rows: int = 2048
    """Most held-out rows to use in an evaluation."""
    health: HealthConfig = field(default_factory=HealthConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    cluster: str | None = None
    """Train on a Ray cluster: ray://HOST:PORT, auto (the cluster this machine is a node of) or local (one on
    this machine's cores). A process for each GPU, or without GPUs for each node. Default: none."""
    cluster_workers: int | None = None
    """With cluster: how many processes at most, spread over the cores of the nodes if there are no GPUs."""
    max_restarts: int | None = None
    """How often to restart from the last checkpoint after a crash, and with cluster after the loss of a
    process or a node. Default: 0, with cluster 10."""
    dry_run: bool = False
    """Check everything, take one step, and print what the run will need, without writing anything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, least in (("valid_rows", 0), ("max_restarts", 0), ("cluster_workers", 1)):
            if (value := getattr(self, key)) is not None and value < least:
                raise InputError(f"{key} is {value}, expected {least} or more")
        if self.cluster is not None:
            check_address(self.cluster)
            if self.dry_run:
                raise InputError("dry_run takes its step on this machine: leave out --cluster")
        elif self.cluster_workers is not None:
            raise InputError("cluster_workers is given, but no cluster: say which with --cluster")
        if self.start and self.model.embedding_start != "random":
            raise InputError(
                f"model.embedding_start is {self.model.embedding_start}, but the run takes its first weights "
                f"from --start {self.start}: leave out one of them"
            )

    def require_folders(self) -> None:
        """Refuse a run that does not say where its data is and where its results go."""
        if not self.data or not (self.out or self.dry_run):
            raise InputError("give --data DIR and --out RUN (see 'electra pretrain --help')")
        if self.out:
            files.require_folder(Path(self.out), key="--out")


FREE_KEYS = (
    *("data", "out", "checkpoint", "resume", "cluster", "cluster_workers", "max_restarts", "dry_run"),
    *("log.log_every", "log.trackers"),
)
"""Keys that may change between two sittings of a run. Whether the data is the same is told by its hash."""


def paper_defaults(given: Given[Any]) -> dict[str, Any]:
    """The paper's values for the size that was given, without those that another key makes void.

    A run that starts from another one has the same networks, unless it is told otherwise.
    """
    structure: dict[str, Any] = {}
    if given.values.get("start"):
        # A run that is resumed knows its networks itself, and needs its start no more.
        out = Path(given.values.get("out") or "")
        start = out if given.values.get("out") and is_run(out) else Path(given.values["start"])
        structure = run_keys(start) if is_run(start) else folder_keys(start)
    size = given.values.get("model.size", structure.get("model.size", ModelConfig.size))
    values: dict[str, Any] = {**paper_values(size), **structure}
    objective = given.values.get("objective", values.get("objective"))
    values = {**OBJECTIVE_DEFAULTS.get(objective, {}), **values}
    if given.values.get("train.max_time") or given.values.get("train.max_tokens"):
        # Another budget was chosen than a number of steps.
        del values["train.steps"]
    if given.values.get("train.warmup_steps"):
        # Of two warm-ups the longer one would win.
        del values["train.warmup_fraction"]
    return values


def folder_keys(path: Path) -> dict[str, Any]:
    """The keys of a run whose networks are those of a folder, dotted."""
    networks = read_networks(path)
    sizes = {role: part.config for role, part in networks.items()}
    both = len(sizes) == 2
    keys = network_keys(sizes, sharing=shared_weights(read_start(path).weights) if both else "embeddings")
    judge = networks.get("discriminator")
    head = "plain" if judge is None else detection_head_of(judge.head_state())
    return keys if head == "plain" else {**keys, "discriminator_head": head}


def network_keys(sizes: Mapping[Role, EncoderConfig], *, sharing: Sharing) -> dict[str, Any]:
    """The keys of a run whose networks have these sizes, dotted."""
    large = sizes.get("discriminator") or next(iter(sizes.values()))
    if large.hidden_dropout_prob != large.attention_probs_dropout_prob:
        raise InputError(
            f"hidden_dropout_prob is {large.hidden_dropout_prob}, attention_probs_dropout_prob "
            f"{large.attention_probs_dropout_prob}: a run has one dropout for both; make them equal"
        )
    # The size also sets batch size, steps and learning rate: those of the nearest model of the paper.
    nearest = min(PRESETS, key=lambda name: abs(PRESETS[name]["hidden_size"] - large.hidden_size))
    preset = EncoderConfig.preset(nearest, vocab_size=large.vocab_size, backbone=large.backbone)
    names = [key.name for key in dataclasses.fields(ModelConfig) if hasattr(large, key.name)]
    keys = {
        "model.size": nearest,
        **{
            f"model.{name}": getattr(large, name)
            for name in names
            if getattr(large, name) != getattr(preset, name)
        },
        **({} if large.backbone == "electra" else {"model.backbone": large.backbone}),
        "generator.sharing": sharing,
    }
    if large.hidden_dropout_prob != preset.hidden_dropout_prob:
        keys["model.dropout"] = large.hidden_dropout_prob
    if large.is_bag:
        keys["objective"] = "negative_sampling"
    if "discriminator" not in sizes:
        # An objective with a discriminator, if one is asked for, has a generator of this size.
        return {**keys, "objective": "mlm", "generator.width": 1.0, "generator.depth": 1.0}
    if (small := sizes.get("generator")) is not None:
        width = small.hidden_size / large.hidden_size
        depth = small.num_hidden_layers / large.num_hidden_layers
        if generator_config(large, width=width, depth=depth) != small:
            raise InputError(
                "the generator does not have the discriminator's shape at a smaller size, so a run cannot "
                "continue from it"
            )
        keys |= {"generator.width": width, "generator.depth": depth}
    return keys


def _expect_positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{key} is {value}, expected a number above 0 (such as 1)")
