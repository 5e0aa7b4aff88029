import importlib.util

import pytest

from electra.bench.finetuning import (
    CONTESTANTS,
    FinetuneBenchConfig,
    RandomOrder,
    contest,
    random_rows,
    take_turn,
    text_lengths,
)
from electra.errors import InputError

TINY = FinetuneBenchConfig(size="tiny", batch_size=3, vocab_size=100, steps=2)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_takes_its_steps(contestant, tmp_path):
    turn = take_turn(TINY, contestant, tmp_path)
    assert len(turn.seconds) == 2
    assert min(turn.seconds) > 0
    assert turn.precision == {"plain": "fp32", "bf16": "bf16", "trainer": "fp32"}.get(
        contestant, turn.precision
    )
    assert turn.precision in ("fp32", "bf16")


@pytest.mark.parametrize("found", [None, "a module"])
def test_the_trainer_takes_part_where_it_can(found, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    known = contest(TINY, tmp_path)
    assert ("trainer" in known.contestants) == (found is not None)
    assert ("accelerate" in known.left_out.get("trainer", "")) == (found is None)
    assert {*known.contestants, *known.left_out} == {*CONTESTANTS}


def test_who_is_not_known_is_refused(tmp_path):
    with pytest.raises(InputError, match="grouped"):
        take_turn(TINY, "somebody", tmp_path)


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
