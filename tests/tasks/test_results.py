import json
import math
import re
import statistics

import pytest

from electra import files
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


def result(seed, **values):
    said = [{"label": "no", "probabilities": {"no": 0.9, "yes": 0.1}}]
    judgements = {
        task: {"dev": Judgement(scores={"accuracy": Score(value)}, predictions=said)}
        for task, value in values.items()
    }
    history = {task: [{"seed": seed, "step": 1}] for task in values}
    return SeedResult(seed=seed, judgements=judgements, facts={}, history=history)


def test_the_middle_of_several_tasks_is_by_the_mean_of_their_scores():
    by_seed = [result(0, a=0.9, b=0.1), result(1, a=0.5, b=0.9), result(2, a=0.2, b=0.2)]
    assert results.median_result([task_of("a"), task_of("b")], by_seed).seed == 0


def test_an_undefined_score_is_the_worst_of_all():
    by_seed = [result(0, a=math.nan), result(1, a=0.5), result(2, a=0.2)]
    assert results.median_result([task_of("a")], by_seed).seed == 2


def content_of(by_seed, **changes):
    keys = {
        "model": "m",
        "train": {},
        "together": {},
        "notes": [],
        "is_partial": False,
        "chosen": by_seed[0],
    }
    return results.scores_content(task_of(), by_seed, **{**keys, **changes})


def test_the_contract_of_scores_json():
    content = content_of([result(0, any=0.25), result(1, any=0.75)], notes=["said before"])
    assert content["splits"]["dev"]["scores"]["accuracy"]["values"] == [0.25, 0.75]
    assert content["splits"]["dev"]["confusion"]["counts"] == [[1, 0], [0, 0]]
    assert content["splits"]["dev"]["errors"] == []
    assert [record["seed"] for record in content["history"]] == [0, 1]
    assert content["notes"][0] == "said before"
    assert re.search(r"seed 0\b.*median.*\b2\b", content["notes"][1])
    assert "baseline" not in content
    assert "limit" not in content["splits"]["dev"]


def test_partial_scores_and_ensembles_are_marked():
    content = content_of(
        [result(0, any=0.25)], is_partial=True, together={"dev": {"accuracy": Score(math.nan, "why")}}
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
    content = content_of([result(0, any=0.25)])
    (tmp_path / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    found = results.read_baseline(str(tmp_path), task_of(), alone=True)
    assert found["splits"]["dev"]["scores"]["accuracy"]["median"] == 0.25
    assert results.read_baseline("", task_of(), alone=True) is None
    with pytest.raises(InputError, match=r"\bany\b.*\bother\b"):
        results.read_baseline(str(tmp_path), task_of("other"), alone=True)


def scores(*values):
    return [Score(value, "" if math.isfinite(value) else "all labels are equal") for value in values]


def test_median_mean_and_spread_of_every_value():
    result = results.over_seeds(scores(0.9, 0.1, 0.5))
    assert result["values"] == [0.9, 0.1, 0.5]
    assert result["median"] == 0.5
    assert result["mean"] == pytest.approx(0.5)
    assert result["std"] == pytest.approx(statistics.stdev([0.9, 0.1, 0.5]))
    assert result["undefined"] == []


def test_one_seed_has_no_spread():
    result = results.over_seeds(scores(0.7))
    assert (result["median"], result["mean"], result["std"]) == (0.7, 0.7, None)


def test_an_undefined_seed_counts_as_the_worst_and_is_told():
    result = results.over_seeds(scores(math.nan, 0.2, 0.6))
    assert result["values"] == [None, 0.2, 0.6]
    assert result["median"] == 0.2
    assert result["mean"] is None
    assert result["std"] is None
    assert result["undefined"] == ["all labels are equal"]
    assert json.loads(files.to_json(result)) == result


@pytest.mark.parametrize("values", [[None], [None, None, 0.9], [None, 0.9]])
def test_a_median_among_undefined_seeds_is_undefined(values):
    assert results.median(values) is None


@pytest.mark.parametrize(
    ("values", "position"),
    [([0.5], 0), ([0.9, 0.1, 0.5], 2), ([0.4, 0.3], 1), ([None, 0.3, 0.2], 2), ([0.5, 0.5, 0.5, 0.5], 1)],
)
def test_the_median_seed_is_in_the_middle_never_the_best(values, position):
    assert results.median_seed(values) == position


def test_the_table_shows_every_seed_in_percent_and_never_the_best_as_the_score():
    splits = {
        "dev": {"scores": results.scores_over_seeds([{"mcc": score} for score in scores(0.9, 0.1, 0.5)])}
    }
    table = results.score_table(splits, main_score="mcc")
    line = table.splitlines()[1].split()
    assert line[:4] == ["dev", "mcc", "*", "50.00"]
    assert line[-3:] == ["90.00", "10.00", "50.00"]


def test_the_table_says_what_is_partial_and_what_is_undefined():
    entry = {"scores": {"mcc": results.over_seeds(scores(math.nan))}, "limit": 20}
    table = results.score_table({"dev": entry}, main_score="mcc")
    assert re.search(r"dev .*\b20 examples", table)
    assert "undefined: all labels are equal" in table


NAMES = ("cola", "sst2", "wnli")


def test_glue_averages_the_same_tasks_in_both_rows():
    table = results.glue_table({"cola": 0.5, "wnli": 0.9}, size="small", names=NAMES)
    header, ours, theirs, *rest = table.splitlines()
    assert header.split() == [*NAMES, "average"]
    assert ours.split()[-4:] == ["50.00", "-", "90.00", "50.00"]
    assert theirs.split()[-4:] == ["57.00", "91.20", "-", "57.00"]
    assert "average" in rest[0]
    assert "cola" in rest[0]
    assert "sst2" in rest[1]


def test_glue_without_wnli_counts_as_the_papers_average():
    table = results.glue_table({"cola": 0.5, "sst2": 0.9, "wnli": 0.1}, size="base", names=NAMES)
    assert table.splitlines()[1].endswith("70.00")
    assert "missing" not in table


def test_an_undefined_task_leaves_the_average_undefined():
    table = results.glue_table({"cola": None, "sst2": 0.9}, size="base", names=NAMES)
    assert table.splitlines()[1].endswith("-")


def test_the_released_models_are_those_of_the_authors_readme():
    assert results.released("small")["cola"] == 57.0
    assert results.released("base")["squad_v2"] == 80.5
    assert results.released("large")["conll2000"] == 97.2


@pytest.mark.parametrize("task", ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"])
def test_larger_models_are_better(task):
    small, base, large = (results.released(size)[task] for size in ("small", "base", "large"))
    assert small < base < large


def test_they_are_never_called_the_papers_models():
    assert "released" in results.RELEASED
    assert "longer" in results.RELEASED
