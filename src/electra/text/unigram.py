"""Word counts + candidate pieces -> a unigram vocabulary with scores, bit for bit the same on every run.

The trainer of `tokenizers` sums in hash order, so its scores, and near ties its pieces, change from run to
run. This one is the same method (expectation maximisation over all segmentations, then pruning of the
pieces that are missed least; Kudo 2018) in fixed order. It works with plain probabilities: only products
and sums, which every machine rounds alike. Words are cut short enough for that not to underflow.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

LONGEST_PIECE = 12
LONGEST_WORD = 24
MAX_CHARACTERS = 3_000_000  # of distinct words, the most frequent first: bounds the memory to about 200 MB
KEEP_SHARE = 0.75
EM_ROUNDS = 2


class Lattice(NamedTuple):
    """All segmentations of W words of one length L, whose E possible pieces are `edges` (start, end)."""

    edges: list[tuple[int, int]]
    pieces_EW: np.ndarray
    weights_W: np.ndarray


def learn(words: dict[str, int], *, candidates: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Keep the `size` best candidates with their log probabilities, best first; characters always stay."""
    pieces = sorted(candidates)
    single = np.array([len(piece) == 1 for piece in pieces])
    assert single.sum() <= size, "the alphabet must fit into the vocabulary"
    numbers = {piece: number for number, piece in enumerate(pieces)}
    of_words = lattices(bounded(words).items(), numbers)
    of_pieces = lattices(((piece, number) for number, piece in enumerate(pieces) if len(piece) > 1), numbers)
    kept = np.ones(len(pieces), dtype=bool)
    counts_V = total(occurrences(lattice, len(pieces)) for lattice in of_words)
    while True:
        for _ in range(EM_ROUNDS):
            probability_V = to_probabilities(counts_V, kept)
            counts_V = total(expected_counts(lattice, probability_V) for lattice in of_words)
        if kept.sum() <= size:
            break
        loss_V = counts_V * cost_of_removal(of_pieces, probability_V)
        loss_V[single] = np.inf
        loss_V[~kept] = -np.inf
        best = np.argsort(-loss_V, kind="stable")[: max(size, int(KEEP_SHARE * kept.sum()))]
        kept = np.zeros(len(pieces), dtype=bool)
        kept[best] = True
    scores_V = np.log(to_probabilities(counts_V, kept), where=kept, out=np.full(len(pieces), -np.inf))
    scored = [(pieces[number], round(float(scores_V[number]), 6)) for number in np.flatnonzero(kept)]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def total(counts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum in the given order."""
    return functools.reduce(np.add, counts)


def bounded(words: dict[str, int]) -> dict[str, int]:
    """The most frequent words, long ones in parts, up to the limit of characters."""
    parts: dict[str, int] = {}
    for word, count in words.items():
        for start in range(0, len(word), LONGEST_WORD):
            part = word[start : start + LONGEST_WORD]
            parts[part] = parts.get(part, 0) + count
    chosen, characters = {}, 0
    for word, count in sorted(parts.items(), key=lambda item: (-item[1], item[0])):
        chosen[word] = count
        characters += len(word)
        if characters > MAX_CHARACTERS:
            break
    return chosen


def lattices(words: Iterable[tuple[str, int]], numbers: dict[str, int]) -> list[Lattice]:
    """Look up every part of every word once; parts that are no candidates get the number after the last."""
    by_length: dict[int, list[tuple[str, int]]] = {}
    for word, weight in words:
        by_length.setdefault(len(word), []).append((word, weight))
    result = []
    for length, group in sorted(by_length.items()):
        edges = [
            (start, end) for end in range(1, length + 1) for start in range(max(0, end - LONGEST_PIECE), end)
        ]
        found = (numbers.get(word[start:end], len(numbers)) for start, end in edges for word, _ in group)
        pieces = np.fromiter(found, np.int32, len(edges) * len(group)).reshape(len(edges), len(group))
        result.append(Lattice(edges, pieces, np.array([weight for _, weight in group], dtype=np.float64)))
    return result


def occurrences(lattice: Lattice, num_pieces: int) -> np.ndarray:
    """How often each piece occurs in the words, overlaps included: the starting point."""
    weights = np.broadcast_to(lattice.weights_W, lattice.pieces_EW.shape)
    return np.bincount(lattice.pieces_EW.ravel(), weights.ravel(), num_pieces + 1)[:-1]


def to_probabilities(counts_V: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Counts -> probabilities of the kept pieces. None is zero, so that every word has a path."""
    weights_V: np.ndarray = np.where(kept, np.maximum(counts_V, 0.1), 0.0)
    probability_V: np.ndarray = weights_V / weights_V.sum()
    return probability_V


def expected_counts(lattice: Lattice, probability_V: np.ndarray) -> np.ndarray:
    """How often each piece is used, averaged over all segmentations of the words by their probability."""
    probability_EW = np.append(probability_V, 0.0)[lattice.pieces_EW]
    length = lattice.edges[-1][1]
    forward = np.zeros((length + 1, len(lattice.weights_W)))
    backward = np.zeros_like(forward)
    forward[0] = backward[length] = 1
    for edge, (start, end) in enumerate(lattice.edges):
        forward[end] += forward[start] * probability_EW[edge]
    for edge, (start, end) in reversed(list(enumerate(lattice.edges))):
        # Edges are ordered by their end, so `backward[end]` is complete when it is read.
        backward[start] += backward[end] * probability_EW[edge]
    weights_W = lattice.weights_W / forward[length]
    for edge, (start, end) in enumerate(lattice.edges):
        probability_EW[edge] *= forward[start] * backward[end] * weights_W
    return np.bincount(lattice.pieces_EW.ravel(), probability_EW.ravel(), len(probability_V) + 1)[:-1]


def cost_of_removal(of_pieces: list[Lattice], probability_V: np.ndarray) -> np.ndarray:
    """Per piece: log of its probability over that of the best way to spell it with the others."""
    cost_V = np.zeros_like(probability_V)
    padded_V = np.append(probability_V, 0.0)
    for lattice in of_pieces:
        length = lattice.edges[-1][1]
        best = np.zeros((length + 1, len(lattice.weights_W)))
        best[0] = 1
        for edge, (start, end) in enumerate(lattice.edges):
            if end - start < length:
                best[end] = np.maximum(best[end], best[start] * padded_V[lattice.pieces_EW[edge]])
        numbers = lattice.weights_W.astype(int)
        whole = np.maximum(probability_V[numbers], np.finfo(float).tiny)
        cost_V[numbers] = np.log(whole / best[length])
    return cost_V
