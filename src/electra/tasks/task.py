"""A family and its data -> a task; its examples -> which to train on and which to hold out.

A hash of the content, not of the position, decides what is held out: the split is the same however a file is
sorted, and two copies of a text, whatever their labels, are on the same side. On both sides, a model would be
scored on what it memorised.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from electra import seeds
from electra.errors import InputError
from electra.tasks.families.family import Example, Family

TRAIN = "train"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Labelled data and the family that learns it. Everything was checked when it was read."""

    name: str
    family: Family[Any]
    splits: Mapping[str, Sequence[Example]]
    """Examples by split: `train`; splits to score on, such as `dev` or `dev_mismatched`; splits without
    labels, such as `test`. Any of them may be missing."""
    unlabelled: frozenset[str] = frozenset()
    """Splits without labels: predicted, never scored."""
    main_score: str
    """The score of the family that counts."""
    epochs: float = 3.0
    """Default number of passes over `train`."""
    max_length: int = 128
    """Default row length in tokens, including special tokens."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What a person should know before training: labels, imbalance of classes, a split that was made."""

    @property
    def scored_splits(self) -> list[str]:
        """The splits to score on."""
        return [name for name in self.splits if name != TRAIN and name not in self.unlabelled]

    def examples(self, split: str) -> Sequence[Example]:
        """The examples of a split; an InputError that lists the splits if there is no such split."""
        if split not in self.splits:
            raise InputError(f"task {self.name} has no split {split!r}, only {', '.join(self.splits)}")
        return self.splits[split]


ExampleT = TypeVar("ExampleT", bound=Example)

VALIDATION_SHARE = 0.1


def content_key(*texts: str) -> str:
    """Equal for texts that differ only in case and white space."""
    return "\n".join(" ".join(text.split()).casefold() for text in texts)


def class_of(example: Any) -> Hashable:
    """The class of an example that has exactly one; None for all others, such as those of a regression."""
    label = getattr(example, "label", None)
    return label if isinstance(label, int) else None


def held_out(
    examples: Sequence[ExampleT],
    *,
    content: Callable[[ExampleT], str],
    seed: int,
    share: float = VALIDATION_SHARE,
    stratify: Callable[[ExampleT], Hashable] | None = None,
) -> tuple[list[ExampleT], list[ExampleT]]:
    """(train, validation), both in the given order; examples with equal content stay together.

    With `stratify` (such as `class_of`), every class contributes its share: at least one content if it has
    two or more, and none if it has only one.
    """
    assert 0 < share < 1, share
    contents = [content(example) for example in examples]
    copies: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
    for key, example in zip(contents, examples, strict=True):
        copies[key][stratify(example) if stratify else None] += 1
    strata: defaultdict[str, list[str]] = defaultdict(list)
    for key, classes in copies.items():
        strata[_most_common(classes)].append(key)
    validation: set[str] = set()
    for keys in strata.values():
        num_held_out = min(max(1, round(share * len(keys))), len(keys) - 1)
        ranked = sorted(keys, key=lambda key: (seeds.derive(seed, "validation", key), key))
        validation.update(ranked[:num_held_out])
    if not validation:
        raise InputError(f"{len(examples)} examples are too few to hold some out: give a file for dev")
    sides: tuple[list[ExampleT], list[ExampleT]] = ([], [])
    for key, example in zip(contents, examples, strict=True):
        sides[key in validation].append(example)
    return sides


def limit(
    examples: Sequence[ExampleT],
    n: int,
    *,
    seed: int,
    stratify: Callable[[ExampleT], Hashable] | None = None,
) -> list[ExampleT]:
    """`n` of the examples in the given order; a larger `n` includes the examples of a smaller one.

    With `stratify`, classes keep their shares as closely as whole numbers allow, and none is lost unless `n`
    is below their number; then a larger `n` may replace an example.
    """
    if n < 1:
        raise InputError(f"a limit of {n} examples, expected at least 1")
    if n >= len(examples):
        return list(examples)
    strata: defaultdict[str, list[int]] = defaultdict(list)
    for position, example in enumerate(examples):
        strata[repr(stratify(example) if stratify else None)].append(position)
    shares = _shares({name: len(positions) for name, positions in strata.items()}, n)
    ranks = [seeds.derive(seed, "limit", example.id) for example in examples]
    kept: list[int] = []
    for name, positions in strata.items():
        kept += sorted(positions, key=ranks.__getitem__)[: shares[name]]
    return [examples[position] for position in sorted(kept)]


def _most_common(classes: Counter[Hashable]) -> str:
    """The class of a content that occurs with several labels, independent of the order of the examples."""
    return min((-count, repr(name)) for name, count in classes.items())[1]


def _shares(counts: dict[str, int], n: int) -> dict[str, int]:
    """`n` divided in proportion to `counts` by largest remainder, with no share empty if possible."""
    total = sum(counts.values())
    floor = 1 if n >= len(counts) else 0
    exact = {name: n * count / total for name, count in counts.items()}
    shares = {name: max(floor, int(value)) for name, value in exact.items()}
    while sum(shares.values()) != n:
        step = 1 if sum(shares.values()) < n else -1
        movable = [
            name for name in shares if (shares[name] < counts[name] if step > 0 else shares[name] > floor)
        ]
        name = max(movable, key=lambda name: (step * (exact[name] - shares[name]), name))
        shares[name] += step
    return shares
