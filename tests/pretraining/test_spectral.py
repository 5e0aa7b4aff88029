import itertools

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.pretraining import spectral
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import TokenFacts
from electra.pretraining.objectives import build_objective

pytestmark = pytest.mark.numeric

VOCAB, SPECIAL = 40, (0, 2, 3, 4)
RIVERS, WARS = range(10, 18), range(20, 28)


def rows_of_text(seed=0, number=300):
    """Each is about rivers or about wars, with two words that both have."""
    random = np.random.default_rng(seed)
    return [
        np.array([2, *random.choice([*random.choice([RIVERS, WARS]), 30, 31], 12), 3]) for _ in range(number)
    ]


def chunked(rows, size):
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        yield np.concatenate(some).astype(np.int64), np.cumsum([0, *map(len, some[:-1])])


def counted(rows, size=7, **options):
    return spectral.count_pairs(chunked(rows, size), vocab_size=VOCAB, special_ids=SPECIAL, **options)


def dense(pairs):
    table = np.zeros((VOCAB, VOCAB))
    for key, count in zip(*pairs, strict=True):
        first, second = divmod(key, VOCAB)
        table[first, second] += count
        table[second, first] += count
    return table


def test_pairs_are_those_of_a_row_at_most_four_apart():
    rows = [*rows_of_text(number=20), np.array([2, 10, 10, 3, 11, 4, 12, 3]), np.array([2, 3]), np.array([2])]
    expected = np.zeros((VOCAB, VOCAB))
    for row in rows:
        for place, distance in itertools.product(range(len(row)), range(1, 5)):
            pair = row[place : place + distance + 1][[0, -1]]
            if place + distance < len(row) and not set(pair) & set(SPECIAL):
                expected[pair[0], pair[1]] += 1
                expected[pair[1], pair[0]] += 1
    for size in (1, 7, 100):
        assert np.array_equal(dense(counted(rows, size)), expected)
    assert expected[10, 10] % 2 == 0
    assert expected[10, 10] >= 2


def test_of_too_many_pairs_the_least_seen_are_dropped():
    rows = rows_of_text(number=30)
    everything = counted(rows, 1000)
    few = counted(rows, 1000, most_pairs=50)
    assert 0 < len(few.keys_N) <= 50 < len(everything.keys_N)
    kept = dict(zip(*few, strict=True))
    left_out = [count for key, count in zip(*everything, strict=True) if key not in kept]
    assert min(kept.values()) > max(left_out)
    # In chunks what is dropped early may come again, but memory stays bounded.
    assert len(counted(rows, 1, most_pairs=50).keys_N) <= 50


def test_information_is_that_of_the_formula_and_its_transpose():
    pairs = counted(rows_of_text(number=20))
    counts = dense(pairs)
    token = counts.sum(1, keepdims=True)
    context = token.T**0.75
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.nan_to_num(np.log(counts * context.sum() / (token * context)), neginf=0.0).clip(min=0)
    matrix = spectral.positive_information(pairs, vocab_size=VOCAB)
    # Values of order one in fp32.
    np.testing.assert_allclose(matrix.plain_VV.to_dense().numpy(), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(matrix.transposed_VV.to_dense().numpy(), expected.T, rtol=0, atol=1e-5)


def test_the_factor_is_that_of_the_singular_value_decomposition():
    matrix = spectral.positive_information(counted(rows_of_text(number=50)), vocab_size=VOCAB)
    whole = matrix.plain_VV.to_dense().double().numpy()
    left, values, _ = np.linalg.svd(whole)
    factor = spectral.factorised(matrix, rank=5).double().numpy()
    # Signs are free: compare the products. Products of fp32 in ten turns, values of order ten.
    expected = (left[:, :5] * values[:5]) @ left[:, :5].T
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=0, atol=1e-4)
    assert (factor[np.abs(factor).argmax(0), range(5)] > 0).all()


def vectors_of(rows, *, size=6, **options):
    return spectral.spectral_vectors(
        chunked(rows, 50), vocab_size=VOCAB, special_ids=SPECIAL, size=size, **options
    )


def test_tokens_of_a_kind_are_alike():
    vectors = vectors_of(rows_of_text())
    seen = [*RIVERS, *WARS, 30, 31]
    assert np.isnan(np.delete(vectors, seen, axis=0)).all()
    assert np.abs(vectors[seen].mean(0)).max() < 1e-6
    assert vectors[seen].std() == pytest.approx(1, rel=1e-5)
    kinds = vectors[[*RIVERS, *WARS]]
    directions = kinds / np.linalg.norm(kinds, axis=1, keepdims=True)
    alike = directions @ directions.T
    same = np.arange(16)[:, None] // 8 == np.arange(16) // 8
    off_diagonal = ~np.eye(16, dtype=bool)
    assert alike[same & off_diagonal].mean() > alike[~same].mean() + 0.5


def test_bytes_do_not_depend_on_threads():
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.add(vectors_of(rows_of_text()).tobytes())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_more_numbers_than_tokens_leave_columns_out():
    assert vectors_of(rows_of_text(), size=30).shape == (VOCAB, 18)


def test_text_without_neighbours_is_refused():
    with pytest.raises(InputError, match="embedding_start"):
        vectors_of([np.array([2, 10, 3]), np.array([2, 11, 3])])


@pytest.mark.parametrize(
    ("keys", "tables", "differences"),
    [
        ({}, 1, 0),
        ({"generator": GeneratorConfig(sharing="none")}, 2, 0),
        ({"generator": GeneratorConfig(sharing="disentangled")}, 1, 1),
        ({"generator": GeneratorConfig(sharing="all", width=1)}, 1, 0),
        ({"generator": GeneratorConfig(kind="unigram")}, 1, 0),
        ({"objective": "electric", "generator": GeneratorConfig(kind="two_tower", width=0.5)}, 1, 0),
        ({"objective": "mlm"}, 1, 0),
    ],
    ids=["shared", "none", "disentangled", "all", "unigram", "two_tower", "mlm"],
)
def test_every_network_begins_with_the_vectors(toy, keys, tables, differences):
    tokens = TokenFacts(
        vocab_size=toy.encoder.vocab_size,
        mask_id=4,
        special_ids=SPECIAL,
        counts_V=torch.ones(toy.encoder.vocab_size),
    )
    size = toy.encoder.embedding_size

    def built():
        return build_objective(PretrainConfig(**keys), toy.encoder, tokens, seq_length=16, seed=0)

    def words(objective):
        return {
            name: weight.detach()
            for name, weight in objective.named_parameters()
            if "word_embeddings" in name
        }

    vectors = np.random.default_rng(0).normal(size=(toy.encoder.vocab_size, size - 3)).astype(np.float32)
    vectors[list(SPECIAL)] = np.nan
    objective, random = built(), words(built())
    spectral.start_at_vectors(objective, vectors, std=0.05)
    found = words(objective)
    ordinary = [number for number in range(toy.encoder.vocab_size) if number not in SPECIAL]
    plain = {name: table for name, table in found.items() if "parametrizations" not in name}
    assert (len(plain), len(found) - len(plain)) == (tables, differences)
    for name, table in plain.items():
        assert torch.equal(table[ordinary, : size - 3], 0.05 * torch.from_numpy(vectors[ordinary]))
        assert torch.equal(table[list(SPECIAL)], random[name][list(SPECIAL)])
        assert torch.equal(table[:, size - 3 :], random[name][:, size - 3 :])
    for name, table in found.items():
        assert name in plain or not table.any()
