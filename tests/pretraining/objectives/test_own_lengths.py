"""Spans that the generator writes at a length of its own."""

import itertools

import pytest
import torch

from electra.errors import InputError
from electra.pretraining.config import GeneratorConfig, ReplacedSpanConfig
from electra.pretraining.masking import Inputs, Masked, MaskingConfig, StepRandom
from electra.pretraining.metrics import summarise
from electra.pretraining.sampling import sample
from electra.pretraining.spans import NOTHING, OwnSpans, close_up, shorten, stretched_views

pytestmark = pytest.mark.numeric

PAD, CLS, SEP, MASK = 0, 2, 3, 4
RANDOM = StepRandom(seed=4, step=7, num_rows=32)
OWN = ReplacedSpanConfig(length="own", max_tokens=3, boundaries="on")


def short_spans(
    rows: list[list[int]], masked: list[list[int]], *, longest: int, seq_length: int = 16
) -> tuple[Inputs, OwnSpans]:
    """Rows of tokens, of which those in some columns are masked."""
    lengths_B = torch.tensor([len(row) for row in rows])
    ids_BL = torch.zeros(len(rows), int(lengths_B.max()), dtype=torch.long)
    for row_L, tokens in zip(ids_BL, rows, strict=True):
        row_L[: len(tokens)] = torch.tensor(tokens)
    inputs = Inputs.of(ids_BL, (ids_BL > 12).long(), lengths_B)
    width = ids_BL.shape[1]
    positions_P = torch.tensor(
        [row * width + column for row, columns in enumerate(masked) for column in columns], dtype=torch.long
    )
    plain = Masked(
        masked_ids_BL=ids_BL.flatten().index_fill(0, positions_P, MASK).view_as(ids_BL),
        positions_P=positions_P,
        original_P=ids_BL.flatten()[positions_P],
        uniform_P=torch.zeros(len(positions_P)),
        chosen_U=positions_P,
        ordinary_M=inputs.text_N,
    )
    random = torch.Generator().manual_seed(0)
    uniform_BUN = torch.rand(len(rows), width, longest, generator=random, dtype=torch.float64)
    found = shorten(
        plain, inputs, uniform_BUN, longest=longest, mask_id=MASK, end_id=SEP, seq_length=seq_length
    )
    return inputs, found


# A run of three and a single token; a run that is cut into two spans; nothing.
ROWS = [[CLS, 10, 11, 12, 13, 14, 15, SEP], [CLS, 16, 17, 18, 19, 20, SEP], [CLS, 21, SEP]]
MASKED = [[2, 3, 4, 6], [1, 2, 3, 4], []]


def test_a_span_is_one_mask_and_its_end_is_learned():
    _, masked = short_spans(ROWS, MASKED, longest=3)
    assert masked.learned.masked_ids_BL.tolist() == [
        [CLS, 10, MASK, 14, MASK, SEP],
        [CLS, MASK, MASK, 20, SEP, PAD],
        [CLS, 21, SEP, PAD, PAD, PAD],
    ]
    # Of a span as long as the longest the end is known.
    assert masked.learned.original_P.tolist() == [11, 12, 13, 15, SEP, 16, 17, 18, 19, SEP]
    assert masked.at_P.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert masked.original_W.tolist() == [11, 12, 13, 15, MASK, MASK, 16, 17, 18, 19, MASK, MASK]
    assert masked.num_tokens_S.tolist() == [3, 1, 3, 1]
    assert masked.short_type_ids_BK[0].tolist() == [0, 0, 0, 1, 1, 0]
    # Slots have the places behind their masks.
    assert masked.written.column_BQ.tolist() == [[3, 5, 4, 6], [2, 3, 3, 4], [0, 0, 0, 0]]


