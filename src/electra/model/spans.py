"""Masked rows and their spans -> a generator that reads all spans at once and writes each from left to right.

A span is a run of tokens that are written as one. The generator is an encoder with two ways to name a token.
The first token of a span it names as a masked language model does: from its state at the mask. For each later
token there is a *slot* behind the row, a position that has the place of its token and the token before it as
input:

    row     the  [MASK] [MASK] [MASK]  was  [MASK]
    names          old    city   of          small
    slots                (old)  (city)

A row sees itself alone: both sides of each span, and masks in the spans. A slot sees the row, and the slots
before it in its own span. So spans are independent of each other, given the masked row, and a token depends
on those before it in its span: GLM's blank infilling (Du et al. 2022), by the weights of the encoder.

To learn, all slots hold true tokens and are read with the row in one pass (`read`). To write, one pass fills
the second tokens of all spans of all rows, the next one the third tokens, and so on (`write`). What was read
before is kept as keys and values, so that a pass computes its own slots only. The number of passes does not
depend on the rows: processes that hold parts of the weights stay in step.

A span may also be shown as a single mask, which does not tell how long it is. Its slots then have the places
behind the mask, where other tokens of the row are: only slots before it tell a slot how far the span is.

B rows, L tokens with padding, Q slots of a row, X = L + Q, G slots of a row in one pass, S spans, P tokens of
all spans together, R of them that are not the first of their spans, D numbers in a hidden state.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from electra.model.attention import alibi_bias, attend, near_bias, rotary_angles, worthwhile_padding
from electra.model.encoder import Attention, AttentionInputs, Encoder
from electra.model.sizes import EncoderConfig

Memory = dict[int, tuple[Tensor, Tensor]]
"""Number of a layer -> keys and values of all positions that it has read."""
Draw = Callable[[Tensor, Tensor], Tensor]
"""States (R, D), the numbers of their tokens among P -> a token for each."""


class Spans(NamedTuple):
    """Where spans are, row by row and from left to right."""

    row_S: Tensor
    column_S: Tensor
    """Of the first token."""
    length_S: Tensor
    """In tokens."""


def cut_runs(positions_P: Tensor, *, width: int, longest: int) -> Spans:
    """Cut runs of masked positions, which are row-major in rows of `width`, into spans."""
    number_P = torch.arange(len(positions_P))
    is_next_P = (positions_P.diff(prepend=torch.tensor([-2])) == 1) & (positions_P % width > 0)
    run_P = torch.where(is_next_P, 0, number_P).cummax(0).values
    begins_P = (number_P - run_P) % longest == 0
    start_S = positions_P[begins_P]
    return Spans(start_S // width, start_S % width, (begins_P.cumsum(0) - 1).bincount())


@dataclass(frozen=True, kw_only=True)
class SpanLayout:
    """Where the tokens of spans are named. All of it is found on the host."""

    first_P: Tensor
    """For each token, the number of the first token of its span among all."""
    tail_R: Tensor
    """Numbers of the tokens that have a slot, pass by pass."""
    slot_R: Tensor
    """Their slots in the flattened (B, Q)."""
    place_R: Tensor
    """The same in the flattened (B, G) of their pass."""
    column_BQ: Tensor
    """The column in its row of the token that a slot names; 0 in slots that stay empty."""
    segment_BQ: Tensor
    """A column in the same segment."""
    span_BQ: Tensor
    """The span that a slot belongs to, by a number within its row; -1 in slots that stay empty."""
    state_P: Tensor
    """Where the token is named, in the flattened (B, X)."""
    text_mask_BX: Tensor
    """1 for tokens and slots, 0 for padding and empty slots."""
    text_T: Tensor
    """Where it is 1, in the flattened (B, X)."""
    passes: tuple[tuple[slice, slice], ...]
    """For each pass that writes: its slots among Q, its tokens among R. A pass may have none."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """The same on a device; how many slots a pass has the host knows."""
        moved: dict[str, Any] = {
            name: move(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def slot_ids(self, tokens_P: Tensor) -> Tensor:
        """The input (B, Q) of all slots, if these are the tokens of the spans: those before their own."""
        flat = torch.zeros_like(self.column_BQ).flatten()
        return flat.index_copy(0, self.slot_R, tokens_P[self.tail_R - 1]).view_as(self.column_BQ)

    def any_in_span(self, holds_P: Tensor) -> Tensor:
        """Whether something holds for any token of the span that a token belongs to (P)."""
        times_P = torch.zeros_like(self.first_P).index_add(0, self.first_P, holds_P.long())
        return times_P[self.first_P] > 0

    @property
    def begins(self) -> Tensor:
        """Which tokens are the first of their spans (P)."""
        return self.first_P == torch.arange(len(self.first_P), device=self.first_P.device)

    @property
    def ends(self) -> Tensor:
        """Which are the last (P): those before a first one."""
        return torch.cat([self.begins, self.begins.new_ones(1)])[1:]


def lay_out(spans: Spans, is_text_BL: Tensor, *, longest: int, last_column: int | None = None) -> SpanLayout:
    """Give each token but the first of a span its slot.

    `last_column`: a span is a single mask in its row, and its slots have the places behind it up to this one;
    None: each token has a mask of its own.
    """
    num_rows, width = is_text_BL.shape
    span_P = torch.arange(len(spans.length_S)).repeat_interleave(spans.length_S)
    first_P = (spans.length_S.cumsum(0) - spans.length_S)[span_P]
    step_P = torch.arange(len(first_P)) - first_P
    row_P, rank_P = spans.row_S[span_P], _ranks(spans)[span_P]
    column_P = spans.column_S[span_P] + step_P
    segment_P = column_P
    if last_column is not None:
        column_P, segment_P = column_P.clamp(max=last_column), spans.column_S[span_P]
    # Pass by pass, and within a pass in the order of the rows.
    tail_R = step_P.argsort(stable=True)[len(spans.length_S) :]
    columns, places, passes, num_slots, num_tails = [tail_R[:0]], [tail_R[:0]], [], 0, 0
    sizes = map(int, step_P.bincount(minlength=longest)[1:])
    for now_R in tail_R.split_with_sizes(list(sizes)):
        # The longest spans of a row come first, so that there is no gap in any pass.
        width_now = int(rank_P[now_R].max()) + 1 if len(now_R) else 0
        passes.append((slice(num_slots, num_slots + width_now), slice(num_tails, num_tails + len(now_R))))
        columns.append(num_slots + rank_P[now_R])
        places.append(row_P[now_R] * width_now + rank_P[now_R])
        num_slots, num_tails = num_slots + width_now, num_tails + len(now_R)
    column_R = torch.cat(columns)
    slot_R = row_P[tail_R] * num_slots + column_R
    column_BQ, segment_BQ, span_BQ = (
        torch.full((num_rows * num_slots,), empty).index_copy_(0, slot_R, values_P[tail_R])
        for values_P, empty in ((column_P, 0), (segment_P, 0), (rank_P, -1))
    )
    column_BQ, segment_BQ, span_BQ = (
        values.view(num_rows, num_slots) for values in (column_BQ, segment_BQ, span_BQ)
    )
    is_text_BX = torch.cat([is_text_BL, span_BQ >= 0], dim=1)
    in_both = width + num_slots
    state_P = (row_P * in_both + column_P).index_copy_(0, tail_R, row_P[tail_R] * in_both + width + column_R)
    return SpanLayout(
        first_P=first_P,
        tail_R=tail_R,
        slot_R=slot_R,
        place_R=torch.cat(places),
        column_BQ=column_BQ,
        segment_BQ=segment_BQ,
        span_BQ=span_BQ,
        state_P=state_P,
        text_mask_BX=is_text_BX.long(),
        text_T=is_text_BX.flatten().nonzero().squeeze(1),
        passes=tuple(passes),
    )


def _ranks(spans: Spans) -> Tensor:
    """For each span, how many spans of its row are longer, or as long and before it (S)."""
    by_length_S = spans.length_S.argsort(descending=True, stable=True)
    order_S = by_length_S[spans.row_S[by_length_S].argsort(stable=True)]
    place_S = torch.empty_like(order_S).index_copy_(0, order_S, torch.arange(len(order_S)))
    # Spans come row by row: those of the rows before are counted off.
    return place_S - torch.searchsorted(spans.row_S, spans.row_S)


def draw_unless(
    is_over_R: Tensor, draw: Draw, hidden_RD: Tensor, tail_R: Tensor, *, otherwise: int
) -> Tensor:
    """Draw tokens for spans that are not over yet."""
    if tail_R.device.type != "cpu":
        return draw(hidden_RD, tail_R).masked_fill(is_over_R, otherwise)
    # Most spans are short, and logits are most of the work. To look at the data costs nothing here.
    going_on = (~is_over_R).nonzero().squeeze(1)
    drawn = draw(hidden_RD[going_on], tail_R[going_on])
    return torch.full_like(tail_R, otherwise).index_copy(0, going_on, drawn)


class SpanInputs(AttentionInputs):
    """The inputs of attention for some of the positions, where others were read before."""

    before: Memory
    """Keys and values of those."""
    after: Memory
    """Takes those of all positions read by now."""

    @classmethod
    def of(cls, inputs: AttentionInputs, before: Memory) -> Self:
        """The same inputs, after what is in a memory."""
        made = cls(*inputs)
        made.before, made.after = before, {}
        return made

    def part(self, first: int, last: int, before: Memory) -> Self:
        """For the positions from `first` on, which see nothing from `last` on."""
        seen = (..., slice(first, last), slice(last))
        inputs = self._replace(
            bias=None if self.bias is None else self.bias[seen],
            local_bias=None if self.local_bias is None else self.local_bias[seen],
            rotation=None if self.rotation is None else _columns(self.rotation, first, last),
            padding=None,
        )
        return self.of(inputs, before)


def _columns(rotation: tuple[Tensor, Tensor], first: int, last: int) -> tuple[Tensor, Tensor]:
    cosine_B1XS, sine_B1XS = rotation
    return cosine_B1XS[:, :, first:last], sine_B1XS[:, :, first:last]


class SpanAttention(Attention):
    """Attention of some positions to themselves and to what was read before."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__(config, number)
        self.number = number

    def forward(self, hidden_BLD: Tensor, inputs: AttentionInputs) -> Tensor:
        """The sum of what each position takes from those that it sees."""
        if not isinstance(inputs, SpanInputs):
            return super().forward(hidden_BLD, inputs)
        if not hidden_BLD.numel():
            # A pass that has no slots here may have some in a process that holds a part of this layer.
            inputs.after.update(inputs.before)
            return hidden_BLD
        projected = self.project(hidden_BLD, self.queries, self.key, self.value)
        query_BHLS, key, value = self.turn(self.split(projected, inputs.padding), inputs.rotation)
        if self.number in inputs.before:
            old_key, old_value = inputs.before[self.number]
            key, value = torch.cat([old_key, key], dim=2), torch.cat([old_value, value], dim=2)
        # No gradient goes through what is written with it.
        inputs.after[self.number] = key.detach(), value.detach()
        bias = inputs.bias if self.reach is None else inputs.local_bias
        mixed_BHLS = attend(query_BHLS, key, value, bias=bias, dropout=self.map_dropout.active)
        mixed_BLD = mixed_BHLS.transpose(1, 2).flatten(2)
        output: Tensor = self.output(inputs.padding.remove(mixed_BLD) if inputs.padding else mixed_BLD)
        return output


