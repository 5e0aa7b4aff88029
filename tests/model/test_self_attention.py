"""Attention over rows end to end, with a plain loop in the place of the GPU's kernel."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from electra.model import encoder
from electra.model.encoder import Encoder, attention_map, initialise, takes_packed

pytestmark = pytest.mark.numeric

LENGTHS = (16, 5, 1, 0)
MASK_BL = (torch.arange(16) < torch.tensor(LENGTHS)[:, None]).long()
TEXT_T = MASK_BL.flatten().nonzero().squeeze(1)


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


def seeded(config):
    encoder = Encoder(config).eval()
    initialise(encoder, std=0.1, generator=torch.Generator().manual_seed(2))
    return encoder.double()


def run(encoder, **given):
    """Hidden states of the text, and all gradients."""
    ids = torch.randint(
        0, encoder.config.vocab_size, MASK_BL.shape, generator=torch.Generator().manual_seed(4)
    )
    encoder.zero_grad()
    hidden = encoder(ids, attention_mask_BL=MASK_BL, **given)
    if given.get("positions") == "first":
        # The last row has no text.
        hidden, weight = hidden[:-1], torch.ones(3, 1, 1)
    else:
        weight = MASK_BL[..., None]
    (hidden.square() * weight).sum().backward()
    return [(hidden * weight).detach(), *(parameter.grad.clone() for parameter in encoder.parameters())]


@pytest.mark.parametrize("positions", ["all", "first"])
@pytest.mark.parametrize("recomputes_layers", [False, True])
@pytest.mark.parametrize("position", ["absolute", "rotary"])
def test_packed_rows_give_what_padded_ones_do(
    position, recomputes_layers, positions, tiny, calls, monkeypatch
):
    encoder = seeded(dataclasses.replace(tiny, position_embedding_type=position))
    encoder.recomputes_layers = recomputes_layers
    packed = run(encoder, text_T=TEXT_T, positions=positions)
    assert calls
    assert all(lengths == list(LENGTHS) for lengths in calls)
    calls.clear()
    monkeypatch.setattr("electra.model.encoder.WORTHWHILE_PADDING", 2.0)
    padded = run(encoder, positions=positions)
    assert not calls
    for ours, theirs in zip(packed, padded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_a_bias_of_distances_needs_them_padded(tiny, calls):
    run(seeded(dataclasses.replace(tiny, position_embedding_type="alibi")), text_T=TEXT_T)
    assert not calls


@pytest.mark.parametrize("position", ["absolute", "rotary"])
def test_torchs_kernel_takes_what_it_is_given(position, tiny, monkeypatch):
    """Forward and backward on `meta`, where it knows shapes alone."""
    monkeypatch.setattr("electra.model.encoder.takes_packed", lambda *given, **options: True)
    encoder = Encoder(dataclasses.replace(tiny, position_embedding_type=position)).to("meta", torch.bfloat16)
    mask_BL = MASK_BL.to("meta")
    hidden = encoder.eval()(mask_BL, attention_mask_BL=mask_BL, text_T=TEXT_T.to("meta"))
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
    monkeypatch.setattr(encoder, "_HAS_PACKED_KERNEL", case["has_kernel"])
    projected = SimpleNamespace(device=torch.device(case["device"]), dtype=case["dtype"])
    assert takes_packed(projected, head_size=case["head_size"], dropout=case["dropout"]) == expected
