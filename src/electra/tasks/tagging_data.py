"""Tagged sentences as they were read -> the family, the sentences in IOB2, and what a person should know."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from electra.errors import InputError
from electra.tasks.tag_schemes import OUTSIDE, Scheme, convert, detect, marks_chunks, split_tag, violations
from electra.tasks.tagging import Tagging, TaggingExample, TagKind, internal_tags
from electra.tasks.task import TRAIN

SCHEME_NAMES: dict[Scheme, str] = {"iob1": "IOB1", "iob2": "IOB2", "bioes": "BIOES"}
_SHOWN = 12

Splits = Mapping[str, Sequence[TaggingExample]]


class TaggedData(NamedTuple):
    """What the tags turned out to be."""

    family: Tagging
    splits: dict[str, list[TaggingExample]]
    """The same sentences; tags that mark chunks are in IOB2 now, whatever scheme they came in."""
    notes: list[str]


def understand_tags(splits: Splits, *, scheme: TagKind | None = None) -> TaggedData:
    """Find out what the tags mean and whether they can be learned; `scheme` if it is known."""
    learned = splits.get(TRAIN) or [example for examples in splits.values() for example in examples]
    counts = Counter(tag for example in learned for tag in example.tags or ())
    if not counts:
        raise InputError(
            f"{learned[0].where}: no tags, expected one for each word" if learned else "no sentences"
        )
    scheme = scheme or _guess(counts)
    notes = [_found(counts, scheme)]
    read = {name: list(examples) for name, examples in splits.items()}
    if scheme == "entities":
        _check_tags(splits)
        style = detect([example.tags for example in learned if example.tags])
        notes += [f"chunks are marked in {SCHEME_NAMES[style]}", *_broken(splits, style)]
        read = {name: [_in_iob2(example) for example in examples] for name, examples in read.items()}
    family = Tagging.learn(learned, scheme=scheme)
    if len(family.tags) == 1:
        raise InputError(
            f"{learned[0].where}: all words of {len(learned)} sentences have the tag {family.tags[0]!r}, "
            "expected at least two tags: is it the right column?"
        )
    notes += [note for name, examples in read.items() for note in _unseen(name, examples, family)]
    return TaggedData(family, read, notes)


def _guess(counts: Counter[str]) -> TagKind:
    """Chunks if most words have a tag that can mark one, so that a misspelt tag does not decide."""
    marking = sum(count for tag, count in counts.items() if marks_chunks(tag))
    any_chunk = any(marks_chunks(tag) and tag != OUTSIDE for tag in counts)
    return "entities" if any_chunk and 2 * marking > counts.total() else "tokens"


def _check_tags(splits: Splits) -> None:
    for example in (example for examples in splits.values() for example in examples):
        for index, tag in enumerate(example.tags or ()):
            if not marks_chunks(tag):
                raise InputError(
                    f"{example.where_is(index)}: the tag is {tag!r}, expected O, or one like B-NP that "
                    "begins with B-, I-, E- or S-; if tags do not mark chunks, set the scheme to tokens"
                )


def _in_iob2(example: TaggingExample) -> TaggingExample:
    tags = None if example.tags is None else tuple(convert(example.tags, scheme="iob2"))
    return replace(example, tags=tags)


def _found(counts: Counter[str], scheme: TagKind) -> str:
    """The labels that were found, the frequent ones with their numbers."""
    if scheme == "tokens":
        return f"{len(counts)} tags, each scored by itself: {_listed(counts)}"
    # A chunk of several words counts more than once: this is about the words that are learned from.
    types = Counter[str]()
    for tag, count in counts.items():
        types[split_tag(tag)[1] or OUTSIDE] += count
    return f"words by type of chunk: {_listed(types)}"


def _listed(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(_SHOWN))
    return shown + (f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else "")


def _broken(splits: Splits, style: Scheme) -> list[str]:
    """Where tags break their scheme, if any do."""
    notes = []
    for name, examples in splits.items():
        found = [
            (example, index) for example in examples for index in violations(example.tags or (), scheme=style)
        ]
        if found:
            example, index = found[0]
            before, tag = ("the start of the sentence", *(example.tags or ()))[index : index + 2]
            notes.append(
                f"{name}: {len(found):,} {_words(found)} a tag that breaks {SCHEME_NAMES[style]}, read as "
                f"conlleval reads it; the first is at {example.where_is(index)}: {tag} after {before}"
            )
    return notes


def _unseen(name: str, examples: Sequence[TaggingExample], family: Tagging) -> list[str]:
    """Tags that cannot be predicted since they were not there to be learned."""
    found: dict[str, list[str]] = {}
    for example in examples:
        for index, tag in enumerate(internal_tags(example.tags or (), family.scheme)):
            if tag not in family.tags:
                found.setdefault(tag, []).append(example.where_is(index))
    places = [f"{tag} ({len(where):,}, the first at {where[0]})" for tag, where in found.items()]
    total = [where for of_tag in found.values() for where in of_tag]
    if not found:
        return []
    shown = ", ".join(places[:_SHOWN]) + (" and more" if len(places) > _SHOWN else "")
    words = f"{len(total):,} {_words(total)} a tag that {TRAIN} lacks"
    return [f"{name}: {words}, so that it cannot be predicted and counts as wrong: {shown}"]


def _words(found: Sequence[object]) -> str:
    return "word has" if len(found) == 1 else "words have"
