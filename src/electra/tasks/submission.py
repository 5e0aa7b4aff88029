"""Predictions for the GLUE test sets -> the zip that the benchmark's server takes."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from electra import files
from electra.errors import InputError
from electra.tasks.classification import Regression
from electra.tasks.family import Example, Prediction
from electra.tasks.glue_table import TASKS, GlueTask, glue_task

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file in a zip, so that the same predictions give the same bytes."""


class SubmissionFile(NamedTuple):
    """The predictions for one test set."""

    name: str
    content: str
    num_examples: int


def submission_file(
    name: str, split: str, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> SubmissionFile:
    """What a model of task `name` says of a test split, in the official form."""
    task = glue_task(name)
    official = {row.name: row.submission for row in task.splits if row.submission}
    if split not in official:
        raise InputError(
            f"the server wants no predictions for {split!r} of {name}, only for {', '.join(official)}"
        )
    lines = ["index\tprediction"]
    for example, prediction in zip(examples, predictions, strict=True):
        lines.append(f"{example.id}\t{written(task, prediction)}")
    return SubmissionFile(official[split], "\n".join(lines) + "\n", len(examples))


def written(task: GlueTask, prediction: Prediction) -> str:
    """A prediction as the task's own files write it."""
    if isinstance(task.family, Regression):
        return f"{min(max(prediction['value'], task.family.low), task.family.high):.3f}"
    return task.written[task.family.labels().index(prediction["label"])]


def write_submission(path: str | Path, parts: Sequence[SubmissionFile]) -> list[str]:
    """Write the zip; what the server will miss in it comes back, a line each."""
    names = [part.name for part in parts]
    assert len(set(names)) == len(names), f"a test set is there twice in {names}"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for part in sorted(parts):
            entry = zipfile.ZipInfo(part.name, date_time=EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, part.content)
    files.write_file(Path(path), lambda file: file.write(content.getvalue()))
    return gaps(parts)


def gaps(parts: Sequence[SubmissionFile]) -> list[str]:
    """The test sets that are missing, and those that are not whole."""
    counts = {part.name: part.num_examples for part in parts}
    remarks = []
    for task in TASKS:
        for split in task.splits:
            if split.submission is None:
                continue
            count = counts.get(split.submission)
            if count is None:
                remarks.append(f"{split.submission} is missing: there are no predictions of {task.name}")
            elif count != split.num_examples:
                remarks.append(
                    f"{split.submission} has {count} predictions, the server expects {split.num_examples}"
                )
    return remarks
