"""Tags of words <-> the chunks that they mark, in three schemes; how many chunks are right; the best tags.

scheme   B-X                            I-X                            E-X, S-X
iob1     starts a chunk right after     is in a chunk, its first       never
         another one of type X          word too
iob2     starts a chunk                 goes on in it                  never
bioes    starts a chunk of two words    stands between its ends        ends such a chunk; is one of a
         or more                                                       single word

A chunk is right if its first word, its last word and its type are. Tags that keep to no scheme are read as
conlleval does.

P words of a sentence, T tags.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from electra.tasks.families.family import Score

Scheme = Literal["iob2", "iob1", "bioes"]
Reading = Literal["conlleval", "google"]

SCHEME_NAMES: dict[Scheme, str] = {"iob1": "IOB1", "iob2": "IOB2", "bioes": "BIOES"}
OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")


class Chunk(NamedTuple):
    """Words that belong together."""

    first: int
    last: int
    type: str


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type: "B-NP" -> "B", "NP". A type may hold hyphens itself."""
    prefix, _, chunk_type = tag.partition("-")
    return prefix, chunk_type


def marks_chunks(tag: str) -> bool:
    """Whether a tag is of any of the schemes."""
    prefix, chunk_type = split_tag(tag)
    return tag == OUTSIDE or (prefix in PREFIXES and chunk_type != "")


def chunks(tags: Sequence[str], *, reading: Reading = "conlleval") -> list[Chunk]:
    """The chunks of a sentence; every tag of a scheme is understood, also where it breaks the scheme.

    `google` reads as the authors' code does, which lets a chunk run on into another type; the two agree
    where the tags keep to IOB2 or BIOES.
    """
    is_end = _IS_END[reading]
    found: list[Chunk] = []
    first = 0
    for index, (tag, next_tag) in enumerate(pairwise([*tags, OUTSIDE])):
        if tag == OUTSIDE:
            first = index + 1
        elif next_tag == OUTSIDE or is_end(tag, next_tag):
            found.append(Chunk(first, index, split_tag(tag)[1]))
            first = index + 1
    return found


@lru_cache(maxsize=4096)
def _is_end(tag: str, next_tag: str) -> bool:
    """Whether a chunk ends between two tags: conlleval's rules, with S and with E before B beside them."""
    (prefix, chunk_type), (next_prefix, next_type) = split_tag(tag), split_tag(next_tag)
    return prefix in ("E", "S") or next_prefix in ("B", "S") or chunk_type != next_type


def _is_end_to_google(_tag: str, next_tag: str) -> bool:
    return split_tag(next_tag)[0] in ("B", "S")


_IS_END: dict[Reading, Callable[[str, str], bool]] = {"conlleval": _is_end, "google": _is_end_to_google}


