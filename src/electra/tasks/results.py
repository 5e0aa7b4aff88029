"""What several fine-tunings gave -> scores.json, predictions, the model that stands for them, and a table.

OUT/scores.json                every score of every split: median, mean, standard deviation, all values
OUT/predictions/SPLIT.jsonl    of the seed whose main score is the median
OUT/final/                     the model of that seed
"""

import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.tasks import summary
from electra.tasks.family import Score
from electra.tasks.mistakes import confusion_of, worst_mistakes
from electra.tasks.outcomes import PREDICTIONS, SCORES, Outcome, write_predictions
from electra.tasks.task import Task

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
    return outcomes[summary.median_seed(means)]


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
            "scores": summary.scores_over_seeds(
                [outcome.judgements[task.name][split].scores for outcome in outcomes]
            ),
            "examples": len(examples),
            "errors": worst_mistakes(task.family, examples, judgement.predictions),
            **({} if matrix is None else {"confusion": matrix}),
            **({"limit": len(examples)} if is_partial else {}),
            **({"ensemble": dict(_plain(together[split]))} if split in together else {}),
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


def _plain(scores: Mapping[str, Score]) -> Iterator[tuple[str, float | None]]:
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


def main_median(folder: Path) -> float | None:
    """The median of the main score, of the results in a folder."""
    content = files.read_json(folder / SCORES)
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
