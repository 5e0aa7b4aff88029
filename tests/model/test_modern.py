"""The modern backbone against transformers' ModernBERT, against a short reference, and against itself."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from electra.errors import InputError
from electra.model.attention import (
    _NormaliseAndRotate,
    attend,
    attend_blocks,
    near_bias,
    normalise,
    normalise_and_rotate,
    padding_bias,
    rotate,
)
from electra.model.encoder import Encoder, initialise
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.names import layer_depth
from electra.model.sizes import EncoderConfig, generator_config

pytestmark = pytest.mark.numeric

LENGTHS = torch.tensor([[40], [13], [1]])
MASK_BL = (torch.arange(40) < LENGTHS).long()
LOCAL = {"global_attention_every": 3, "local_attention_window": 8}
KINDS = {
    "rms": {},
    "none": {"query_key_norm": "none"},
    "local": LOCAL,
    # Three blocks are more than a row: the window is then a bias.
    "wide window": {**LOCAL, "local_attention_window": 30},
}


def modern(**changes):
    values = {
        "vocab_size": 50,
        "num_hidden_layers": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **changes,
    }
    return EncoderConfig.preset("tiny", backbone="modern", **values)


def drawn(module, *, std=0.1):
    """A module whose weights are large enough for differences to show, those that start at zero too."""
    initialise(module, std=std, generator=torch.Generator().manual_seed(2))
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(std * torch.randn(weight.shape, generator=random))
    return module.eval()


def random_ids(*shape):
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(4))


def modernbert_state(encoder):
    """Our weights by the names of ModernBertModel, written out once more."""
    ours = encoder.state_dict()
    theirs = {
        "embeddings.tok_embeddings.weight": ours["embeddings.word_embeddings.weight"],
        "embeddings.norm.weight": ours["embeddings.norm.weight"],
        "final_norm.weight": ours["norm.weight"],
    }
    for n in range(encoder.config.num_hidden_layers):
        attention, out = f"layers.{n}.attention", f"layers.{n}."
        theirs |= {
            f"{out}attn.Wqkv.weight": torch.cat(
                [ours[f"{attention}.{part}.weight"] for part in ("query", "key", "value")]
            ),
            f"{out}attn.Wo.weight": ours[f"{attention}.output.weight"],
            f"{out}mlp_norm.weight": ours[f"layers.{n}.feed_forward_norm.weight"],
            f"{out}mlp.Wi.weight": ours[f"layers.{n}.feed_forward.inner.weight"],
            f"{out}mlp.Wo.weight": ours[f"layers.{n}.feed_forward.output.weight"],
        }
        if n:
            theirs[f"{out}attn_norm.weight"] = ours[f"layers.{n}.attention_norm.weight"]
    return theirs


@pytest.mark.parametrize("every", [1, 3])
def test_without_norms_of_queries_and_keys_it_is_modernbert(every):
    from transformers import ModernBertConfig, ModernBertModel

    config = modern(
        query_key_norm="none", embedding_size=128, global_attention_every=every, local_attention_window=8
    )
    encoder = drawn(Encoder(config))
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    theirs = ModernBertModel(
        ModernBertConfig(
            vocab_size=50,
            hidden_size=128,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=4,
            num_attention_heads=2,
            norm_eps=config.layer_norm_eps,
            pad_token_id=0,
            global_attn_every_n_layers=every,
            local_attention=8,
            rope_parameters={"full_attention": dict(rope), "sliding_attention": dict(rope)},
        )
    ).eval()
    theirs.load_state_dict(modernbert_state(encoder))
    ids = random_ids(3, 40)
    with torch.no_grad():
        found = encoder(ids, attention_mask_BL=MASK_BL)[MASK_BL != 0]
        expected = theirs(ids, attention_mask=MASK_BL).last_hidden_state[MASK_BL != 0]
    # Normalised states of size 1: a few roundings of fp32 in each of four layers.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def reference_attention(attention, hidden_LD):
    """Attention of one row with normalised queries and keys, position by position and head by head."""
    S, L = attention.head_size, len(hidden_LD)
    parts = [part(hidden_LD).view(L, -1, S) for part in (attention.query, attention.key, attention.value)]
    query, key = (part / part.square().mean(-1, keepdim=True).sqrt() for part in parts[:2])
    turn = torch.exp(1j * torch.arange(L)[:, None] * 10000.0 ** (-torch.arange(0, S, 2) / S))[:, None]
    query, key = (torch.complex(part[..., : S // 2], part[..., S // 2 :]) * turn for part in (query, key))
    scores = 0.35 * torch.einsum("qhs,khs->hqk", query, key.conj()).real
    return attention.output(torch.einsum("hqk,khs->qhs", scores.softmax(-1), parts[2]).reshape(L, -1))


def test_queries_and_keys_have_one_length():
    config = modern(num_hidden_layers=1, embedding_size=128)
    encoder = drawn(Encoder(config)).double()
    attention, ids = encoder.layers[0].attention, random_ids(1, 12)
    hidden_BLD = encoder.embed(ids)
    found_BLD = attention(hidden_BLD, encoder.attention_inputs(hidden_BLD, None))
    # The angles are computed in fp32.
    torch.testing.assert_close(
        found_BLD[0], reference_attention(attention, hidden_BLD[0]), rtol=1e-5, atol=1e-6
    )


def test_normalising_keeps_directions_and_leaves_zeros():
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-20, 0.0]], requires_grad=True)
    found = normalise(vectors, length=10.0)
    torch.testing.assert_close(found[0], torch.tensor([6.0, 8.0]))
    assert found[1].tolist() == [0, 0]
    found[:2].sum().backward()
    assert vectors.grad.isfinite().all()
    assert normalise(torch.zeros(2, 4, dtype=torch.float16), length=4.7).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_normalising_and_rotating_at_once_is_that_of_both(dtype):
    random = torch.Generator().manual_seed(6)
    vectors, gradient = torch.randn(2, 2, 3, 5, 8, generator=random, dtype=dtype)
    # Padding, and what is too short to be given a length.
    vectors[0, 0, 0], vectors[0, 0, 1] = 0.0, 1e-5
    angles = torch.randn(5, 4, generator=random, dtype=dtype)
    rotation = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], dim=1)
    plain, at_once = (vectors.clone().requires_grad_() for _ in range(2))
    expected = rotate(normalise(plain, length=1.7), rotation)
    found = _NormaliseAndRotate.apply(at_once, *rotation, 1.7)
    torch.testing.assert_close(found, expected)
    expected.backward(gradient)
    found.backward(gradient)
    torch.testing.assert_close(at_once.grad, plain.grad)
    assert (type(normalise_and_rotate(at_once, rotation, length=1.7).grad_fn) is type(found.grad_fn)) == (
        dtype == torch.float32
    )
    torch.testing.assert_close(normalise_and_rotate(vectors, rotation, length=1.7), expected.detach())


@pytest.mark.parametrize("length", [12, 13, 40])
def test_blocks_see_what_a_window_does(length):
    random = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(3, 2, length, 8, generator=random, dtype=torch.double) for _ in range(3))
    padding = padding_bias(MASK_BL[:, :length], dtype=torch.double)
    near = near_bias(length, reach=4, dtype=torch.double, device=query.device)
    everywhere, text = torch.ones(3, length, dtype=torch.bool), MASK_BL[:, :length] != 0
    # At padding, with nothing but padding within reach, the result means nothing.
    for bias, both, seen in ((None, near, everywhere), (padding, near + padding, text)):
        found = attend_blocks(query, key, value, bias=bias, reach=4, dropout=0.0).transpose(1, 2)
        expected = attend(query, key, value, bias=both, dropout=0.0).transpose(1, 2)
        torch.testing.assert_close(found[seen], expected[seen], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_is_the_identity_at_the_start(kind):
    config = modern(embedding_size=128, **KINDS[kind])
    encoder = Encoder(config).eval()
    initialise(encoder, std=0.02, generator=torch.Generator().manual_seed(0))
    hidden_BLD = encoder.embed(random_ids(2, 20))
    inputs = encoder.add_window(encoder.attention_inputs(hidden_BLD, None), hidden_BLD)
    for layer in encoder.layers:
        assert torch.equal(layer(hidden_BLD, inputs), hidden_BLD)
    # The embeddings are normalised twice, and nothing else happens to them.
    expected = functional.layer_norm(hidden_BLD, hidden_BLD.shape[-1:], eps=config.layer_norm_eps)
    torch.testing.assert_close(encoder(random_ids(2, 20)), expected, rtol=1e-5, atol=1e-6)
    # Of a normal distribution that is cut off at twice its deviation.
    deviation = float(encoder.layers[0].feed_forward.inner.weight.detach().std())
    assert deviation == pytest.approx(0.88 * 0.02, rel=0.02)


def test_there_are_no_biases_and_no_segments():
    encoder = Encoder(modern())
    assert [name for name, _ in encoder.named_parameters() if "bias" in name or "token_type" in name] == []
    ids, segments = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    drawn(encoder)
    assert torch.equal(encoder(ids), encoder(ids, token_type_ids_BL=segments))


def hidden_and_gradients(encoder, **given):
    encoder.zero_grad()
    positions = given.get("positions", "all")
    hidden = encoder(random_ids(3, 40), attention_mask_BL=MASK_BL, **given)
    weight = torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype) * torch.ones_like(hidden)
    if positions == "all":
        weight = weight * MASK_BL[..., None]
    (hidden * weight).square().sum().backward()
    return [(hidden * weight).detach(), *(part.grad.clone() for part in encoder.parameters())]


@pytest.mark.parametrize("kind", KINDS)
def test_computing_on_the_text_alone_changes_nothing(kind, monkeypatch):
    encoder = drawn(Encoder(modern(**KINDS[kind]))).double()
    text_only = hidden_and_gradients(encoder)
    monkeypatch.setattr("electra.model.attention.WORTHWHILE_PADDING", 2.0)
    padded = hidden_and_gradients(encoder)
    for one, other in zip(text_only, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_gives_the_same_alone_and_in_a_padded_batch(kind, dtype):
    encoder, ids = drawn(Encoder(modern(**KINDS[kind]))).to(dtype), random_ids(3, 40)
    with torch.no_grad():
        padded = encoder(ids, attention_mask_BL=MASK_BL)
        for row, length in enumerate(LENGTHS.flatten().tolist()):
            alone = encoder(ids[row : row + 1, :length])[0]
            # States have size 1; bf16 rounds to 2**-9 of it some dozen times.
            tolerance = {torch.float32: 2e-5, torch.bfloat16: 0.15}[dtype]
            torch.testing.assert_close(padded[row, :length], alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize("padding", ["computed on", "removed"])
@pytest.mark.parametrize("layers", [3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_first_positions_alone_are_as_among_all(kind, layers, padding, monkeypatch):
    """With three layers and a window in two of three, the last one has it; with four, it has not."""
    monkeypatch.setattr(
        "electra.model.attention.WORTHWHILE_PADDING", 2.0 if padding == "computed on" else 0.0
    )
    encoder = drawn(Encoder(modern(num_hidden_layers=layers, **KINDS[kind]))).double()
    ids, results = random_ids(3, 40), []
    for positions in ("all", "first"):
        encoder.zero_grad()
        first = encoder(ids, attention_mask_BL=MASK_BL, positions=positions)[:, :1]
        (first * torch.linspace(-1, 1, first.shape[-1])).square().sum().backward()
        results.append([first.detach(), *(part.grad.clone() for part in encoder.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_computed_twice_give_the_same_bits(kind):
    encoder = drawn(Encoder(modern(hidden_dropout_prob=0.1, **KINDS[kind]))).train()
    results = []
    for recomputes in (False, True):
        encoder.recomputes_layers = recomputes
        torch.manual_seed(7)
        results.append(hidden_and_gradients(encoder))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_give_what_padded_ones_do(kind, monkeypatch):
    windows = []

    def row_by_row(query, key, value, bounds, _, longest, __, *, scale, window_size=(-1, -1)):
        windows.append(window_size)
        mixed = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            parts = [part[first:last].transpose(0, 1) for part in (query, key, value)]
            reach = window_size[0] if window_size[0] >= 0 else longest
            bias = near_bias(last - first, reach=reach, dtype=query.dtype, device=query.device)
            mixed.append(attend(*parts, bias=bias, dropout=0.0).transpose(0, 1))
        return torch.cat(mixed)

    encoder = drawn(Encoder(modern(**KINDS[kind]))).double()
    padded = hidden_and_gradients(encoder)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", row_by_row)
    monkeypatch.setattr("electra.model.encoder.takes_packed", lambda *given, **options: True)
    packed = hidden_and_gradients(encoder, text_T=MASK_BL.flatten().nonzero().squeeze(1))
    reach = encoder.config.attention_reach(1)
    whole, near = (-1, -1), (reach, reach)
    assert windows == ([whole] * 4 if reach is None else [whole, near, near, whole])
    for one, other in zip(padded, packed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_compiled_graph_serves_rows_of_all_lengths(kind):
    from torch._dynamo.testing import CompileCounter

    config = modern(num_hidden_layers=2, **KINDS[kind])
    plain, compiled, graphs = drawn(Encoder(config)), drawn(Encoder(config)), CompileCounter()
    compiled.compile(backend=graphs, dynamic=True)
    for length in (46, 50, 64):
        ids = random_ids(3, length)
        mask = (torch.arange(length) < torch.tensor([[length], [length - 1], [3]])).long()
        found, expected = (
            encoder(ids, attention_mask_BL=mask) * mask[..., None] for encoder in (compiled, plain)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert graphs.frame_count == 1


def test_heads_have_modernberts_shape():
    config = modern(embedding_size=128)
    generator, discriminator = GeneratorHead(config), DiscriminatorHead(config)
    assert set(generator.state_dict()) == {"dense.weight", "norm.weight", "bias"}
    assert set(discriminator.state_dict()) == {"dense.weight", "norm.weight", "output.weight", "output.bias"}
    drawn(discriminator)
    hidden = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(6))
    dense = functional.gelu(hidden @ discriminator.dense.weight.T)
    normal = functional.layer_norm(dense, (128,), discriminator.norm.weight, eps=config.layer_norm_eps)
    expected = normal @ discriminator.output.weight[0] + discriminator.output.bias
    torch.testing.assert_close(discriminator(hidden), expected, rtol=1e-5, atol=1e-5)


def test_a_generator_of_a_modern_encoder_is_modern():
    small = generator_config(modern(), width=0.5, depth=0.5)
    assert (small.backbone, small.query_key_norm, small.num_hidden_layers) == ("modern", "rms", 2)
    assert small.attention_scale == 0.35
    assert modern(query_key_norm="none").attention_scale == pytest.approx(1 / math.sqrt(64))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"backbone": "modern"}, "position_embedding_type"),
        ({"backbone": "modern", "position_embedding_type": "alibi"}, "position_embedding_type"),
        ({"backbone": "modem"}, "backbone"),
        ({"query_key_norm": "rms"}, "query_key_norm"),
        ({"query_key_norm": "layer"}, "query_key_norm"),
        ({"global_attention_every": 3}, "global_attention_every"),
        (
            {"backbone": "modern", "position_embedding_type": "rotary", "local_attention_window": 1},
            "local_attention_window",
        ),
        ({"global_attention_every": 0}, "global_attention_every"),
    ],
)
def test_what_does_not_fit_is_refused(changes, named):
    with pytest.raises(InputError, match=named):
        EncoderConfig(**changes)


def test_layers_alternate_as_modernbert_counts_them():
    config = dataclasses.replace(modern(num_hidden_layers=7), **LOCAL)
    assert [config.attention_reach(number) for number in range(7)] == [None, 4, 4, None, 4, 4, None]


def test_the_last_norm_is_as_deep_as_a_head():
    depths = {name: layer_depth(name, num_layers=4) for name in Encoder(modern()).state_dict()}
    assert depths["embeddings.norm.weight"] == depths["projection.weight"] == 0
    assert depths["layers.3.attention_norm.weight"] == 4
    assert depths["norm.weight"] == 5
