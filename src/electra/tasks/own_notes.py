"""Labels and examples -> what a person should know of the data before a model is trained on it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from electra.tasks.own_cells import are_decimal
from electra.tasks.task import TRAIN

IMBALANCE = 10
"""A class that is more times larger than another is worth a word."""

FEW_EXAMPLES = 10
"""A class with fewer examples is hardly learned."""

_SHOWN_LABELS = 12
_SHOWN_LINES = 5


def label_notes(counts: Mapping[str, int]) -> list[str]:
    """All labels with their counts, in the given order, and what is suspicious about them."""
    labels = list(counts)
    notes = [f"{len(labels)} labels: {_some([f'{label} ({counts[label]:,})' for label in labels])}"]
    largest, smallest = max(labels, key=counts.__getitem__), min(labels, key=counts.__getitem__)
    if counts[largest] > IMBALANCE * counts[smallest]:
        notes.append(
            f"out of balance: {largest} has {counts[largest]:,} examples and {smallest} has "
            f"{counts[smallest]:,}; macro_f1 counts every label the same"
        )
    if are_decimal(labels):
        notes.append(
            "the labels are decimal numbers: if they are values and not classes, set kind to regression"
        )
    rare = [label for label in labels if counts[label] < FEW_EXAMPLES]
    if rare:
        notes.append(f"fewer than {FEW_EXAMPLES} examples to learn from: {_some(rare)}")
    return notes


def value_notes(values: Sequence[float]) -> list[str]:
    """The range of numbers that are to be learned."""
    return [f"values from {min(values):g} to {max(values):g}, {fmean(values):g} on average"] if values else []


def answer_notes(examples: Sequence[Any]) -> list[str]:
    """Questions whose text has no answer."""
    num_impossible = sum(example.is_impossible for example in examples)
    return [f"{num_impossible:,} of {len(examples):,} questions have no answer"] if num_impossible else []


def skipped_notes(path: Path, lines: Sequence[int]) -> list[str]:
    """The lines that have no text."""
    if not lines:
        return []
    shown = ", ".join(map(str, lines[:_SHOWN_LINES])) + (", ..." if len(lines) > _SHOWN_LINES else "")
    return [f"{path}: {len(lines):,} without text skipped: line {shown}"]


def repeated_notes(splits: Mapping[str, Sequence[Any]], content: Callable[[Any], str]) -> list[str]:
    """Texts of train that are scored on too, and those that are labelled in more than one way."""
    labels: defaultdict[str, set[Any]] = defaultdict(set)
    for example in splits[TRAIN]:
        labels[content(example)].add(getattr(example, "label", None))
    notes = []
    for split, examples in splits.items():
        num_known = sum(content(example) in labels for example in examples) if split != TRAIN else 0
        if num_known:
            share = num_known / len(examples)
            notes.append(
                f"{split}: the texts of {num_known:,} examples ({share:.1%}) are in train too, which "
                "flatters the scores"
            )
    if num_contradicting := sum(len(different) > 1 for different in labels.values()):
        notes.append(f"train: {num_contradicting:,} texts are there more than once with different labels")
    return notes


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_LABELS:,} more" if len(names) > _SHOWN_LABELS else ""
    return ", ".join(names[:_SHOWN_LABELS]) + more
