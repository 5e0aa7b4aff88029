import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from electra.errors import InputError
from electra.model.encoder import Embeddings, Encoder, initialise
from electra.model.heads import DiscriminatorHead

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
        monkeypatch.setattr("electra.model.encoder.WORTHWHILE_PADDING", least_share)
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
    monkeypatch.setattr("electra.model.encoder.WORTHWHILE_PADDING", 2.0 if padding == "computed on" else 0.0)
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
    trace = encoder.trace(ids, attention_mask_BL=mask)
    is_text = mask.bool()
    hidden = encoder(ids, attention_mask_BL=mask)
    torch.testing.assert_close(trace.hidden_NBLD[-1][is_text], hidden[is_text], rtol=0, atol=1e-5)
    assert len(trace.map_NBHLL) == len(trace.hidden_NBLD) == tiny.num_hidden_layers
    for weights in trace.map_NBHLL:
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
    here, there = encoder.trace(ids), encoder.trace(shifted, attention_mask_BL=mask)
    for near, far in zip(here.map_NBHLL, there.map_NBHLL, strict=True):
        torch.testing.assert_close(far[..., 5:, 5:], near, rtol=0, atol=1e-5)
    torch.testing.assert_close(there.hidden_NBLD[-1][:, 5:], here.hidden_NBLD[-1], rtol=0, atol=1e-5)


def test_a_sequence_that_is_too_long_is_an_error_with_both_numbers(tiny):
    with pytest.raises(InputError, match=r"sequence of 41 tokens.*max_position_embeddings 40"):
        seeded(tiny)(random_ids(tiny, 1, 41))


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([[3, 100]], [[0, 0]], r"token ids from 3 to 100, segments to 0 do not fit vocab_size 100"),
        ([[3, 4]], [[0, 2]], r"segments to 2 do not fit.*type_vocab_size 2"),
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

    monkeypatch.setattr("electra.model.encoder.drop", record)
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
    assert float((rounded - exact).abs().mean()) < 0.02


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
