"""A task -> what a person should know of it before hours are spent on it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from electra.tasks.classification import Classification, MultiLabel
from electra.tasks.material import Material
from electra.tasks.task import TRAIN, Task

_NUM_LABELS = 12


def describe_tasks(material: Material) -> Iterator[tuple[str, str]]:
    """Lines of a name and what there is to say."""
    for task in material.tasks:
        yield from describe_task(task)
        cut, length = material.num_cut[task.name], material.max_lengths[task.name]
        if cut:
            yield "note", f"{cut:,} training rows fill all {length} tokens: longer texts are cut or divided"


def describe_task(task: Task) -> Iterator[tuple[str, str]]:
    """What it is, how much of it there is, and what was noticed when it was read."""
    yield "task", f"{task.name}: {task.family.name.replace('_', ' ')}, scored by {task.main_score}"
    sizes = [
        f"{split} {len(examples):,}" + (" (no labels)" if split in task.unlabelled else "")
        for split, examples in task.splits.items()
    ]
    yield "examples", ", ".join(sizes)
    if counts := label_counts(task, task.splits.get(TRAIN) or ()):
        yield "labels", counts
    for note in task.notes:
        yield "note", note


def label_counts(task: Task, examples: Sequence[Any]) -> str:
    """Every class with its number of examples; empty if there are no classes."""
    family = task.family
    if not isinstance(family, Classification | MultiLabel):
        return ""
    counts = Counter[int]()
    for example in examples:
        label = example.label
        counts.update(label if isinstance(label, tuple) else [] if label is None else [label])
    shown = [
        f"{name} {counts[number]:,} ({counts[number] / max(1, len(examples)):.0%})"
        for number, name in enumerate(family.labels())
    ]
    more = f" and {len(shown) - _NUM_LABELS} more" if len(shown) > _NUM_LABELS else ""
    return ", ".join(shown[:_NUM_LABELS]) + more


def as_lines(facts: Sequence[tuple[str, str]]) -> str:
    """Names in a column of their own."""
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in facts)
