import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from electra.errors import InputError
from electra.model import attention
from electra.model.attention import (
    Padding,
    alibi_bias,
    attend,
    attention_map,
    padding_bias,
    plain_is_faster,
    rotary_angles,
    rotate,
    takes_packed,
    worthwhile_padding,
)
from electra.model.dropout import drop
from electra.model.encoder import Embeddings, Encoder, initialise
from electra.model.heads import DiscriminatorHead
from encoder_trace import trace

MASK_BL = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0]])
TEXT_T = torch.tensor([0, 1, 2, 4, 9, 10])


def test_text_is_found_or_given():
    for padding in (worthwhile_padding(MASK_BL), worthwhile_padding(MASK_BL, TEXT_T)):
        assert torch.equal(padding.text_T, TEXT_T)


def test_rows_lie_end_to_end():
    padding = Padding(MASK_BL, TEXT_T)
    assert padding.bounds.tolist() == [0, 3, 4, 6]
    assert padding.bounds.dtype == torch.int32
    assert padding.columns.tolist() == [0, 1, 2, 0, 1, 2]
    value_BL1 = torch.arange(1.0, 13).view(3, 4, 1)
    text_T1 = padding.remove(value_BL1)
    assert text_T1.flatten().tolist() == [1, 2, 3, 5, 10, 11]
    assert torch.equal(padding.restore(text_T1), value_BL1 * MASK_BL[..., None])


@pytest.mark.parametrize(("num_padded", "is_worthwhile"), [(0, False), (9, False), (10, True), (100, True)])
def test_a_little_padding_is_computed_on(num_padded, is_worthwhile):
    mask_BL = (torch.arange(100) >= num_padded).long()[None]
    for text_T in (None, mask_BL.flatten().nonzero().squeeze(1)):
        assert (worthwhile_padding(mask_BL, text_T) is not None) == is_worthwhile


def test_away_from_the_host_text_is_used_where_it_is_given_and_never_looked_for():
    mask_BL = MASK_BL.to("meta")
    assert worthwhile_padding(mask_BL) is None
    padding = worthwhile_padding(mask_BL, TEXT_T.to("meta"))
    hidden_TX = padding.remove(torch.zeros(3, 4, 5, device="meta"))
    assert hidden_TX.shape == (6, 5)
    assert padding.first(hidden_TX).shape == (3, 1, 5)
    assert padding.restore(hidden_TX).device.type == padding.bounds.device.type == "meta"


CPU = torch.device("cpu")


def random_heads(*, dtype=torch.float32, length=10):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 3, length, 8, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("bias", ["none", "padding", "alibi"])
def test_both_implementations_agree(bias):
    query, key, value = random_heads()
    mask = torch.arange(10) < torch.tensor([10, 4])[:, None]
    biases = {
        "none": None,
        "padding": padding_bias(mask, dtype=torch.float32),
        "alibi": alibi_bias(3, 10, dtype=torch.float32, device=CPU),
    }
    assert not plain_is_faster(query, dropout=0.0)
    fused = attend(query, key, value, bias=biases[bias], dropout=0.0)
    plain = attention_map(query, key, bias=biases[bias]) @ value
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


def test_plain_attention_is_chosen_where_it_was_measured_to_be_faster():
    query, _, _ = random_heads()
    assert plain_is_faster(query, dropout=0.1)
    assert plain_is_faster(query.bfloat16(), dropout=0.0)
    assert plain_is_faster(query.to("meta"), dropout=0.0)


def test_attention_dropout_drops_whole_weights():
    query, key, _ = random_heads()
    torch.manual_seed(0)
    dropped = attend(query, key, torch.eye(10).expand(2, 3, 10, 10), bias=None, dropout=0.5)
    full = attention_map(query, key, bias=None)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * full[kept])
    assert 0.4 < kept.float().mean() < 0.6


def test_padding_gets_no_attention_and_an_empty_row_no_nan():
    query, key, _ = random_heads(dtype=torch.float16)
    mask = torch.arange(10) < torch.tensor([4, 0])[:, None]
    weights = attention_map(query, key, bias=padding_bias(mask, dtype=torch.float16))
    assert (weights[0, ..., 4:] == 0).all()
    assert weights.isfinite().all()


