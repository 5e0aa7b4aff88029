"""`--task hf:NAME`: datasets as `datasets` itself writes them, and a Hub on loopback."""

import csv
import json
import os
import subprocess
import sys

import pytest

import electra
from electra import cli
from electra.errors import InputError
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.data.datasets import load_dataset_task, task_name
from electra.tasks.data.table import load_own
from electra.tasks.model import load_model
from hub_server import Hub, serving

datasets = pytest.importorskip("datasets", reason="datasets is in the extra hf")
huggingface_hub = pytest.importorskip("huggingface_hub", reason="the client of the Hub is in the extra hf")
# Not in the order of the alphabet: the dataset's order counts.
LABELS = ["praise", "blame"]
WORDS = (("old", "small", "fast"), ("new", "large", "water"))
QUICK = ["--seeds=1", "--train.epochs=1", "--train.precision=fp32", "--train.cores=1", "--max_length=32"]


def reviews(count, *, is_hidden=False):
    rows = [
        {"review": f"the {WORDS[n % 2][n % 3]} river was {n}", "stars": -1 if is_hidden else n % 2}
        for n in range(count)
    ]
    features = {"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=LABELS)}
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset with splits, of which one has no labels."""
    path = tmp_path_factory.mktemp("data") / "reviews"
    parts = {"train": reviews(24), "validation": reviews(9), "test": reviews(5, is_hidden=True)}
    datasets.DatasetDict(parts).save_to_disk(path)
    return path


COLUMNS = ["--own.text=review", "--own.label=stars"]


def run_command(*words, code=cli.OK):
    assert cli.main([str(word) for word in words]) == code


@pytest.mark.slow
def test_finetuned_evaluated_and_predicted(folder, run, tmp_path):
    task = f"--task=hf:{folder}"
    run_command("finetune", f"--model={run}", task, f"--out={tmp_path / 'tuned'}", *COLUMNS, *QUICK)
    tuned = load_model(tmp_path / "tuned")
    assert tuned.family.labels() == tuple(LABELS)
    assert tuned.task == "reviews"
    model = f"--model={tmp_path / 'tuned'}"
    run_command("predict", model, task, *COLUMNS, "--split=dev", f"--out={tmp_path / 'dev.jsonl'}")
    said = [json.loads(line)["label"] for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    # By the numbers that the dataset itself stores.
    stored = datasets.load_from_disk(folder)["validation"]["stars"]
    share = sum(LABELS[n] == label for n, label in zip(stored, said, strict=True)) / len(stored)
    scores = json.loads((tmp_path / "tuned" / "scores.json").read_text())["splits"]["dev"]["scores"]
    assert scores["accuracy"]["values"] == pytest.approx([share])
    for name in (f"hf:{folder}", f"hf:{folder}@validation"):
        found = electra.evaluate(
            model=tmp_path / "tuned",
            task=name,
            own={"text": "review", "label": "stars"},
            precision="fp32",
        )
        assert found.scores["dev"]["accuracy"] == pytest.approx(share)
    # Without a choice, what has no labels is predicted.
    run_command("predict", model, task, *COLUMNS, f"--out={tmp_path / 'test.csv'}")
    with (tmp_path / "test.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 5
    run_command("predict", model, f"--input={as_csv(folder, tmp_path)}", f"--out={tmp_path / 'csv.jsonl'}")
    lines = (tmp_path / "csv.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == said


def as_csv(folder, tmp_path):
    datasets.load_from_disk(folder)["validation"].remove_columns("stars").to_csv(tmp_path / "v.csv")
    return tmp_path / "v.csv"


def saved(tmp_path, rows, **features):
    path = tmp_path / "saved"
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).save_to_disk(path)
    return f"hf:{path}"


def own(kind, **keys):
    return OwnTaskConfig(kind=kind, **keys)


def test_a_dataset_that_is_not_divided_is_held_out_of(tmp_path):
    path = tmp_path / "one"
    reviews(40).save_to_disk(path)
    task = load_dataset_task(own("classification", text="review", label="stars"), f"hf:{path}", seed=0)
    assert list(task.splits) == ["train", "dev"]
    assert len(task.splits["train"]) + len(task.splits["dev"]) == 40
    assert {example.label for example in task.splits["train"]} == {0, 1}


def test_a_value_is_learned(tmp_path):
    rows = [{"text": f"text {n}", "label": n / 2} for n in range(30)]
    name = saved(tmp_path, rows, text=datasets.Value("string"), label=datasets.Value("float32"))
    task = load_dataset_task(own("regression"), name, seed=0)
    found = {example.label for split in task.splits.values() for example in split}
    assert found == {n / 2 for n in range(30)}


def test_tags_have_names(tmp_path):
    tags = ["O", "B-PER", "I-PER"]
    rows = [{"tokens": ["the", "old", "river"], "ner_tags": [0, 1, 2]} for _ in range(20)]
    rows = [{**row, "tokens": [*row["tokens"][:2], f"w{n}"]} for n, row in enumerate(rows)]
    name = saved(
        tmp_path,
        rows,
        tokens=datasets.List(datasets.Value("string")),
        ner_tags=datasets.List(datasets.ClassLabel(names=tags)),
    )
    task = load_dataset_task(own("tagging", tags="ner_tags"), name, seed=0)
    # As from a file that has the names in it.
    lines = [json.dumps({**row, "ner_tags": [tags[n] for n in row["ner_tags"]]}) for row in rows]
    (tmp_path / "named.jsonl").write_text("\n".join(lines))
    same = load_own(own("tagging", tags="ner_tags"), tmp_path / "named.jsonl", name="saved", seed=0)
    assert task.family.tags == same.family.tags
    assert [example.tags for example in task.splits["train"]] == [
        example.tags for example in same.splits["train"]
    ]


def test_several_classes_have_names_in_the_datasets_order(tmp_path):
    names = ["zeal", "awe", "joy"]
    rows = [{"text": f"text {n}", "label": [n % 3, (n + 1) % 3]} for n in range(30)]
    label = datasets.List(datasets.ClassLabel(names=names))
    task = load_dataset_task(
        own("multi_label"), saved(tmp_path, rows, text=datasets.Value("string"), label=label), seed=0
    )
    assert task.family.labels() == tuple(names)


@pytest.mark.parametrize("form", ["list of pairs", "pair of lists"])
def test_answers_as_squad_has_them(form, tmp_path):
    pair = {"text": datasets.Value("string"), "answer_start": datasets.Value("int32")}
    lists = {key: datasets.List(value) for key, value in pair.items()}
    answers = {"list of pairs": [{"text": "river", "answer_start": 8}]}
    answers["pair of lists"] = {"text": ["river"], "answer_start": [8]}
    rows = [
        {"question": f"what {n} ?", "context": f"the old river was {n}", "answers": answers[form]}
        for n in range(20)
    ]
    kinds = {"list of pairs": datasets.List(pair), "pair of lists": lists}
    text = datasets.Value("string")
    name = saved(tmp_path, rows, question=text, context=text, answers=kinds[form])
    task = load_dataset_task(own("answering"), name, seed=0)
    assert len(task.splits["train"]) + len(task.splits["dev"]) == 20


def test_the_right_choice_by_its_class(tmp_path):
    rows = [{"prompt": f"p {n}", "choices": ["one", "two"], "label": n % 2} for n in range(20)]
    text = datasets.Value("string")
    label = datasets.ClassLabel(names=["A", "B"])
    name = saved(tmp_path, rows, prompt=text, choices=datasets.List(text), label=label)
    task = load_dataset_task(own("multiple_choice"), name, seed=0)
    examples = sorted(
        (example for split in task.splits.values() for example in split), key=lambda example: int(example.id)
    )
    assert [example.label for example in examples] == [n % 2 for n in range(20)]


def test_splits_of_other_names(tmp_path):
    parts = {"learn": reviews(20), "validation_matched": reviews(6), "validation_mismatched": reviews(4)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "data")
    name, keys = f"hf:{tmp_path / 'data'}", {"text": "review", "label": "stars"}
    with pytest.raises(InputError, match=r"several.*validation_matched.*dev"):
        load_dataset_task(own("classification", **keys, train="learn"), name, seed=0)
    with pytest.raises(InputError, match=r"to train on.*--own\.train"):
        load_dataset_task(own("classification", **keys, dev="validation_matched"), name, seed=0)
    with pytest.raises(InputError, match=r"'lern': no such split.*'learn'"):
        load_dataset_task(own("classification", **keys, train="lern"), name, seed=0)
    chosen = own("classification", **keys, train="learn", dev="validation_matched")
    task = load_dataset_task(chosen, name, seed=0)
    assert {split: len(examples) for split, examples in task.splits.items()} == {"train": 20, "dev": 6}


def test_short_names():
    names = {
        "hf:nyu-mll/glue:sst2": "sst2",
        "hf:stanfordnlp/imdb@train": "imdb",
        "hf:/data/reviews/": "reviews",
    }
    assert {name: task_name(name) for name in names} == names


@pytest.fixture
def unreachable(monkeypatch):
    with serving(Hub()) as found:
        address = found.address
    monkeypatch.setenv("HF_ENDPOINT", address)


@pytest.mark.parametrize(
    ("task", "words", "reason"),
    [
        ("hf:", [], "hf: needs"),
        ("hf:no/such/folder", [], "no such folder"),
        ("hf:{folder}@nowhere", [], "no split 'nowhere'"),
        ("hf:{folder}:config", [], "no configs"),
        ("hf:{folder}/train", ["--own.dev=validation"], "not divided"),
        ("hf:{folder}", ["--own.text=body"], "no column 'body'"),
        ("hf:{folder}", ["--own.kind=regression"], "expected a number"),
        ("hf:{folder}", ["--own.encoding=latin-1"], "encoding is for text files"),
        ("hf:{folder}", ["--data=x"], "leave out --data"),
        ("hf:org/reviews", [], "cannot be reached"),
    ],
)
def test_what_cannot_be_read_is_said_before_any_training(
    task, words, reason, folder, run, unreachable, tmp_path, capsys
):
    given = f"--task={task.format(folder=folder)}"
    out = f"--out={tmp_path / 'never'}"
    run_command("finetune", f"--model={run}", given, out, *COLUMNS, *QUICK, *words, code=cli.BAD_INPUT)
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error
    if "org/" in task:
        assert "save_to_disk" in error
    assert not (tmp_path / "never").exists()


def test_a_damaged_folder(folder, run, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "dataset_dict.json").write_text('{"splits": ["train"]}')
    words = ("finetune", f"--model={run}", f"--task=hf:{broken}", f"--out={tmp_path / 'never'}", *QUICK)
    run_command(*words, code=cli.BAD_INPUT)
    error = capsys.readouterr().err
    assert "cannot be opened" in error
    assert "Traceback" not in error


def test_hidden_away_on_the_hub(run, monkeypatch, tmp_path, capsys):
    """Private, missing or gated, the Hub says so, and the message says what to do."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    (tmp_path / "data").mkdir()
    words = ("finetune", f"--model={run}", f"--out={tmp_path / 'never'}", *QUICK)
    with serving(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.put(tmp_path / "data", "org/gated", kind="datasets", gated=True)
        for name, reason in (("org/missing", "not found"), ("org/gated", "gated")):
            run_command(*words, f"--task=hf:{name}", code=cli.BAD_INPUT)
            error = capsys.readouterr().err
            assert reason in error
            assert "save_to_disk" in error
            assert "hf auth login" in error


@pytest.mark.slow
def test_a_dataset_of_the_hub_from_the_shell(run, tmp_path):
    """With the environment alone, as a person has it."""
    parts = {"train": reviews(24), "validation": reviews(9)}
    for split, part in parts.items():
        path = tmp_path / "data" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(path)
    with serving(Hub()) as hub:
        hub.put(tmp_path / "data", "org/reviews", kind="datasets")
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        environment |= {"HF_HUB_DISABLE_XET": "1"}
        words = [f"--model={run}", "--task=hf:org/reviews", "--out=tuned", *COLUMNS, *QUICK]
        done = subprocess.run(
            [sys.executable, "-m", "electra", "finetune", *words, "--dry_run=true"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == cli.OK, done.stderr
    assert "praise (12), blame (12)" in done.stdout
