"""Masked rows -> the loss of a generator that rewrites whole spans, and of the discriminator that finds them.

ELECTRA's generator draws each token by itself, so that two neighbours rarely go together and give each other
away. Here a span is rewritten from left to right, each token after those drawn before it
(`pretraining/spans.py` says how): a phrase that is likely as a whole, as long as the original one. The
generator learns the original spans by maximum likelihood, and no gradient passes through what it draws. With
spans of one token this is ELECTRA.

**Labels.** The discriminator tells for every token whether it belongs to a rewritten span. A span is
rewritten if any of its tokens differs from the original one, and then all of its tokens count as replaced,
also those that came out as they were: in "a glass of water" for "a piece of cake" the phrase is another, and
"of" is part of it. A span that came out as the original counts as original, as a token does in ELECTRA.

**Boundaries** (`replaced_span.boundaries` on). A second head tells at which tokens rewritten spans begin and
end. Its loss is part of the discriminator's, with the same weight.

B rows, L positions, P masked positions of all rows together, N judged positions, D hidden size.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.encoder import GlorotLinear
from electra.model.heads import DETECTION_HEADS
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import Sums, area_sums, detection_sums, mean
from electra.pretraining.networks import build_networks
from electra.pretraining.objectives.electra import (
    Proposal,
    Reduce,
    detection_losses,
    detection_views,
    draw,
    evaluating,
    proposal_sums,
    propose,
    suspicion,
)
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretraining.sampling import Corrupted, corrupt
from electra.pretraining.spans import MaskedSpans, SpanGenerator, find_spans


class Labels(NamedTuple):
    """What is true of the masked tokens, once they are rewritten."""

    rewritten_P: Tensor
    """Whether a token belongs to a rewritten span."""
    begins_P: Tensor
    """Whether it is the first token of one."""
    ends_P: Tensor
    """Whether it is the last."""


def label_spans(masked: MaskedSpans, sampled_P: Tensor) -> Labels:
    """Compare the spans that were written with the original ones."""
    rewritten_P = masked.any_in_span(sampled_P != masked.original_P)
    return Labels(rewritten_P, rewritten_P & masked.begins, rewritten_P & masked.ends)


class ReplacedSpan(Objective):
    """Detection of spans that a left-to-right generator has rewritten."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        _require_spans(config, masker)
        generator, head, discriminator = build_networks(
            config.generator, encoder, tokens, make_generator=SpanGenerator
        )
        assert isinstance(generator, SpanGenerator)
        assert head is not None
        # In this order: what both share is the generator's.
        self.generator, self.generator_head, self.discriminator = generator, head, discriminator
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        self.boundary_head: GlorotLinear | None = None
        if config.replaced_span.boundaries == "on":
            self.boundary_head = GlorotLinear(encoder.hidden_size, 2)

    def mask(self, inputs: Inputs, random: StepRandom) -> MaskedSpans:
        """The rows as the generator will see them, cut into spans, on the host."""
        masked = super().mask(inputs, random)
        return find_spans(masked, inputs, longest=self.config.replaced_span.max_tokens)

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's and discriminator's loss, weighted."""
        assert isinstance(masked, MaskedSpans)
        proposal = self.propose(inputs, masked)
        labels = label_spans(masked, proposal.sampled_P)
        ids_BL = corrupt(inputs.input_ids_BL, masked.positions_P, proposal.sampled_P).corrupted_ids_BL
        replaced_BL = _placed(labels.rewritten_P, masked)
        hidden_BLD = self.discriminator(ids_BL, **inputs.context)
        logits_BL = self.discriminator_head(hidden_BLD).float()
        logits_N, replaced_N = (pick(values, inputs.text_N) for values in (logits_BL, replaced_BL))
        losses_N = detection_losses(logits_N, replaced_N)
        sums = {
            **proposal_sums(proposal, masked, self.masker.mask_id),
            **detection_sums(losses_N, logits_N, replaced_N),
            "replaced_fraction": mean(replaced_N),
        }
        if self.boundary_head is not None:
            boundary_losses_N, boundary_sums = self.find_boundaries(hidden_BLD, inputs, masked, labels)
            losses_N, sums = losses_N + boundary_losses_N, {**sums, **boundary_sums}
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked)
            + self.discriminator_weight * share(losses_N, totals.tokens),
            sums=sums,
            views=detection_views(
                masked, Corrupted(corrupted_ids_BL=ids_BL, replaced_BL=replaced_BL), logits_BL
            ),
        )

    def propose(self, inputs: Inputs, masked: MaskedSpans) -> Proposal:
        """What the generator says of the true spans, and the spans that it writes."""
        hidden_BXD, reading = self.generator.read(inputs, masked)
        proposal = propose(self.vocabulary(pick(hidden_BXD, masked.state_P)), masked, self.generating)
        write = partial(self.generator.write, inputs, masked, draw=self.draw)
        if self.generating.sampling_dropout == "on" or not self.generator.training:
            return proposal._replace(sampled_P=write(reading, proposal.sampled_P))
        with torch.no_grad(), evaluating(self.generator):
            hidden_BXD, reading = self.generator.read(inputs, masked)
            sampled_P = self.draw(pick(hidden_BXD, masked.state_P), masked.original_P, masked.uniform_P)
            return proposal._replace(sampled_P=write(reading, sampled_P))

    def draw(self, hidden_RD: Tensor, original_R: Tensor, uniform_R: Tensor) -> Tensor:
        """A token for each state."""
        (sampled_R,) = self.vocabulary(hidden_RD)(
            partial(draw, config=self.generating), original_R, uniform_R
        )
        return sampled_R

    def vocabulary(self, hidden_PD: Tensor) -> Reduce:
        """A way to the logits of some states."""
        table_VE = self.generator.embeddings.word_embeddings.weight
        return partial(self.generator_head.reduce, hidden_PD, table_VE)

    def find_boundaries(
        self, hidden_BLD: Tensor, inputs: Inputs, masked: MaskedSpans, labels: Labels
    ) -> tuple[Tensor, Sums]:
        """The loss (N) of telling where rewritten spans begin and end, of both together."""
        assert self.boundary_head is not None
        logits_N2 = self.boundary_head(pick(hidden_BLD, inputs.text_N)).float()
        is_bound_BL2 = torch.stack(
            [_placed(values_P, masked) for values_P in (labels.begins_P, labels.ends_P)], dim=-1
        )
        is_bound_N2 = pick(is_bound_BL2, inputs.text_N)
        losses_N = detection_losses(logits_N2, is_bound_N2).sum(-1)
        return losses_N, {
            "boundary_loss": mean(losses_N),
            "boundary_auc": area_sums(logits_N2.flatten(), is_bound_N2.flatten()),
        }

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)


def _placed(values_P: Tensor, masked: Masked) -> Tensor:
    """Values of the masked tokens in their rows (B, L), False elsewhere."""
    flat = torch.zeros_like(masked.masked_ids_BL, dtype=torch.bool).flatten()
    return flat.index_copy(0, masked.positions_P, values_P).view_as(masked.masked_ids_BL)


def _require_spans(config: PretrainConfig, masker: Masker) -> None:
    if config.generator.kind != "mlm":
        raise InputError(
            f"generator.kind is {config.generator.kind}, but replaced_span needs a network that writes one "
            "token after the other: set it to mlm"
        )
    if config.masking.replacement != "without":
        raise InputError(
            f"masking.replacement is {config.masking.replacement}, but replaced_span rewrites a token once: "
            "set it to without"
        )
    longest = config.replaced_span.max_tokens
    if longest > masker.seq_length:
        raise InputError(
            f"replaced_span.max_tokens is {longest}, but rows have {masker.seq_length} tokens: set it to "
            f"{masker.seq_length} or less"
        )
