import json

import pytest

from electra.errors import InputError
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import SquadConfig, TaskSource

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
CONTRACT = (*GLUE, "squad_v1", "squad_v2", "conll2000", "conllu", "csv")


@pytest.mark.parametrize("name", CONTRACT)
def test_the_names_that_other_scripts_use_are_there(name):
    assert catalogue.task_names(TaskSource(task=name)) == [name]


def test_several_tasks_stand_between_commas():
    assert catalogue.task_names(TaskSource(task="cola, mine.yaml")) == ["cola", "mine.yaml"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("sst", "'sst2'"),
        ("", "--task"),
        ("glue,cola", "glue"),
        ("rte,rte", "'rte,rte'"),
    ],
)
def test_what_is_no_task_is_refused(task, message):
    with pytest.raises(InputError, match=message):
        catalogue.task_names(TaskSource(task=task))


def test_a_task_needs_its_data():
    with pytest.raises(InputError, match="--data DIR"):
        catalogue.load_task("cola", TaskSource(task="cola"))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def test_glue_without_training_examples_is_left_out_with_the_reason(tmp_path):
    write(tmp_path / "CoLA" / "train.tsv", "x\t1\t*\tyes\nx\t0\t*\tno\n")
    write(tmp_path / "QNLI" / "dev.tsv", "index\tquestion\tsentence\tlabel\n0\tq\ts\tentailment\n")
    names, left_out = catalogue.trainable_glue(str(tmp_path))
    assert names == ["cola"]
    assert list(left_out) == ["qnli"]
    assert "train.tsv" in left_out["qnli"]
    with pytest.raises(InputError, match="--data DIR"):
        catalogue.trainable_glue("")


def test_only_what_has_a_test_set_is_submitted_and_mnli_judges_the_diagnostic_set(tmp_path):
    write(tmp_path / "CoLA" / "dev.tsv", "x\t1\t*\tyes\n")
    write(tmp_path / "AX" / "diagnostic.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n")
    assert catalogue.glue_with_tests(str(tmp_path)) == ["ax"]
    assert catalogue.trained_as("ax") == "mnli"
    assert catalogue.trained_as("rte") == "rte"


def squad(question):
    paragraph = {"context": "the old river", "qas": [question]}
    return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})


def test_squad_takes_files_of_any_name_from_the_folder(tmp_path):
    answer = {"id": "1", "question": "which?", "answers": [{"text": "old", "answer_start": 4}]}
    write(tmp_path / "shifts" / "wiki.json", squad(answer))
    write(tmp_path / "dev-v1.1.json", squad({**answer, "id": "2"}))
    keys = SquadConfig(train=["shifts/wiki.json"], head="plain", doc_stride=16)
    task = catalogue.load_task("squad_v1", TaskSource(task="squad_v1", data=str(tmp_path), squad=keys))
    assert {split: [example.id for example in found] for split, found in task.splits.items()} == {
        "train": ["1"],
        "dev": ["2"],
    }
    assert task.family.span_kind == "plain"
    assert task.family.sizes.doc_stride == 16


def test_columns_of_an_own_task_are_known_to_the_model_that_learned_it(tmp_path):
    write(tmp_path / "mine.yaml", "text: body\ndata: rows.csv\n")
    write(tmp_path / "rows.csv", "body,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(30)))
    source = TaskSource(task=str(tmp_path / "mine.yaml"))
    assert catalogue.own_columns(source.task, source).text == "body"
    assert catalogue.own_columns("cola", source) is None
    task = catalogue.load_task(source.task, source)
    assert task.name == "mine"
    assert task.splits.keys() == {"train", "dev"}


@pytest.mark.parametrize("name", ["conll2000", "conll"])
def test_conll_reads_the_columns_that_are_named(tmp_path, name):
    for split in ("train", "test"):
        write(tmp_path / f"{split}.txt", "B-NP the DT\nI-NP cat NN\n\nO sat VB\n")
    keys = catalogue.ConllConfig(word_column=1, tag_column=0)
    task = catalogue.load_task(name, TaskSource(task=name, data=str(tmp_path), conll=keys))
    assert task.splits["train"][0].words == ("the", "cat")
    assert task.main_score == "f1"


def test_real_tasks_are_found(shared):
    names, left_out = catalogue.trainable_glue(str(shared / "data" / "glue"))
    assert names == ["cola", "sst2", "mrpc", "stsb", "rte", "wnli"]
    assert left_out.keys() == {"qnli"}
