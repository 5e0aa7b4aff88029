import dataclasses

import torch

from electra.pretraining.masking import Inputs, StepRandom, TokenFacts, pick


def test_a_batch_becomes_tensors_with_a_mask(toy):
    batch = toy.sentences(8, seed=1)
    inputs = Inputs.from_batch(batch)
    assert torch.equal(inputs.token_mask, inputs.input_ids_BL != 0)
    assert torch.equal(inputs.token_mask.sum(1), inputs.lengths_B)
    assert torch.equal(inputs.token_type_ids_BL.sum(1), inputs.lengths_B - 7)
    assert inputs.attention_mask_BL is not None


def test_rows_without_padding_need_no_mask(toy):
    batch = toy.sentences(8, seed=1)
    full = dataclasses.replace(
        batch, input_ids_BL=batch.input_ids_BL[:, :8], lengths_B=batch.lengths_B.clip(max=8)
    )
    inputs = Inputs.from_batch(full)
    assert inputs.attention_mask_BL is None
    assert inputs.token_mask.all()


def test_text_is_told_by_its_positions(toy):
    inputs = toy.inputs(8)
    values_BL2 = torch.randn(*inputs.input_ids_BL.shape, 2)
    assert torch.equal(pick(values_BL2, inputs.text_N), values_BL2[inputs.token_mask])


def test_rows_move_to_a_device_as_a_whole(toy):
    inputs = toy.inputs(8)
    masked = toy.objective().mask(inputs, StepRandom(seed=0, step=0, num_rows=8))
    for given in (inputs, masked):
        moved = given.to("meta")
        assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}
        assert [tensor.shape for tensor in vars(moved).values()] == [
            each.shape for each in vars(given).values()
        ]
    full = Inputs.of(*(torch.zeros(2, 4, dtype=torch.long),) * 2, torch.tensor([4, 4]))
    assert full.to("meta").attention_mask_BL is None


def test_special_tokens_as_a_mask():
    tokens = TokenFacts(vocab_size=6, mask_id=4, special_ids=(0, 4))
    assert tokens.special_mask.tolist() == [True, False, False, False, True, False]
