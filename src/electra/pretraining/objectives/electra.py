"""Masked rows -> the generator's loss and the discriminator's: ELECTRA, replaced token detection.

The generator learns to fill masks by maximum likelihood and proposes a token for each (`run_generator`). The
discriminator learns to tell at every position whether the token is original or the generator's (`detect`). No
gradient passes from one to the other through the samples. Other objectives are made of the same two parts.

Logits over the vocabulary exist for masked positions only and for a chunk of them at a time; loss, accuracy,
entropy and sample all come out of one pass over them, in float32.

B rows, L positions, P masked positions of all rows together, C of them in a chunk, V tokens, D hidden size,
N judged positions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.model.encoder import Encoder
from electra.model.heads import (
    DETECTION_HEADS,
    DiscriminatorHead,
    GeneratorHead,
    Judged,
    is_best,
    token_loss,
)
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, Proposed, TokenFacts, pick
from electra.pretraining.metrics import Sums, detection_sums, mean, mean_where
from electra.pretraining.networks import FixedGenerator, Generator, HostGenerator, TwoTowers, build_networks
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretraining.sampling import Corrupted, corrupt, draw_tokens, sample

Reduce = Callable[..., tuple[Tensor, ...]]
"""`reduce(function, *columns_P)`: what the function makes of the logits (C, V) and columns of all chunks."""


class Proposal(NamedTuple):
    """What the generator says about the masked positions."""

    loss_P: Tensor
    """Cross-entropy of the original tokens: the only part with a gradient; 0 without a distribution."""
    correct_P: Tensor | None
    """Whether the most probable token is the original one; None without a distribution."""
    entropy_P: Tensor | None
    """Of its distribution, in nats."""
    sampled_P: Tensor
    """The tokens it proposes."""


def masked_hidden(generator: nn.Module, inputs: Inputs, masked: Masked) -> Tensor:
    """The generator's hidden states (P, D) at the masked positions."""
    # Two towers never see the token of a position itself, so for them nothing needs a mask.
    ids_BL = inputs.input_ids_BL if isinstance(generator, TwoTowers) else masked.masked_ids_BL
    hidden_BLD: Tensor = generator(ids_BL, **inputs.context)
    return pick(hidden_BLD, masked.positions_P)


def vocabulary_reduce(
    generator: Generator, head: GeneratorHead | None, inputs: Inputs, masked: Masked
) -> Reduce:
    """Run the generator -> a way to its logits at the masked positions."""
    if isinstance(generator, FixedGenerator):
        return generator.reduce
    assert head is not None, "a generator that learns has a head"
    assert not isinstance(generator, HostGenerator), "a generator of the host has no logits"
    hidden_PD = masked_hidden(generator, inputs, masked)
    return partial(head.reduce, hidden_PD, generator.embeddings.word_embeddings.weight)


def propose(reduce: Reduce, masked: Masked, config: GeneratorConfig) -> Proposal:
    """Judge and sample the generator's distributions."""
    judge = partial(token_loss, look=partial(_look, config=config))
    return Proposal(*reduce(judge, masked.original_P, masked.uniform_P))


def run_generator(
    generator: Generator,
    head: GeneratorHead | None,
    inputs: Inputs,
    masked: Masked,
    config: GeneratorConfig,
) -> Proposal:
    """The proposal of one training step, with dropout while sampling or without."""
    if isinstance(generator, HostGenerator):
        assert isinstance(masked, Proposed), "a generator of the host proposes when rows are masked"
        nothing_P = masked.uniform_P.new_zeros(masked.uniform_P.shape, dtype=torch.float32)
        return Proposal(nothing_P, None, None, masked.sampled_P)
    proposal = propose(vocabulary_reduce(generator, head, inputs, masked), masked, config)
    if config.sampling_dropout == "off" and generator.training:
        with torch.no_grad(), evaluating(generator):
            calm = propose(vocabulary_reduce(generator, head, inputs, masked), masked, config)
        return proposal._replace(sampled_P=calm.sampled_P)
    return proposal


def _look(
    judged: Judged, original_C: Tensor, uniform_C: Tensor, *, config: GeneratorConfig
) -> tuple[Tensor, ...]:
    """The fields of a proposal but for the loss."""
    if config.draws_as_is:
        sampled_C = draw_tokens(judged.probs_CV, uniform_C)
    else:
        (sampled_C,) = draw(judged.logits_CV, original_C, uniform_C, config=config)
    return *is_best(judged, original_C), judged.entropy(), sampled_C


