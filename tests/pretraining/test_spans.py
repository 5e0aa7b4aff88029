"""Spans of masked rows, and a generator that reads them at once and writes them token by token."""

import dataclasses

import pytest
import torch
from torch import Tensor

from electra.model.encoder import initialise
from electra.model.spans import SpanGenerator
from electra.pretraining.masking import Inputs, Masked
from electra.pretraining.spans import MaskedSpans, find_spans

pytestmark = pytest.mark.numeric

PAD, CLS, SEP, MASK = 0, 2, 3, 4


def spans_of(rows: list[list[int]], masked: list[list[int]], *, longest: int) -> tuple[Inputs, MaskedSpans]:
    """Rows of tokens, of which those in some columns are masked."""
    lengths_B = torch.tensor([len(row) for row in rows])
    ids_BL = torch.full((len(rows), int(lengths_B.max())), PAD)
    for row_L, tokens in zip(ids_BL, rows, strict=True):
        row_L[: len(tokens)] = torch.tensor(tokens)
    inputs = Inputs.of(ids_BL, (torch.arange(ids_BL.shape[1]) > 3).long().expand_as(ids_BL), lengths_B)
    width = ids_BL.shape[1]
    positions_P = torch.tensor(
        [row * width + column for row, columns in enumerate(masked) for column in columns], dtype=torch.long
    )
    ordinary_M = inputs.text_N[~torch.isin(ids_BL.flatten()[inputs.text_N], torch.tensor([CLS, SEP]))]
    found = Masked(
        masked_ids_BL=ids_BL.flatten().index_fill(0, positions_P, MASK).view_as(ids_BL),
        positions_P=positions_P,
        original_P=ids_BL.flatten()[positions_P],
        uniform_P=torch.rand(
            len(positions_P), generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ),
        chosen_U=positions_P,
        ordinary_M=ordinary_M,
    )
    return inputs, find_spans(found, inputs, longest=longest)


ROWS = [
    [CLS, 10, 11, 12, 13, 14, 15, 16, 17, 18, SEP],
    [CLS, 19, 20, 21, SEP],
    [CLS, 5, 6, 7, 8, 9, 10, 11, SEP],
    [CLS, SEP],
]
# A single token and a run of four; a run to the row's end; two runs of which the second is longer; nothing.
MASKED = [[1, 4, 5, 6, 7], [2, 3], [1, 2, 4, 5, 6], []]


def test_runs_are_cut_into_spans():
    _, masked = spans_of(ROWS, MASKED, longest=3)
    # Of the run of four the last token is a span by itself.
    assert masked.layout.first_P.tolist() == [0, 1, 1, 1, 4, 5, 5, 7, 7, 9, 9, 9]
    assert masked.layout.begins.nonzero().flatten().tolist() == [0, 1, 4, 5, 7, 9]
    assert masked.layout.ends.nonzero().flatten().tolist() == [0, 3, 4, 6, 8, 11]
    assert masked.layout.tail_R.tolist() == [2, 6, 8, 10, 3, 11]
    # Two second tokens in a row at most, then one third token.
    assert masked.layout.passes == ((slice(0, 2), slice(0, 4)), (slice(2, 3), slice(4, 6)))
    # The longer span of a row comes first.
    assert masked.layout.column_BQ.tolist() == [[5, 0, 6], [3, 0, 0], [5, 2, 6], [0, 0, 0]]
    assert masked.layout.span_BQ.tolist() == [[0, -1, 0], [0, -1, -1], [0, 1, 0], [-1, -1, -1]]
    # The input of a slot is the token before the one that it names.
    assert masked.layout.slot_ids(masked.original_P).tolist() == [
        [13, 0, 14],
        [20, 0, 0],
        [8, 5, 9],
        [0, 0, 0],
    ]


def test_tokens_are_named_at_the_first_mask_and_in_slots():
    _, masked = spans_of(ROWS, MASKED, longest=3)
    width, both = 11, 14
    places = [divmod(place, both) for place in masked.layout.state_P.tolist()]
    columns = [place if place < width else f"slot {place - width}" for _, place in places]
    assert columns == [1, 4, "slot 0", "slot 2", 7, 2, "slot 0", 1, "slot 1", 4, "slot 0", "slot 2"]
    assert [row for row, _ in places] == [0] * 5 + [1] * 2 + [2] * 5


