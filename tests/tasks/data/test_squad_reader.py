import gzip
import json
import lzma

import pytest
import zstandard

from electra.errors import InputError
from electra.tasks.data.squad import Answer, load_squad, read_questions

CONTEXT = "Oslo is in Norway, and Oslo is a city."


def squad(tmp_path, *questions, context=CONTEXT):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]}))
    return path


def asked(text="Norway", start=11, id="q1", **facts):
    return {"id": id, "question": "Where?", "answers": [{"text": text, "answer_start": start}]} | facts


def test_squad(tmp_path):
    path = squad(tmp_path, asked(), asked(id="q2", is_impossible=False))
    (example, other), rest = (found := read_questions([path], purpose="learn")).examples, found
    assert (example.id, example.question, example.context) == ("q1", "Where?", CONTEXT)
    assert example.answers == (Answer("Norway", 11),)
    assert example.where == f"{path}, article 1, paragraph 1, question q1"
    assert other.context is example.context  # one text in memory, however many questions
    assert (rest.num_moved, rest.num_unlocated) == (0, 0)


def test_a_compressed_file_in_another_encoding(tmp_path):
    content = {"data": [{"paragraphs": [{"context": "Où est l’été à Paris ?", "qas": [asked("Paris", 15)]}]}]}
    path = tmp_path / "dev.json.xz"
    path.write_bytes(lzma.compress(json.dumps(content, ensure_ascii=False).encode("cp1252")))
    (example,) = read_questions([path], purpose="learn").examples
    assert (example.context, example.answers) == ("Où est l’été à Paris ?", (Answer("Paris", 15),))
    assert list(load_squad("squad_v1", tmp_path).splits) == ["dev"]


def test_an_answer_elsewhere_is_put_to_its_first_place(tmp_path):
    for start in (3, -15, 1000):
        found = read_questions([squad(tmp_path, asked("Oslo", start))], purpose="learn")
        assert found.examples[0].answers == (Answer("Oslo", 0),)
        assert found.num_moved == 1
    later = read_questions([squad(tmp_path, asked("Oslo", 23))], purpose="learn")
    assert later.examples[0].answers == (Answer("Oslo", 23),)
    assert later.num_moved == 0


def test_an_answer_that_is_nowhere(tmp_path):
    path = squad(tmp_path, asked("Sweden", 11))
    with pytest.raises(InputError, match=r"paragraph 1.*q1.*'Sweden'"):
        read_questions([path], purpose="learn")
    found = read_questions([path], purpose="score")
    assert found.examples[0].answers == (Answer("Sweden", None),)
    assert found.num_unlocated == 1


COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def mrqa(path, *lines):
    text = "".join(json.dumps(line) + "\n" for line in ({"header": {"dataset": "NewsQA"}}, *lines))
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.encode()))
    return path


def detected(spans, answers=("Norway",), qid="q1"):
    found = [{"text": "NORWAY", "char_spans": spans, "token_spans": [[3, 3]]}]
    question = {"qid": qid, "question": "Where?", "answers": list(answers), "detected_answers": found}
    return {"context": CONTEXT, "qas": [question]}


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.jsonl.gz", "dev.jsonl.xz", "dev.jsonl.zst"])
def test_mrqa(name, tmp_path):
    path = mrqa(tmp_path / name, detected([[11, 16]], ["Norway", "Kingdom of Norway"]))
    (example,) = read_questions([path], purpose="learn").examples
    assert example.id == "q1"
    assert example.where == f"{path}, line 2, question q1"
    # The end is the last character; what the text does not hold counts when it is scored.
    assert example.answers == (Answer("Norway", 11), Answer("Kingdom of Norway", None))


@pytest.mark.parametrize("span", [[11, 99], [12, 11], [-1, 3], [1], ["1", 2]])
def test_mrqa_spans_outside_of_the_text(span, tmp_path):
    path = mrqa(tmp_path / "train.jsonl", detected([span]))
    with pytest.raises(InputError, match=r"line 2.*q1.*char_spans.*\b38\b"):
        read_questions([path], purpose="learn")


def test_ids_are_given_once_over_all_files(tmp_path):
    path = squad(tmp_path, asked())
    other = mrqa(tmp_path / "more.jsonl", detected([[11, 16]]))
    with pytest.raises(InputError, match=r"more\.jsonl, line 2.*q1.*file\.json"):
        read_questions([path, other], purpose="learn")


BAD_QUESTIONS = [
    ({"question": "Where?", "answers": []}, "'id'.*'question', 'answers'"),
    ({"id": "q1", "answers": []}, "q1: .*'question'"),
    (asked(question=" \n"), "q1: question.*empty"),
    (asked(question=7), "q1: question.*'7'"),
    (asked(text=""), "q1: text.*empty"),
    (asked(start="11"), "answer_start.*'11'"),
    (asked(answers=None), "answers.*'None'"),
    (asked(answers=["Norway"]), "answer.*'Norway'"),
    (asked(answers=[]), "q1: .*answer.*is_impossible"),
    (asked(is_impossible=True), "is_impossible.*true.*answers"),
    (asked(is_impossible="no"), "is_impossible.*'no'"),
    (asked(question="Where\ud800?"), r"question.*\\ud800"),
    ("Where?", r"question.*'Where\?'"),
]


@pytest.mark.parametrize(("question", "message"), BAD_QUESTIONS, ids=[row[1] for row in BAD_QUESTIONS])
def test_bad_questions_are_named(question, message, tmp_path):
    path = squad(tmp_path, question)
    with pytest.raises(InputError, match=rf"file.json, article 1, paragraph 1.*{message}"):
        read_questions([path], purpose="learn")


BAD_FILES = [
    ("{", "JSON"),
    ("[]", r"JSON.*'\[\]'"),
    ("{}", "'data'"),
    ('{"data": []}', "questions"),
    ('{"data": [{"title": "x"}]}', "article 1: .*'paragraphs'.*'title'"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1: .*'context'"),
    ('{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}', "paragraph 1: context.*empty"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_files_are_named(content, message, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"file.json.*{message}"):
        read_questions([path], purpose="score")


def test_bad_lines_are_named(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text('{"header": {}}\n\n{"context"\n')
    with pytest.raises(InputError, match=r"file\.jsonl, line 3.*JSON"):
        read_questions([path], purpose="score")
    broken = tmp_path / "file.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"header": {}}\n' * 1000)[:-10])
    with pytest.raises(InputError, match=r"file.jsonl.gz: .*gzip"):
        read_questions([broken], purpose="score")
