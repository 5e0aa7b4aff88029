"""Tags of words -> the chunks that they mark -> tags in another scheme.

scheme   B-X                            I-X                            E-X, S-X
iob1     starts a chunk right after     is in a chunk, its first       never
         another one of type X          word too
iob2     starts a chunk                 goes on in it                  never
bioes    starts a chunk of two words    stands between its ends        ends such a chunk; is one of a
         or more                                                       single word
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

Scheme = Literal["iob2", "iob1", "bioes"]
Reading = Literal["conlleval", "google"]

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


def detect(sentences: Sequence[Sequence[str]]) -> Scheme:
    """The scheme with the fewest violations; IOB2 if nothing tells them apart."""
    counts: dict[Scheme, int] = {}
    for scheme in get_args(Scheme):
        counts[scheme] = sum(len(violations(tags, scheme=scheme)) for tags in sentences)
        if counts[scheme] == 0:
            break
    return min(counts, key=counts.__getitem__)
