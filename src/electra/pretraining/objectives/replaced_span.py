"""Masked rows -> the loss of a generator that rewrites whole spans, and of the discriminator that finds them.

ELECTRA's generator draws each token by itself, so that two neighbours rarely go together and give each other
away. Here a span is rewritten from left to right, each token after those drawn before it (`model/spans.py`):
a phrase that is likely as a whole. The generator learns the original spans by maximum likelihood, and no
gradient passes through what it draws. With spans of one token, at the original's length, this is ELECTRA.

**Length** (`replaced_span.length`). A span is as long as the original one; or the generator also decides how
long it is (own), and rows become longer or shorter (`pretraining/spans.py`).

**Labels.** The discriminator tells for every token whether it belongs to a rewritten span. A span is
rewritten if any of its tokens or its length differs from the original, and then all of its tokens count as
replaced, also those that came out as they were: in "a glass of water" for "a piece of cake" the phrase is
another, and "of" is part of it. A span that came out as the original counts as original, as a token does in
ELECTRA.

**Boundaries** (`replaced_span.boundaries` on). A second head tells at which tokens rewritten spans begin and
end. Its loss is part of the discriminator's, with the same weight.

B rows, L positions, P masked positions of all rows together, W tokens that are written, N judged positions, D
hidden size.
"""

from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.encoder import GlorotLinear
from electra.model.heads import DETECTION_HEADS
from electra.model.sizes import EncoderConfig
from electra.model.spans import SpanGenerator, SpanInputs, SpanLayout
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import Sums, area_sums, detection_sums, fraction, mean_counted
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
from electra.pretraining.spans import (
    ClosedUp,
    MaskedSpans,
    OwnSpans,
    close_up,
    find_spans,
    shorten,
    stretched_views,
)


class Rows(NamedTuple):
    """Rewritten rows as the discriminator sees them, and what is true of them."""

    ids_BL: Tensor
    context: dict[str, Tensor | None]
    """What an encoder takes beside token ids."""
    replaced_BL: Tensor
    """Whether a token belongs to a rewritten span."""
    begins_BL: Tensor
    """Whether it is the first token of one."""
    ends_BL: Tensor
    """Whether it is the last."""
    text_N: Tensor | None
    """Where tokens are, in the flattened rows; None if the host cannot know."""
    counted_N: Tensor | None = None
    """Then: which of all positions are tokens."""

    def judged(self, values_BLX: Tensor) -> Tensor:
        """Values at the positions that are judged (N, X)."""
        return values_BLX.flatten(0, 1) if self.text_N is None else pick(values_BLX, self.text_N)


