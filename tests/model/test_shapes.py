"""Few numbers of positions in bf16, and what is computed at them stays the same."""

from functools import partial

import pytest
import torch

from electra.model import shapes
from electra.model.attention import worthwhile_padding
from electra.model.encoder import Encoder, initialise
from electra.model.heads import GeneratorHead, is_best, token_loss
from electra.model.sizes import EncoderConfig

CPU = torch.device("cpu")
SIZES = EncoderConfig(
    vocab_size=50,
    embedding_size=16,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)


def in_bf16():
    return torch.autocast("cpu", torch.bfloat16)


def test_a_few_numbers_stand_for_all():
    numbers = range(1, 4097)
    assert all(number <= shapes.round_up(number) <= 1.25 * number + 1 for number in numbers)
    assert len({shapes.round_up(number) for number in range(1025, 2049)}) == 4
    assert shapes.round_up(0) == 0


def test_only_products_in_bf16_on_a_cpu_are_compiled():
    assert not shapes.compiles_products(CPU)
    with in_bf16():
        assert shapes.compiles_products(CPU)
        assert not shapes.compiles_products(torch.device("cuda"))


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("logits_per_chunk", [10**9, 8 * SIZES.vocab_size])
def test_a_vocabulary_head_gives_results_and_gradients_of_its_positions_alone(monkeypatch, logits_per_chunk):
    def computed():
        head = GeneratorHead(SIZES)
        initialise(head, std=0.1, generator=torch.Generator().manual_seed(0))
        hidden_PD = drawn(33, 16).requires_grad_()
        targets_P = torch.arange(33)
        with in_bf16():
            loss_P, best_P = head.reduce(
                hidden_PD,
                drawn(50, 16),
                partial(token_loss, look=is_best),
                targets_P,
                logits_per_chunk=logits_per_chunk,
            )
        loss_P.sum().backward()
        return [loss_P, best_P, hidden_PD.grad, head.dense.weight.grad, head.bias.grad]

    seen = []
    original = GeneratorHead.transform
    monkeypatch.setattr(
        GeneratorHead, "transform", lambda self, given: (seen.append(len(given)), original(self, given))[1]
    )
    found = computed()
    monkeypatch.setattr(shapes, "round_up", lambda number: number)
    expected = computed()
    assert seen == [40, 33]
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        # bf16 adds up in another order.
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("backbone", ["electra", "modern"])
@pytest.mark.parametrize("positions", ["all", "first"])
def test_an_encoder_gives_the_same_hidden_states_for_text(monkeypatch, backbone, positions):
    given = {} if backbone == "electra" else {"position_embedding_type": "rotary"}
    encoder = Encoder(EncoderConfig(**{**vars(SIZES), "backbone": backbone, **given})).eval()
    initialise(encoder, std=0.1, generator=torch.Generator().manual_seed(0))
    ids_BL = torch.arange(6 * 40).view(6, 40) % 50
    mask_BL = (torch.arange(40) < torch.tensor([[40], [3], [17], [1], [25], [33]])).long()
    with in_bf16(), torch.no_grad():
        padding = worthwhile_padding(mask_BL)
        assert padding is not None
        assert len(padding.text_T) == 128
        found = encoder(ids_BL, attention_mask_BL=mask_BL, positions=positions)
        monkeypatch.setattr(shapes, "round_up", lambda number: number)
        padding = worthwhile_padding(mask_BL)
        assert len(padding.text_T) == 119
        expected = encoder(ids_BL, attention_mask_BL=mask_BL, positions=positions)
    text_BL = mask_BL.bool() if positions == "all" else torch.ones(6, 1, dtype=torch.bool)
    torch.testing.assert_close(found[text_BL], expected[text_BL], rtol=0.02, atol=0.02)
