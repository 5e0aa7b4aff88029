"""A size and a task -> what others have published for it, to stand beside our own scores.

Examples and predictions -> the worst mistakes, for a person to look at, and the confusion of classes.

A fine-tuned model and the splits of its tasks -> scores and predictions, in memory and in its folder.

seed-0/predictions/TASK.SPLIT.jsonl   what the model says of each example
seed-0/scores.json                    written last: with it, this fine-tuning is finished

Scores of several seeds -> what scores.json says of them, and tables for a person.

A score of several fine-tunings is its median, with mean, standard deviation and every single value beside it;
the best of them is never shown as the score. Where a score is undefined it counts as worse than any number:
the median stays right while fewer than half are so, and a mean is not given.

What several fine-tunings gave -> scores.json, predictions, the model that stands for them, and a table.

OUT/scores.json                every score of every split: median, mean, standard deviation, all values
OUT/predictions/SPLIT.jsonl    of the seed whose main score is the median
OUT/final/                     the model of that seed
"""

import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.show import table
from electra.tasks.config import Size
from electra.tasks.families.answering import AnswerExample, normalise
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import (
    ChoiceExample,
    Example,
    Family,
    Prediction,
    Score,
    TaskRow,
    TextExample,
)
from electra.tasks.families.scores import confusion
from electra.tasks.families.tagging import TaggingExample
from electra.tasks.folders import FineTuned
from electra.tasks.inference import outputs_of
from electra.tasks.model import TaskModel
from electra.tasks.task import Task

RELEASED = "the authors' released ELECTRA-{size}, which was trained longer than the one in their paper"
"""What must be said wherever the scores below are shown: these "++" models are not the paper's."""

# Percent, medians on the development sets; CoLA by MCC, STS-B by Spearman, MRPC by accuracy, SQuAD by exact
# match, CoNLL-2000 by chunk F1. From the README of the authors' code.
_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "squad_v1", "squad_v2", "conll2000")
_MEDIANS: dict[Size, tuple[float, ...]] = {
    "small": (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7, 75.8, 70.1, 96.5),
    "base": (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7, 86.8, 80.5, 97.1),
    "large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0, 89.7, 88.1, 97.2),
}


def released(size: Size) -> dict[str, float]:
    """Task -> the development score in percent of the released model of a size."""
    return dict(zip(_TASKS, _MEDIANS[size], strict=True))


MAX_MISTAKES = 50

# How bad it is, and what is said of it.
Mistake = tuple[float, dict[str, Any]]


