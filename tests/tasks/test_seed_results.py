import math

import pytest

from electra.tasks.families.classification import Classification
from electra.tasks.families.family import Score, TextExample
from electra.tasks.seed_results import (
    Judgement,
    SeedResult,
    read_predictions,
    read_seed_result,
    write_predictions,
    write_seed_result,
)
from electra.tasks.task import Task


def test_what_is_written_is_read_again_in_its_order(tmp_path):
    examples = [TextExample(id="b", where="file:1", text="x\u2028y", label=0)]
    task = Task(name="any", family=Classification(("no", "yes")), splits={"dev": examples}, main_score="mcc")
    scores = {"mcc": Score(math.nan, "all equal"), "accuracy": Score(0.5)}
    judgement = Judgement(scores=scores, predictions=[{"label": "no", "note": "x\u2028y"}])
    result = SeedResult(
        seed=3,
        judgements={"any": {"dev": judgement}},
        facts={"config": {"a": 1}},
        train={"steps": 7},
        history={"any": [{"step": 7, "dev": {"accuracy": 0.5}}]},
    )
    write_seed_result(tmp_path, result, [task])
    again = read_seed_result(tmp_path)
    (same,) = again.judgements["any"].values()
    assert list(same.scores) == ["mcc", "accuracy"]
    assert same.scores["accuracy"] == Score(0.5)
    assert math.isnan(same.scores["mcc"].value)
    assert same.scores["mcc"].undefined == "all equal"
    assert same.predictions == judgement.predictions
    assert (again.seed, again.facts, again.train, again.history) == (
        3,
        result.facts,
        result.train,
        result.history,
    )


def test_a_prediction_that_is_no_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_predictions(tmp_path / "dev.jsonl", ["1"], [{"value": math.nan}])
    assert not list(tmp_path.iterdir())


def test_ids_stand_beside_the_predictions(tmp_path):
    write_predictions(tmp_path / "deep" / "dev.jsonl", ["x", "y"], [{"value": 1}, {"value": 2}])
    assert '{"id": "y", "value": 2}' in (tmp_path / "deep" / "dev.jsonl").read_text()
    assert read_predictions(tmp_path / "deep" / "dev.jsonl") == [{"value": 1}, {"value": 2}]
