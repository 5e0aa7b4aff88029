"""A family and its data -> a task: what is trained on, what is scored, and by which number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from electra.errors import InputError
from electra.tasks.family import Example, Family

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