class SpanGenerator(Encoder):
    """An encoder of masked rows that also reads and writes the slots behind them, by the same weights."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        for number, layer in enumerate(self.layers):
            layer.attention = SpanAttention(config, number)

    def read(
        self, ids_BL: Tensor, token_type_ids_BL: Tensor, layout: SpanLayout, tokens_P: Tensor
    ) -> tuple[Tensor, SpanInputs]:
        """Masked rows, and tokens of spans in all slots -> states (B, X, D); what `write` goes on from."""
        row_BLD = self.embed(ids_BL, token_type_ids_BL)
        slot_BQD = self.embed_slots(token_type_ids_BL, layout, layout.slot_ids(tokens_P))
        hidden_BXD = torch.cat([row_BLD, slot_BQD], dim=1)
        reading = SpanInputs.of(self.span_inputs(hidden_BXD, layout), {})
        if reading.padding is None:
            return self.run_layers(hidden_BXD, reading, "all"), reading
        hidden_TD = self.run_layers(reading.padding.remove(hidden_BXD), reading, "all")
        return reading.padding.restore(hidden_TD), reading

    def at_other_slots(self, hidden_BXD: Tensor, reading: SpanInputs, layout: SpanLayout) -> SpanInputs:
        """What `write` goes on from if it writes into other slots than were read, behind the same rows."""
        found = SpanInputs.of(self.span_inputs(hidden_BXD, layout), {})
        found.after = reading.after
        return found

    @torch.no_grad()
    def write(
        self,
        token_type_ids_BL: Tensor,
        layout: SpanLayout,
        reading: SpanInputs,
        sampled_P: Tensor,
        *,
        draw: Draw,
        end_id: int | None = None,
    ) -> Tensor:
        """All tokens of all spans (P), each drawn after those before it; the first ones are given.

        `end_id`: a token that ends a span, if it is not the first one; after it there is nothing else.
        """
        width = token_type_ids_BL.shape[1]
        # Of what was read only the rows: slots held other tokens.
        memory = {
            number: (key[:, :, :width], value[:, :, :width]) for number, (key, value) in reading.after.items()
        }
        for slots, tails in layout.passes:
            ids_BG = layout.slot_ids(sampled_P)[:, slots]
            part = reading.part(width + slots.start, width + slots.stop, memory)
            hidden_BGD = self.embed_slots(token_type_ids_BL, layout, ids_BG, slots)
            hidden_BGD = self.run_layers(hidden_BGD, part, "all")
            memory = part.after
            hidden_RD = hidden_BGD.flatten(0, 1).index_select(0, layout.place_R[tails])
            tail_R = layout.tail_R[tails]
            if end_id is None:
                drawn_R = draw(hidden_RD, tail_R)
            else:
                is_over_R = (sampled_P[tail_R - 1] == end_id) & ~layout.begins[tail_R - 1]
                drawn_R = draw_unless(is_over_R, draw, hidden_RD, tail_R, otherwise=end_id)
            sampled_P = sampled_P.index_copy(0, tail_R, drawn_R)
        return sampled_P

    def embed_slots(
        self, token_type_ids_BL: Tensor, layout: SpanLayout, ids_BG: Tensor, slots: slice = slice(None)
    ) -> Tensor:
        """The input of the first layer for some slots: a token, and the segment and place of the next one."""
        tables, column_BG = self.embeddings, layout.column_BQ[:, slots]
        vector_BGE: Tensor = tables.word_embeddings(ids_BG)
        if tables.token_type_embeddings is not None:
            segment_BG = token_type_ids_BL.gather(1, layout.segment_BQ[:, slots])
            vector_BGE = vector_BGE + tables.token_type_embeddings(segment_BG)
        if tables.position_embeddings is not None:
            vector_BGE = vector_BGE + tables.position_embeddings(column_BG)
        hidden: Tensor = self.dropout(tables.norm(vector_BGE))
        return hidden if self.projection is None else self.projection(hidden)

    def span_inputs(self, hidden_BXD: Tensor, layout: SpanLayout) -> AttentionInputs:
        """Who sees whom, and positions, for rows and slots together."""
        config, device, dtype = self.config, hidden_BXD.device, self.attention_dtype(hidden_BXD)
        num_rows, num_slots = layout.column_BQ.shape
        width = layout.text_mask_BX.shape[1] - num_slots
        column_BL = torch.arange(width, device=device).expand(num_rows, -1)
        column_BX = torch.cat([column_BL, layout.column_BQ], dim=1)
        pairs = (column_BX[:, :, None], column_BX[:, None, :])
        # A slot's place may be as far behind the row as a span is long.
        length = width + len(layout.passes)
        bias = torch.zeros((), dtype=dtype, device=device)
        # Finite, as for padding: a position that sees nothing gives no NaN.
        bias = bias.masked_fill(~self.sees(layout)[:, None], torch.finfo(dtype).min / 2)
        rotation, local_bias = None, None
        match config.position_embedding_type:
            case "alibi":
                near_HLL = alibi_bias(config.num_attention_heads, length, dtype=dtype, device=device)
                bias = bias + near_HLL[:, *pairs].transpose(0, 1)
            case "rotary":
                cosine_LS, sine_LS = rotary_angles(config.head_size, length, device=device, dtype=dtype)
                rotation = cosine_LS[column_BX][:, None], sine_LS[column_BX][:, None]
        if (reach := config.attention_reach(1)) is not None:
            near_LL = near_bias(length, reach=reach, dtype=dtype, device=device)
            local_bias = bias + near_LL[pairs][:, None]
        padding = worthwhile_padding(layout.text_mask_BX, layout.text_T)
        return AttentionInputs(bias, rotation, bias_is_padding=False, padding=padding, local_bias=local_bias)

    def sees(self, layout: SpanLayout) -> Tensor:
        """Whether one position sees another (B, X, X)."""
        num_slots = layout.span_BQ.shape[1]
        length = layout.text_mask_BX.shape[1] - num_slots
        slot_Q = torch.arange(num_slots, device=layout.span_BQ.device)
        # Later tokens of a span have later slots.
        own_BQQ = (layout.span_BQ[:, :, None] == layout.span_BQ[:, None]) & (slot_Q[:, None] >= slot_Q)
        from_rows_BLQ = own_BQQ.new_zeros(len(own_BQQ), length, num_slots)
        slots_BXQ = torch.cat([from_rows_BLQ, own_BQQ], dim=1)
        rows_BXL = layout.text_mask_BX[:, None, :length].bool().expand(-1, length + num_slots, -1)
        return torch.cat([rows_BXL, slots_BXQ], dim=2)