@pytest.mark.parametrize("longest", [1, 2, 8])
def test_rows_without_masks_have_no_spans(longest):
    _, masked = spans_of(ROWS, [[], [], [], []], longest=longest)
    assert [len(masked.layout.first_P), len(masked.layout.tail_R), masked.layout.column_BQ.shape[1]] == [
        0,
        0,
        0,
    ]
    assert len(masked.layout.passes) == longest - 1
    assert not len(masked.layout.any_in_span(torch.zeros(0, dtype=torch.bool)))


def test_what_holds_for_one_token_holds_for_its_span():
    _, masked = spans_of(ROWS, MASKED, longest=3)
    holds_P = torch.zeros(12, dtype=torch.bool)
    holds_P[[2, 4]] = True
    assert masked.layout.any_in_span(holds_P).nonzero().flatten().tolist() == [1, 2, 3, 4]


@pytest.fixture(params=["absolute", "alibi", "modern"])
def generator(request, toy, modern_toy) -> SpanGenerator:
    """With weights so large that all tokens matter."""
    config = toy.encoder
    if request.param == "alibi":
        config = dataclasses.replace(config, position_embedding_type="alibi")
    if request.param == "modern":
        config = dataclasses.replace(modern_toy.encoder, local_attention_window=4)
    generator = SpanGenerator(config)
    initialise(generator, std=0.3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in generator.layers:
            for part in (layer.attention.output, layer.feed_forward.output):
                part.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return generator.eval()


def read(generator: SpanGenerator, inputs: Inputs, masked: MaskedSpans):
    return generator.read(masked.masked_ids_BL, inputs.token_type_ids_BL, masked.layout, masked.original_P)


def states(generator: SpanGenerator, inputs: Inputs, masked: MaskedSpans) -> Tensor:
    hidden_BXD, _ = read(generator, inputs, masked)
    return hidden_BXD.flatten(0, 1)[masked.layout.state_P]


def test_states_of_rows_are_those_of_the_plain_encoder(generator):
    inputs, masked = spans_of(ROWS, MASKED, longest=3)
    hidden_BXD, _ = read(generator, inputs, masked)
    plain_BLD = generator(masked.masked_ids_BL, **inputs.context)
    text_BL = inputs.token_mask
    torch.testing.assert_close(hidden_BXD[:, :11][text_BL], plain_BLD[text_BL], rtol=0, atol=1e-5)


@pytest.mark.parametrize("longest", [2, 3, 8])
def test_writing_token_by_token_is_reading_at_once(generator, longest):
    """The keys and values that are kept change nothing: states after the same tokens are the same."""
    inputs, masked = spans_of(ROWS, MASKED, longest=longest)
    hidden_BXD, reading = read(generator, inputs, masked)
    written = []

    def draw(hidden_RD, tail_R):
        written.append(hidden_RD)
        return masked.original_P[tail_R]

    # Only first tokens are known at the start.
    first_P = masked.original_P.where(masked.layout.begins, MASK)
    sampled_P = generator.write(inputs.token_type_ids_BL, masked.layout, reading, first_P, draw=draw)
    assert torch.equal(sampled_P, masked.original_P)
    assert len(written) == longest - 1
    expected_PD = hidden_BXD.flatten(0, 1)[masked.layout.state_P]
    torch.testing.assert_close(torch.cat(written), expected_PD[masked.layout.tail_R], rtol=0, atol=1e-5)


def test_a_token_depends_on_the_row_and_on_the_tokens_before_it_in_its_span(generator):
    inputs, masked = spans_of(ROWS, MASKED, longest=3)
    before_PD = states(generator, inputs, masked)

    def changed(number: int) -> list[int]:
        tokens_P = masked.original_P.clone()
        tokens_P[number] = 20
        after_PD = states(generator, inputs, dataclasses.replace(masked, original_P=tokens_P))
        return ((after_PD - before_PD).abs().amax(1) > 1e-6).nonzero().flatten().tolist()

    assert changed(1) == [2, 3]
    assert changed(2) == [3]
    assert changed(3) == []
    assert changed(9) == [10, 11]
    ids_BL = masked.masked_ids_BL.clone()
    # The token after the last span of the first row, within the reach of a window.
    ids_BL[0, 8] = 9
    after_PD = states(generator, inputs, dataclasses.replace(masked, masked_ids_BL=ids_BL))
    assert ((after_PD - before_PD).abs().amax(1) > 1e-6).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_row_is_the_same_alone_as_in_a_batch(generator):
    inputs, masked = spans_of(ROWS, MASKED, longest=3)
    together_PD = states(generator, inputs, masked)
    parts = [
        states(generator, *spans_of([row], [columns], longest=3))
        for row, columns in zip(ROWS, MASKED, strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), together_PD, rtol=0, atol=1e-5)
