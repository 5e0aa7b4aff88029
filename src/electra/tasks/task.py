"""A family and its data -> a task: what is trained on, what is scored, and by which number.

Examples -> which of them to train on and which to hold out, by hash of what they say.

A hash of the content, not of the position, decides: the split is the same however a file is sorted, and
two copies of a text, whatever their labels, are on the same side. With them on both sides a model would be
scored on what it learned by heart.
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
    """Labelled data with its kind. Everything was checked when it was read: training cannot trip over it."""

    name: str
    family: Family[Any]
    splits: Mapping[str, Sequence[Example]]
    """Examples by split: `train`; what is scored, such as `dev` or `dev_mismatched`; what has no labels, such
    as `test`. Any of them may be missing."""
    unlabelled: frozenset[str] = frozenset()
    """The splits whose labels are not known: predicted, never scored."""
    main_score: str
    """The score that counts, of those that the family gives."""
    epochs: float = 3.0
    """Times that training goes through `train`, unless the user says otherwise."""
    max_length: int = 128
    """Tokens of a row, special ones included, unless the user says otherwise."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What a person should know before training: labels found, classes out of balance, a split made here."""

    @property
    def scored_splits(self) -> list[str]:
        """The splits that tell how good a model is."""
        return [name for name in self.splits if name != TRAIN and name not in self.unlabelled]

    def examples(self, split: str) -> Sequence[Example]:
        """The examples of a split, or which splits there are."""
        if split not in self.splits:
            raise InputError(f"task {self.name} has no split {split!r}, only {', '.join(self.splits)}")
        return self.splits[split]


ExampleT = TypeVar("ExampleT", bound=Example)

VALIDATION_SHARE = 0.1


def content_key(*texts: str) -> str:
    """The same for texts that differ in nothing but case and blanks."""
    return "\n".join(" ".join(text.split()).casefold() for text in texts)


def class_of(example: Any) -> Hashable:
    """The class of an example that has exactly one; None for all others, values of a regression included."""
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
    """(train, validation), both in the given order; examples of equal content stay together.

    With `stratify` (such as `class_of`) every class gives its share, at least one content of its own if it
    has two: the only one is trained on.
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
    """`n` of the examples in the given order, all if there are no more; a larger `n` adds to a smaller one.

    With `stratify` the classes keep their shares as nearly as whole numbers can, and none is lost as long as
    `n` is not below their number; then a larger `n` may exchange an example.
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
    """The class of a content that was labelled more than once, whatever the order of the examples."""
    return min((-count, repr(name)) for name, count in classes.items())[1]


def _shares(counts: dict[str, int], n: int) -> dict[str, int]:
    """`n` divided in proportion to `counts`, by largest remainder, none empty if that is possible."""
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
