import pytest
import torch

from electra.model.encoder import (
    alibi_bias,
    attend,
    attention_map,
    drop,
    padding_bias,
    plain_is_faster,
    rotary_angles,
    rotate,
)

pytestmark = pytest.mark.numeric

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
