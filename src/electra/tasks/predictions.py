"""A file of examples for a fine-tuned model -> its predictions, in the form that the name of a file asks for.

.jsonl        everything that the model says, one object per line
.csv .tsv     what a person wants to see: the text and the answer
.zip          the test sets of GLUE, as its server takes them
a folder      the official files of SQuAD
"""

import csv
import dataclasses
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from electra import files
from electra.errors import InputError
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.data.glue import TASKS, glue_task
from electra.tasks.data.table import unlabelled_examples
from electra.tasks.families.family import Example, Family, Prediction
from electra.tasks.model import FineTuned
from electra.tasks.seed_results import prediction_lines
from electra.tasks.task import Task
from electra.text.sources import without_compression
from electra.text.tables import read_lines

INPUT, MAIN_SCORE = "input", "main_score"
"""Keys in the facts of a fine-tuned model: its columns, by the keys of --own, and its main score."""

TEST = "test"

_ABOUT_FILES = ("train", "dev", "test", "dev_share", "encoding")


def input_columns(task: Task, own: OwnTaskConfig | None) -> dict[str, Any]:
    """The columns of an input file for this task; `own`: those that the user named for a table."""
    if own is not None:
        keys = dataclasses.asdict(own)
    else:
        first = [example for examples in task.splits.values() for example in examples[:1]]
        keys = task.family.input_columns(first)
    keys = {key: value for key, value in keys.items() if key not in _ABOUT_FILES}
    return {**keys, "kind": task.family.kind}


def input_config(tuned: FineTuned, given: OwnTaskConfig) -> OwnTaskConfig:
    """The columns that the model was trained with, overridden by those given for this file."""
    default = dataclasses.asdict(OwnTaskConfig())
    changed = {key: value for key, value in dataclasses.asdict(given).items() if value != default[key]}
    known = {"kind": tuned.family.kind, **tuned.facts.get(INPUT, {})}
    return OwnTaskConfig(**{**known, **changed})


def input_examples(tuned: FineTuned, path: Path, given: OwnTaskConfig) -> Iterator[Example]:
    """The examples of a table, or of a .txt file with one in each line, without labels."""
    if not path.is_file():
        raise InputError(f"--input {path}: no such file")
    own = input_config(tuned, given)
    if Path(without_compression(path.name)).suffix != ".txt":
        yield from unlabelled_examples(own, path, family=tuned.family)
        return
    is_empty = True
    for number, line in read_lines(path, encoding=own.encoding):
        if not line.strip():
            continue
        example = tuned.family.line_example(line, id=str(number), where=f"{path}:{number}")
        if example is None or own.text_pair is not None:
            columns = [own.text, own.text_pair or ""] if own.text_pair else ["the columns of its kind"]
            raise InputError(
                f"--input {path}: a .txt file holds one text per line, and this model does not take single "
                f"texts: give a CSV, TSV or JSONL file with {' and '.join(columns)}"
            )
        is_empty = False
        yield example
    if is_empty:
        raise InputError(f"--input {path}: no text in it")


def with_unique_ids(examples: Iterable[Example], *, column: str | None) -> Iterator[Example]:
    """The same examples; an id that was there before is an error. Numbers of lines are there once."""
    seen: set[bytes] = set()
    for example in examples:
        if column is not None:
            # A digest takes less room than an id may: a hundred bytes for each example.
            digest = hashlib.blake2b(example.id.encode(), digest_size=16).digest()
            if digest in seen:
                raise InputError(
                    f"{example.where}: {column!r} is {example.id!r}, as in a line before: ids must be unique"
                )
            seen.add(digest)
        yield example


def load_input(tuned: FineTuned, path: Path, given: OwnTaskConfig) -> Task:
    """All examples of a file as a task."""
    column = input_config(tuned, given).id
    return Task(
        name=tuned.task,
        family=tuned.family,
        splits={TEST: list(with_unique_ids(input_examples(tuned, path, given), column=column))},
        unlabelled=frozenset({TEST}),
        main_score=str(tuned.facts.get(MAIN_SCORE, "")),
    )


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
    """Predictions for a test split of task `name`, in the official form."""
    task = glue_task(name)
    official = {row.name: row.submission for row in task.splits if row.submission}
    if split not in official:
        raise InputError(
            f"the server wants no predictions for {split!r} of {name}, only for {', '.join(official)}"
        )
    lines = ["index\tprediction"]
    for example, prediction in zip(examples, predictions, strict=True):
        lines.append(f"{example.id}\t{task.family.submission_value(prediction, task.written)}")
    return SubmissionFile(official[split], "\n".join(lines) + "\n", len(examples))


def write_submission(path: str | Path, parts: Sequence[SubmissionFile]) -> list[str]:
    """Write the zip; returns a line for each thing that the server will miss in it."""
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
    return missing_test_sets(parts)


def missing_test_sets(parts: Sequence[SubmissionFile]) -> list[str]:
    """The test sets that are missing or incomplete."""
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


Form = Literal["lines", "table", "submission", "official"]

_FORMS: Mapping[str, Form] = {
    ".jsonl": "lines",
    ".csv": "table",
    ".tsv": "table",
    ".zip": "submission",
    "": "official",
}


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions for one split."""

    task: Task
    split: str
    predictions: Sequence[Prediction]

    @property
    def examples(self) -> Sequence[Example]:
        """Those that were predicted."""
        return self.task.examples(self.split)


def form_of(path: Path) -> Form:
    """The form that a file name asks for."""
    if path.suffix not in _FORMS:
        raise InputError(
            f"--out {path}: expected a name that ends in .jsonl, .csv or .tsv, in .zip for a submission to "
            "GLUE, or a folder for the official files of SQuAD"
        )
    return _FORMS[path.suffix]


def check_form(path: Path, task: Task, splits: Sequence[str]) -> None:
    """Refuse what the file cannot hold, before predicting."""
    form = form_of(path)
    if form == "submission":
        for split in splits:
            submission_file(task.name, split, [], [])
    elif len(splits) > 1:
        raise InputError(
            f"--out {path} holds one split, and there are {', '.join(splits)}: choose one with --split"
        )
    else:
        check_family_form(path, task.family)


def check_family_form(path: Path, family: Family[Any]) -> None:
    """Refuse a folder for a family that has no official files."""
    if form_of(path) == "official" and not family.official_files:
        raise InputError(f"--out {path} is a folder, as SQuAD has it: give a file name, such as {path}.csv")


def write_form(path: Path, predicted: Sequence[Predicted]) -> list[str]:
    """Write the file or folder; returns notes for the user."""
    form = form_of(path)
    if form == "submission":
        parts = [
            submission_file(one.task.name, one.split, one.examples, one.predictions) for one in predicted
        ]
        return write_submission(path, parts)
    (one,) = predicted
    if form == "official":
        ids = [example.id for example in one.examples]
        one.task.family.write_official(path, dict(zip(ids, one.predictions, strict=True)))
        return []
    content = written(path, one.task.family, one.examples, one.predictions, is_first=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(path, lambda file: file.write(content))
    return []


def written(
    path: Path,
    family: Family[Any],
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    *,
    is_first: bool,
) -> bytes:
    """Some predictions as a file of lines or a table has them; the first ones with names of columns."""
    if form_of(path) == "lines":
        ids = [example.id for example in examples]
        return "".join(prediction_lines(ids, predictions)).encode()
    rows = [
        {"id": example.id, **family.table_row(example, prediction)}
        for example, prediction in zip(examples, predictions, strict=True)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
    if is_first:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
