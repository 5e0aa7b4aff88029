"""What a model was trained on -> what a file for it looks like; such a file, without labels -> examples."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra.errors import InputError
from electra.tasks.columns import load_own_file
from electra.tasks.family import Example
from electra.tasks.layout import FineTuned
from electra.tasks.own_config import Kind, OwnTaskConfig
from electra.tasks.tagging import TaggingExample
from electra.tasks.task import Task
from electra.tasks.text_examples import TextExample

INPUT, MAIN_SCORE = "input", "main_score"
"""Facts of a fine-tuned model: what it takes, by the keys of --own, and the score that counts."""

TEST = "test"

KINDS: Mapping[str, Kind] = {
    "classification": "classification",
    "multi_label": "multi_label",
    "regression": "regression",
    "similarity": "similarity",
    "tagging": "tagging",
    "question_answering": "answering",
    "multiple_choice": "multiple_choice",
}
"""Family -> the word for it in --own.kind."""

_ABOUT_FILES = ("train", "dev", "test", "dev_share")
_OF_ONE_TEXT = ("classification", "multi_label", "regression", "tagging")


def input_columns(task: Task, own: OwnTaskConfig | None) -> dict[str, Any]:
    """What a file for a model of this task looks like; `own`: the columns, if it is somebody's own task."""
    if own is not None:
        keys = dataclasses.asdict(own)
    else:
        first = next((example for examples in task.splits.values() for example in examples[:1]), None)
        is_pair = isinstance(first, TextExample) and first.text_pair is not None
        keys = {"text_pair": "text_pair"} if is_pair else {}
    keys = {key: value for key, value in keys.items() if key not in _ABOUT_FILES}
    return {**keys, "kind": KINDS[task.family.name]}


def input_config(tuned: FineTuned, given: OwnTaskConfig) -> OwnTaskConfig:
    """The columns that the model was trained with; what a person gives for this file counts more."""
    default = dataclasses.asdict(OwnTaskConfig())
    changed = {key: value for key, value in dataclasses.asdict(given).items() if value != default[key]}
    known = {"kind": KINDS[tuned.family.name], **tuned.facts.get(INPUT, {})}
    return OwnTaskConfig(**{**known, **changed})


def load_input(tuned: FineTuned, path: Path, given: OwnTaskConfig) -> Task:
    """The examples of a file; of a plain text, each line is one."""
    if not path.is_file():
        raise InputError(f"--input {path}: no such file")
    own, main_score = input_config(tuned, given), str(tuned.facts.get(MAIN_SCORE, ""))
    if path.suffix != ".txt":
        return load_own_file(
            own, path, name=tuned.task, family=tuned.family, main_score=main_score, split=TEST
        )
    if own.kind not in _OF_ONE_TEXT or own.text_pair is not None:
        columns = [own.text, own.text_pair or ""] if own.text_pair else ["the columns of its kind"]
        raise InputError(
            f"--input {path}: a .txt file holds one text a line, and this model does not take single texts: "
            f"give a CSV, TSV or JSONL file with {' and '.join(columns)}"
        )
    examples = [
        _line_example(own.kind, line, number=number, path=path)
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1)
        if line.strip()
    ]
    if not examples:
        raise InputError(f"--input {path}: no text in it")
    return Task(
        name=tuned.task,
        family=tuned.family,
        splits={TEST: examples},
        unlabelled=frozenset({TEST}),
        main_score=main_score,
    )


def _line_example(kind: Kind, line: str, *, number: int, path: Path) -> Example:
    id, where = str(number), f"{path}:{number}"
    if kind == "tagging":
        return TaggingExample(id=id, where=where, words=tuple(line.split()), tags=None)
    return TextExample(id=id, where=where, text=line.strip())
