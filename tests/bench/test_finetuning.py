import pytest

from electra.bench.finetuning import (
    CONTESTANTS,
    FinetuneBenchConfig,
    RandomOrder,
    random_rows,
    take_turn,
    text_lengths,
)
from electra.errors import InputError

TINY = FinetuneBenchConfig(size="tiny", batch_size=3, vocab_size=100, steps=2)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_takes_its_steps(contestant):
    seconds = take_turn(TINY, contestant)
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_who_is_not_known_is_refused():
    with pytest.raises(InputError, match="grouped"):
        take_turn(TINY, "somebody")


def test_random_batches_hold_every_text_once():
    rows = random_rows(TINY)
    batches = RandomOrder(rows, task="sst2", seed=0, batch_size=3)
    seen = [row.example for number in range(batches.num_batches) for (row,) in batches[number]]
    assert sorted(seen) == list(range(len(rows)))


def test_lengths_are_those_of_the_data(shared):
    drawn = text_lengths(FinetuneBenchConfig())
    real = text_lengths(FinetuneBenchConfig(data=str(shared / "data" / "glue" / "SST-2")))
    assert real.min() >= 3
    assert drawn.mean() == pytest.approx(real.mean(), rel=0.2)