def test_alibi_looks_the_same_in_both_directions_and_from_everywhere():
    bias = alibi_bias(4, 12, dtype=torch.float32, device=CPU)
    assert torch.equal(bias, bias.transpose(1, 2))
    assert torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1])
    assert (bias[:, 0].diff(dim=-1) < 0).all()
    # The first head is the most local one: a factor of two for each step.
    assert bias[:, 0, 1].tolist() == [-(2.0**-exponent) for exponent in (1, 3, 5, 7)]


def test_rotary_scores_depend_on_distance_only():
    query, key, _ = random_heads(length=1)
    rotation = rotary_angles(8, 12, device=CPU)
    queries, keys = (rotate(vector.expand(-1, -1, 12, -1), rotation) for vector in (query, key))
    scores = queries @ keys.transpose(-1, -2)
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1], rtol=1e-4, atol=1e-5)
    # Position 0 is not turned, and turning keeps lengths.
    torch.testing.assert_close(queries[:, :, :1], query)
    torch.testing.assert_close(queries.norm(dim=-1), query.norm(dim=-1).expand(-1, -1, 12))
    assert not torch.allclose(scores[..., 0, 1], scores[..., 0, 2])


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.999])
def test_dropout_keeps_the_mean_at_its_rate(probability):
    torch.manual_seed(5)
    ones = torch.ones(1000, 1003)
    dropped = drop(ones, probability)
    rate = min(255, round(probability * 256)) / 256
    values = dropped.unique().tolist()
    assert values == pytest.approx([0, 1 / (1 - rate)])
    # Five standard errors of a million draws.
    error = 5 * (rate * (1 - rate) / ones.numel()) ** 0.5
    assert float((dropped == 0).float().mean()) == pytest.approx(rate, abs=error)
    assert float(dropped.mean()) == pytest.approx(1, abs=error / (1 - rate))


def test_dropout_of_neighbours_is_independent():
    torch.manual_seed(6)
    zero = drop(torch.ones(800_000), 0.25) == 0
    for distance in (1, 4, 8, 64):
        both = (zero[distance:] & zero[:-distance]).float().mean()
        assert float(both) == pytest.approx(0.0625, abs=0.002)


def test_dropout_follows_the_default_generator_and_its_gradient_is_its_mask():
    value = torch.randn(7, 11, requires_grad=True)
    torch.manual_seed(7)
    first = drop(value, 0.3)
    torch.manual_seed(7)
    assert torch.equal(first, drop(value, 0.3))
    first.sum().backward()
    torch.testing.assert_close(value.grad * value.detach(), first.detach())
    assert drop(value, 0.0) is value


LENGTHS = (16, 5, 1, 0)
LONG_MASK_BL = (torch.arange(16) < torch.tensor(LENGTHS)[:, None]).long()
LONG_TEXT_T = LONG_MASK_BL.flatten().nonzero().squeeze(1)


@pytest.fixture
def calls(monkeypatch):
    """Let attention take packed rows here, and note the lengths of those it is called with."""
    noted = []

    def row_by_row(query_THS, key_THS, value_THS, bounds, bounds_k, longest, longest_k, *, scale):
        assert bounds is bounds_k
        assert longest == longest_k >= max(LENGTHS)
        noted.append(bounds.diff().tolist())
        mixed = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            query, key, value = (part[first:last].transpose(0, 1) for part in (query_THS, key_THS, value_THS))
            mixed.append((attention_map(query * scale, key, bias=None) @ value).transpose(0, 1))
        return torch.cat(mixed)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", row_by_row)
    monkeypatch.setattr("electra.model.encoder.takes_packed", lambda *given, **options: True)
    return noted


