"""Rows of a dataset -> an index of which tokens stand between which -> proposals without a network.

A proposal for a position is a token that stands elsewhere in the corpus

    between the same two neighbours     if there are at least five such places (`LEAST_PLACES`)
    after the same left neighbour       else, if there is any
    anywhere                            else: by its frequency

where each place is as likely as any other, so that tokens are drawn in proportion to their counts. It is a
finished generator in the first step, and costs no pass through a network in any.

The index is made of the training rows, of a random sample of them if there are more than `tokens` tokens. One
place of the original token is left out of every draw: in a training row it is the very place asked about. The
neighbours are those of the original row. That a neighbour may be masked or replaced itself does not matter:
the proposal has to look right in the text, and the encoder has to find out without having seen all of it.

All is a pure function of the rows, the positions and one uniform number for each, and it is done on the host,
by the thread that reads ahead. Special tokens are neighbours ([CLS] begins a row) but are never proposed.

P positions, N entries of a table, V tokens of the vocabulary, B rows, L columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from electra import files
from electra.errors import InputError
from electra.text.batches import Permutation
from electra.text.rows import Rows

Keys = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Leaving = Literal["nothing", "one", "all"]
"""Which places of the original token do not count: none, its own one, or all, so that it is never drawn."""

LEAST_PLACES = 5
"""A pair of neighbours that stands in fewer places tells too little: what stood there is mostly one token."""
SAMPLE_TOKENS = 16_000_000
"""Tokens that are indexed, unless told otherwise: seconds of work, and at most half a gigabyte meanwhile."""
KIND = "ngrams"
FORMAT_VERSION = 1
_SEED = 0
_ROWS_AT_ONCE = 4096
_TABLES = ("pairs", "lefts", "all")


class Places(NamedTuple):
    """How often each token stands in each context, sorted by both."""

    keys_N: Keys
    """context · V + token, ascending."""
    before_N1: Integers
    """Number of places that come before each entry, and of all places at the end."""

    @classmethod
    def of(cls, sorted_keys: Keys) -> Self:
        """Count equal keys, which stand side by side."""
        starts_N = np.flatnonzero(np.r_[True, sorted_keys[1:] != sorted_keys[:-1]][: len(sorted_keys)])
        return cls(sorted_keys[starts_N], np.r_[starts_N, len(sorted_keys)].astype(np.int64))

    @classmethod
    def of_counts(cls, counts_V: Integers) -> Self:
        """Tokens without a context, by their counts."""
        tokens_N = np.flatnonzero(counts_V)
        return cls(tokens_N.astype(np.uint64), np.r_[0, counts_V[tokens_N].cumsum()].astype(np.int64))

    def draw(
        self,
        context_P: Keys,
        original_P: Keys,
        uniform_P: npt.NDArray[np.float64],
        *,
        leaving: Leaving,
        size: int,
    ) -> tuple[npt.NDArray[np.int64], Integers]:
        """A token for each position, and among how many places it was drawn: where 0, it means nothing."""
        if not len(self.keys_N):
            nothing_P = np.zeros(len(context_P), np.int64)
            return nothing_P, nothing_P
        first_P = context_P * np.uint64(size)
        low_P, high_P = (
            self.before_N1[np.searchsorted(self.keys_N, key_P)]
            for key_P in (first_P, first_P + np.uint64(size))
        )
        entry_P = np.searchsorted(self.keys_N, first_P + original_P)
        own_P = self.before_N1[entry_P]
        is_there_P = self.keys_N[np.minimum(entry_P, len(self.keys_N) - 1)] == first_P + original_P
        times_P = np.where(is_there_P, self.before_N1[np.minimum(entry_P + 1, len(self.keys_N))] - own_P, 0)
        left_out_P = {"nothing": 0 * times_P, "one": np.minimum(times_P, 1), "all": times_P}[leaving]
        places_P = high_P - low_P - left_out_P
        place_P = low_P + (uniform_P * places_P).astype(np.int64)
        # Those left out are the first of the original token: places from there on move behind them.
        place_P += left_out_P * (place_P >= own_P)
        drawn_P = np.searchsorted(self.before_N1, place_P, side="right") - 1
        return (self.keys_N[np.minimum(drawn_P, len(self.keys_N) - 1)] % np.uint64(size)).astype(
            np.int64
        ), places_P


@dataclass(frozen=True, kw_only=True)
class NgramIndex:
    """Which tokens stand where in a corpus."""

    vocab_size: int
    pairs: Places
    """Context: left · V + right; pairs of fewer than `LEAST_PLACES` are left out."""
    lefts: Places
    """Context: the left neighbour."""
    all: Places
    """Context: none, 0."""

    @classmethod
    def empty(cls, vocab_size: int) -> Self:
        """An index of no text, which proposes the original tokens."""
        nothing = Places(np.empty(0, np.uint64), np.zeros(1, np.int64))
        return cls(vocab_size=vocab_size, pairs=nothing, lefts=nothing, all=nothing)

    def propose(
        self,
        input_ids_BL: npt.NDArray[np.int64],
        positions_P: Integers,
        uniform_P: npt.NDArray[np.float64],
        *,
        nothing: int,
        leaving: Leaving = "one",
    ) -> Integers:
        """Tokens for positions of the flattened rows; `nothing`: an id that no row has, as for the edges."""
        around = np.pad(input_ids_BL, ((0, 0), (1, 1)), constant_values=nothing).astype(np.uint64)
        rows_P, columns_P = np.divmod(positions_P, input_ids_BL.shape[1])
        left_P, original_P, right_P = (around[rows_P, columns_P + shift] for shift in range(3))
        contexts = (
            (self.all, np.zeros_like(left_P), 1),
            (self.lefts, left_P, 1),
            (self.pairs, left_P * np.uint64(self.vocab_size) + right_P, LEAST_PLACES),
        )
        proposed_P: Integers = original_P.astype(np.int64)
        # From the least to the most telling context, each where it has enough places.
        for places, context_P, least in contexts:
            token_P, count_P = places.draw(
                context_P, original_P, uniform_P, leaving=leaving, size=self.vocab_size
            )
            proposed_P = np.where(count_P >= least, token_P, proposed_P)
        return proposed_P


def index_ids(
    chunks: Iterable[npt.NDArray[Any]], *, vocab_size: int, special_ids: Sequence[int], most: int
) -> NgramIndex:
    """Index ids of whole rows, each of which begins and ends with a special token; at most `most` ids."""
    assert vocab_size**3 < 2**64, f"{vocab_size} tokens: three of them do not fit a number"
    size = np.uint64(vocab_size)
    is_special_V = np.zeros(vocab_size, bool)
    is_special_V[list(special_ids)] = True
    keys = np.empty(most, np.uint64)
    filled = 0
    for chunk in chunks:
        ids = chunk.astype(np.uint64)
        # Across two rows the token in the middle is a special one.
        middle = np.flatnonzero(~is_special_V[chunk[1:-1]]) + 1
        keys[filled : filled + len(middle)] = (ids[middle - 1] * size + ids[middle + 1]) * size + ids[middle]
        filled += len(middle)
    keys = keys[:filled]
    counts_V = np.bincount((keys % size).astype(np.int64), minlength=vocab_size)
    if np.count_nonzero(counts_V) < 2:
        raise InputError(
            f"generator.kind is ngram, but the training rows have {np.count_nonzero(counts_V)} different "
            "tokens: prepare more text, or set generator.kind to uniform"
        )
    keys.sort()
    pair_starts = np.flatnonzero(np.r_[True, keys[1:] // size != keys[:-1] // size])
    pair_counts = np.diff(np.r_[pair_starts, len(keys)])
    pairs = Places.of(keys[np.repeat(pair_counts >= LEAST_PLACES, pair_counts)])
    keys = keys // (size * size) * size + keys % size
    keys.sort()
    return NgramIndex(
        vocab_size=vocab_size, pairs=pairs, lefts=Places.of(keys), all=Places.of_counts(counts_V)
    )


def frequency_index(counts_V: Integers, *, special_ids: Sequence[int]) -> NgramIndex:
    """An index that knows no context: every token as often as it is counted, special ones never."""
    counts_V = counts_V.astype(np.int64)
    counts_V[list(special_ids)] = 0
    if not counts_V.any():
        raise InputError("token counts are all 0: prepare the data set anew")
    return replace(NgramIndex.empty(len(counts_V)), all=Places.of_counts(counts_V))


def sample_of(rows: Rows, *, tokens: int) -> Integers:
    """The numbers of the rows that are indexed, ascending: together they have no more than so many tokens."""
    number = max(1, tokens // rows.seq_length)
    if number >= len(rows):
        return np.arange(len(rows))
    return np.sort(Permutation(len(rows), seed=_SEED)(np.arange(number)))


def index_rows(rows: Rows, *, special_ids: Sequence[int], vocab_size: int, tokens: int) -> NgramIndex:
    """Index a sample of rows."""
    numbers = sample_of(rows, tokens=tokens)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        for first in range(0, len(numbers), _ROWS_AT_ONCE):
            yield np.concatenate([rows[int(number)].ids for number in numbers[first : first + _ROWS_AT_ONCE]])

    most = min(len(numbers) * rows.seq_length, int(rows.manifest["splits"]["train"]["tokens"]))
    return index_ids(chunks(), vocab_size=vocab_size, special_ids=special_ids, most=most)


def open_index(
    rows: Rows,
    *,
    special_ids: Sequence[int],
    vocab_size: int,
    tokens: int,
    keep: files.Keep = "in_cache",
) -> NgramIndex:
    """The index of a dataset, mapped from its cache; made first if it is not there, or damaged."""
    facts = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "tokens": tokens,
        "special_ids": sorted(special_ids),
        "vocab_size": vocab_size,
        "dataset_sha256": files.sha256(rows.folder / files.MANIFEST),
    }
    folder = files.derived_folder(rows.folder, facts)
    if files.is_whole(folder, kind=KIND):
        return _read(folder, vocab_size=vocab_size)
    index = index_rows(rows, special_ids=special_ids, vocab_size=vocab_size, tokens=tokens)
    if keep == "in_cache":
        files.keep_derived(folder, facts, partial(_write, index))
    return _read(folder, vocab_size=vocab_size) if files.is_whole(folder, kind=KIND) else index


def _write(index: NgramIndex, folder: Path) -> None:
    for table in _TABLES:
        for part, array in getattr(index, table)._asdict().items():
            files.write_file(folder / _file(table, part), partial(np.save, arr=array, allow_pickle=False))


def _read(folder: Path, *, vocab_size: int) -> NgramIndex:
    tables = {
        table: Places(
            *(
                np.load(folder / _file(table, part), mmap_mode="r", allow_pickle=False)
                for part in Places._fields
            )
        )
        for table in _TABLES
    }
    return NgramIndex(vocab_size=vocab_size, **tables)


def _file(table: str, part: str) -> str:
    return f"{table}.{part.rpartition('_')[0]}.npy"
