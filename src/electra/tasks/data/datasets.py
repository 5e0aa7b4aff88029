"""A dataset of Hugging Face's `datasets`, and what its columns mean -> a task: `--task hf:NAME`.

The keys are those of tables (`tasks.data.columns`); `train`, `dev` and `test` name splits in place of files.
Classes are those that the dataset names, in its order.
"""

from collections.abc import Mapping
from typing import Any

from electra.errors import InputError
from electra.show import did_you_mean
from electra.tasks.data.columns import OwnTaskConfig, quoted
from electra.tasks.data.table import DEV, TEST, Table, build_task, by_name, judged_task, table_of
from electra.tasks.families.family import Family
from electra.tasks.families.table import family_of_kind
from electra.tasks.task import TRAIN, Task
from electra.text.dataset_splits import WHOLE, Split, open_splits

PREFIX = "hf:"
"""What the name of such a task begins with."""
_OF_FILES = ("encoding", "delimiter", "quoting")


def load_dataset_task(config: OwnTaskConfig, name: str, *, seed: int) -> Task:
    """The task in a dataset; if it has no split for dev, a part of the training examples is held out."""
    tables = read_tables(config, name, whole=TRAIN)
    if TRAIN not in tables:
        raise InputError(f"{name} has no split to train on: name one in train (--own.train)")
    return build_task(config, tables, name=task_name(name), seed=seed)


def load_dataset_for(config: OwnTaskConfig, name: str, *, family: Family[Any], main_score: str) -> Task:
    """A dataset for a model that was trained before: its labels count, and no split has to be there."""
    tables = read_tables(config, name, whole=DEV)
    return judged_task(config, tables, name=task_name(name), family=family, main_score=main_score)


def task_name(name: str) -> str:
    """A short name, for folders and reports: imdb for hf:stanfordnlp/imdb, sst2 for hf:nyu-mll/glue:sst2."""
    bare = name.removeprefix(PREFIX).partition("@")[0].rstrip("/")
    return bare.replace(":", "/").rpartition("/")[2] or "dataset"


def read_tables(config: OwnTaskConfig, name: str, *, whole: str) -> dict[str, Table]:
    """The table of each split; a dataset that is not divided is the split `whole`."""
    for key in _OF_FILES:
        if getattr(config, key) is not None:
            raise InputError(f"{key} is for text files, and {name} is a dataset: leave out --own.{key}")
    splits = choose_splits(config, open_splits(name.removeprefix(PREFIX)), name, whole=whole)
    column = family_of_kind(config.kind).reader(config).label_column
    return {
        split: table_of(config, found.where, found.rows(), declared=found.classes(column))
        for split, found in splits.items()
    }


def choose_splits(
    config: OwnTaskConfig, splits: Mapping[str, Split], name: str, *, whole: str
) -> dict[str, Split]:
    """Which split of the dataset is which of ours: by the keys that name it, or else by its name."""
    given = {TRAIN: config.train, DEV: config.dev, TEST: config.test}
    if WHOLE in splits:
        if named := next((split for split, value in given.items() if value is not None), None):
            raise InputError(f"{name} is not divided into splits: leave out --own.{named}")
        return {whole: splits[WHOLE]}
    found: dict[str, Split] = {}
    for split, value in given.items():
        chosen = value or by_name(split, {one: one for one in splits}, where=name)
        if chosen is not None:
            if chosen not in splits:
                raise InputError(
                    f"{split} is {chosen!r}: no such split of {name}, only {quoted(splits)}"
                    f"{did_you_mean(chosen, list(splits))}"
                )
            found[split] = splits[chosen]
    if not found:
        raise InputError(f"{name} has the splits {quoted(splits)}: say in train, dev and test what they are")
    return found
