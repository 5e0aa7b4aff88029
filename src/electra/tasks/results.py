"""Results of several seeds -> scores.json, predictions, the model that stands for them, and tables.

OUT/scores.json                every score of every split: median, mean, standard deviation, all values
OUT/predictions/SPLIT.jsonl    of the seed whose main score is the median
OUT/final/                     the model of that seed

A score of several fine-tunings is its median, with mean, standard deviation and every single value beside it;
the best of them is never shown as the score. An undefined score counts as worse than any number: the median
stays right while fewer than half are undefined, and a mean is not given. What others have published stands
beside the table of GLUE.
"""

import json
import math
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.model.store import FINAL
from electra.show import table
from electra.store.cache import with_urls
from electra.tasks.config import Size
from electra.tasks.families.family import Family, Prediction, Score
from electra.tasks.seed_results import PREDICTIONS, SCORES, SeedResult, write_predictions
from electra.tasks.task import Task

AVERAGE = "average"
MAX_MISTAKES = 50

NOT_FRACTIONS = ("_thresh",)
"""Suffixes of values that are no fractions, such as the best threshold of SQuAD 2.0."""

# As in the paper: the training and development sets of WNLI contradict each other.
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
    """The median, where None counts as less than every number; None if it is among those."""
    if not values:
        return None
    middle = statistics.median(-math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def median_seed(values: Sequence[float | None]) -> int:
    """The position of the median, the lower of two: the seed whose model is kept as the final one."""
    order = sorted(range(len(values)), key=lambda position: (_or_lowest(values[position]), position))
    return order[(len(order) - 1) // 2]


def _or_lowest(value: float | None) -> float:
    return -math.inf if value is None else value


def scores_over_seeds(by_seed: Sequence[Mapping[str, Score]]) -> dict[str, dict[str, Any]]:
    """The scores of one split, of every seed -> name -> summary, in the family's order."""
    return {name: over_seeds([scores[name] for scores in by_seed]) for name in by_seed[0]}


def worst_mistakes(
    family: Family[Any], examples: Sequence[Any], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """The mistakes that the model is surest of; where values are predicted, those that are farthest off."""
    found = [
        (mistake.badness, {"id": example.id, "where": with_urls(example.where), **mistake.shown})
        for example, prediction in zip(examples, predictions, strict=True)
        for mistake in family.mistakes(example, prediction)
    ]
    found.sort(key=lambda pair: -pair[0])
    return [shown for _, shown in found[:MAX_MISTAKES]]


def main_value(task: Task, result: SeedResult) -> float | None:
    """The main score on the first split that is scored."""
    score = result.judgements[task.name][task.scored_splits[0]].scores[task.main_score]
    return score.value if score.is_defined else None


def median_result(tasks: Sequence[Task], by_seed: Sequence[SeedResult]) -> SeedResult:
    """The median seed; with several tasks, by the mean of their main scores."""
    means = []
    for result in by_seed:
        values = [main_value(task, result) for task in tasks]
        numbers = [value for value in values if value is not None]
        means.append(statistics.fmean(numbers) if len(numbers) == len(values) else None)
    return by_seed[median_seed(means)]


def scores_content(
    task: Task,
    by_seed: Sequence[SeedResult],
    *,
    model: str,
    train: Mapping[str, Any],
    together: Mapping[str, Mapping[str, Score]],
    notes: Sequence[str],
    baseline: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    is_partial: bool,
    chosen: SeedResult,
) -> dict[str, Any]:
    """The content of scores.json for one task.

    `together`: the scores of the ensemble, `before`: those of the start, if it could be scored; by split.
    """
    splits, labels = {}, list(task.family.labels())
    judgements = chosen.judgements[task.name]
    # The task's order: that of a file is alphabetical.
    for split in filter(judgements.__contains__, task.splits):
        judgement, examples = judgements[split], task.examples(split)
        counts = task.family.confusion(examples, judgement.predictions)
        splits[split] = {
            "scores": scores_over_seeds([result.judgements[task.name][split].scores for result in by_seed]),
            "examples": len(examples),
            "errors": worst_mistakes(task.family, examples, judgement.predictions),
            **({} if counts is None else {"confusion": {"labels": labels, "counts": counts}}),
            **({"limit": len(examples)} if is_partial else {}),
            **({"ensemble": dict(_values(together[split]))} if split in together else {}),
        }
    middle = f"predictions, confusion, errors and {FINAL}/ are of seed {chosen.seed}, the median of"
    of_several = [f"{middle} {len(by_seed)}"] if len(by_seed) > 1 else []
    return {
        "task": task.name,
        "kind": task.family.name,
        "model": model,
        "labels": labels,
        "main_score": task.main_score,
        "main_split": next(iter(splits)),
        "splits": splits,
        "seeds": [result.seed for result in by_seed],
        "median_seed": chosen.seed,
        "partial": is_partial,
        "train": dict(train),
        "notes": [*task.notes, *notes, *of_several],
        "history": [record for result in by_seed for record in result.history.get(task.name, ())],
        **({} if baseline is None else {"baseline": dict(baseline)}),
        **({"before": dict(before)} if before else {}),
    }


def _values(scores: Mapping[str, Score]) -> Iterator[tuple[str, float | None]]:
    for name, score in scores.items():
        yield name, score.value if score.is_defined else None


def write_scores(folder: Path, task: Task, content: Mapping[str, Any], *, chosen: SeedResult) -> None:
    """Write predictions, and the scores last."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, judgement in chosen.judgements[task.name].items():
        ids = [example.id for example in task.examples(split)]
        write_predictions(folder / PREDICTIONS / f"{split}.jsonl", ids, judgement.predictions)
    files.write_json(folder / SCORES, content)


def copy_final(model: Path, folder: Path) -> None:
    """Copy a model into the folder of a task, whole or not at all."""
    with files.appearing_whole(folder / FINAL) as unfinished:
        shutil.copytree(model, unfinished, dirs_exist_ok=True)


def history(
    metrics: Path, tasks: Sequence[Task], *, seed: int, steps_per_epoch: int
) -> dict[str, list[dict[str, Any]]]:
    """Every evaluation during training, by task, with the mean training loss since the one before."""
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
    """The scores of another fine-tuning to compare with; None if none is named."""
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
    """What was written where, to be printed."""
    of_several = f" (of seed {content['median_seed']}, the median)" if len(content["seeds"]) > 1 else ""
    return [
        ("scores", str(folder / SCORES)),
        ("predictions", str(folder / PREDICTIONS)),
        ("model", f"{folder / FINAL}{of_several}"),
    ]


RELEASED = "the authors' released ELECTRA-{size}, which was trained longer than the one in their paper"
"""To be said wherever these scores are shown: the released "++" models are not the paper's."""

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


def score_table(
    splits: Mapping[str, Any], *, main_score: str, before: Mapping[str, Any] | None = None
) -> str:
    """A line for each split and score: median, mean ± standard deviation, and all values.

    `before`: the scores of the start, by split, whose median has a column of its own.
    """
    rows: list[tuple[str, ...]] = []
    for split, entry in splits.items():
        part = f" ({entry['limit']} examples only)" if entry.get("limit") else ""
        for name, summary in entry["scores"].items():
            mark = " *" if name == main_score else ""
            start = [shown(name, before[split]["scores"][name]["median"])] if before else []
            rows.append((split + part, name + mark, *start, *_cells(name, summary)))
        start = [""] if before else []
        for name, value in entry.get("ensemble", {}).items():
            rows.append((split + part, name, *start, shown(name, value), "", "all seeds' models as one"))
    start = ["before"] if before else []
    return table([("split", "score", *start, "median", "mean ± std", "every seed"), *rows])


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
    """A score to print: fractions in percent."""
    if value is None:
        return "-"
    return f"{value:.3g}" if name.endswith(NOT_FRACTIONS) else f"{100 * value:.2f}"


def glue_table(ours: Mapping[str, float | None], *, size: Size, names: Sequence[str]) -> str:
    """Medians and average of the GLUE tasks that were run, above those of the released model."""
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
