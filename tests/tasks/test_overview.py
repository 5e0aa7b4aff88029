import re

from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.study import describe_task, label_counts
from electra.tasks.task import Task


def task_of(family, labels):
    train = [
        TextExample(id=str(number), where="here", text="a", label=label)
        for number, label in enumerate(labels)
    ]
    return Task(
        name="any",
        family=family,
        splits={"train": train, "test": train[:1]},
        unlabelled=frozenset({"test"}),
        main_score="accuracy",
        notes=["one thing"],
    )


def test_a_person_sees_sizes_labels_and_notes():
    lines = dict(describe_task(task_of(Classification(("no", "yes")), [0, 1, 1, 1])))
    assert re.match("any: classification.*accuracy", lines["task"])
    assert lines["examples"].startswith("train 4, test 1 ")
    assert lines["labels"] == "no 1 (25%), yes 3 (75%)"
    assert lines["note"] == "one thing"


def test_several_labels_of_one_example_count_each():
    task = task_of(MultiLabel(("a", "b")), [(0, 1), (1,), ()])
    assert label_counts(task, task.splits["train"]) == "a 1 (33%), b 2 (67%)"


def test_many_labels_are_cut_and_values_are_none():
    names = tuple(f"label{number}" for number in range(20))
    task = task_of(Classification(names), [0])
    assert label_counts(task, task.splits["train"]).endswith(" and 8 more")
    assert "labels" not in dict(describe_task(task_of(Regression(), [0.5])))
