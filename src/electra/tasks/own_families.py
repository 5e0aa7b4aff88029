"""The examples of somebody's own data -> the family that learns them, and the score that counts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from electra.errors import InputError
from electra.tasks import own_notes
from electra.tasks.classification import Classification, MultiLabel, MultipleChoice, Regression
from electra.tasks.family import Family
from electra.tasks.own_cells import are_decimal, in_order, listed
from electra.tasks.own_config import OwnTaskConfig
from electra.tasks.own_tables import Splits, Table, has_labels
from electra.tasks.similarity import Similarity
from electra.tasks.squad_family import QuestionAnswering
from electra.tasks.tag_schemes import convert, marks_chunks
from electra.tasks.tagging import TaggingExample
from electra.tasks.tagging_data import understand_tags
from electra.tasks.task import TRAIN

MAX_DECIMAL_CLASSES = 50
"""More different decimal numbers than this are values, not classes."""


class Learned(NamedTuple):
    """What the data turned out to be."""

    family: Family[Any]
    main_score: str
    splits: Splits
    notes: list[str]


def count_labels(table: Table) -> Counter[str]:
    """How many examples of the training file have each class, in the classes' order; empty if it has none."""
    if not has_labels(table):
        return Counter()
    counts = Counter(name for cells in table.rows for name in table.reader.names(cells))
    ordered = Counter({label: counts[label] for label in in_order(counts)})
    _check_labels(table, ordered)
    return ordered


def _check_labels(table: Table, counts: Counter[str]) -> None:
    """Whether they are classes at all, and can be told apart."""
    config = table.reader.config
    if config.kind == "classification" and are_decimal(counts) and len(counts) > MAX_DECIMAL_CLASSES:
        raise InputError(
            f"{table.path}: {config.label!r} holds {len(counts)} different decimal numbers, which are values "
            "and not classes: set kind to regression"
        )
    if config.kind in ("classification", "multi_label") and len(counts) < 2:
        raise InputError(
            f"{table.path}: {listed(counts)} is the only label of all {len(table.rows)} examples, expected "
            "two or more to tell apart"
        )


def learn_family(config: OwnTaskConfig, counts: Counter[str], splits: Splits) -> Learned:
    """The family for all that is in the data."""
    labels, train = tuple(counts), splits[TRAIN]
    match config.kind:
        case "classification":
            family = Classification(labels, ("accuracy", "macro_f1", "mcc"))
            return Learned(family, "accuracy", splits, own_notes.label_notes(counts))
        case "multi_label":
            return Learned(MultiLabel(labels), "micro_f1", splits, own_notes.label_notes(counts))
        case "regression":
            return _regression(splits)
        case "similarity":
            return _similarity(config, splits)
        case "tagging":
            tagged = understand_tags(splits)
            main_score = "f1" if tagged.family.scheme == "entities" else "accuracy"
            return Learned(tagged.family, main_score, tagged.splits, tagged.notes)
        case "answering":
            if any(example.is_impossible for examples in splits.values() for example in examples):
                notes = own_notes.answer_notes(train)
                return Learned(QuestionAnswering(answerability="on"), "best_f1", splits, notes)
            return Learned(QuestionAnswering(answerability="off"), "f1", splits, [])
        case "multiple_choice":
            return Learned(MultipleChoice(), "accuracy", splits, [])


def check_family(config: OwnTaskConfig, family: Family[Any]) -> None:
    """Whether a model learned the kind of thing that the columns are said to hold."""
    expected = {"answering": QuestionAnswering.name}.get(config.kind, config.kind)
    if family.name != expected:
        kind = {QuestionAnswering.name: "answering"}.get(family.name, family.name)
        raise InputError(f"kind is {config.kind}, but the model was trained for {kind}: set kind to {kind}")


def _regression(splits: Splits) -> Learned:
    values = [example.label for example in splits[TRAIN]]
    if min(values) == max(values):
        raise InputError(f"{splits[TRAIN][0].where}: {values[0]:g}, as in every line: nothing to tell apart")
    family = Regression(low=min(values), high=max(values))
    return Learned(family, "pearson", splits, own_notes.value_notes(values))


def _similarity(config: OwnTaskConfig, splits: Splits) -> Learned:
    labels = [example.label for examples in splits.values() for example in examples]
    values = [label for label in labels if label is not None]
    highest = config.max_score or max(values, default=1.0)
    if highest == 0:
        raise InputError(
            f"{splits[TRAIN][0].where}: 0, as in every line: expected pairs that are similar too"
        )
    family = Similarity(pooling=config.pooling, loss=config.similarity_loss, max_score=highest)
    main_score = "mrr" if config.similarity_loss == "contrastive" else "spearman"
    return Learned(family, main_score, splits, own_notes.value_notes(values))


def in_iob2(examples: Sequence[TaggingExample]) -> list[TaggingExample]:
    """Sentences for a model that tags chunks, whatever scheme their tags are in."""
    read = []
    for example in examples:
        for word, tag in enumerate(example.tags or ()):
            if not marks_chunks(tag):
                raise InputError(
                    f"{example.where_is(word)}: the tag is {tag!r}, but the model knows O and such as B-NP"
                )
        tags = None if example.tags is None else tuple(convert(example.tags, scheme="iob2"))
        read.append(replace(example, tags=tags))
    return read
