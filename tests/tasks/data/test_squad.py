import json
import re

import pytest

from electra.errors import InputError
from electra.tasks.data.squad import QuestionAnswering, load_squad

CONTEXT = "Oslo is in Norway."


def write(path, *questions, context=CONTEXT):
    questions = [{"id": f"{path.name}{number}"} | question for number, question in enumerate(questions)]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    return path


def asked(answer="Norway", start=11, **facts):
    return {"question": "Where?", "answers": [{"text": answer, "answer_start": start}]} | facts


IMPOSSIBLE = {"question": "When?", "answers": [], "is_impossible": True}


def test_a_folder_with_files_of_both_versions(tmp_path):
    for version in ("v1.1", "v2.0"):
        write(tmp_path / f"train-{version}.json", asked())
    write(tmp_path / "dev-v1.1.json", asked())
    write(tmp_path / "dev-v2.0.json", asked(), IMPOSSIBLE)
    write(tmp_path / "other.json", asked())
    first = load_squad("squad_v1", tmp_path)
    assert {name: [example.id for example in split] for name, split in first.splits.items()} == {
        "train": ["train-v1.1.json0"],
        "dev": ["dev-v1.1.json0"],
    }
    assert (first.main_score, first.epochs, first.max_length) == ("f1", 2, 512)
    assert first.family.answerability == "off"
    second = load_squad("squad_v2", tmp_path)
    assert [example.is_impossible for example in second.splits["dev"]] == [False, True]
    assert (second.main_score, second.family.answerability) == ("best_f1", "on")
    train, dev = second.notes
    assert re.match(r"train: \b1\b.*\b1\b", train)
    assert re.match(r"dev: \b2\b.*\b1\b.*\b1\b", dev)


def test_named_files_go_before_those_of_the_folder(tmp_path):
    write(tmp_path / "train.json", asked())
    write(tmp_path / "dev.json", asked())
    others = [write(tmp_path / name, asked()) for name in ("wiki.json", "reddit.json")]
    task = load_squad("squad_v1", tmp_path, train=others)
    assert [example.id for example in task.splits["train"]] == ["wiki.json0", "reddit.json0"]
    assert [example.id for example in task.splits["dev"]] == ["dev.json0"]


def test_one_file_is_of_the_split_in_its_name(tmp_path):
    assert list(load_squad("squad_v1", write(tmp_path / "train-mine.json", asked())).splits) == ["train"]
    assert list(load_squad("squad_v1", write(tmp_path / "mine.json", asked())).splits) == ["dev"]


def test_a_test_set_without_answers_is_not_scored(tmp_path):
    write(tmp_path / "dev.json", asked())
    write(tmp_path / "test.json", {"question": "Where?"})
    task = load_squad("squad_v1", tmp_path)
    assert task.unlabelled == {"test"}
    assert task.scored_splits == ["dev"]


def test_questions_without_answers_among_others(tmp_path):
    path = write(tmp_path / "dev.json", asked(), {"question": "Where?", "answers": []})
    with pytest.raises(InputError, match=r"dev\.json1: .*\b1\b.*\b2\b"):
        load_squad("squad_v2", path)


def test_impossible_questions_need_the_second_version(tmp_path):
    path = write(tmp_path / "dev.json", asked(), IMPOSSIBLE)
    with pytest.raises(InputError, match=r"dev\.json1: is_impossible.*squad_v2"):
        load_squad("squad_v1", path)


def test_answers_in_other_places_are_noted(tmp_path):
    write(tmp_path / "train.json", asked(start=3))
    write(tmp_path / "dev.json", asked("Sweden", 0), asked())
    task = load_squad("squad_v1", tmp_path)
    assert task.splits["train"][0].answers[0].start == 11
    assert task.splits["dev"][0].answers[0].start is None
    assert re.search(r"train: 1\b.*answer_start", task.notes[1])
    assert re.search(r"dev: 1\b", task.notes[-1])


def test_several_files_for_a_split(tmp_path):
    for name in ("train-a.json", "train-b.json"):
        write(tmp_path / name, asked())
    with pytest.raises(InputError, match=r"train-a\.json, train-b\.json"):
        load_squad("squad_v1", tmp_path)


def test_nothing_to_read(tmp_path):
    write(tmp_path / "dev-v1.1.json", asked())
    with pytest.raises(InputError, match=r"train-v2\.0\.json.*dev-v1\.1\.json"):
        load_squad("squad_v2", tmp_path)
    with pytest.raises(InputError, match=r"/missing\b"):
        load_squad("squad_v1", tmp_path / "missing")
    with pytest.raises(InputError, match=r"squad_v1.*train-v1\.1\.json"):
        load_squad("squad_v1")


def test_unknown_task(tmp_path):
    with pytest.raises(InputError, match=r"'squad'.*squad_v1, squad_v2"):
        load_squad("squad", tmp_path)


def test_a_family_of_ones_own(tmp_path):
    family = QuestionAnswering(head="plain", answerability="off")
    assert load_squad("squad_v1", write(tmp_path / "dev.json", asked()), family=family).family is family