def worst_mistakes(
    family: Family[Any], examples: Sequence[Any], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """The mistakes that the model is surest of; where values are predicted, those that are farthest off."""
    compare = _COMPARE[family.name]
    found: list[Mistake] = []
    for example, prediction in zip(examples, predictions, strict=True):
        found += [
            (badness, {"id": example.id, "where": example.where, **said})
            for badness, said in compare(family, example, prediction)
        ]
    found.sort(key=lambda mistake: -mistake[0])
    return [said for _, said in found[:MAX_MISTAKES]]


def confusion_of(
    family: Family[Any], examples: Sequence[Example], predictions: Sequence[Prediction]
) -> dict[str, Any] | None:
    """Labels, and counts with a row for each true one; None if examples have not one class each."""
    if not isinstance(family, Classification):
        return None
    labels = family.labels()
    gold = [_number(example) for example in examples if isinstance(example, TextExample)]
    predicted = [labels.index(prediction["label"]) for prediction in predictions]
    return {"labels": list(labels), "counts": confusion(labels, gold, predicted)}


def _texts(example: TextExample) -> dict[str, str]:
    pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
    return {"text": example.text, **pair}


def _class(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    gold, predicted = family.labels()[_number(example)], prediction["label"]
    if gold != predicted:
        confidence = prediction["probabilities"][predicted]
        said = {**_texts(example), "gold": gold, "predicted": predicted, "confidence": confidence}
        yield confidence, said


def _number(example: TextExample) -> int:
    assert isinstance(example.label, int)
    return example.label


def _classes(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    assert isinstance(example.label, tuple)
    gold = [family.labels()[number] for number in example.label]
    wrong = set(gold) ^ set(prediction["labels"])
    if wrong:
        said = {"gold": ", ".join(gold) or "none", "predicted": ", ".join(prediction["labels"]) or "none"}
        yield len(wrong), {**_texts(example), **said}


def _value(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    if isinstance(example.label, int | float):
        predicted = prediction["value"]
        said = {"gold": f"{example.label:g}", "predicted": f"{predicted:.3g}"}
        yield abs(predicted - example.label), {**_texts(example), **said}


def _similarity(family: Family[Any], example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
    if isinstance(example.label, int | float):
        predicted = prediction["similarity"]
        said = {"gold": f"{example.label:g}", "predicted": f"{predicted:.3f} (cosine)"}
        # Labels and cosines are on different scales: which pair is worst is not to be told.
        yield 0.0, {**_texts(example), **said}


def _choice(family: Family[Any], example: ChoiceExample, prediction: Prediction) -> Iterator[Mistake]:
    if example.label is not None and prediction["choice"] != example.label:
        confidence = prediction["probabilities"][prediction["choice"]]
        yield (
            confidence,
            {
                "text": example.prompt,
                "gold": example.choices[example.label],
                "predicted": example.choices[prediction["choice"]],
                "confidence": confidence,
            },
        )


def _tags(family: Family[Any], example: TaggingExample, prediction: Prediction) -> Iterator[Mistake]:
    """A mistake for each wrong word."""
    triples = zip(example.tags or (), prediction["tags"], prediction["confidences"], strict=True)
    for place, (gold, predicted, confidence) in enumerate(triples):
        if gold != predicted:
            words = [f"[{word}]" if number == place else word for number, word in enumerate(example.words)]
            yield (
                confidence,
                {
                    "where": example.where_is(place),
                    "text": " ".join(words),
                    "gold": gold,
                    "predicted": predicted,
                    "confidence": confidence,
                },
            )


def _answer(family: Family[Any], example: AnswerExample, prediction: Prediction) -> Iterator[Mistake]:
    right = {normalise(answer.text) for answer in example.answers} or {""}
    if normalise(prediction["answer"]) in right:
        return
    confidence = prediction["n_best"][0]["probability"] if prediction["n_best"] else 0.0
    gold = " / ".join(sorted({answer.text for answer in example.answers})) or "(no answer)"
    yield (
        confidence,
        {
            "text": example.question,
            "text_pair": example.context,
            "gold": gold,
            "predicted": prediction["answer"] or "(no answer)",
            "confidence": confidence,
        },
    )


_COMPARE: dict[str, Callable[[Family[Any], Any, Prediction], Iterator[Mistake]]] = {
    "classification": _class,
    "multi_label": _classes,
    "regression": _value,
    "similarity": _similarity,
    MultipleChoice.name: _choice,
    "tagging": _tags,
    "question_answering": _answer,
}


SCORES, PREDICTIONS = "scores.json", "predictions"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a model says of one split, and how right it is."""

    scores: Mapping[str, Score]
    """Empty if the labels are not known."""
    predictions: Sequence[Prediction]


Judgements = Mapping[str, Mapping[str, Judgement]]
"""By task and split."""

Rows = Mapping[str, Mapping[str, Sequence[TaskRow]]]
"""By task and split, in the order of the examples."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one fine-tuning has given."""

    seed: int
    judgements: Judgements
    facts: Mapping[str, Any]
    """What it was made of: config and hashes."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Steps, seconds and the like."""
    history: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By task: what the looks at the held-out examples gave."""


def judge(
    model: TaskModel, head: str, task: Task, split: str, rows: Sequence[TaskRow], *, pad_id: int
) -> Judgement:
    """Let a model predict a split by one of its heads, and score it if its labels are known."""
    examples = task.examples(split)
    outputs = outputs_of(model, head, rows, pad_id=pad_id)
    # By the model's own family: it knows the labels in the order of the head's logits.
    family = model.families[head]
    predictions = family.predictions(examples, rows, outputs)
    scores = {} if split in task.unlabelled else family.scores(examples, predictions)
    return Judgement(scores=scores, predictions=predictions)


def judge_split(tuned: FineTuned, task: Task, split: str) -> Judgement:
    """The same for a model that was read from a folder."""
    rows = tuned.family.rows(task.examples(split), tuned.tokenizer, max_length=tuned.max_length)
    return judge(tuned.model, tuned.task, task, split, rows, pad_id=tuned.tokenizer.pad_id)


def write_outcome(folder: Path, outcome: Outcome, tasks: Sequence[Task]) -> None:
    """Predictions first, then the scores that say that all is there."""
    for task in tasks:
        for split, judgement in outcome.judgements[task.name].items():
            path = folder / PREDICTIONS / f"{task.name}.{split}.jsonl"
            write_predictions(path, [example.id for example in task.examples(split)], judgement.predictions)
    scores = {
        task: {split: _as_list(judgement.scores) for split, judgement in by_split.items()}
        for task, by_split in outcome.judgements.items()
    }
    rest = {key: getattr(outcome, key) for key in ("seed", "facts", "train", "history")}
    files.write_json(folder / SCORES, {"scores": scores, **rest})


def read_outcome(folder: Path) -> Outcome:
    """What `write_outcome` wrote."""
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
    return Outcome(judgements=judgements, **content)


def write_predictions(path: Path, ids: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """A line for each example: its id, and what the model says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": id, **prediction}, ensure_ascii=False, allow_nan=False) + "\n"
        for id, prediction in zip(ids, predictions, strict=True)
    ]
    files.write_file(path, lambda file: file.writelines(line.encode() for line in lines))


def read_predictions(path: Path) -> list[Prediction]:
    """The predictions without their ids, in order."""
    lines = path.read_text(encoding="utf-8").split("\n")
    records: list[Prediction] = [json.loads(line) for line in lines if line]
    return [{key: value for key, value in record.items() if key != "id"} for record in records]


def _as_list(scores: Mapping[str, Score]) -> list[dict[str, Any]]:
    """As a list, which keeps their order: the first is the one that counts."""
    return [
        {"name": name, "value": score.value if score.is_defined else None, "undefined": score.undefined}
        for name, score in scores.items()
    ]


def _scores(plain: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[float, str]]]:
    for entry in plain:
        value = math.nan if entry["value"] is None else entry["value"]
        yield entry["name"], (value, entry["undefined"])


AVERAGE = "average"

NOT_FRACTIONS = ("_thresh",)
"""How the names of values end that are not shares of anything, such as the best threshold of SQuAD 2.0."""

# As in the paper: WNLI, whose training and development sets contradict each other, is left out.
NOT_AVERAGED = ("wnli",)


def over_seeds(scores: Sequence[Score]) -> dict[str, Any]:
    """One score of every seed -> its summary, as JSON can hold it: what is undefined is null."""
    values = [score.value if score.is_defined else None for score in scores]
    numbers = [value for value in values if value is not None]
    complete = len(numbers) == len(values)
    return {
        "values": values,
        "median": median(values),
        "mean": statistics.fmean(numbers) if complete and numbers else None,
        "std": statistics.stdev(numbers) if complete and len(numbers) > 1 else None,
        "undefined": [score.undefined for score in scores if not score.is_defined],
    }


def median(values: Sequence[float | None]) -> float | None:
    """The median, with what is undefined below every number; None if it falls there."""
    if not values:
        return None
    middle = statistics.median(-math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def median_seed(values: Sequence[float | None]) -> int:
    """The position of the value in the middle; of two, the lower. Its model stands for all of them."""
    order = sorted(range(len(values)), key=lambda position: (_or_lowest(values[position]), position))
    return order[(len(order) - 1) // 2]


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value


def scores_over_seeds(by_seed: Sequence[Mapping[str, Score]]) -> dict[str, dict[str, Any]]:
    """The scores of one split, of every seed -> name -> summary, in the family's order."""
    return {name: over_seeds([scores[name] for scores in by_seed]) for name in by_seed[0]}


def score_table(splits: Mapping[str, Any], *, main_score: str) -> str:
    """A line for each split and score: median, mean ± standard deviation, and all values."""
    rows = [("split", "score", "median", "mean ± std", "every seed")]
    for split, entry in splits.items():
        part = f" ({entry['limit']} examples only)" if entry.get("limit") else ""
        for name, summary in entry["scores"].items():
            mark = " *" if name == main_score else ""
            rows.append((split + part, name + mark, *_cells(name, summary)))
        for name, value in entry.get("ensemble", {}).items():
            rows.append((split + part, name, shown(name, value), "", "all seeds' models as one"))
    return table(rows)


def _cells(name: str, summary: Mapping[str, Any]) -> tuple[str, str, str]:
    values = [shown(name, value) for value in summary["values"]]
    mean = "" if summary["mean"] is None or len(values) == 1 else shown(name, summary["mean"])
    spread = "" if summary["std"] is None else f" ± {shown(name, summary['std'])}"
    reasons = sorted(set(summary["undefined"]))
    return (
        shown(name, summary["median"]),
        mean + spread,
        "  ".join(values) + (f"  (undefined: {'; '.join(reasons)})" if reasons else ""),
    )


def shown(name: str, value: float | None) -> str:
    """A score as a person reads it: a fraction in percent."""
    if value is None:
        return "-"
    return f"{value:.3g}" if name.endswith(NOT_FRACTIONS) else f"{100 * value:.2f}"


def glue_table(ours: Mapping[str, float | None], *, size: Size, names: Sequence[str]) -> str:
    """Medians of the GLUE tasks that were run, with their average, above those of the released model."""
    theirs = {task: value / 100 for task, value in released(size).items()}
    counted = [name for name in names if name in ours and name not in NOT_AVERAGED]
    rows = [("", *names, AVERAGE)]
    for label, values in (("this model", ours), (f"released {size} (++)", theirs)):
        cells = [shown(name, values.get(name)) for name in names]
        # Of the same tasks in both rows, or the two averages could not be compared.
        rows.append((label, *cells, shown(AVERAGE, _average([values.get(name) for name in counted]))))
    missing = [name for name in names if name not in ours and name not in NOT_AVERAGED]
    lines = [table(rows), f"  average over {', '.join(counted) or 'no task'}"]
    if missing:
        lines.append(f"  missing, so this is not the GLUE average: {', '.join(missing)}")
    lines.append(f"  released {size} (++): {RELEASED.format(size=size)}")
    return "\n".join(lines)


def _average(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(values) else None


FINAL = "final"


def main_value(task: Task, outcome: Outcome) -> float | None:
    """The score that counts, on the first split that is scored."""
    score = outcome.judgements[task.name][task.scored_splits[0]].scores[task.main_score]
    return score.value if score.is_defined else None


def median_outcome(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> Outcome:
    """The fine-tuning in the middle; of several tasks by the mean of their main scores."""
    by_seed = [[main_value(task, outcome) for task in tasks] for outcome in outcomes]
    means = [
        None if None in values else statistics.fmean(value for value in values if value is not None)
        for values in by_seed
    ]
    return outcomes[median_seed(means)]


def scores_content(
    task: Task,
    outcomes: Sequence[Outcome],
    *,
    model: str,
    train: Mapping[str, Any],
    together: Mapping[str, Mapping[str, Score]],
    notes: Sequence[str],
    baseline: Mapping[str, Any] | None = None,
    is_partial: bool,
    chosen: Outcome,
) -> dict[str, Any]:
    """What scores.json says of one task; `together`: the scores of all seeds' models as one, by split."""
    splits = {}
    for split, judgement in chosen.judgements[task.name].items():
        examples = task.examples(split)
        matrix = confusion_of(task.family, examples, judgement.predictions)
        splits[split] = {
            "scores": scores_over_seeds(
                [outcome.judgements[task.name][split].scores for outcome in outcomes]
            ),
            "examples": len(examples),
            "errors": worst_mistakes(task.family, examples, judgement.predictions),
            **({} if matrix is None else {"confusion": matrix}),
            **({"limit": len(examples)} if is_partial else {}),
            **({"ensemble": dict(_values(together[split]))} if split in together else {}),
        }
    middle = f"predictions, confusion, errors and {FINAL}/ are of seed {chosen.seed}, the median of"
    of_several = [f"{middle} {len(outcomes)}"] if len(outcomes) > 1 else []
    return {
        "task": task.name,
        "kind": task.family.name,
        "model": model,
        "labels": list(task.family.labels()),
        "main_score": task.main_score,
        "main_split": next(iter(splits)),
        "splits": splits,
        "seeds": [outcome.seed for outcome in outcomes],
        "median_seed": chosen.seed,
        "partial": is_partial,
        "train": dict(train),
        "notes": [*task.notes, *notes, *of_several],
        "history": [record for outcome in outcomes for record in outcome.history.get(task.name, ())],
        **({} if baseline is None else {"baseline": dict(baseline)}),
    }


def _values(scores: Mapping[str, Score]) -> Iterator[tuple[str, float | None]]:
    for name, score in scores.items():
        yield name, score.value if score.is_defined else None


def write_scores(folder: Path, task: Task, content: Mapping[str, Any], *, chosen: Outcome) -> None:
    """Predictions, and the scores last."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, judgement in chosen.judgements[task.name].items():
        ids = [example.id for example in task.examples(split)]
        write_predictions(folder / PREDICTIONS / f"{split}.jsonl", ids, judgement.predictions)
    files.write_json(folder / SCORES, content)


def copy_final(model: Path, folder: Path) -> None:
    """Put a model in its place in the folder of a task, whole or not at all."""
    with files.appearing_whole(folder / FINAL) as unfinished:
        shutil.copytree(model, unfinished, dirs_exist_ok=True)


def history(
    metrics: Path, tasks: Sequence[Task], *, seed: int, steps_per_epoch: int
) -> dict[str, list[dict[str, Any]]]:
    """By task: what every look at the held-out examples gave, with the mean training loss before it."""
    found: dict[str, list[dict[str, Any]]] = {task.name: [] for task in tasks}
    losses: list[float] = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "train" and record["loss"] is not None:
            losses.append(record["loss"])
        if record["kind"] != "valid":
            continue
        place = {"seed": seed, "step": record["step"], "epoch": record["step"] / steps_per_epoch}
        loss = statistics.fmean(losses) if losses else None
        for task in tasks:
            prefix = "" if len(tasks) == 1 else f"{task.name}/"
            values = {
                name.removeprefix(prefix): value
                for name, value in record["metrics"].items()
                if name.startswith(prefix) and value is not None
            }
            found[task.name].append({**place, "train_loss": loss, "dev": values})
        losses = []
    return found


def read_baseline(folder: str, task: Task, *, alone: bool) -> dict[str, Any] | None:
    """The scores of another fine-tuning, to stand beside these; None if none is named."""
    if not folder:
        return None
    path = Path(folder) / SCORES if alone else Path(folder) / task.name / SCORES
    content = files.read_json(path)
    if content.get("task") != task.name:
        raise InputError(f"--baseline {path} is of task {content.get('task')}, expected {task.name}")
    splits = {split: {"scores": entry["scores"]} for split, entry in content["splits"].items()}
    return {"model": content["model"], "seeds": content["seeds"], "splits": splits}


def main_median(content: Mapping[str, Any]) -> float | None:
    """The median over seeds of the main score, out of the content of scores.json."""
    split = content["splits"][content["main_split"]]
    value: float | None = split["scores"][content["main_score"]]["median"]
    return value


def places(folder: Path, content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a person finds what."""
    of_several = f" (of seed {content['median_seed']}, the median)" if len(content["seeds"]) > 1 else ""
    return [
        ("scores", str(folder / SCORES)),
        ("predictions", str(folder / PREDICTIONS)),
        ("model", f"{folder / FINAL}{of_several}"),
    ]
