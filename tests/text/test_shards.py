import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.text.shards import SeenHashes, hash_document


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 60), max_size=30), max_size=20))
def test_it_answers_like_a_set(tmp_path_factory, batches):
    # A bound of four hashes in memory sends nearly everything through files.
    seen = SeenHashes(tmp_path_factory.mktemp("seen"), largest_run_in_memory=4)
    known = set()
    for batch in batches:
        expected = [value not in known and value not in batch[:place] for place, value in enumerate(batch)]
        assert seen.first_time(np.array(batch, np.uint64)).tolist() == expected
        known |= set(batch)


def test_it_leaves_no_file_behind(tmp_path):
    seen = SeenHashes(tmp_path, largest_run_in_memory=10)
    for start in range(0, 1000, 50):
        assert seen.first_time(np.arange(start, start + 50, dtype=np.uint64)).all()
    assert not seen.first_time(np.arange(1000, dtype=np.uint64)).any()
    assert list(tmp_path.iterdir()) == []


def test_a_document_keeps_its_hash_for_ever():
    # A stored value: another hash would move documents between training and held-out text.
    assert hash_document("The quick brown fox.") == 11582641793876226139
    assert hash_document("a") != pytest.approx(hash_document("b"), rel=1e-6)
