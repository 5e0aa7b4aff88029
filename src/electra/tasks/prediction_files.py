"""Predictions -> a file in the form that its name asks for: lines of JSON, a table, or what a server takes.

.jsonl        everything that the model says, an object a line
.csv .tsv     what a person wants of it: the text and the answer
.zip          the test sets of GLUE, as its server takes them
a folder      the official files of SQuAD
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra import files
from electra.errors import InputError
from electra.tasks.family import Example, Prediction
from electra.tasks.outcomes import write_predictions
from electra.tasks.squad_examples import AnswerExample
from electra.tasks.squad_files import write_squad_files
from electra.tasks.submission import submission_file, write_submission
from electra.tasks.tagging import TaggingExample
from electra.tasks.task import Task
from electra.tasks.text_examples import ChoiceExample, TextExample

Form = Literal["lines", "table", "submission", "squad"]

_FORMS: Mapping[str, Form] = {
    ".jsonl": "lines",
    ".csv": "table",
    ".tsv": "table",
    ".zip": "submission",
    "": "squad",
}


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a model said of one split."""

    task: Task
    split: str
    predictions: Sequence[Prediction]

    @property
    def examples(self) -> Sequence[Example]:
        """Which were judged."""
        return self.task.examples(self.split)


def form_of(path: Path) -> Form:
    """The form that the name of a file asks for."""
    if path.suffix not in _FORMS:
        raise InputError(
            f"--out {path}: expected a name that ends in .jsonl, .csv or .tsv, in .zip for a submission to "
            "GLUE, or a folder for the official files of SQuAD"
        )
    return _FORMS[path.suffix]


def check_form(path: Path, task: Task, splits: Sequence[str]) -> None:
    """Refuse what the file could not hold, before anything is predicted."""
    form = form_of(path)
    if form == "submission":
        for split in splits:
            submission_file(task.name, split, [], [])
    elif len(splits) > 1:
        raise InputError(
            f"--out {path} holds one split, and there are {', '.join(splits)}: choose one with --split"
        )
    elif form == "squad" and task.family.name != "question_answering":
        raise InputError(f"--out {path} is a folder, as SQuAD has it: give a file name, such as {path}.csv")


def write_form(path: Path, predicted: Sequence[Predicted]) -> list[str]:
    """Write the file or folder; what a person should know of it comes back, a line each."""
    form = form_of(path)
    if form == "submission":
        parts = [
            submission_file(one.task.name, one.split, one.examples, one.predictions) for one in predicted
        ]
        return write_submission(path, parts)
    (one,) = predicted
    ids = [example.id for example in one.examples]
    if form == "squad":
        write_squad_files(path, dict(zip(ids, one.predictions, strict=True)))
    elif form == "lines":
        write_predictions(path, ids, one.predictions)
    else:
        _write_table(path, one)
    return []


def _write_table(path: Path, predicted: Predicted) -> None:
    rows = [
        {"id": example.id, **_asked(example), **_answer(prediction)}
        for example, prediction in zip(predicted.examples, predicted.predictions, strict=True)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_file(path, lambda file: file.write(text.getvalue().encode()))


def _asked(example: Example) -> dict[str, str]:
    """The example as a person gave it."""
    match example:
        case TextExample():
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            return {"text": example.text, **pair}
        case TaggingExample():
            return {"tokens": " ".join(example.words)}
        case AnswerExample():
            return {"question": example.question}
        case ChoiceExample():
            return {"prompt": example.prompt}
    raise AssertionError(f"{type(example).__name__} is not known here")


_ANSWERS: Mapping[str, Callable[[Any], str]] = {
    "label": str,
    "labels": "|".join,
    "value": "{:.6g}".format,
    "similarity": "{:.6g}".format,
    "choice": str,
    "tags": " ".join,
    "answer": str,
}


def _answer(prediction: Prediction) -> dict[str, str]:
    """What the model says, and how sure it is of a class."""
    said = {key: write(prediction[key]) for key, write in _ANSWERS.items() if key in prediction}
    probabilities = prediction.get("probabilities")
    if "label" in said and isinstance(probabilities, dict):
        said["probability"] = f"{probabilities[prediction['label']]:.4f}"
    return said