def run(encoder, **given):
    """Hidden states of the text, and all gradients."""
    ids = torch.randint(
        0, encoder.config.vocab_size, LONG_MASK_BL.shape, generator=torch.Generator().manual_seed(4)
    )
    encoder.zero_grad()
    hidden = encoder(ids, attention_mask_BL=LONG_MASK_BL, **given)
    if given.get("positions") == "first":
        # The last row has no text.
        hidden, weight = hidden[:-1], torch.ones(3, 1, 1)
    else:
        weight = LONG_MASK_BL[..., None]
    (hidden.square() * weight).sum().backward()
    return [(hidden * weight).detach(), *(parameter.grad.clone() for parameter in encoder.parameters())]


@pytest.mark.parametrize("positions", ["all", "first"])
@pytest.mark.parametrize("recomputes_layers", [False, True])
@pytest.mark.parametrize("position", ["absolute", "rotary"])
def test_packed_rows_give_what_padded_ones_do(
    position, recomputes_layers, positions, tiny, calls, monkeypatch
):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position)).double()
    encoder.recomputes_layers = recomputes_layers
    packed = run(encoder, text_T=LONG_TEXT_T, positions=positions)
    assert calls
    assert all(lengths == list(LENGTHS) for lengths in calls)
    calls.clear()
    monkeypatch.setattr("electra.model.attention.WORTHWHILE_PADDING", 2.0)
    padded = run(encoder, positions=positions)
    assert not calls
    for ours, theirs in zip(packed, padded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_a_bias_of_distances_needs_them_padded(tiny, calls):
    run(seeded(dataclasses.replace(tiny, position_embedding_type="alibi")).double(), text_T=LONG_TEXT_T)
    assert not calls


@pytest.mark.parametrize("position", ["absolute", "rotary"])
def test_torchs_kernel_takes_what_it_is_given(position, tiny, monkeypatch):
    """Forward and backward on `meta`, where it knows shapes alone."""
    monkeypatch.setattr("electra.model.encoder.takes_packed", lambda *given, **options: True)
    encoder = Encoder(dataclasses.replace(tiny, position_embedding_type=position)).to("meta", torch.bfloat16)
    mask_BL = LONG_MASK_BL.to("meta")
    hidden = encoder.eval()(mask_BL, attention_mask_BL=mask_BL, text_T=LONG_TEXT_T.to("meta"))
    assert hidden.shape == (4, 16, tiny.hidden_size)
    hidden.sum().backward()
    assert encoder.layers[0].attention.query.weight.grad is not None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"device": "cpu"}, False),
        ({"dtype": torch.float32}, False),
        ({"dropout": 0.1}, False),
        ({"head_size": 36}, False),
        ({"head_size": 512}, False),
        ({"capability": (7, 5)}, False),
        ({"has_kernel": False}, False),
    ],
)
def test_the_kernel_is_used_where_it_can_be(changes, expected, monkeypatch):
    case = {
        "device": "cuda",
        "dtype": torch.bfloat16,
        "dropout": 0.0,
        "head_size": 64,
        "capability": (8, 0),
        "has_kernel": True,
        **changes,
    }
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: case["capability"])
    monkeypatch.setattr(attention, "_HAS_PACKED_KERNEL", case["has_kernel"])
    projected = SimpleNamespace(device=torch.device(case["device"]), dtype=case["dtype"])
    assert takes_packed(projected, head_size=case["head_size"], dropout=case["dropout"]) == expected


pytestmark = pytest.mark.numeric

POSITIONS = ["absolute", "rotary", "alibi"]


def seeded(config, *, std=0.1):
    """An encoder whose weights are large enough for differences to show."""
    encoder = Encoder(config).eval()
    initialise(encoder, std=std, generator=torch.Generator().manual_seed(2))
    return encoder


