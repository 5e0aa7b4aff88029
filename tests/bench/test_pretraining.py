import pytest

from electra.bench.pretraining import CONTESTANTS, PretrainBenchConfig, contest, take_turn

TINY = PretrainBenchConfig(size="tiny", batch_size=2, seq_length=16, vocab_size=100, steps=2)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_takes_its_steps(contestant):
    seconds = take_turn(TINY, contestant)
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_work_grows_with_the_batch():
    once, twice = (contest(PretrainBenchConfig(batch_size=size)) for size in (16, 32))
    assert twice.flops_per_step == pytest.approx(2 * once.flops_per_step)
    assert twice.units_per_step == 2 * once.units_per_step