def write_tags(marked: Iterable[Chunk], *, length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of `length` words with these chunks, which are in order and do not overlap."""
    tags = [OUTSIDE] * length
    last, last_type = -2, ""
    for chunk in marked:
        tags[chunk.first : chunk.last + 1] = [f"I-{chunk.type}"] * (chunk.last - chunk.first + 1)
        touches_its_like = (last, last_type) == (chunk.first - 1, chunk.type)
        if scheme != "iob1" or touches_its_like:
            tags[chunk.first] = f"B-{chunk.type}"
        if scheme == "bioes":
            tags[chunk.last] = f"{'S' if chunk.first == chunk.last else 'E'}-{chunk.type}"
        last, last_type = chunk.last, chunk.type
    return tags


def convert(tags: Sequence[str], *, scheme: Scheme) -> list[str]:
    """The same chunks in another scheme."""
    return write_tags(chunks(tags), length=len(tags), scheme=scheme)


def violations(tags: Sequence[str], *, scheme: Scheme) -> list[int]:
    """The words whose tag is not the one that the scheme gives to the chunks that are marked."""
    proper = convert(tags, scheme=scheme)
    return [index for index, (tag, expected) in enumerate(zip(tags, proper, strict=True)) if tag != expected]


def detect_scheme(sentences: Sequence[Sequence[str]]) -> Scheme:
    """The scheme with the fewest violations; IOB2 if nothing tells them apart."""
    counts: dict[Scheme, int] = {}
    for scheme in get_args(Scheme):
        counts[scheme] = sum(len(violations(tags, scheme=scheme)) for tags in sentences)
        if counts[scheme] == 0:
            break
    return min(counts, key=counts.__getitem__)


class ChunkCounts(NamedTuple):
    """How many chunks there are, over all sentences."""

    true: int
    predicted: int
    right: int
    """Both true and predicted."""


def count_chunks(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> ChunkCounts:
    """Compare the tags of sentences; no chunk reaches into the next sentence."""
    num_true = num_predicted = num_right = 0
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        assert len(true_tags) == len(predicted_tags)
        true_chunks, predicted_chunks = set(chunks(true_tags)), set(chunks(predicted_tags))
        num_true += len(true_chunks)
        num_predicted += len(predicted_chunks)
        num_right += len(true_chunks & predicted_chunks)
    return ChunkCounts(num_true, num_predicted, num_right)


def chunk_scores(counts: ChunkCounts) -> dict[str, Score]:
    """F1, precision, recall; undefined where there is nothing to divide by, for which conlleval prints 0."""
    nothing = "there is no chunk, neither true nor predicted"
    return {
        "f1": _ratio(2 * counts.right, counts.true + counts.predicted, nothing),
        "precision": _ratio(counts.right, counts.predicted, "no chunk is predicted"),
        "recall": _ratio(counts.right, counts.true, "there is no true chunk"),
    }


def tag_accuracy(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> Score:
    """The share of words with the right tag."""
    right = [
        true_tag == predicted_tag
        for true_tags, predicted_tags in zip(true, predicted, strict=True)
        for true_tag, predicted_tag in zip(true_tags, predicted_tags, strict=True)
    ]
    return _ratio(sum(right), len(right), "there is no word")


def _ratio(part: int, whole: int, undefined: str) -> Score:
    return Score(part / whole) if whole else Score(math.nan, undefined)


def marking_of(tags: Sequence[str]) -> Scheme:
    """The scheme of the tags that a model knows: BIOES if all types have an end, IOB2 if a beginning."""
    types: defaultdict[str, set[str]] = defaultdict(set)
    for prefix, chunk_type in map(split_tag, tags):
        if chunk_type:
            types[chunk_type].add(prefix)
    if any("E" in prefixes or "S" in prefixes for prefixes in types.values()):
        ended = all("E" in prefixes or prefixes == {"S"} for prefixes in types.values())
        return "bioes" if ended else "iob2"
    return "iob2" if all("B" in prefixes for prefixes in types.values()) else "iob1"


_BROKEN = -1e4
"""Added for each place where tags break their scheme: more than any score can make up for, and finite, so
that there is an answer where no tags of a sentence's length keep to it."""


def best_tags(score_PT: NDArray[np.float64], tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The numbers of the tags with the largest sum of scores among those that keep to the scheme (Viterbi).

    Scores are what may be added up: log-probabilities of words that are judged one by one, or margins.
    """
    follows_TT, starts_T, ends_T = _rules(tuple(tags), scheme)
    best_T = starts_T + score_PT[0]
    came_from = []
    for score_T in score_PT[1:]:
        by_last_TT = best_T[:, None] + follows_TT
        came_from.append(by_last_TT.argmax(axis=0))
        best_T = by_last_TT.max(axis=0) + score_T
    path = [int((best_T + ends_T).argmax())]
    for last_T in reversed(came_from):
        path.append(int(last_T[path[-1]]))
    return path[::-1]


class _Rules(NamedTuple):
    """0 where tags may stand, `_BROKEN` where they may not."""

    follows_TT: NDArray[np.float64]
    """The second after the first."""
    starts_T: NDArray[np.float64]
    ends_T: NDArray[np.float64]


@lru_cache(maxsize=64)
def _rules(tags: tuple[str, ...], scheme: Scheme) -> _Rules:
    def cost(is_allowed: bool) -> float:
        return 0.0 if is_allowed else _BROKEN

    return _Rules(
        np.array([[cost(may_follow(before, tag, scheme)) for tag in tags] for before in tags]),
        np.array([cost(may_follow(OUTSIDE, tag, scheme)) for tag in tags]),
        np.array([cost(may_follow(tag, OUTSIDE, scheme)) for tag in tags]),
    )


def may_follow(before: str, tag: str, scheme: Scheme) -> bool:
    """Whether a tag may come right after another in a sentence; outside of it, all words count as O."""
    (last_prefix, last_type), (prefix, chunk_type) = split_tag(before), split_tag(tag)
    goes_on = last_type == chunk_type and last_prefix in ("B", "I")
    match scheme:
        case "bioes":
            is_open, is_inside = last_prefix in ("B", "I"), prefix in ("I", "E")
            return goes_on and is_inside if is_open else not is_inside
        case "iob2":
            return goes_on or prefix != "I"
        case "iob1":
            return goes_on or prefix != "B"
