"""Masked rows -> their spans, to be rewritten at the original's length or at one of the generator's own.

At the original's length (`MaskedSpans`) a row keeps its masks, and what is written takes their places.

At a length of its own (`OwnSpans`) the generator sees one mask for a whole span, so that nothing tells how
long the original is, and learns to name a sign of the end, [SEP], after the last token:

    original    the  old city of  was  small          stretched rows, for spans of at most 3 tokens:
    short row   the  [MASK]       was  [MASK]         the  old city  of  was  small    .    .
    learned          old city of       small [SEP]    the  new town [SEP] was  large house [SEP]
    written          new town [SEP]    large house [SEP]
    corrupted   the  new town     was  large house

To write, all spans have room for the longest, and go on to its end: what comes after the first sign of the
end is dropped. How many tokens that are only a look at the data tells, and the host does not look. So rows
are first stretched, by places that the host knows, and then closed up by a sort. A row that has become longer
than rows are loses tokens before its last one, [SEP].

B rows, L tokens with padding, K of a short row, E of a stretched row, S spans of at most N tokens, P tokens
that are learned in spans (masked ones, and signs of the end), W = S · N that are written.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from electra.model.spans import SpanLayout, Spans, cut_runs, lay_out
from electra.pretraining.masking import Inputs, Masked, copied, copy_to

NOTHING = -1
"""In views: no token."""


@dataclass(frozen=True, kw_only=True)
class MaskedSpans(Masked):
    """Rows whose masked tokens are cut into spans."""

    layout: SpanLayout
    """Where the masked tokens are named."""

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return replace(self, **_copied_parts(self, device))


def find_spans(masked: Masked, inputs: Inputs, *, longest: int) -> MaskedSpans:
    """Cut runs of masked tokens into spans of at most `longest` tokens."""
    spans = cut_runs(masked.positions_P, width=masked.masked_ids_BL.shape[1], longest=longest)
    return MaskedSpans(**vars(masked), layout=lay_out(spans, inputs.token_mask, longest=longest))


@dataclass(frozen=True, kw_only=True)
class OwnSpans(Masked):
    """Rows in which the generator sees a mask for each span. All of it is found on the host."""

    learned: MaskedSpans
    """The short rows, and the P tokens that are learned, each at the mask of its span."""
    short_type_ids_BK: Tensor
    """Segments of the short rows."""
    at_P: Tensor
    """Their numbers among W."""
    written: SpanLayout
    """Where W tokens are named."""
    original_W: Tensor
    """The original tokens; [MASK], which is none, behind the last one of a span."""
    uniform_W: Tensor
    """A uniform number for each."""
    num_tokens_S: Tensor
    """Of the original spans."""
    source_BE: Tensor
    """Where the token of a stretched row is, among those of the flattened (B, L) and then W."""
    type_ids_BE: Tensor
    span_BE: Tensor
    """Its span; S for none."""
    step_BE: Tensor
    """Its number in the span; 0 in text, N at padding."""
    longest: int
    """N."""
    mask_id: int
    end_id: int
    width: int
    """Columns of corrupted rows."""

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return replace(self, **_copied_parts(self, device))

    def lengths(self, sampled_W: Tensor) -> Tensor:
        """How many tokens were written before the first sign of the end; one at least (S)."""
        is_end_SN = sampled_W.view(-1, self.longest) == self.end_id
        # [SEP] as the first token is a token like any other: a span is never empty.
        is_end_SN = torch.cat([torch.zeros_like(is_end_SN[:, :1]), is_end_SN[:, 1:]], dim=1)
        return (is_end_SN.cumsum(1) == 0).sum(1)

    def rewritten(self, sampled_W: Tensor) -> Tensor:
        """Which spans are not the original ones, by a token or by their length (S)."""
        # Where the original ends there is the sign of the end to be compared, so lengths are as well.
        differs_P = (sampled_W[self.at_P] != self.learned.original_P).long()
        return torch.zeros_like(self.num_tokens_S).index_add(0, self.at_P // self.longest, differs_P) > 0


def _copied_parts(masked: Masked, device: torch.device | str) -> dict[str, Any]:
    """All tensors of masked rows on a device, those of layouts too."""
    parts = vars(masked)
    tensors = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    return {
        **copied(tensors, device),
        **{name: part.to(device) for name, part in parts.items() if isinstance(part, Masked)},
        **{
            name: part.moved(lambda tensor: copy_to(tensor, device))
            for name, part in parts.items()
            if isinstance(part, SpanLayout)
        },
    }


def shorten(
    masked: Masked,
    inputs: Inputs,
    uniform_BUN: Tensor,
    *,
    longest: int,
    mask_id: int,
    end_id: int,
    seq_length: int,
) -> OwnSpans:
    """Show each span as one mask, and find places for whatever may be written in its stead.

    `uniform_BUN`: uniform numbers for the U spans that a row may have.
    """
    ids_BL, num_rows = inputs.input_ids_BL, len(inputs.input_ids_BL)
    spans = cut_runs(masked.positions_P, width=ids_BL.shape[1], longest=longest)
    num_spans, step_N = len(spans.length_S), torch.arange(longest)
    is_original_SN = step_N < spans.length_S[:, None]
    is_later_P = is_original_SN.nonzero()[:, 1] > 0
    is_later_BL = _marked(masked.positions_P[is_later_P], ids_BL)
    stays_BL = inputs.token_mask & ~is_later_BL
    # Short rows: what stays, side by side.
    short_BL = stays_BL.cumsum(1) - 1
    is_text_BK = torch.arange(int(stays_BL.sum(1).max())) < stays_BL.sum(1)[:, None]
    short_ids_BK, short_type_ids_BK = (
        torch.zeros(is_text_BK.shape, dtype=torch.long).masked_scatter_(is_text_BK, values_BL[stays_BL])
        for values_BL in (masked.masked_ids_BL, inputs.token_type_ids_BL)
    )
    column_S = short_BL[spans.row_S, spans.column_S]
    # With the sign of the end, if there is room for it.
    num_learned_S = (spans.length_S + 1).clamp(max=longest)
    learned, written = (
        lay_out(
            Spans(spans.row_S, column_S, length_S), is_text_BK, longest=longest, last_column=seq_length - 1
        )
        for length_S in (num_learned_S, torch.full_like(num_learned_S, longest))
    )
    original_SN = torch.full((num_spans, longest), mask_id).masked_scatter_(is_original_SN, masked.original_P)
    true_SN = original_SN.masked_fill(step_N == spans.length_S[:, None], end_id)
    at_P = (step_N < num_learned_S[:, None]).flatten().nonzero().squeeze(1)
    mask_S = spans.row_S * is_text_BK.shape[1] + column_S
    in_row_S = torch.arange(num_spans) - torch.searchsorted(spans.row_S, spans.row_S)
    uniform_W = uniform_BUN[spans.row_S, in_row_S].flatten()
    # Stretched rows: for each span as many places as the longest one takes.
    size_BL = stays_BL.long()
    size_BL[spans.row_S, spans.column_S] = longest
    start_BL = size_BL.cumsum(1) - size_BL
    shape = (num_rows, int(size_BL.sum(1).max()))
    source_BE, type_ids_BE = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    span_BE, step_BE = torch.full(shape, num_spans), torch.full(shape, longest)
    row_M, column_M = (stays_BL & (size_BL == 1) & ~_marked(masked.positions_P, ids_BL)).nonzero(
        as_tuple=True
    )
    text = (row_M, start_BL[row_M, column_M])
    source_BE[text] = row_M * ids_BL.shape[1] + column_M
    type_ids_BE[text] = inputs.token_type_ids_BL[row_M, column_M]
    step_BE[text] = 0
    inside = (spans.row_S[:, None], start_BL[spans.row_S, spans.column_S][:, None] + step_N)
    source_BE[inside] = ids_BL.numel() + torch.arange(num_spans * longest).view(num_spans, longest)
    type_ids_BE[inside] = inputs.token_type_ids_BL[spans.row_S, spans.column_S][:, None].expand(-1, longest)
    span_BE[inside] = torch.arange(num_spans)[:, None].expand(-1, longest)
    step_BE[inside] = step_N.expand(num_spans, -1)
    return OwnSpans(
        **vars(masked),
        learned=MaskedSpans(
            masked_ids_BL=short_ids_BK,
            positions_P=mask_S[at_P // longest],
            original_P=true_SN.flatten()[at_P],
            uniform_P=uniform_W[at_P],
            chosen_U=mask_S,
            ordinary_M=is_text_BK.flatten().nonzero().squeeze(1),
            layout=learned,
        ),
        short_type_ids_BK=short_type_ids_BK,
        at_P=at_P,
        written=written,
        original_W=original_SN.flatten(),
        uniform_W=uniform_W,
        num_tokens_S=spans.length_S,
        source_BE=source_BE,
        type_ids_BE=type_ids_BE,
        span_BE=span_BE,
        step_BE=step_BE,
        longest=longest,
        mask_id=mask_id,
        end_id=end_id,
        width=min(shape[1], seq_length),
    )


def _marked(positions: Tensor, like_BL: Tensor) -> Tensor:
    """True at some positions of the flattened rows."""
    flat = torch.zeros(like_BL.numel(), dtype=torch.bool)
    return flat.index_fill_(0, positions, True).view_as(like_BL)


class ClosedUp(NamedTuple):
    """Corrupted rows whose spans have lengths of their own."""

    ids_BL: Tensor
    type_ids_BL: Tensor
    is_text_BL: Tensor
    replaced_BL: Tensor
    """Which tokens belong to a rewritten span."""
    begins_BL: Tensor
    """Which are the first of one."""
    ends_BL: Tensor
    """Which are the last."""
    there_BE: Tensor
    """Which places of the stretched rows hold a token of these rows."""
    column_BE: Tensor
    """Its column."""


@torch.no_grad()
def close_up(inputs: Inputs, masked: OwnSpans, sampled_W: Tensor) -> ClosedUp:
    """Put what was written into the rows, and close the gaps."""
    # For what is in no span there is one more: of length 1, and never rewritten.
    lengths, rewritten = masked.lengths(sampled_W), masked.rewritten(sampled_W)
    length_BE = torch.cat([lengths, lengths.new_ones(1)])[masked.span_BE]
    replaced_BE = torch.cat([rewritten, rewritten.new_zeros(1)])[masked.span_BE]
    there_BE = masked.step_BE < length_BE
    length_B1 = there_BE.sum(1, keepdim=True)
    column_L = torch.arange(masked.width, device=there_BE.device)
    is_text_BL = column_L < length_B1
    order_BL = (~there_BE).long().argsort(dim=1, stable=True)[:, : masked.width]
    # What is cut off is before the last token.
    is_cut_BL = (length_B1 > masked.width) & (column_L == masked.width - 1)
    ids_BL = torch.cat([inputs.input_ids_BL.flatten(), sampled_W])[masked.source_BE].gather(1, order_BL)
    ids_BL = ids_BL.masked_fill(is_cut_BL, masked.end_id).masked_fill(~is_text_BL, 0)
    kept_BL = is_text_BL & ~is_cut_BL
    replaced_BL, begins_BL, ends_BL = (
        values_BE.gather(1, order_BL) & kept_BL
        for values_BE in (
            replaced_BE,
            replaced_BE & (masked.step_BE == 0),
            replaced_BE & (masked.step_BE == length_BE - 1),
        )
    )
    column_BE = there_BE.cumsum(1) - 1
    return ClosedUp(
        ids_BL=ids_BL,
        type_ids_BL=masked.type_ids_BE.gather(1, order_BL),
        is_text_BL=is_text_BL,
        replaced_BL=replaced_BL,
        begins_BL=begins_BL,
        ends_BL=ends_BL,
        there_BE=there_BE & ((column_BE < masked.width - 1) | (column_BE == length_B1 - 1)),
        column_BE=column_BE.clamp(0, masked.width - 1),
    )


@torch.no_grad()
def stretched_views(inputs: Inputs, masked: OwnSpans, rows: ClosedUp, logits_BL: Tensor) -> dict[str, Tensor]:
    """Original, masked and corrupted rows, place by place, with labels and verdicts; `NOTHING` in gaps."""
    in_span_BE = masked.span_BE < len(masked.num_tokens_S)
    num_tokens = torch.cat([masked.num_tokens_S, masked.num_tokens_S.new_ones(1)])[masked.span_BE]
    original_BE = torch.cat([inputs.input_ids_BL.flatten(), masked.original_W])[masked.source_BE]
    return {
        "original_ids_BL": original_BE.where(masked.step_BE < num_tokens, NOTHING),
        "masked_ids_BL": original_BE.masked_fill(in_span_BE, masked.mask_id).where(
            masked.step_BE == 0, NOTHING
        ),
        "corrupted_ids_BL": rows.ids_BL.gather(1, rows.column_BE).where(rows.there_BE, NOTHING),
        "replaced_BL": rows.replaced_BL.gather(1, rows.column_BE) & rows.there_BE,
        "logits_BL": logits_BL.detach().gather(1, rows.column_BE),
    }