def random_ids(config, *shape):
    return torch.randint(0, config.vocab_size, shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_row_gives_the_same_alone_and_in_a_padded_batch(position, dtype, tiny):
    # float32 takes the fused attention, bfloat16 the plain one.
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position)).to(dtype)
    lengths = torch.tensor([20, 7, 1])
    mask = torch.arange(20) < lengths[:, None]
    ids = random_ids(tiny, 3, 20)
    with torch.no_grad():
        padded = encoder(ids, attention_mask_BL=mask)
        other_padding = encoder(torch.where(mask, ids, 0), attention_mask_BL=mask.long())
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
        for row, length in enumerate(lengths.tolist()):
            alone = encoder(ids[row : row + 1, :length])[0]
            torch.testing.assert_close(padded[row, :length], alone, rtol=0, atol=tolerance)
            torch.testing.assert_close(padded[row, :length], other_padding[row, :length], rtol=0, atol=0)


@pytest.mark.parametrize("position", POSITIONS)
def test_computing_on_the_text_alone_changes_nothing(position, tiny, monkeypatch):
    """Hidden states and all gradients, with and without removing padding between the attentions."""
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    ids = random_ids(tiny, 3, 16)
    mask = (torch.arange(16) < torch.tensor([[16], [5], [1]])).long()
    weight = torch.randn(3, 16, tiny.hidden_size) * mask[..., None]
    results = []
    for least_share in (2.0, 0.0):
        monkeypatch.setattr("electra.model.attention.WORTHWHILE_PADDING", least_share)
        encoder.zero_grad()
        hidden = encoder(ids, attention_mask_BL=mask) * mask[..., None]
        (hidden * weight).sum().backward()
        results.append([hidden.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])
    for padded, text_only in zip(*results, strict=True):
        torch.testing.assert_close(text_only, padded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["all", "first"])
def test_text_positions_of_the_caller_are_those_the_encoder_finds(positions, tiny):
    encoder = seeded(tiny)
    ids = random_ids(tiny, 3, 16)
    mask = (torch.arange(16) < torch.tensor([[16], [5], [1]])).long()
    results = []
    for text in (None, mask.flatten().nonzero().squeeze(1)):
        encoder.zero_grad()
        hidden = encoder(ids, attention_mask_BL=mask, text_T=text, positions=positions)
        hidden.square().sum().backward()
        results.append([hidden.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])
    assert all(torch.equal(found, given) for found, given in zip(*results, strict=True))


@pytest.mark.parametrize("padding", ["none", "computed on", "removed"])
@pytest.mark.parametrize("position", POSITIONS)
def test_first_positions_alone_are_as_among_all(position, padding, tiny, monkeypatch):
    """Hidden states and all gradients, by the plain attention in double precision; then by the fused one."""
    monkeypatch.setattr(
        "electra.model.attention.WORTHWHILE_PADDING", 2.0 if padding == "computed on" else 0.0
    )
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position)).double()
    ids = random_ids(tiny, 3, 16)
    lengths = torch.tensor([[16], [1], [5]])
    mask = None if padding == "none" else (torch.arange(16) < lengths).long()
    weight = torch.randn(3, 1, tiny.hidden_size)
    results = []
    for positions in ("all", "first"):
        encoder.zero_grad()
        first = encoder(ids, attention_mask_BL=mask, positions=positions)[:, :1]
        (first * weight).sum().backward()
        results.append([first.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])
    for among_all, alone in zip(*results, strict=True):
        torch.testing.assert_close(alone, among_all, rtol=0, atol=1e-10)
    with torch.no_grad():
        fused = encoder.float()(ids, attention_mask_BL=mask, positions="first")
    torch.testing.assert_close(fused.double(), results[0][0], rtol=0, atol=1e-5)


def test_for_first_positions_the_last_layer_computes_little(tiny):
    config = dataclasses.replace(tiny, num_hidden_layers=1)
    flops = {}
    for positions in ("all", "first"):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            Encoder(config)(torch.zeros(1, 40, dtype=torch.long), positions=positions)
        flops[positions] = counter.get_total_flops()
    assert flops["first"] < 0.4 * flops["all"]


def test_no_gradient_comes_from_padding(tiny):
    encoder = seeded(tiny)
    ids = torch.tensor([[5, 6, 7, 99, 99]])
    hidden = encoder(ids, attention_mask_BL=torch.tensor([[1, 1, 1, 0, 0]]))
    hidden[:, :3].square().sum().backward()
    gradient = encoder.embeddings.word_embeddings.weight.grad
    assert (gradient[99] == 0).all()
    assert (gradient[7] != 0).any()