def label_spans(layout: SpanLayout, original_P: Tensor, sampled_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compare the spans that were written with those as long -> which tokens are rewritten, begin, end."""
    rewritten_P = layout.any_in_span(sampled_P != original_P)
    return rewritten_P, rewritten_P & layout.begins, rewritten_P & layout.ends


class ReplacedSpan(Objective):
    """Detection of spans that a left-to-right generator has rewritten."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        _require_spans(config, masker)
        self.sep_id = tokens.sep_id
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

    def mask(self, inputs: Inputs, random: StepRandom) -> MaskedSpans | OwnSpans:
        """The rows as the generator will see them, cut into spans, on the host."""
        masked, longest = super().mask(inputs, random), self.config.replaced_span.max_tokens
        if self.config.replaced_span.length == "original":
            return find_spans(masked, inputs, longest=longest)
        assert self.sep_id is not None, "spans are ended by [SEP]"
        # A row has at most as many spans as masked tokens.
        most = max(1, self.config.masking.max_predictions(self.masker.seq_length))
        return shorten(
            masked,
            inputs,
            random.uniform("span", len(inputs.input_ids_BL), most, longest),
            longest=longest,
            mask_id=self.masker.mask_id,
            end_id=self.sep_id,
            seq_length=self.masker.seq_length,
        )

    def count(self, inputs: Inputs, masked: Masked) -> Counts:
        """The positions that losses are taken at; signs of the end are among those that are learned.

        How long rows become nobody knows beforehand: the discriminator's loss is a mean over as many tokens
        as the original rows have.
        """
        counts = super().count(inputs, masked)
        return counts._replace(masked=len(masked.at_P)) if isinstance(masked, OwnSpans) else counts

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Generator's and discriminator's loss, weighted."""
        assert isinstance(masked, MaskedSpans | OwnSpans)
        proposal = self.propose(inputs, masked)
        if isinstance(masked, OwnSpans):
            closed = close_up(inputs, masked, proposal.sampled_P)
            rows, learned = _closed_rows(closed), masked.learned
            lengths = {"length_ratio": _length_ratio(masked, proposal.sampled_P)}
            proposal = proposal._replace(sampled_P=proposal.sampled_P[masked.at_P])
        else:
            closed, lengths = None, {}
            rows, learned = _rows(inputs, masked, proposal.sampled_P), masked
        hidden_BLD = self.discriminator(rows.ids_BL, **rows.context)
        logits_BL = self.discriminator_head(hidden_BLD).float()
        if isinstance(masked, OwnSpans):
            assert closed is not None
            views = stretched_views(inputs, masked, closed, logits_BL)
        else:
            corrupted = Corrupted(corrupted_ids_BL=rows.ids_BL, replaced_BL=rows.replaced_BL)
            views = detection_views(masked, corrupted, logits_BL)
        logits_N, replaced_N = map(rows.judged, (logits_BL, rows.replaced_BL))
        losses_N = detection_losses(logits_N, replaced_N)
        sums = {
            **proposal_sums(proposal, learned, self.masker.mask_id),
            **lengths,
            **detection_sums(losses_N, logits_N, replaced_N, rows.counted_N),
            "replaced_fraction": mean_counted(replaced_N, rows.counted_N),
        }
        if self.boundary_head is not None:
            boundary_losses_N, boundary_sums = self.find_boundaries(hidden_BLD, rows)
            losses_N, sums = losses_N + boundary_losses_N, {**sums, **boundary_sums}
        if rows.counted_N is not None:
            losses_N = losses_N.where(rows.counted_N, 0.0)
        return StepOutput(
            loss=self.config.generator_weight * share(proposal.loss_P, totals.masked)
            + self.discriminator_weight * share(losses_N, totals.tokens),
            sums=sums,
            views=views,
        )

    def propose(self, inputs: Inputs, masked: MaskedSpans | OwnSpans) -> Proposal:
        """What the generator says of the true spans, and the spans that it writes (P, or W of `OwnSpans`)."""
        learned, type_ids_BL = masked, inputs.token_type_ids_BL
        if isinstance(masked, OwnSpans):
            learned, type_ids_BL = masked.learned, masked.short_type_ids_BK
        assert isinstance(learned, MaskedSpans)
        read = partial(
            self.generator.read, learned.masked_ids_BL, type_ids_BL, learned.layout, learned.original_P
        )
        hidden_BXD, reading = read()
        named_PD = pick(hidden_BXD, learned.layout.state_P)
        proposal = propose(self.vocabulary(named_PD), learned, self.generating)
        if self.generating.sampling_dropout == "on" or not self.generator.training:
            written = self.write(type_ids_BL, masked, hidden_BXD, reading, proposal.sampled_P)
            return proposal._replace(sampled_P=written)
        with torch.no_grad(), evaluating(self.generator):
            hidden_BXD, reading = read()
            named_PD = pick(hidden_BXD, learned.layout.state_P)
            sampled_P = self.draw(named_PD, learned.original_P, learned.uniform_P)
            written = self.write(type_ids_BL, masked, hidden_BXD, reading, sampled_P)
        return proposal._replace(sampled_P=written)

    def write(
        self,
        type_ids_BL: Tensor,
        masked: MaskedSpans | OwnSpans,
        hidden_BXD: Tensor,
        reading: SpanInputs,
        sampled_P: Tensor,
    ) -> Tensor:
        """The tokens of all spans, after the first ones of those that were drawn."""
        layout, original, uniform, sampled = (
            (masked.layout, masked.original_P, masked.uniform_P, sampled_P)
            if isinstance(masked, MaskedSpans)
            else (
                masked.written,
                masked.original_W,
                masked.uniform_W,
                masked.original_W.index_copy(0, masked.at_P, sampled_P),
            )
        )
        if isinstance(masked, OwnSpans):
            reading = self.generator.at_other_slots(hidden_BXD, reading, layout)
        return self.generator.write(
            type_ids_BL,
            layout,
            reading,
            sampled,
            draw=lambda hidden_RD, tail_R: self.draw(hidden_RD, original[tail_R], uniform[tail_R]),
            end_id=masked.end_id if isinstance(masked, OwnSpans) else None,
        )

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

    def find_boundaries(self, hidden_BLD: Tensor, rows: Rows) -> tuple[Tensor, Sums]:
        """The loss (N) of telling where rewritten spans begin and end, of both together."""
        assert self.boundary_head is not None
        logits_N2 = self.boundary_head(rows.judged(hidden_BLD)).float()
        is_bound_N2 = rows.judged(torch.stack([rows.begins_BL, rows.ends_BL], dim=-1))
        losses_N = detection_losses(logits_N2, is_bound_N2).sum(-1)
        counted = None if rows.counted_N is None else rows.counted_N.repeat_interleave(2)
        return losses_N, {
            "boundary_loss": mean_counted(losses_N, rows.counted_N),
            "boundary_auc": area_sums(logits_N2.flatten(), is_bound_N2.flatten(), counted),
        }

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The discriminator's logits."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)


def _rows(inputs: Inputs, masked: MaskedSpans, sampled_P: Tensor) -> Rows:
    """Rows with spans as long as the original ones."""

    def placed(values_P: Tensor) -> Tensor:
        flat = torch.zeros_like(masked.masked_ids_BL, dtype=torch.bool).flatten()
        return flat.index_copy(0, masked.positions_P, values_P).view_as(masked.masked_ids_BL)

    labels = label_spans(masked.layout, masked.original_P, sampled_P)
    replaced_BL, begins_BL, ends_BL = map(placed, labels)
    return Rows(
        corrupt(inputs.input_ids_BL, masked.positions_P, sampled_P).corrupted_ids_BL,
        inputs.context,
        replaced_BL,
        begins_BL,
        ends_BL,
        text_N=inputs.text_N,
    )


def _closed_rows(closed: ClosedUp) -> Rows:
    """Rows with spans of their own lengths."""
    # Without the places of text: an encoder looks for them itself where a look costs nothing.
    context = {"token_type_ids_BL": closed.type_ids_BL, "attention_mask_BL": closed.is_text_BL.long()}
    return Rows(
        closed.ids_BL,
        {**context},
        closed.replaced_BL,
        closed.begins_BL,
        closed.ends_BL,
        text_N=None,
        counted_N=closed.is_text_BL.flatten(),
    )


def _length_ratio(masked: OwnSpans, sampled_W: Tensor) -> Tensor:
    """Tokens that were written, in proportion to the original ones."""
    return fraction(masked.lengths(sampled_W).sum(), masked.num_tokens_S.sum())


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
    if config.replaced_span.length == "own" and config.masking.mask_token_prob != 1:
        raise InputError(
            f"masking.mask_token_prob is {config.masking.mask_token_prob}, but with replaced_span.length own "
            "one [MASK] stands for a whole span: set it to 1"
        )
    longest = config.replaced_span.max_tokens
    if longest > masker.seq_length:
        raise InputError(
            f"replaced_span.max_tokens is {longest}, but rows have {masker.seq_length} tokens: set it to "
            f"{masker.seq_length} or less"
        )
