import pytest
import torch

from electra.model.encoder import Padding, worthwhile_padding

pytestmark = pytest.mark.numeric

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
