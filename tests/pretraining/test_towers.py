import dataclasses

import pytest
import torch

from electra.model.encoder import initialise
from electra.pretraining.networks import TwoTowers

pytestmark = pytest.mark.numeric


@pytest.fixture(params=["absolute", "rotary", "alibi"])
def towers(request, toy) -> TwoTowers:
    config = dataclasses.replace(toy.encoder, position_embedding_type=request.param)
    towers = TwoTowers(config)
    initialise(towers, std=0.5, generator=torch.Generator().manual_seed(0))
    return towers.eval()


def test_a_position_sees_all_tokens_but_its_own(towers):
    ids_BL = torch.randint(5, 20, (1, 9), generator=torch.Generator().manual_seed(1))
    before = towers(ids_BL)
    for changed in range(9):
        other_BL = ids_BL.clone()
        other_BL[0, changed] += 1
        moved_L = (towers(other_BL) != before).any(-1)[0]
        assert moved_L.tolist() == [position != changed for position in range(9)]


def test_the_left_half_sees_the_left_and_the_right_half_the_right(towers):
    ids_BL = torch.randint(5, 20, (1, 9), generator=torch.Generator().manual_seed(1))
    other_BL = ids_BL.clone()
    other_BL[0, 4] += 1
    left_L, right_L = (
        half.any(-1)[0].tolist() for half in (towers(other_BL) != towers(ids_BL)).chunk(2, dim=-1)
    )
    assert left_L == [False] * 5 + [True] * 4
    assert right_L == [True] * 4 + [False] * 5


def test_padding_changes_nothing(towers):
    ids_BL = torch.randint(5, 20, (2, 6), generator=torch.Generator().manual_seed(2))
    padded_BL = torch.cat([ids_BL, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    mask_BL = torch.cat([torch.ones_like(ids_BL), torch.zeros(2, 3, dtype=torch.long)], dim=1)
    padded = towers(padded_BL, attention_mask_BL=mask_BL)[:, :6]
    torch.testing.assert_close(padded, towers(ids_BL), rtol=0, atol=1e-5)


def test_towers_see_one_side_only_also_where_rows_could_be_packed(towers, monkeypatch):
    """The kernel for packed rows sees both."""
    ids_BL = torch.randint(5, 20, (2, 9), generator=torch.Generator().manual_seed(2))
    mask_BL = (torch.arange(9) < torch.tensor([[9], [4]])).long()
    text_T = mask_BL.flatten().nonzero().squeeze(1)
    found = towers(ids_BL, attention_mask_BL=mask_BL)
    monkeypatch.setattr("electra.model.encoder.takes_packed", lambda *given, **options: True)
    assert torch.equal(towers(ids_BL, attention_mask_BL=mask_BL, text_T=text_T), found)
