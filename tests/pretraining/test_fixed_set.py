import numpy as np
import pytest
import torch

from electra.pretraining import metrics
from electra.pretraining.masking import Inputs
from electra.pretraining.sampling import Unigram
from electra.pretraining.step import FixedSet
from electra.text.batches import Batch


class SomeRows:
    """Sentences of the toy language by their ids, padded by some more than is needed."""

    def __init__(self, toy, ids, *, padding=0):
        self.sentences, self.ids, self.padding = toy.sentences(64, seed=5), np.array(ids), padding

    def part(self, number, *, rank, world_size):
        share = len(self.ids) // world_size
        chosen = self.ids[rank * share : (rank + 1) * share]
        widen = ((0, 0), (0, self.padding))
        return Batch(
            row_ids_B=chosen,
            input_ids_BL=np.pad(self.sentences.input_ids_BL[chosen], widen),
            token_type_ids_BL=np.pad(self.sentences.token_type_ids_BL[chosen], widen),
            lengths_B=self.sentences.lengths_B[chosen],
        )


def fixed_set(toy, batches, **changes):
    settings = {"num_batches": 1, "rank": 0, "world_size": 1, **changes}
    unigram = Unigram.uniform(toy.tokens.vocab_size)
    return FixedSet(batches=batches, unigram=unigram, device=torch.device("cpu"), **settings)


def rows_of(toy, ids, **changes):
    some = fixed_set(toy, SomeRows(toy, ids, **changes))
    batch = some.batches.part(0, rank=0, world_size=1)
    ordinary_BL = toy.objective().ordinary_mask(Inputs.from_batch(batch))
    corrupted = some.corrupted(batch, ordinary_BL)
    assert not corrupted.replaced_BL[~ordinary_BL].any()
    return dict(zip(ids, corrupted.corrupted_ids_BL[:, :16].tolist(), strict=True)), corrupted


def test_a_row_is_corrupted_alike_wherever_it_stands(toy):
    together, corrupted = rows_of(toy, list(range(64)))
    alone, _ = rows_of(toy, [7, 3], padding=8)
    assert alone == {row: together[row] for row in (7, 3)}
    share = corrupted.replaced_BL.sum() / (corrupted.corrupted_ids_BL > 4).sum()
    assert 0.1 < share < 0.2


def test_processes_see_the_parts_of_the_same_rows(toy):
    objective = toy.objective()
    (whole,) = fixed_set(toy, SomeRows(toy, range(64))).sums(objective)
    halves = [
        next(fixed_set(toy, SomeRows(toy, range(64)), rank=rank, world_size=2).sums(objective))
        for rank in range(2)
    ]
    assert metrics.summarise(metrics.add(halves)) == metrics.summarise(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["electra", "adversarial", "electric"])
def test_what_learns_to_detect_is_above_chance(toy, name):
    objective = toy.objective(name)
    for _ in toy.train(objective, 150):
        pass
    objective.eval()
    (sums,) = fixed_set(toy, SomeRows(toy, range(64))).sums(objective)
    assert metrics.summarise(sums)["fixed_auc"] > 0.7


@pytest.mark.parametrize("name", ["mlm", "replace_mlm", "all_tokens_mlm", "two_stage"])
def test_what_detects_nothing_has_no_such_figure(toy, name):
    assert not list(fixed_set(toy, SomeRows(toy, range(64))).sums(toy.objective(name)))