def draw(
    logits_CV: Tensor, original_C: Tensor, uniform_C: Tensor, *, config: GeneratorConfig
) -> tuple[Tensor]:
    """A function for `reduce`: tokens sampled as the config says."""
    sampled_C = sample(
        logits_CV,
        uniform_C,
        method=config.sampling,
        temperature=config.temperature,
        forbidden_P=original_C if config.correct_token == "forbidden" else None,
    )
    return (sampled_C,)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, for a while."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def proposal_sums(proposal: Proposal, masked: Masked, mask_id: int) -> Sums:
    """The generator's metrics: at all chosen positions, as the original counts, and where it sees [MASK].

    A chosen token that stays as it is (15 % of them, in the original) can be copied: to name it proves
    nothing. Without a distribution there is only how often the original token is proposed.
    """
    sampled = {"sampled_accuracy": mean(proposal.sampled_P == masked.original_P)}
    if proposal.correct_P is None or proposal.entropy_P is None:
        return sampled
    is_mask_P = pick(masked.masked_ids_BL, masked.positions_P) == mask_id
    return {
        "mlm_loss": mean(proposal.loss_P),
        "mlm_accuracy": mean(proposal.correct_P),
        "masked_loss": mean_where(proposal.loss_P, is_mask_P),
        "masked_accuracy": mean_where(proposal.correct_P, is_mask_P),
        **sampled,
        "generator_entropy": mean(proposal.entropy_P),
    }


class Detection(NamedTuple):
    """The discriminator's verdict on all positions, padding too."""

    corrupted: Corrupted
    logits_BL: Tensor
    """Above 0 a token looks replaced; in float32."""
    losses_BL: Tensor
    """Binary cross-entropy of the verdict."""
    hidden_BLD: Tensor
    """The states that the verdict rests on."""


def detect(
    discriminator: Encoder, head: DiscriminatorHead, inputs: Inputs, masked: Masked, sampled_P: Tensor
) -> Detection:
    """Corrupt the rows and let the discriminator look at them."""
    corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, sampled_P)
    hidden_BLD = discriminator(corrupted.corrupted_ids_BL, **inputs.context)
    logits_BL = head(hidden_BLD).float()
    losses_BL = detection_losses(logits_BL, corrupted.replaced_BL)
    return Detection(corrupted, logits_BL, losses_BL, hidden_BLD)


def suspicion(discriminator: Encoder, head: DiscriminatorHead, inputs: Inputs, ids_BL: Tensor) -> Tensor:
    """The discriminator's logits (B, L) for these tokens, in float32."""
    logits_BL: Tensor = head(discriminator(ids_BL, **inputs.context)).float()
    return logits_BL


def detection_losses(logits: Tensor, replaced: Tensor) -> Tensor:
    """Binary cross-entropy of each position."""
    return functional.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")


def detection_views(masked: Masked, corrupted: Corrupted, logits_BL: Tensor) -> dict[str, Tensor]:
    """The rows as both networks see them, with labels and verdicts."""
    return {
        "masked_ids_BL": masked.masked_ids_BL,
        "corrupted_ids_BL": corrupted.corrupted_ids_BL,
        "replaced_BL": corrupted.replaced_BL,
        "logits_BL": logits_BL.detach(),
    }


class Electra(Objective):
    """Replaced token detection at every position."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        self.generator, self.generator_head, self.discriminator = build_networks(
            config.generator, encoder, tokens
        )
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        self.recovery_head = None if config.correction == "none" else GeneratorHead(encoder)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's and discriminator's loss, weighted."""
        proposal = run_generator(self.generator, self.generator_head, inputs, masked, self.generating)
        detection = detect(self.discriminator, self.discriminator_head, inputs, masked, proposal.sampled_P)
        corrupted, logits_BL, losses_BL, hidden_BLD = detection
        judged_N, num_judged = self.judged(inputs, masked, totals)
        losses_N = pick(losses_BL, judged_N)
        generator_loss = share(proposal.loss_P, totals.masked)
        discriminator_loss = share(losses_N, num_judged)
        loss = self.config.generator_weight * generator_loss + self.discriminator_weight * discriminator_loss
        recovery: Sums = {}
        if self.recovery_head is not None:
            recovery_losses_P, correct_P = self.recovery_head.reduce(
                pick(hidden_BLD, masked.positions_P),
                self.discriminator.embeddings.word_embeddings.weight,
                partial(token_loss, look=is_best),
                masked.original_P,
            )
            loss = loss + self.config.recovery_weight * share(recovery_losses_P, totals.masked)
            recovery = {"recovery_loss": mean(recovery_losses_P), "recovery_accuracy": mean(correct_P)}
        return StepOutput(
            loss=loss,
            sums={
                **proposal_sums(proposal, masked, self.masker.mask_id),
                **detection_sums(losses_N, pick(logits_BL, judged_N), pick(corrupted.replaced_BL, judged_N)),
                "replaced_fraction": mean(pick(corrupted.replaced_BL, inputs.text_N)),
                **recovery,
            },
            views=detection_views(masked, corrupted, logits_BL),
        )

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)

    def judged(self, inputs: Inputs, masked: Masked, totals: Counts) -> tuple[Tensor, int]:
        """The positions at which the discriminator learns, and how many the global batch has."""
        return inputs.text_N, totals.tokens


class Electra15(Electra):
    """Replaced token detection at the masked positions only.

    The paper's ELECTRA 15 %: how much of ELECTRA's gain comes from learning at all positions.
    """

    def judged(self, inputs: Inputs, masked: Masked, totals: Counts) -> tuple[Tensor, int]:
        """The masked positions."""
        return masked.chosen_U, totals.masked
