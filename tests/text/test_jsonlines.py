import json

import pytest

from electra.text import readers
from electra.text.quarantine import Problem, Reading, Tally
from electra.text.readers import read_json_lines
from electra.text.sources import Source


def read(text: str, *, field: str = "text", size: int = 1 << 20) -> tuple[list[str], list[Problem], Tally]:
    problems: list[Problem] = []
    source = Source(path="a.jsonl", format="jsonl", bytes=len(text))
    reading = Reading(source=source, tally=Tally(), quarantine=problems.append)
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    return list(read_json_lines(pieces, field, reading)), problems, reading.tally


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_every_line_is_a_row_and_blank_lines_are_nothing(size):
    rows = ["one", "two\n\nlines", "三\u2028四", '"quoted" \\ 😀']
    text = "\n \n".join(json.dumps({"id": 1, "text": row}, ensure_ascii=size > 2) for row in rows)
    assert read(text, size=size)[:2] == (rows, [])
    assert read(text + "\n\n", size=size)[:2] == (rows, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON: Expecting property name"),
        ('{"text": "never closed', "not JSON: Unterminated string starting at at character 10"),
        ('{"text": "a"} {"text": "b"}', "not JSON: Extra data"),
        ('{"text": "tab\there"}', "not JSON: Invalid control character"),
        ("[1, 2]", "a JSON list, expected an object"),
        ('"text"', "a JSON string, expected an object"),
        ("null", "a JSON null, expected an object"),
        ('{"body": "a", "title": "b"}', "no field 'text'; it has 'body', 'title' (--text_field)"),
        ("{}", "no field 'text'; it has none (--text_field)"),
        ('{"text": null}', "field 'text' is a null, expected a string"),
        ('{"text": 3}', "field 'text' is a number, expected a string"),
        ('{"text": true}', "field 'text' is a boolean, expected a string"),
        ('{"text": ["a"]}', "field 'text' is a list, expected a string"),
        ("[" * 100_000, "JSON nested too deeply"),
        ('{"text": ' + '{"a":' * 100_000, "JSON nested too deeply"),
    ],
)
def test_a_row_without_text_is_named_and_the_next_one_is_read(line, reason):
    texts, (problem,), tally = read(f'{{"text": "before"}}\n\n{line}\n{{"text": "after"}}\n')
    assert texts == ["before", "after"]
    assert problem.reason.startswith(reason)
    assert (problem.file, problem.line, problem.bytes, tally.bad_rows) == ("a.jsonl", 3, len(line), 1)


def test_many_keys_are_not_all_shown():
    _, (problem,), _ = read(json.dumps({f"\ud800 {n}" * 20: n for n in range(500)}))
    assert "and 490 more" in problem.reason
    assert len(problem.reason.encode("utf-8")) < 2000


def test_odd_values_beside_the_text_do_no_harm():
    line = '{"id": ' + "9" * 10_000 + ', "score": NaN, "max": -Infinity, "float": 1e999, "text": "a"}'
    assert read(line)[:2] == (["a"], [])


def test_escapes_for_what_no_file_can_hold_are_replaced_and_counted():
    texts, problems, tally = read(r'{"text": "a\ud800b\u0000c\ufeffd\ud83d\ude00e\udc00"}')
    assert (texts, problems, tally.replaced_bytes) == (["a\ufffdbcd😀e\ufffd"], [], 18)


@pytest.mark.parametrize(
    "text", ['[{"text": "a"},\n {"text": "b"}]', '{\n  "text": "a"\n}', '\n[{"text": "a"}]']
)
def test_other_json_is_one_problem(text):
    texts, (problem,), tally = read(text)
    assert (texts, problem.line, problem.bytes, tally.bad_rows) == ([], None, len(text), 0)
    assert "one object a line" in problem.reason


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_above_the_limit_is_passed_over(monkeypatch, size):
    monkeypatch.setattr(readers, "LINE_LIMIT", 60)
    at_the_limit = json.dumps({"text": "x" * 48})
    long = '{"text": "' + "é" * 300 + '"}'
    texts, (problem,), tally = read(f'{at_the_limit}\n{long}\n{{"text": "after"}}\n{at_the_limit}', size=size)
    assert texts == ["x" * 48, "after", "x" * 48]
    assert (problem.line, problem.bytes, tally.bad_rows) == (2, len(long.encode()), 1)
    assert "612 bytes, at most 60" in problem.reason
    assert read(long, size=size)[1][0].line == 1
