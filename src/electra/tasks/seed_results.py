"""A fine-tuned model and the splits of its tasks -> predictions and scores of one seed, kept in its folder.

seed-0/predictions/TASK.SPLIT.jsonl   what the model says of each example
seed-0/scores.json                    written last: with it, this fine-tuning is finished
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra import files
from electra.tasks.families.family import Prediction, Score, TaskRow
from electra.tasks.inference import outputs_of
from electra.tasks.model import FineTuned, TaskModel
from electra.tasks.task import Task

SCORES, PREDICTIONS = "scores.json", "predictions"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Predictions for one split, and their scores."""

    scores: Mapping[str, Score]
    """Empty if the labels are unknown."""
    predictions: Sequence[Prediction]


Judgements = Mapping[str, Mapping[str, Judgement]]
"""By task and split."""

Rows = Mapping[str, Mapping[str, Sequence[TaskRow]]]
"""By task and split, in the order of the examples."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """The result of one fine-tuning."""

    seed: int
    judgements: Judgements
    facts: Mapping[str, Any]
    """Config and hashes of what it was trained with."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Steps, seconds and the like."""
    history: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Evaluations during training, by task."""


def judge(
    model: TaskModel, head: str, task: Task, split: str, rows: Sequence[TaskRow], *, pad_id: int
) -> Judgement:
    """Predict a split with one of the model's heads, and score it if its labels are known."""
    examples = task.examples(split)
    outputs = outputs_of(model, head, rows, pad_id=pad_id)
    # The model's own family knows the labels in the order of the head's logits.
    family = model.families[head]
    predictions = family.predictions(examples, rows, outputs)
    scores = {} if split in task.unlabelled else family.scores(examples, predictions)
    return Judgement(scores=scores, predictions=predictions)


def judge_split(tuned: FineTuned, task: Task, split: str) -> Judgement:
    """The same with a model from a folder."""
    rows = tuned.family.rows(task.examples(split), tuned.tokenizer, max_length=tuned.max_length)
    return judge(tuned.model, tuned.task, task, split, rows, pad_id=tuned.tokenizer.pad_id)


def write_seed_result(folder: Path, result: SeedResult, tasks: Sequence[Task]) -> None:
    """Write predictions, then the scores: they mark the seed as finished."""
    for task in tasks:
        for split, judgement in result.judgements[task.name].items():
            path = folder / PREDICTIONS / f"{task.name}.{split}.jsonl"
            write_predictions(path, [example.id for example in task.examples(split)], judgement.predictions)
    scores = {
        task: {split: _as_list(judgement.scores) for split, judgement in by_split.items()}
        for task, by_split in result.judgements.items()
    }
    rest = {key: getattr(result, key) for key in ("seed", "facts", "train", "history")}
    files.write_json(folder / SCORES, {"scores": scores, **rest})


def read_seed_result(folder: Path) -> SeedResult:
    """What `write_seed_result` wrote."""
    content = files.read_json(folder / SCORES)
    judgements = {
        task: {
            split: Judgement(
                scores={name: Score(*pair) for name, pair in _scores(scores)},
                predictions=read_predictions(folder / PREDICTIONS / f"{task}.{split}.jsonl"),
            )
            for split, scores in by_split.items()
        }
        for task, by_split in content.pop("scores").items()
    }
    return SeedResult(judgements=judgements, **content)


def write_predictions(path: Path, ids: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """Write a line for each example: its id and its prediction."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = prediction_lines(ids, predictions)
    files.write_file(path, lambda file: file.writelines(line.encode() for line in lines))


def prediction_lines(ids: Sequence[str], predictions: Sequence[Prediction]) -> list[str]:
    """A line of JSON for each example."""
    return [
        json.dumps({"id": id, **prediction}, ensure_ascii=False, allow_nan=False) + "\n"
        for id, prediction in zip(ids, predictions, strict=True)
    ]


def read_predictions(path: Path) -> list[Prediction]:
    """The predictions without their ids, in order."""
    lines = path.read_text(encoding="utf-8").split("\n")
    records: list[Prediction] = [json.loads(line) for line in lines if line]
    return [{key: value for key, value in record.items() if key != "id"} for record in records]


def _as_list(scores: Mapping[str, Score]) -> list[dict[str, Any]]:
    """As a list, which keeps their order: the main score is the first."""
    return [
        {"name": name, "value": score.value if score.is_defined else None, "undefined": score.undefined}
        for name, score in scores.items()
    ]


def _scores(plain: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[float, str]]]:
    for entry in plain:
        value = math.nan if entry["value"] is None else entry["value"]
        yield entry["name"], (value, entry["undefined"])
