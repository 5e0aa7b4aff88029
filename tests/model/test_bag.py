"""Backbone bag: a state is the mean of the vectors around it, its own left out."""

import pytest
import torch

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig, transformers_obstacle

pytestmark = pytest.mark.numeric

CONFIG = EncoderConfig.preset(
    "tiny", vocab_size=50, backbone="bag", hidden_size=8, local_attention_window=6, hidden_dropout_prob=0.0
)
IDS = torch.arange(1, 25).view(2, 12)


def bag(config=CONFIG):
    encoder = Encoder(config)
    initialise(encoder, std=1.0, generator=torch.Generator().manual_seed(0))
    return encoder.eval()


def means(encoder, ids, lengths):
    """Each position by itself, in a loop: weights 1, 2/3 and 1/3 for one, two and three positions away."""
    table = encoder.embeddings.word_embeddings.weight
    found = torch.zeros(*ids.shape, table.shape[1])
    for row, length in enumerate(lengths):
        for place in range(length):
            near = {
                other: (4 - abs(other - place)) / 3
                for other in range(max(0, place - 3), min(length, place + 4))
                if other != place
            }
            if near:
                vectors = [weight * table[ids[row, other]] for other, weight in near.items()]
                found[row, place] = sum(vectors) / sum(near.values())
    return found


# Few numbers with signs of both kinds, added up in another order in fp32.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(12, 12), (12, 11), (12, 3), (1, 12)])
def test_states_are_means_of_what_is_around(lengths):
    encoder = bag()
    mask = (torch.arange(12) < torch.tensor(lengths)[:, None]).long()
    found = encoder(IDS, attention_mask_BL=mask) * mask[..., None]
    torch.testing.assert_close(found, means(encoder, IDS, lengths), **CLOSE)
    first = encoder(IDS, attention_mask_BL=mask, positions="first")
    torch.testing.assert_close(first, found[:, :1], **CLOSE)
    if lengths == (12, 12):
        torch.testing.assert_close(encoder(IDS), found)


@torch.no_grad()
def test_a_state_does_not_depend_on_its_own_token():
    encoder = bag()
    changed = IDS.clone()
    changed[:, 5] = 40
    same = (encoder(IDS) == encoder(changed)).all(-1)
    # Not even by rounding; and on what lies farther away than the window neither.
    assert same[:, 5].all()
    assert not same[:, [2, 3, 4, 6, 7, 8]].any()
    assert same[:, [0, 1, 9, 10, 11]].all()


def test_it_has_word_vectors_and_nothing_else():
    assert [name for name, _ in bag().named_parameters()] == ["embeddings.word_embeddings.weight"]
    assert "bag" in transformers_obstacle(CONFIG)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 2},
        {"num_attention_heads": 4},
        {"intermediate_size": 64},
        {"position_embedding_type": "rotary"},
        {"query_key_norm": "rms"},
        {"embedding_size": 4, "hidden_size": 8},
        {"local_attention_window": 1},
    ],
)
def test_what_a_bag_does_not_have_is_refused(changes):
    key = next(iter(changes))
    with pytest.raises(InputError, match=f"{key} is .*"):
        EncoderConfig.preset("tiny", backbone="bag", **changes)


def test_only_a_bag_has_no_positions():
    with pytest.raises(InputError, match="none"):
        EncoderConfig(position_embedding_type="none")
