"""Rows of a dataset -> which tokens stand near which -> first vectors of tokens, alike for tokens of a kind.

At the end of a run of minutes, vectors that began at random still say little of which tokens are of a kind.
Counting says it in seconds: tokens are that have the same neighbours.

1. Count the pairs of tokens at most `WINDOW` positions apart in a row, over all training rows, or over rows
   at equal distances if those have more than `MOST_TOKENS` tokens. Pairs are sorted and merged chunk by
   chunk; if more than `MOST_PAIRS` are different, those that were seen least often are dropped.
2. Positive pointwise mutual information: how many times as often a pair was seen as two tokens of their
   frequencies would be, as a logarithm, and 0 if that is less than 0. Counts of contexts are raised to the
   power 0.75, without which rare contexts would look the most telling.
3. Its best approximation of rank E, by a randomised subspace iteration: left singular vectors times the roots
   of singular values, centred, with the standard deviation that the random table would have.

Tokens that stand nowhere, and special ones, keep their random vectors. If fewer tokens are seen than a vector
has numbers, so do the last columns.

The same data gives the same bytes for any number of threads: everything has one order, and linear algebra
runs on one thread. The result is kept in the dataset's folder `cache`.

V tokens of the vocabulary, E numbers in a vector, K columns of the iteration, N pairs, C entries of the
matrix.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from electra import files
from electra.errors import InputError
from electra.model.encoder import Embeddings
from electra.seeds import torch_generator
from electra.text.rows import Rows

Integers = npt.NDArray[np.int64]

WINDOW = 4
MOST_TOKENS = 15_000_000
MOST_PAIRS = 10_000_000
"""More than 15 million tokens have with a vocabulary of 8,192. It bounds the memory, to about 1.5 GB with all
else that a process needs."""
CONTEXT_POWER = 0.75
KIND = "spectral"
FORMAT_VERSION = 1
_TABLE = "vectors.npy"
_TOKENS_AT_ONCE = 2**21
_MORE_COLUMNS = 32
_ITERATIONS = 3
"""With them singular values of text are within 3 % of the exact ones, the largest within a millionth."""
_COUNT_BITS = 26
assert 2 * WINDOW * MOST_TOKENS < 2 * 2**_COUNT_BITS, "a count does not fit"


class Pairs(NamedTuple):
    """How often two tokens were seen near each other, whichever came first."""

    keys_N: Integers
    """smaller id · V + larger id, ascending."""
    counts_N: Integers

    @classmethod
    def of(cls, keys: Integers) -> "Pairs":
        """Count equal keys; sorts them in place."""
        keys.sort()
        starts_N = _starts(keys)
        return cls(keys[starts_N], np.diff(np.append(starts_N, len(keys))))

    @classmethod
    def merged(cls, some: Sequence["Pairs"]) -> "Pairs":
        """The counts of all together."""
        # Key and count in one number: sorting that takes half the memory and time of sorting an order.
        packed = np.concatenate([(pairs.keys_N << _COUNT_BITS) | pairs.counts_N for pairs in some])
        packed.sort()
        counts = packed & (2**_COUNT_BITS - 1)
        packed >>= _COUNT_BITS
        starts_N = _starts(packed)
        return cls(packed[starts_N], np.add.reduceat(counts, starts_N) if len(starts_N) else counts)

    def most_seen(self, number: int) -> "Pairs":
        """At most so many pairs: all that were seen more often than a threshold, the lowest that will do."""
        if len(self.keys_N) <= number:
            return self
        threshold = np.partition(self.counts_N, len(self.counts_N) - number - 1)[-number - 1]
        kept = self.counts_N > threshold
        return Pairs(self.keys_N[kept], self.counts_N[kept])


def _starts(sorted_keys: Integers) -> Integers:
    """Where runs of equal keys begin."""
    return np.flatnonzero(np.append(True, sorted_keys[1:] != sorted_keys[:-1])[: len(sorted_keys)])


def sampled_rows(rows: Rows, *, most_tokens: int = MOST_TOKENS) -> Integers:
    """Numbers of rows at equal distances that have about so many tokens together, or of all rows."""
    share = min(1.0, most_tokens / max(1, int(rows.manifest["splits"]["train"]["tokens"])))
    number = max(1, int(share * len(rows)))
    return np.arange(number) * len(rows) // number


def chunks_of(rows: Rows) -> Iterator[tuple[Integers, Integers]]:
    """The ids of sampled rows end to end, and where each row begins, some rows at a time."""
    numbers = sampled_rows(rows)
    at_once = max(1, _TOKENS_AT_ONCE // rows.seq_length)
    for first in range(0, len(numbers), at_once):
        ids = [rows[int(number)].ids for number in numbers[first : first + at_once]]
        yield np.concatenate(ids).astype(np.int64), np.cumsum([0, *map(len, ids[:-1])])


def count_pairs(
    chunks: Iterable[tuple[Integers, Integers]],
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    most_pairs: int = MOST_PAIRS,
) -> Pairs:
    """Count the pairs of ordinary tokens that stand near each other in a row."""
    is_special_V = np.zeros(vocab_size, bool)
    is_special_V[list(special_ids)] = True
    found = [Pairs(np.empty(0, np.int64), np.empty(0, np.int64))]
    for ids, starts in chunks:
        place = np.zeros(len(ids), np.int64)
        place[starts[1:]] = 1
        np.cumsum(place, out=place)
        # A special token is no neighbour, but stands between neighbours.
        special = is_special_V[ids].nonzero()[0]
        place[special] = -1 - special
        keys = []
        for distance in range(1, WINDOW + 1):
            first, second = ids[:-distance], ids[distance:]
            key = np.minimum(first, second)
            key *= vocab_size
            key += np.maximum(first, second)
            keys.append(key[place[:-distance] == place[distance:]])
        found.append(Pairs.of(np.concatenate(keys)))
        if sum(len(pairs.keys_N) for pairs in found) > 2 * most_pairs:
            found = [Pairs.merged(found).most_seen(most_pairs)]
    return Pairs.merged(found).most_seen(most_pairs)


class Matrix(NamedTuple):
    """A sparse matrix and its transpose."""

    plain_VV: Tensor
    transposed_VV: Tensor


def positive_information(pairs: Pairs, *, vocab_size: int) -> Matrix:
    """Positive pointwise mutual information of each token (row) with each context (column)."""
    row_C, column_C, count_C = _both_ways(pairs, vocab_size=vocab_size)
    count_V = np.bincount(row_C, weights=count_C, minlength=vocab_size)
    context_V = count_V**CONTEXT_POWER
    log_token_V, log_context_V = (np.log(np.maximum(values_V, 1.0)) for values_V in (count_V, context_V))
    together_C = np.log(count_C) + np.log(max(1.0, context_V.sum()))

    def sparse(log_row_V: npt.NDArray[np.float64], log_column_V: npt.NDArray[np.float64]) -> Tensor:
        information_C = together_C - log_row_V[row_C]
        information_C -= log_column_V[column_C]
        kept = information_C > 0
        ends_V = np.cumsum(np.bincount(row_C[kept], minlength=vocab_size))
        with warnings.catch_warnings():
            # That support of sparse matrices is in beta state.
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                torch.from_numpy(np.append(0, ends_V).astype(np.int32)),
                torch.from_numpy(column_C[kept]),
                torch.from_numpy(information_C[kept].astype(np.float32)),
                (vocab_size, vocab_size),
            )

    return Matrix(sparse(log_token_V, log_context_V), sparse(log_context_V, log_token_V))


def _both_ways(
    pairs: Pairs, *, vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Rows, columns and counts of a symmetric matrix, by rows."""
    first_N, second_N = np.divmod(pairs.keys_N, vocab_size)
    is_one_N = first_N == second_N
    # A pair of a token with itself is seen from both of its ends, in one place of the matrix.
    counts_N = np.where(is_one_N, 2, 1) * pairs.counts_N
    mirrored = (second_N * vocab_size + first_N)[~is_one_N]
    packed_C = np.concatenate([pairs.keys_N << _COUNT_BITS, mirrored << _COUNT_BITS])
    packed_C |= np.concatenate([counts_N, counts_N[~is_one_N]])
    packed_C.sort()
    count_C = (packed_C & (2**_COUNT_BITS - 1)).astype(np.float32)
    packed_C >>= _COUNT_BITS
    return (packed_C // vocab_size).astype(np.int32), (packed_C % vocab_size).astype(np.int32), count_C


def factorised(matrix: Matrix, *, rank: int) -> Tensor:
    """The left singular vectors of the largest singular values, times the roots of these (V, rank)."""
    vocab_size = matrix.plain_VV.shape[0]
    columns = min(vocab_size, rank + _MORE_COLUMNS)
    random = torch_generator(0, "spectral")
    basis_VK = torch.linalg.qr(matrix.plain_VV @ torch.randn(vocab_size, columns, generator=random)).Q
    for _ in range(_ITERATIONS):
        other_VK = torch.linalg.qr(matrix.transposed_VV @ basis_VK).Q
        basis_VK = torch.linalg.qr(matrix.plain_VV @ other_VK).Q
    inside_VK = (matrix.transposed_VV @ basis_VK).double()
    values_K, vectors_KK = torch.linalg.eigh(inside_VK.T @ inside_VK)
    largest = values_K.argsort(descending=True, stable=True)[:rank]
    # Eigenvalues are squares of singular values.
    roots_E = values_K[largest].clamp(min=0) ** 0.25
    vectors_VE = basis_VK.double() @ vectors_KK[:, largest]
    # A singular vector has no sign of its own: its largest number is positive.
    extreme_E = vectors_VE.gather(0, vectors_VE.abs().argmax(0, keepdim=True))[0]
    scaled_VE: Tensor = vectors_VE * extreme_E.sign() * roots_E
    return scaled_VE.float()


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def spectral_vectors(
    chunks: Iterable[tuple[Integers, Integers]], *, vocab_size: int, special_ids: Sequence[int], size: int
) -> npt.NDArray[np.float32]:
    """Vectors of a standard deviation of 1 around 0 for all tokens that have neighbours, NaN for the others.

    They have `size` numbers, or as many as there are such tokens.
    """
    pairs = count_pairs(chunks, vocab_size=vocab_size, special_ids=special_ids)
    seen_V = np.zeros(vocab_size, bool)
    for ids_N in np.divmod(pairs.keys_N, vocab_size):
        seen_V[ids_N] = True
    if not seen_V.any():
        raise InputError(
            "model.embedding_start is spectral, but no row of the data has two ordinary tokens near each "
            "other: set it to random, or prepare other text"
        )
    with _one_thread():
        matrix = positive_information(pairs, vocab_size=vocab_size)
        vectors_VE = factorised(matrix, rank=min(size, int(seen_V.sum()))).numpy()
    vectors_VE[~seen_V] = np.nan
    vectors_VE -= np.nanmean(vectors_VE, axis=0, dtype=np.float64)
    vectors_VE /= max(1e-12, float(np.nanstd(vectors_VE, dtype=np.float64)))
    return vectors_VE


def open_vectors(
    rows: Rows,
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    size: int,
    keep: files.Keep = "in_cache",
) -> npt.NDArray[np.float32]:
    """The vectors of a dataset from its cache; made first if they are not there, or damaged."""
    num_tokens = int(rows.manifest["splits"]["train"]["tokens"])
    if num_tokens < vocab_size:
        raise InputError(
            f"model.embedding_start is spectral, but {rows.folder} has {num_tokens:,} training tokens for a "
            f"vocabulary of {vocab_size:,}, which tell nothing of them: set it to random, or prepare more "
            "text"
        )
    facts = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "window": WINDOW,
        "most_tokens": MOST_TOKENS,
        "most_pairs": MOST_PAIRS,
        "size": size,
        "special_ids": sorted(special_ids),
        "dataset_sha256": files.sha256(rows.folder / files.MANIFEST),
    }
    folder = files.derived_folder(rows.folder, facts)
    if files.is_whole(folder, kind=KIND):
        kept: npt.NDArray[np.float32] = np.load(folder / _TABLE, allow_pickle=False)
        return kept
    vectors_VE = spectral_vectors(chunks_of(rows), vocab_size=vocab_size, special_ids=special_ids, size=size)
    if keep == "in_cache":
        save = partial(np.save, arr=vectors_VE, allow_pickle=False)
        files.keep_derived(folder, facts, lambda place: files.write_file(place / _TABLE, save))
    return vectors_VE


@torch.no_grad()
def start_at_vectors(model: nn.Module, vectors_VE: npt.NDArray[np.float32], *, std: float) -> None:
    """Give the word tables of all networks the vectors, with this standard deviation.

    A disentangled table stays a difference of zero: the one it is added to has them.
    """
    for part in model.modules():
        if isinstance(part, Embeddings) and not parametrize.is_parametrized(part.word_embeddings):
            weight_VE = part.word_embeddings.weight
            columns = min(weight_VE.shape[1], vectors_VE.shape[1])
            ours_VE = torch.from_numpy(vectors_VE[:, :columns]).to(weight_VE)
            known_VE = ~ours_VE.isnan()
            weight_VE[:, :columns] = torch.where(known_VE, std * ours_VE, weight_VE[:, :columns])
