"""What several models say of the same examples -> what they say together: the mean of their probabilities."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from electra.tasks.family import Family, Prediction, Score, TaskRow
from electra.tasks.inference import outputs_of
from electra.tasks.model import TaskModel
from electra.tasks.similarity import Similarity
from electra.tasks.squad_family import QuestionAnswering
from electra.tasks.task import Task


def obstacle(family: Family[Any]) -> str | None:
    """Why the models of a kind of task cannot be put together, or None if they can."""
    if isinstance(family, Similarity) and family.loss == "contrastive":
        return "ranks among all texts have no mean"
    return None


def together(
    models: Sequence[TaskModel], task: Task, split: str, rows: Sequence[TaskRow], *, pad_id: int
) -> dict[str, Score]:
    """The scores of several models as one."""
    outputs = [outputs_of(model, task.name, rows, pad_id=pad_id) for model in models]
    examples = task.examples(split)
    return task.family.scores(examples, averaged(task.family, examples, rows, outputs))


def averaged(
    family: Family[Any],
    examples: Sequence[Any],
    rows: Sequence[TaskRow],
    outputs_by_model: Sequence[Sequence[Any]],
) -> list[Prediction]:
    """The predictions of all models together."""
    if isinstance(family, QuestionAnswering | Similarity):
        by_model = [family.predictions(examples, rows, outputs) for outputs in outputs_by_model]
        combine = _answers if isinstance(family, QuestionAnswering) else _similarities
        return [combine(family, said) for said in zip(*by_model, strict=True)]
    # All others give arrays of probabilities or a value for each row.
    means = [np.mean(outputs, axis=0) for outputs in zip(*outputs_by_model, strict=True)]
    return family.predictions(examples, rows, means)


def _similarities(family: Family[Any], said: Sequence[Prediction]) -> Prediction:
    return {"similarity": float(np.mean([prediction["similarity"] for prediction in said]))}


def _answers(family: Family[Any], said: Sequence[Prediction]) -> Prediction:
    """The answer that is most probable over all models; one that a model does not name has none from it."""
    assert isinstance(family, QuestionAnswering)
    probabilities: defaultdict[str, float] = defaultdict(float)
    for prediction in said:
        for candidate in prediction["n_best"]:
            probabilities[candidate["text"]] += candidate["probability"] / len(said)
    ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[: family.limits.n_best_size]
    text = ranked[0][0] if ranked else ""
    named = next((prediction for prediction in said if prediction["text"] == text), said[0])
    odds = [prediction["null_odds"] for prediction in said if "null_odds" in prediction]
    null_odds = float(np.mean(odds)) if odds else None
    return {
        **{key: named[key] if named["text"] == text else None for key in ("start", "end")},
        "answer": "" if null_odds is not None and null_odds > family.null_threshold else text,
        "text": text,
        **({} if null_odds is None else {"null_odds": null_odds}),
        "n_best": [{"text": answer, "probability": probability} for answer, probability in ranked],
    }
