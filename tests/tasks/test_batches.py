import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.tasks.batches import (
    WINDOW_BATCHES,
    TaskMixture,
    TrainBatches,
    collate,
    prediction_batches,
    share_bounds,
    units_of,
)
from electra.tasks.families.family import TaskRow

CPU = torch.device("cpu")


def row(length, unit, *, example=0):
    ids = np.arange(10, 10 + length, dtype=np.uint32)
    types = (np.arange(length) >= length // 2).astype(np.uint8)
    return TaskRow(input_ids=ids, token_type_ids=types, example=example, unit=unit)


def rows_of(count, *, seed=0, rows_per_unit=1):
    lengths = np.random.default_rng(seed).integers(3, 60, count * rows_per_unit)
    return [row(int(length), number // rows_per_unit) for number, length in enumerate(lengths)]


def unit_numbers(units):
    return [unit[0].unit for unit in units]


def batches_of(rows, *, seed=0, batch_size=8):
    return TrainBatches(rows, task="toy", seed=seed, batch_size=batch_size)


def test_an_epoch_has_every_unit_once_and_keeps_the_short_batch():
    batches = batches_of(rows_of(1003))
    assert batches.num_batches == 126
    for epoch in range(2):
        found = [unit_numbers(batches[epoch * 126 + place]) for place in range(126)]
        assert sorted(number for batch in found for number in batch) == list(range(1003))
        assert sorted(map(len, found)) == [3] + [8] * 125


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    rows = rows_of(100)
    one, other = batches_of(rows), batches_of(rows)
    backwards = [unit_numbers(other[number]) for number in reversed(range(30))]
    assert [unit_numbers(one[number]) for number in range(30)] == backwards[::-1]
    assert unit_numbers(one[0]) != unit_numbers(one[one.num_batches])
    assert unit_numbers(one[0]) != unit_numbers(batches_of(rows, seed=1)[0])


def test_rows_of_like_length_come_together():
    rows, size = rows_of(4000), 16
    batches = batches_of(rows, batch_size=size)
    assert batches.num_batches > 2 * WINDOW_BATCHES
    lengths = [[len(unit[0].input_ids) for unit in batches[number]] for number in range(batches.num_batches)]
    padded = sum(max(batch) * len(batch) for batch in lengths)
    text = sum(map(sum, lengths))
    at_random = np.array([len(one.input_ids) for one in rows]).reshape(-1, size)
    assert padded / text < 1.06
    assert at_random.max(axis=1).sum() * size / text > 1.6
    # Short and long batches alternate: the order of batches is shuffled, too.
    means = np.array([np.mean(batch) for batch in lengths])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2


def test_a_small_set_falls_into_other_batches_in_each_epoch():
    # All lengths differ: sorted as a whole, the batches would be the same every time.
    batches = batches_of([row(3 + number, number) for number in range(64)], batch_size=4)
    first, second = (
        {frozenset(unit_numbers(batches[epoch * 16 + place])) for place in range(16)} for epoch in range(2)
    )
    assert len(first & second) <= 2


def test_rows_of_a_unit_stay_together_in_order():
    batches = batches_of(rows_of(50, rows_per_unit=3), batch_size=4)
    for number in range(batches.num_batches):
        for unit in batches[number]:
            assert [one.unit for one in unit] == [unit[0].unit] * 3
            places = [next(place for place, other in enumerate(batches.rows) if other is one) for one in unit]
            assert places == list(range(3 * unit[0].unit, 3 * unit[0].unit + 3))


def test_nothing_to_train_on_is_named():
    with pytest.raises(InputError, match=r"\btoy\b"):
        batches_of([])
    with pytest.raises(InputError, match=r"batch_size.*\b0\b"):
        batches_of(rows_of(3), batch_size=0)


def test_batches_of_tasks_come_in_proportion_to_their_sizes():
    tasks = {"large": batches_of(rows_of(320)), "small": batches_of(rows_of(75))}
    mixture = TaskMixture(tasks, seed=3)
    assert mixture.num_batches == 40 + 10
    for epoch in range(2):
        order = [mixture.batch(50 * epoch + place) for place in range(50)]
        for name, count in (("large", 40), ("small", 10)):
            numbers = [turn.number for turn in order if turn.task == name]
            assert sorted(numbers) == list(range(epoch * count, (epoch + 1) * count))
        # Neither comes first and is forgotten.
        assert {turn.task for turn in order[:25]} == {turn.task for turn in order[25:]} == set(tasks)
    again = TaskMixture(tasks, seed=3)
    assert again.batch(77) == mixture.batch(77)
    assert [mixture.batch(place) for place in range(50)] != [
        TaskMixture(tasks, seed=4).batch(place) for place in range(50)
    ]


def test_one_task_goes_through_its_own_batches():
    mixture = TaskMixture({"only": batches_of(rows_of(20))}, seed=0)
    assert [mixture.batch(number) for number in (0, 1, 2, 3, 7)] == [
        ("only", number) for number in (0, 1, 2, 3, 7)
    ]


@pytest.mark.parametrize(("size", "world_size"), [(8, 2), (7, 3), (2, 4), (1, 1)])
def test_shares_cover_a_batch_once(size, world_size):
    bounds = [share_bounds(size, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [unit for first, last in bounds for unit in range(first, last)] == list(range(size))
    counts = [last - first for first, last in bounds]
    assert max(counts) - min(counts) <= 1


def test_prediction_sees_each_row_once_within_the_bound():
    rows = rows_of(200, rows_per_unit=2)
    batches = list(prediction_batches(rows, max_tokens=400))
    assert sorted(place for batch in batches for place in batch) == list(range(400))
    sizes = [len(batch) * max(len(rows[place].input_ids) for place in batch) for batch in batches]
    assert max(sizes) <= 400
    assert sum(sizes) < 1.6 * sum(len(one.input_ids) for one in rows)
    for batch in batches:
        assert all(rows[a].unit == rows[b].unit for a, b in zip(batch[::2], batch[1::2], strict=True))
    assert max(len(rows[place].input_ids) for place in batches[0]) == max(len(one.input_ids) for one in rows)


def test_prediction_takes_a_unit_larger_than_the_bound_alone():
    rows = [row(50, 0), row(50, 0), row(9, 1), row(9, 2)]
    assert list(prediction_batches(rows, max_tokens=20)) == [[0, 1], [2, 3]]
    assert list(prediction_batches([], max_tokens=20)) == []


def test_units_are_found_by_number():
    assert units_of([row(3, 0), row(3, 0), row(3, 1)]) == [[0, 1], [2]]


def test_collate_pads_to_the_longest():
    batch = collate([row(2, 0), row(4, 1)], pad_id=7, device=CPU)
    assert batch.input_ids_BL.tolist() == [[10, 11, 7, 7], [10, 11, 12, 13]]
    assert batch.token_type_ids_BL.tolist() == [[0, 1, 0, 0], [0, 0, 1, 1]]
    assert batch.attention_mask_BL.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.input_ids_BL.dtype == torch.int64
