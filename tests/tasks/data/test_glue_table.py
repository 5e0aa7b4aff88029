import pytest

from electra.errors import InputError
from electra.tasks.data.glue import TASKS, glue_task
from electra.tasks.families.classification import Regression


def test_the_names_are_a_contract():
    names = [task.name for task in TASKS]
    assert names == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_each_row_is_whole(task):
    if isinstance(task.family, Regression):
        assert not task.written
    else:
        assert len(task.written) == len(task.family.labels())
    assert set(task.leaderboard) <= set(task.family.metrics)
    assert 1 <= len(task.texts) <= 2
    assert not task.is_unordered or len(task.texts) == 2
    assert len({split.name for split in task.splits}) == len(task.splits)
    assert all(split.submission is None for split in task.splits if split.name.startswith(("train", "dev")))
    assert all(split.submission for split in task.splits if split.name.startswith("test"))


def test_the_paper_counts_the_first_score():
    counted = {task.name: task.family.metrics[0] for task in TASKS}
    assert {name: score for name, score in counted.items() if score != "accuracy"} == {
        "cola": "mcc", "stsb": "spearman", "ax": "mcc",
    }  # fmt: skip


def test_tasks_that_are_trained_longer_and_pairs_without_order():
    assert {task.name for task in TASKS if task.epochs == 10} == {"stsb", "rte"}
    assert {task.epochs for task in TASKS} == {3, 10}
    assert {task.name for task in TASKS if task.is_unordered} == {"mrpc", "stsb"}


def test_f1_looks_for_the_class_that_is_written_1():
    for name, label in (("mrpc", "equivalent"), ("qqp", "duplicate")):
        task = glue_task(name)
        assert dict(zip(task.written, task.family.labels(), strict=True))["1"] == label


def test_the_diagnostic_set_has_the_labels_of_mnli():
    assert glue_task("ax").family.labels() == glue_task("mnli").family.labels()


def test_an_unknown_task():
    with pytest.raises(InputError, match=r"'sst'.*sst2"):
        glue_task("sst")