def test_rows_are_closed_up_around_what_was_written():
    inputs, masked = short_spans(ROWS, MASKED, longest=3)
    written = [[11, SEP, 9], [8, 7, 6], [16, 17, 18], [19, SEP, SEP]]
    rows = close_up(inputs, masked, torch.tensor(written).flatten())
    lengths = rows.is_text_BL.sum(1)
    assert [row[:length] for row, length in zip(rows.ids_BL.tolist(), lengths.tolist(), strict=True)] == [
        [CLS, 10, 11, 14, 8, 7, 6, SEP],
        [CLS, 16, 17, 18, 19, 20, SEP],
        [CLS, 21, SEP],
    ]
    # The first token is the original one, but it stands for three; the other row came out as it was.
    assert rows.replaced_BL.int().tolist()[0][:8] == [0, 0, 1, 0, 1, 1, 1, 0]
    assert rows.begins_BL.int().tolist()[0][:8] == [0, 0, 1, 0, 1, 0, 0, 0]
    assert rows.ends_BL.int().tolist()[0][:8] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert not rows.replaced_BL[1:].any()
    assert rows.type_ids_BL[0].tolist()[:8] == [0, 0, 0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("longest", [1, 2, 3, 4])
def test_every_way_of_writing_a_span_is_labelled_rightly(longest):
    """All spans of up to four tokens of a small vocabulary, against a list that is cut by hand."""
    written = list(itertools.product([5, 6, SEP], repeat=longest))
    original = [5, 6, 5, 6][: min(2, longest)]
    rows = [[CLS, 9, *original, 10, SEP]] * len(written)
    columns = list(range(2, 2 + len(original)))
    inputs, masked = short_spans(rows, [columns] * len(rows), longest=longest)
    found = close_up(inputs, masked, torch.tensor(written).flatten())
    for number, tokens in enumerate(written):
        ends = [place for place, token in enumerate(tokens) if token == SEP and place > 0]
        span = list(tokens[: ends[0]] if ends else tokens)
        is_other = int(span != original)
        ids, replaced = [CLS, 9, *span, 10, SEP], [0, 0, *[is_other] * len(span), 0, 0]
        size = int(found.is_text_BL[number].sum())
        assert found.ids_BL[number, :size].tolist() == ids
        assert found.replaced_BL[number].int().tolist()[:size] == replaced
        assert found.begins_BL[number].nonzero().flatten().tolist() == [2] * is_other
        assert found.ends_BL[number].nonzero().flatten().tolist() == [1 + len(span)] * is_other


def test_a_row_that_grows_too_long_keeps_its_end():
    inputs, masked = short_spans([[CLS, 10, 11, 12, 13, SEP]], [[1, 3]], longest=3, seq_length=8)
    rows = close_up(inputs, masked, torch.tensor([5, 6, 7, 8, 9, 5]))
    assert rows.ids_BL.tolist() == [[CLS, 5, 6, 7, 11, 8, 9, SEP]]
    assert rows.replaced_BL.int().tolist() == [[0, 1, 1, 1, 0, 1, 1, 0]]
    assert rows.ends_BL.int().tolist() == [[0, 0, 0, 1, 0, 0, 0, 0]]
    assert rows.is_text_BL.all()
    views = stretched_views(inputs, masked, rows, torch.zeros(1, masked.width))
    assert views["corrupted_ids_BL"].tolist() == [[CLS, 5, 6, 7, 11, 8, 9, NOTHING, NOTHING, SEP]]


def test_rows_are_shown_place_by_place():
    inputs, masked = short_spans(ROWS[:1], MASKED[:1], longest=3)
    rows = close_up(inputs, masked, torch.tensor([11, SEP, 9, 8, 7, SEP]))
    logits_BL = torch.arange(float(masked.width))[None]
    views = stretched_views(inputs, masked, rows, logits_BL)
    none = NOTHING
    assert views["original_ids_BL"].tolist() == [[CLS, 10, 11, 12, 13, 14, 15, none, none, SEP]]
    assert views["masked_ids_BL"].tolist() == [[CLS, 10, MASK, none, none, 14, MASK, none, none, SEP]]
    assert views["corrupted_ids_BL"].tolist() == [[CLS, 10, 11, none, none, 14, 8, 7, none, SEP]]
    assert views["replaced_BL"].int().tolist() == [[0, 0, 1, 0, 0, 0, 1, 1, 0, 0]]
    assert views["logits_BL"][0, [0, 2, 5, 9]].tolist() == [0, 2, 3, 6]


def named(objective, type_ids, learned):
    """Log-probabilities at all tokens of short rows."""
    hidden_BXD, _ = objective.generator.read(
        learned.masked_ids_BL, type_ids, learned.layout, learned.original_P
    )
    table_VE = objective.generator.embeddings.word_embeddings.weight
    state_PD = hidden_BXD.flatten(0, 1)[learned.layout.state_P]
    return objective.generator_head(state_PD, table_VE).log_softmax(-1)


@torch.no_grad()
def test_lengths_have_the_distribution_that_is_learned(toy):
    """How often spans of one, two and three tokens are written, and the probability of each by its sum."""
    objective = toy.objective("replaced_span", replaced_span=OWN, generator=GeneratorConfig(width=0.5)).eval()
    for weight in objective.generator.parameters():
        weight.mul_(8)
    # Ends are rare in a generator that has learned nothing.
    objective.generator_head.bias[SEP] += 3
    row, columns, number, vocab_size = [CLS, 5, 9, 12, 14, SEP], [2, 3], 20_000, toy.tokens.vocab_size
    pairs = list(itertools.product(range(vocab_size), repeat=2))
    inputs, given = short_spans([row] * len(pairs), [columns] * len(pairs), longest=3)
    # Each pair of tokens once, as the true one.
    true_P = torch.tensor([[*pair, SEP] for pair in pairs]).flatten()
    learned = type(given.learned)(**{**vars(given.learned), "original_P": true_P})
    log_p = named(objective, given.short_type_ids_BK, learned).view(vocab_size, vocab_size, 3, vocab_size)
    first_V, second_VV = log_p[0, 0, 0].exp().double(), log_p[:, 0, 1].exp().double()
    one = (first_V * second_VV[:, SEP]).sum()
    third_VV = log_p[:, :, 2, SEP].exp().double()
    goes_on_VV = first_V[:, None] * second_VV * (torch.arange(vocab_size) != SEP)
    two = (goes_on_VV * third_VV).sum()
    expected = torch.stack([one, two, 1 - one - two]) * number
    inputs, masked = short_spans([row] * number, [columns] * number, longest=3)
    lengths_S = masked.lengths(objective.propose(inputs, masked).sampled_P)
    found = lengths_S.bincount(minlength=4)[1:]
    # Lengths differ, and depend on what was written before: the test could fail.
    assert expected.min() > 0.05 * number
    assert second_VV[:, SEP].max() - second_VV[:, SEP].min() > 0.05
    # A sum of two squares of normal numbers: beyond 18.4 once in ten thousand times.
    assert ((found - expected) ** 2 / expected).sum() < 18.4


def test_what_is_written_follows_from_what_was_drawn_before(toy):
    """Each token is the one that `sample` draws when the written tokens are read as if they were true."""
    for generator in (
        GeneratorConfig(),
        GeneratorConfig(temperature=2.0, correct_token="forbidden"),
        GeneratorConfig(sampling="most_probable"),
        GeneratorConfig(sampling_dropout="off"),
    ):
        objective = toy.objective("replaced_span", replaced_span=OWN, generator=generator)
        inputs = toy.inputs(32)
        with torch.no_grad():
            # So that spans end at all lengths.
            objective.generator_head.bias[SEP] = 3
        masked = objective.mask(inputs, RANDOM)
        with torch.no_grad():
            sampled_W = objective.propose(inputs, masked).sampled_P
            as_read = type(masked.learned)(
                **{**vars(masked.learned), "layout": masked.written, "original_P": sampled_W}
            )
            log_p = named(objective, masked.short_type_ids_BK, as_read)
        expected_W = sample(
            log_p,
            masked.uniform_W,
            method=generator.sampling,
            temperature=generator.temperature,
            forbidden_P=masked.original_W if generator.correct_token == "forbidden" else None,
        )
        lengths_S = masked.lengths(sampled_W)
        is_over_SN = torch.arange(OWN.max_tokens) > lengths_S[:, None]
        assert torch.equal(sampled_W, expected_W.masked_fill(is_over_SN.flatten(), SEP))
        assert len(sampled_W) > 150
        assert generator.sampling == "most_probable" or {*lengths_S.tolist()} == {1, 2, 3}


@pytest.mark.parametrize("sampling_dropout", ["on", "off"])
def test_no_gradient_passes_through_what_is_written(toy, sampling_dropout):
    generator = GeneratorConfig(sharing="none", sampling_dropout=sampling_dropout)
    changes = {"generator": generator, "generator_weight": 0.0, "replaced_span": OWN}
    objective = toy.objective("replaced_span", dropout=0.1, **changes).train()
    objective(toy.inputs(), RANDOM).loss.backward()
    owned = objective.parameters_by_owner()
    assert not any(parameter.grad.any() for _, parameter in owned["generator"])
    assert all(parameter.grad.any() for name, parameter in owned["discriminator"] if "key.bias" not in name)


def test_losses_are_those_of_the_tokens_that_are_there(toy):
    objective = toy.objective("replaced_span", replaced_span=OWN).eval()
    inputs = toy.inputs()
    masked = objective.mask(inputs, RANDOM)
    output = objective(inputs, RANDOM)
    found = summarise(output.sums)
    rows = close_up(inputs, masked, objective.propose(inputs, masked).sampled_P)
    # The loss is a mean over the tokens of the original rows, a metric over those that are judged.
    per_token = rows.is_text_BL.sum().item() / len(inputs.text_N)
    discriminator = found["discriminator_loss"] + found["boundary_loss"]
    assert output.loss.item() == pytest.approx(found["mlm_loss"] + 50 * per_token * discriminator, rel=1e-5)
    assert per_token != 1
    written = masked.lengths(objective.propose(inputs, masked).sampled_P).sum() / masked.num_tokens_S.sum()
    assert found["length_ratio"] == pytest.approx(written.item())
    # Token by token, without any padding.
    losses = []
    for row in range(len(rows.ids_BL)):
        text = rows.is_text_BL[row]
        hidden = objective.discriminator(
            rows.ids_BL[row][text][None], token_type_ids_BL=rows.type_ids_BL[row][text][None]
        )
        logits = objective.discriminator_head(hidden)[0]
        labels = rows.replaced_BL[row][text].float()
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none"))
    assert torch.cat(losses).mean().item() == pytest.approx(found["discriminator_loss"], rel=1e-5)


@pytest.mark.slow
def test_the_length_of_spans_is_learned(toy):
    """Untrained, a generator nearly never ends a span; in time spans are as long as the true ones."""
    masking = MaskingConfig(strategy="span", mask_token_prob=1.0, mask_prob=0.3, max_span_words=2)
    config = ReplacedSpanConfig(length="own", max_tokens=8)
    objective = toy.objective("replaced_span", replaced_span=config, masking=masking)
    before = toy.evaluate(objective)["length_ratio"]
    list(toy.train(objective, 80, learning_rate=4e-3))
    found = toy.evaluate(objective)
    assert before > 2
    assert 0.8 < found["length_ratio"] < 1.25
    assert found["discriminator_auc"] > 0.6


def test_the_sign_of_the_end_starts_as_frequent(toy):
    import dataclasses

    tokens = dataclasses.replace(toy.tokens, counts_V=torch.arange(toy.tokens.vocab_size))
    started = dataclasses.replace(toy, tokens=tokens)
    for length, is_frequent in (("own", True), ("original", False)):
        config = ReplacedSpanConfig(length=length)
        objective = started.objective("replaced_span", replaced_span=config, output_bias="frequencies")
        bias_V = objective.generator_head.bias
        assert (bias_V[SEP] == bias_V.max()).item() == is_frequent


def test_masks_that_are_none_are_refused(toy):
    masking = MaskingConfig(strategy="span", mask_token_prob=0.85)
    with pytest.raises(InputError, match=r"mask_token_prob is 0\.85.*own.*set it to 1"):
        toy.objective("replaced_span", replaced_span=OWN, masking=masking)
