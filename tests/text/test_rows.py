import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra import cli
from electra.errors import InputError
from electra.text.rows import AsGoogle, FullRows, Rows, joined_arrays, shard_arrays


def document(*line_lengths):
    """Lines of distinct ids, so that order and loss can be seen."""
    return np.arange(sum(line_lengths), dtype=np.uint32), np.array(line_lengths, np.int64)


def full_rows(lengths, *, seq_length=32, seed=0, document_hash=1):
    builder = FullRows(seq_length, seed=seed)
    return list(builder.examples(*document(*lengths), document_hash=document_hash))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(8, 64), st.integers(0, 2**64 - 1))
def test_full_rows_keep_every_token_in_order_and_fit(lengths, seq_length, document_hash):
    examples = full_rows(lengths, seq_length=seq_length, document_hash=document_hash)
    kept = np.concatenate([np.concatenate(example) for example in examples] or [np.empty(0)])
    assert np.array_equal(kept, np.arange(sum(lengths)))
    for first, second in examples:
        assert len(first) >= 1
        assert len(first) + len(second) + (3 if len(second) else 2) <= seq_length


def test_shares_of_single_segments_and_short_targets():
    examples = full_rows([1_000_000], seq_length=128)
    single = [len(second) == 0 for _, second in examples]
    lengths = np.array([len(first) + len(second) + (3 if len(second) else 2) for first, second in examples])
    assert np.mean(single) == pytest.approx(0.10, abs=0.01)
    assert np.mean(lengths < 128) == pytest.approx(0.05, abs=0.01)
    assert lengths.min() >= 5


def test_segments_split_at_the_line_end_nearest_the_middle():
    for first, second in full_rows([13, 3, 13] * 50):
        if len(first) + len(second) == 29 and int(first[0]) % 29 == 0:
            assert len(first) in (13, 16)


def test_examples_of_a_document_depend_on_it_alone():
    assert [len(first) for first, _ in full_rows([5000])] == [len(first) for first, _ in full_rows([5000])]
    assert [len(first) for first, _ in full_rows([5000])] != [
        len(first) for first, _ in full_rows([5000], document_hash=2)
    ]


def test_the_original_builder_cuts_at_the_row():
    ids, lengths = document(500, 3)
    examples = list(AsGoogle(32, rng=random.Random(0)).examples(ids, lengths, document_hash=0))
    assert [len(first) + len(second) for first, second in examples] == [30, 3]


def test_as_google_equals_the_original(shared):
    """The authors' builder under a fixed seed, its vocabulary and its documents."""
    from electra.text import tokenizer as tokenizers

    oracle = json.loads((shared / "oracles/google-electra/example_builder_oracle.json").read_text())
    tokenizer = tokenizers.load_tokenizer(shared / "oracles/vocab/bert-base-uncased.vocab.txt")
    encoded = [tokenizer.encode(lines) for lines in oracle["docs"]]
    for run in oracle["runs"]:
        rng = random.Random(run["seed"])
        builder = AsGoogle(run["max_length"], rng=rng)
        rows = []
        for ids, lengths in encoded:
            for first, second in builder.examples(ids, lengths, document_hash=0):
                row = [tokenizer.cls_id, *first.tolist(), tokenizer.sep_id]
                segments = [0] * len(row)
                if len(second):
                    row += [*second.tolist(), tokenizer.sep_id]
                    segments += [1] * (len(second) + 1)
                padding = [0] * (run["max_length"] - len(row))
                rows.append((row + padding, segments + padding))
        expected = [(example["input_ids"], example["segment_ids"]) for example in run["examples"]]
        assert rows == expected
        assert rng.random() == run["random_state_after"]


@pytest.mark.parametrize("part", ["ids", "offsets", "segments"])
def test_a_damaged_shard_is_found_when_it_is_first_read(tmp_path, part):
    """One wrong bit in a row would be trained on, and nobody would ever know."""
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"the old river {number}." for number in range(200)))
    command = ["prepare", f"--corpus={tmp_path / 'corpus.txt'}", f"--out={tmp_path / 'data'}"]
    assert cli.main([*command, "--vocab_size=300", "--seq_length=32", "--workers=1"]) == cli.OK
    shard = tmp_path / "data" / f"train-00000.{part}.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    rows = Rows(tmp_path / "data")
    with pytest.raises(InputError, match=f"{shard.name}.*prepare the data again"):
        rows[0]
    content[-1] ^= 1
    shard.write_bytes(content)
    assert len(rows[0].ids)


def test_parts_join_to_the_rows_of_the_whole():
    rng = np.random.default_rng(0)
    examples = [
        tuple(rng.integers(5, 99, size, np.uint32) for size in rng.integers(1, 9, 2)) for _ in range(20)
    ]
    ids = {"cls_id": 2, "sep_id": 3, "vocab_size": 99}
    parts = [shard_arrays(examples[start:end], **ids) for start, end in ((0, 7), (7, 7), (7, 20))]
    joined, whole = joined_arrays(parts), shard_arrays(examples, **ids)
    assert joined.keys() == whole.keys()
    for key, array in whole.items():
        np.testing.assert_array_equal(joined[key], array, strict=True)
