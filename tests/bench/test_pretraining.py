import pytest

from electra.bench.pretraining import CONTESTANTS, PretrainBenchConfig, contest, take_turn
from electra.errors import InputError

TINY = PretrainBenchConfig(size="tiny", batch_size=2, seq_length=16, vocab_size=100, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_takes_its_steps(contestant, tmp_path):
    assert contest(TINY, tmp_path).contestants == CONTESTANTS
    turn = take_turn(TINY, contestant, tmp_path)
    assert len(turn.seconds) == 2
    assert min(turn.seconds) > 0
    assert turn.precision in ("fp32", "bf16")
    if contestant == "plain":
        assert turn.precision == "fp32"


@pytest.mark.slow
def test_work_grows_with_the_batch(tmp_path):
    once, twice = (
        contest(PretrainBenchConfig(size="tiny", batch_size=size, vocab_size=100), tmp_path / str(size))
        for size in (16, 32)
    )
    assert twice.flops_per_step == pytest.approx(2 * once.flops_per_step)
    assert twice.units_per_step == 2 * once.units_per_step
    assert [product[0] for product in twice.products] == [2 * product[0] for product in once.products]


@pytest.mark.slow
def test_neighbours_are_part_of_the_contest(tmp_path):
    settings = PretrainBenchConfig(
        size="tiny", batch_size=2, seq_length=16, vocab_size=100, neighbours=[1, 2]
    )
    assert contest(settings, tmp_path).neighbours == (1, 2)
    assert contest(TINY, tmp_path / "alone").neighbours == ()


@pytest.mark.parametrize("numbers", [[0], [1, -2], [1000], [1, 2, 1]])
def test_neighbours_that_cannot_be_are_refused(numbers):
    with pytest.raises(InputError, match=r"pretrain\.neighbours"):
        PretrainBenchConfig(neighbours=numbers)