def test_the_row_of_the_padding_token_is_trained(tiny):
    encoder = seeded(tiny)
    encoder(torch.tensor([[0, 1, 2]]))[:, 0, 0].sum().backward()
    assert (encoder.embeddings.word_embeddings.weight.grad[0] != 0).any()


@pytest.mark.parametrize("position", POSITIONS)
def test_trace_ends_with_what_forward_gives(position, tiny):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    ids, mask = random_ids(tiny, 2, 9), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    traced = trace(encoder, ids, attention_mask_BL=mask)
    is_text = mask.bool()
    hidden = encoder(ids, attention_mask_BL=mask)
    torch.testing.assert_close(traced.hidden_NBLD[-1][is_text], hidden[is_text], rtol=0, atol=1e-5)
    assert len(traced.map_NBHLL) == len(traced.hidden_NBLD) == tiny.num_hidden_layers
    for weights in traced.map_NBHLL:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, tiny.num_attention_heads, 9))
        assert (weights[1, :, :, 6:] == 0).all()


@pytest.mark.parametrize("position", POSITIONS)
def test_order_matters_with_every_kind_of_position(position, tiny):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    ids = torch.tensor([[5, 6, 7, 8]])
    swapped = encoder(ids[:, [0, 2, 1, 3]])[:, [0, 2, 1, 3]]
    assert not torch.allclose(encoder(ids), swapped, atol=1e-3)


@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_relative_positions_do_not_see_a_shift(position, tiny):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    assert encoder.embeddings.position_embeddings is None
    ids = random_ids(tiny, 1, 10)
    shifted = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids], dim=1)
    mask = torch.arange(15)[None] >= 5
    here, there = trace(encoder, ids), trace(encoder, shifted, attention_mask_BL=mask)
    for near, far in zip(here.map_NBHLL, there.map_NBHLL, strict=True):
        torch.testing.assert_close(far[..., 5:, 5:], near, rtol=0, atol=1e-5)
    torch.testing.assert_close(there.hidden_NBLD[-1][:, 5:], here.hidden_NBLD[-1], rtol=0, atol=1e-5)


def test_a_sequence_that_is_too_long_is_an_error_with_both_numbers(tiny):
    with pytest.raises(InputError, match=r"\b41\b.*max_position_embeddings.*\b40\b"):
        seeded(tiny)(random_ids(tiny, 1, 41))


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([[3, 100]], [[0, 0]], r"\b3\b.*\b100\b.*vocab_size.*\b100\b"),
        ([[3, 4]], [[0, 2]], r"segments.*\b2\b.*type_vocab_size.*\b2\b"),
    ],
)
def test_ids_outside_the_tables_are_an_error_that_says_so(ids, segments, message, tiny):
    with pytest.raises(InputError, match=message):
        seeded(tiny)(torch.tensor(ids), token_type_ids_BL=torch.tensor(segments))


def test_no_segments_means_segment_zero(tiny):
    encoder, ids = seeded(tiny), random_ids(tiny, 2, 5)
    torch.testing.assert_close(encoder(ids), encoder(ids, token_type_ids_BL=torch.zeros_like(ids)))
    assert not torch.allclose(encoder(ids), encoder(ids, token_type_ids_BL=torch.ones_like(ids)))


def test_two_encoders_train_the_embeddings_they_share(tiny):
    embeddings = Embeddings(tiny)
    wide = Encoder(tiny, embeddings=embeddings)
    narrow = Encoder(dataclasses.replace(tiny, hidden_size=64), embeddings=embeddings)
    assert wide.projection.weight.shape == (128, 64)
    assert narrow.projection is None
    narrow(torch.tensor([[3]]))[..., 0].sum().backward()
    assert (wide.embeddings.word_embeddings.weight.grad[3] != 0).any()


