"""Rows and randomness -> a loss to descend and sums to report: what every objective answers to.

An objective is one module with all the networks that it trains. The training loop calls it like this, where
`parts` are the micro-batches of this process:

    objective.begin_step(step, progress)
    masks = [objective.mask(inputs, random) for inputs, random in parts]
    totals = Counts(*all_reduce(sum of objective.count(inputs, masked) over parts))
    for (inputs, random), masked in zip(parts, masks):
        output = objective(inputs.to(device), random, totals, masked.to(device))
        output.loss.backward()
    sums = all_reduce(metrics.add(output.sums of all parts))
    objective.end_step(sums)
    metrics.summarise(sums)

**Losses.** Each is a mean over positions of the *global* batch. So that parts of it can be worked on one by
one, a part's `output.loss` is its share: its own sum, divided by the totals of all parts. Shares, and their
gradients, are added, never averaged: DistributedDataParallel, which averages over processes, needs
`loss * world_size`. Without `totals` the part is the whole batch.

**Randomness.** All of it comes from a `StepRandom`, which knows which rows of the global batch these are.
While training, `forward` seeds torch's default generators for dropout.

**Host and device.** Masking and counting are done on the host, ahead of the step. From there on no value is
read and no shape depends on one, so that a GPU never has to stop: positions are index tensors of the host's
(`pick`), never masks. A test takes a step of each objective on `meta`, where a look at the data fails.

**State.** Everything that outlives a step is in `state_dict`, and `begin_step` may be called again for the
same step. A weight that takes no part in a step (a frozen network, one whose turn has not come) gets no
gradient at all: gradients must be cleared to None, so that no optimizer touches it.

**To add an objective**: write `objectives/<name>.py` with a class that derives from `Objective` and has

    encoder_name        which of its encoders goes on to fine-tuning
    __init__            the networks (`build_networks`) and heads; an InputError if the config does not fit
    loss                masked rows -> StepOutput, by the parts in `electra.py` and `metrics.py`

then name it in `config.ObjectiveName` and in `objectives.OBJECTIVES`, and add it to the tests that go through
all objectives: that it learns, that halves of a batch add up, and its golden series (tests/golden).

Call a network through its module (`self.generator(...)`) and give parameters of the generator's side names
that begin with `generator`: `parameters_by_owner` goes by them.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, Proposed, StepRandom, TokenFacts
from electra.pretraining.metrics import Sums
from electra.pretraining.networks import HostGenerator, plain_tables
from electra.pretraining.states import layer_states

Owner = Literal["generator", "discriminator"]


class Counts(NamedTuple):
    """What losses are means over: whole numbers, to be added up over all parts of a batch."""

    masked: int
    """Masked positions."""
    tokens: int
    """Positions that are not padding."""
    ordinary: int
    """Those of them that hold no special token."""
    judged: int = 0
    """Those at which single_pass judges tokens: all that are not masked."""
    proposed: int = 0
    """Those of them that hold a proposal."""


class StepOutput(NamedTuple):
    """What one part of a batch gives."""

    loss: Tensor
    """Its share of the global loss."""
    sums: Sums
    """Its metrics, to be added up; without gradient."""
    views: dict[str, Tensor]
    """The rows as the networks see them, for a person to look at: masked_ids_BL, corrupted_ids_BL, ..."""


class Objective(nn.Module, ABC):
    """What a pre-training run minimises."""

    encoder_name: ClassVar[Owner]
    """Which encoder goes on to fine-tuning."""
    visits: int = 1
    """Steps in a row that have the same rows, with other masks."""

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__()
        assert encoder.vocab_size == tokens.vocab_size, f"{encoder.vocab_size} and {tokens.vocab_size} tokens"
        if encoder.is_bag != (config.objective == "negative_sampling"):
            raise InputError(
                f"objective is {config.objective}, model.backbone is {encoder.backbone}: negative_sampling "
                "needs states that do not see their own token, which backbone bag has, and all other "
                "objectives need states that do. Set both, or neither"
            )
        self.config = config
        self.masker = masker
        self.progress = 0.0
        self.is_special_V: Tensor
        self.register_buffer("is_special_V", tokens.special_mask, persistent=False)

    @abstractmethod
    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """The losses of rows that are masked already."""

    def forward(
        self,
        inputs: Inputs,
        random: StepRandom,
        totals: Counts | None = None,
        masked: Masked | None = None,
    ) -> StepOutput:
        """The rows' share of the loss; rows on the host are masked here if they are not yet."""
        if self.training:
            random.seed_dropout()
        masked = self.mask(inputs, random) if masked is None else masked
        return self.loss(inputs, masked, self.count(inputs, masked) if totals is None else totals)

    def mask(self, inputs: Inputs, random: StepRandom) -> Masked:
        """The rows as the generator will see them, on the host; with proposals, if they are made there."""
        noise_BLK = random.noise(self.masker, len(inputs.input_ids_BL))
        masked = self.masker(inputs.input_ids_BL, inputs.lengths_B, noise_BLK)
        generator = getattr(self, "generator", None)
        if not isinstance(generator, HostGenerator):
            return masked
        sampled_P = generator.propose(inputs.input_ids_BL, masked.positions_P, masked.uniform_P)
        return Proposed(**vars(masked), sampled_P=sampled_P)

    def count(self, inputs: Inputs, masked: Masked) -> Counts:
        """The positions that losses are taken at: what this part adds to the totals."""
        return Counts(
            masked=len(masked.positions_P), tokens=len(inputs.text_N), ordinary=len(masked.ordinary_M)
        )

    def ordinary_mask(self, inputs: Inputs) -> Tensor:
        """Where there is neither padding nor a special token."""
        return inputs.token_mask & ~self.is_special_V[inputs.input_ids_BL]

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """How replaced each token of other ids in the same rows looks (B, L); None if that is not learned."""

    def states(self, inputs: Inputs) -> list[Tensor]:
        """The hidden states (N, D) of the text after each layer of `learning_encoder`."""
        return layer_states(self.learning_encoder, inputs)

    def make_room(self, num_rows: int) -> None:
        """Get ready to remember something of each row of a global batch from one step to the next."""

    def begin_step(self, step: int, progress: float = 0.0) -> None:
        """Get ready for a step, numbered from 0, before which a share of the run is done."""
        self.progress = progress

    def end_step(self, sums: Sums) -> None:
        """Take notice of the sums over the whole global batch."""

    @property
    def discriminator_weight(self) -> float:
        """λ of this step."""
        return self.config.discriminator_weight_at(self.progress)

    @property
    def generating(self) -> GeneratorConfig:
        """How the generator samples in this step."""
        return self.config.generator.at(self.progress)

    @property
    def encoder(self) -> Encoder:
        """The encoder that goes on to fine-tuning, as it is trained."""
        encoder = self.get_submodule(self.encoder_name)
        assert isinstance(encoder, Encoder)
        return encoder

    @property
    def learning_encoder(self) -> Encoder:
        """The one whose states are what fine-tuning would get by now."""
        return self.encoder

    def plain_state(self) -> dict[str, Tensor]:
        """The weights under the names of `model.names`, with tables in place of sums of tables."""
        return plain_tables(self)

    def sizes(self) -> dict[Role, EncoderConfig | None]:
        """The sizes of the networks that were trained; None for one that is not a single encoder."""
        roles: tuple[Role, ...] = ("discriminator", "generator")
        networks = {role: getattr(self, role, None) for role in roles}
        return {
            role: network.config if isinstance(network, Encoder) else None
            for role, network in networks.items()
            if network is not None and list(network.parameters())
        }

    def parameters_by_owner(self) -> dict[Owner, list[tuple[str, nn.Parameter]]]:
        """Parameters by the network that they belong to, for an optimizer each; a shared one is in one list.

        The generator owns what both use; the discriminator's gradients reach it there.
        """
        owned: dict[Owner, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in self.named_parameters():
            owner: Owner = "generator" if name.startswith("generator") else "discriminator"
            owned.setdefault(owner, []).append((name, parameter))
        return owned


def share(losses: Tensor, total: int) -> Tensor:
    """A part's share of a mean over the global batch."""
    return losses.sum() / max(1, total)


def require_true_samples(config: PretrainConfig) -> None:
    """Refuse ways of sampling that make the generator's own probabilities wrong."""
    generator = config.generator
    needed_by_key = {
        "sampling": "categorical",
        "temperature": 1.0,
        "temperature_end": None,
        "correct_token": "allowed",
        "sampling_dropout": "on",
    }
    for key, needed in needed_by_key.items():
        if getattr(generator, key) != needed:
            raise InputError(
                f"generator.{key} is {getattr(generator, key)}, but {config.objective} computes with the "
                f"probability that a token was drawn with: set it to {needed}"
            )
