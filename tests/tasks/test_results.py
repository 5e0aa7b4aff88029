import json
import math

import pytest

from electra.errors import InputError
from electra.tasks import results
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import Score, TextExample
from electra.tasks.seed_results import Judgement, SeedResult
from electra.tasks.task import Task


def task_of(name="any"):
    examples = [TextExample(id="1", where="file:1", text="a", label=0)]
    return Task(
        name=name, family=Classification(("no", "yes")), splits={"dev": examples}, main_score="accuracy"
    )


def outcome(seed, **values):
    said = [{"label": "no", "probabilities": {"no": 0.9, "yes": 0.1}}]
    judgements = {
        task: {"dev": Judgement(scores={"accuracy": Score(value)}, predictions=said)}
        for task, value in values.items()
    }
    history = {task: [{"seed": seed, "step": 1}] for task in values}
    return SeedResult(seed=seed, judgements=judgements, facts={}, history=history)


def test_the_middle_of_several_tasks_is_by_the_mean_of_their_scores():
    outcomes = [outcome(0, a=0.9, b=0.1), outcome(1, a=0.5, b=0.9), outcome(2, a=0.2, b=0.2)]
    assert results.median_result([task_of("a"), task_of("b")], outcomes).seed == 0


def test_an_undefined_score_is_the_worst_of_all():
    outcomes = [outcome(0, a=math.nan), outcome(1, a=0.5), outcome(2, a=0.2)]
    assert results.median_result([task_of("a")], outcomes).seed == 2


def content_of(outcomes, **changes):
    keys = {
        "model": "m",
        "train": {},
        "together": {},
        "notes": [],
        "is_partial": False,
        "chosen": outcomes[0],
    }
    return results.scores_content(task_of(), outcomes, **{**keys, **changes})


def test_the_contract_of_scores_json():
    content = content_of([outcome(0, any=0.25), outcome(1, any=0.75)], notes=["said before"])
    assert content["splits"]["dev"]["scores"]["accuracy"]["values"] == [0.25, 0.75]
    assert content["splits"]["dev"]["confusion"]["counts"] == [[1, 0], [0, 0]]
    assert content["splits"]["dev"]["errors"] == []
    assert [record["seed"] for record in content["history"]] == [0, 1]
    assert content["notes"][0] == "said before"
    assert "seed 0, the median of 2" in content["notes"][1]
    assert "baseline" not in content
    assert "limit" not in content["splits"]["dev"]


def test_partial_scores_and_ensembles_are_marked():
    content = content_of(
        [outcome(0, any=0.25)], is_partial=True, together={"dev": {"accuracy": Score(math.nan, "why")}}
    )
    assert content["splits"]["dev"]["limit"] == 1
    assert content["splits"]["dev"]["ensemble"] == {"accuracy": None}
    assert content["notes"] == []


def test_history_tells_the_training_loss_before_each_look(tmp_path):
    records = [
        {"kind": "train", "step": 1, "loss": 2.0},
        {"kind": "train", "step": 2, "loss": 1.0},
        {"kind": "event", "step": 2},
        {"kind": "valid", "step": 2, "metrics": {"a/loss": 0.5, "a/accuracy": 0.25, "b/f1": None}},
        {"kind": "valid", "step": 4, "metrics": {"a/accuracy": 0.5}},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    found = results.history(path, [task_of("a"), task_of("b")], seed=3, steps_per_epoch=4)
    first, second = found["a"]
    assert first == {
        "seed": 3,
        "step": 2,
        "epoch": 0.5,
        "train_loss": 1.5,
        "dev": {"loss": 0.5, "accuracy": 0.25},
    }
    assert second["train_loss"] is None
    assert found["b"][0]["dev"] == {}


def test_a_baseline_is_of_the_same_task(tmp_path):
    content = content_of([outcome(0, any=0.25)])
    (tmp_path / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    found = results.read_baseline(str(tmp_path), task_of(), alone=True)
    assert found["splits"]["dev"]["scores"]["accuracy"]["median"] == 0.25
    assert results.read_baseline("", task_of(), alone=True) is None
    with pytest.raises(InputError, match="of task any, expected other"):
        results.read_baseline(str(tmp_path), task_of("other"), alone=True)