def test_weights_start_as_the_paper_says(tiny):
    encoder, head = Encoder(tiny), DiscriminatorHead(tiny)
    for module in (encoder, head):
        initialise(module, std=0.02, generator=torch.Generator().manual_seed(0))
    tables = [encoder.embeddings.word_embeddings, encoder.layers[1].feed_forward.inner, head.dense]
    for weight in (part.weight.detach() for part in tables):
        # Cut at two standard deviations, a normal distribution keeps 0.88 of its own.
        assert float(weight.std()) == pytest.approx(0.0176, rel=0.03)
        assert float(weight.abs().max()) == pytest.approx(0.04, rel=0.01)
    for weight in (part.weight.detach() for part in (encoder.projection, head.output)):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert float(weight.abs().max()) == pytest.approx(bound, rel=0.05)
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    assert (encoder.layers[0].attention.query.bias == 0).all()
    assert (encoder.embeddings.norm.weight == 1).all()
    assert (encoder.embeddings.norm.bias == 0).all()


def test_initialisation_is_a_function_of_its_generator(tiny):
    first, second = seeded(tiny).state_dict(), seeded(tiny).state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_dropout_is_repeated_by_the_seed_and_off_in_evaluation(tiny):
    encoder, ids = seeded(tiny), random_ids(tiny, 2, 8)
    assert torch.equal(encoder(ids), encoder(ids))
    encoder.train()
    torch.manual_seed(1)
    first, second = encoder(ids), encoder(ids)
    torch.manual_seed(1)
    assert torch.equal(encoder(ids), first)
    assert not torch.equal(first, second)


def test_dropout_is_where_the_original_has_it(tiny, monkeypatch):
    places = []

    def record(value, probability):
        places.append((tuple(value.shape), probability))
        return value

    for user in ("attention", "dropout"):
        monkeypatch.setattr(f"electra.model.{user}.drop", record)
    config = dataclasses.replace(tiny, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    seeded(config).train()(random_ids(config, 3, 8))
    layer = [((3, 2, 8, 8), 0.3), ((3, 8, 128), 0.2), ((3, 8, 128), 0.2)]
    assert places == [((3, 8, 64), 0.2), *layer, *layer]


@pytest.mark.parametrize("position", POSITIONS)
def test_autocast_gives_nearly_the_same(position, tiny):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    ids, mask = random_ids(tiny, 2, 9), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    with torch.no_grad():
        exact = encoder(ids, attention_mask_BL=mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = encoder(ids, attention_mask_BL=mask)
    # What stands at padding means nothing.
    assert float((rounded - exact)[mask.bool()].abs().mean()) < 0.02


@pytest.mark.slow
def test_a_compiled_encoder_is_one_graph_for_all_lengths(tiny):
    from torch._dynamo.testing import CompileCounter

    plain, compiled, graphs = seeded(tiny), seeded(tiny), CompileCounter()
    compiled.compile(backend=graphs, dynamic=True)
    for length in range(8, 41, 8):
        ids = random_ids(tiny, 3, length)
        mask = (torch.arange(length) < torch.tensor([[length], [length - 1], [3]])).long()
        text = mask.flatten().nonzero().squeeze(1)
        found, expected = (
            encoder(ids, attention_mask_BL=mask, text_T=text) * mask[..., None]
            for encoder in (compiled, plain)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert graphs.frame_count == 1


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_layers_computed_twice_give_the_same_bits(dropout, tiny):
    config = dataclasses.replace(tiny, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    encoder = Encoder(config).train()
    initialise(encoder, std=0.02)
    ids = torch.randint(0, config.vocab_size, (3, 16))
    mask = (torch.arange(16) < torch.tensor([16, 9, 4])[:, None]).long()

    def gradients(*, recomputes_layers):
        encoder.recomputes_layers = recomputes_layers
        encoder.zero_grad()
        torch.manual_seed(7)
        encoder(ids, attention_mask_BL=mask).square().sum().backward()
        return [weight.grad.clone() for weight in encoder.parameters()]

    kept, recomputed = (gradients(recomputes_layers=choice) for choice in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))
