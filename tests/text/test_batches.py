import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra import files
from electra.errors import InputError
from electra.text.batches import Batches, Permutation, made_ahead
from electra.text.rows import FORMAT_VERSION, KIND, Rows, count_tokens, write_shard

CLS, SEP = 2, 3


def write_dataset(folder, shards, *, vocab_size=1000, seq_length=32):
    """A dataset as the pipeline seals it, of examples given by their lengths."""
    folder.mkdir()
    facts = []
    for number, shard in enumerate(shards):
        examples = [
            (np.full(first, 10 + first, np.uint32), np.full(second, 500 + second, np.uint32))
            for first, second in shard
        ]
        name = f"train-{number:05d}"
        rows, tokens = write_shard(folder, name, examples, cls_id=CLS, sep_id=SEP, vocab_size=vocab_size)
        facts.append({"name": name, "rows": rows, "tokens": tokens})
    files.write_manifest(
        folder,
        {
            "kind": KIND,
            "format_version": FORMAT_VERSION,
            "seq_length": seq_length,
            "tokenizer": {"special_ids": {"[PAD]": 0}},
            "splits": {"train": {"shards": facts}},
        },
    )
    return folder


@pytest.fixture
def rows(tmp_path):
    return Rows(write_dataset(tmp_path / "data", [[(5, 0), (3, 4)], [], [(1 + n, n) for n in range(11)]]))


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_a_permutation_is_one(size, seed):
    assert np.array_equal(np.sort(Permutation(size, seed=seed)(np.arange(size))), np.arange(size))


def test_permutations_look_random():
    """Neighbours are far apart, positions are uniform, other seeds are unrelated."""
    size = 10_000
    values = Permutation(size, seed=1)(np.arange(size))
    assert np.mean(np.abs(np.diff(values))) == pytest.approx(size / 3, rel=0.05)
    assert abs(np.corrcoef(np.arange(size), values)[0, 1]) < 0.05
    other = Permutation(size, seed=2)(np.arange(size))
    assert np.mean(values == other) < 0.005
    counts = np.histogram(values[:1000], bins=10, range=(0, size))[0]
    assert ((counts - 100) ** 2 / 100).sum() < 30


def test_a_permutation_needs_no_memory_for_its_size():
    assert Permutation(10**12, seed=0)(np.array([0, 10**12 - 1])).max() < 10**12


def test_rows_are_stored_with_special_tokens_and_boundary(rows):
    assert len(rows) == 13
    single, pair = rows[0], rows[1]
    assert single.ids.tolist() == [CLS, 15, 15, 15, 15, 15, SEP]
    assert single.first_segment == 7
    assert pair.ids.tolist() == [CLS, 13, 13, 13, SEP, 504, 504, 504, 504, SEP]
    assert pair.first_segment == 5
    with pytest.raises(IndexError):
        rows[13]


@pytest.mark.parametrize(("vocab_size", "width"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_take_two_bytes_where_the_vocabulary_allows(tmp_path, vocab_size, width):
    folder = write_dataset(tmp_path / "data", [[(3, 0)]], vocab_size=vocab_size)
    assert Rows(folder)[0].ids.dtype == width
    counts = count_tokens(folder, ["train-00000"], vocab_size=vocab_size)
    assert (counts[13], counts[CLS], counts.sum(), len(counts)) == (3, 1, 5, vocab_size)


def test_a_batch_is_padded_to_its_longest_row_in_eights(rows):
    batch = Batches(rows, seed=0, batch_size=13)[0]
    assert batch.input_ids_BL.shape == (13, 24)
    place = batch.row_ids_B.tolist().index(1)
    assert batch.input_ids_BL[place].tolist() == [CLS, 13, 13, 13, SEP, *[504] * 4, SEP, *[0] * 14]
    assert batch.token_type_ids_BL[place].tolist() == [0] * 5 + [1] * 5 + [0] * 14
    assert batch.lengths_B[place] == 10


def test_every_epoch_holds_every_row_once_in_another_order(rows):
    batches = Batches(rows, seed=3, batch_size=4)
    order = np.concatenate([batches.row_ids(step) for step in range(13)]).reshape(4, 13)
    for epoch in order:
        assert sorted(epoch) == list(range(13))
    assert len({tuple(epoch) for epoch in order}) == 4


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ordered_row_ids_are_the_same_for_any_number_of_processes(rows, world_size):
    batches = Batches(rows, seed=5, batch_size=8)
    for step in (0, 1, 2, 1_000_000):
        parts = [batches.part(step, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert np.array_equal(np.concatenate([part.row_ids_B for part in parts]), batches[step].row_ids_B)


def test_order_depends_on_the_seed(rows):
    first, second = (Batches(rows, seed=seed, batch_size=13).row_ids(0) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_prefetch_gives_the_same_batches_from_any_step(rows):
    batches = Batches(rows, seed=0, batch_size=4)
    stream = batches.prefetch(7, rank=1, world_size=2)
    for expected in range(7, 20):
        step, batch = next(stream)
        assert step == expected
        assert np.array_equal(batch.input_ids_BL, batches.part(step, rank=1, world_size=2).input_ids_BL)
    stream.close()
    assert "electra-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_prefetch_raises_what_the_reading_thread_met(rows):
    (rows.folder / "train-00002.ids.npy").unlink()
    broken = Batches(Rows(rows.folder), seed=0, batch_size=13)
    with pytest.raises(InputError, match=r"train-00002.*missing"):
        next(broken.prefetch())


def test_what_is_made_ahead_ends_with_who_takes_it():
    made = []

    def count():
        for number in range(100):
            made.append(number)
            yield number

    stream = made_ahead(count(), ahead=2)
    assert [next(stream) for _ in range(5)] == [0, 1, 2, 3, 4]
    del stream
    # Two were ready and one more waited for a place.
    assert len(made) <= 8
    assert "electra-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_work_is_refused(rows, tmp_path):
    with pytest.raises(InputError, match=r"batch_size 4.*\b3\b"):
        Batches(rows, seed=0, batch_size=4).part(0, rank=0, world_size=3)
    with pytest.raises(InputError, match=r"batch_size.*\b0\b.*\b1\b"):
        Batches(rows, seed=0, batch_size=0)
    with pytest.raises(InputError, match=r"empty.*rows"):
        Batches(Rows(write_dataset(tmp_path / "empty", [[]])), seed=0, batch_size=1)
    with pytest.raises(InputError, match=r"'valid'.*train"):
        Rows(rows.folder, "valid")


def test_a_dataset_of_another_format_is_refused(tmp_path):
    folder = write_dataset(tmp_path / "data", [[(3, 0)]])
    facts = files.read_manifest(folder, kind=KIND)
    files.write_manifest(folder, {**facts, "format_version": 99})
    with pytest.raises(InputError, match=r"\b99\b"):
        Rows(folder)
