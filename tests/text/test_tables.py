"""Tables as the two kinds of readers see them: one column with bad rows left out, or all columns or none."""

import csv
import gzip
import io
import json
import lzma
import re
import sys
from contextlib import suppress
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text import tables
from electra.text.quarantine import Reading, ReadProblem, Tally, strict_reading
from electra.text.sources import Source
from electra.text.tables import Dialect, read_lines, read_table, table_source

COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
in_any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def reading_of(source: Source) -> tuple[Reading, list[ReadProblem]]:
    problems: list[ReadProblem] = []
    return Reading(source=source, tally=Tally(), quarantine=problems.append), problems


def texts_of(
    path: Path,
    content: str | bytes | None = None,
    *,
    field: str = "text",
    size: int = 1 << 18,
    **dialect: str,
) -> tuple[list[str], list[ReadProblem], Tally]:
    """As `prepare` reads: the texts of one column, and what was wrong."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reading, problems = reading_of(table_source(path))
    rows = read_table(reading, dialect=Dialect(**dialect), text_column=field, piece_bytes=size)
    return [row[field] for _, row in rows], problems, reading.tally


def rows_of(
    path: Path, content: str | bytes | None = None, **dialect: str
) -> list[tuple[int, dict[str, object]]]:
    """As a task reads: all columns of all rows, or an InputError."""
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_table(strict_reading(table_source(path)), dialect=Dialect(**dialect)))


def as_csv(rows: list[dict[str, str]], *, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], delimiter=delimiter, quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


# --- every format, compression and encoding, read alike by both ---

TEXTS = {
    "utf-8": ["naïve 東京", 'a "quoted", word', "モデル"],
    "utf-8-sig": ["naïve 東京", 'a "quoted", word', "モデル"],
    "cp1252": ["déjà vu à l’été", 'la “mère”, "père"', "où êtes-vous"],
    "utf-16": ["naïve 東京", 'a "quoted", word', "モデル"],
    "shift_jis": [
        "吾輩は庭の隅で古い本を読んでいた。",
        "名前はまだ, 聞いていない。",
        "雨が静かに降り始めた。",
    ],
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_every_format_compression_and_encoding_is_read_alike(tmp_path, suffix, compression, encoding):
    rows = [{"label": str(number), "text": text} for number, text in enumerate(TEXTS[encoding])]
    content = {
        ".csv": lambda: as_csv(rows),
        ".tsv": lambda: "label\ttext\n" + "".join(f"{row['label']}\t{row['text']}\n" for row in rows),
        ".jsonl": lambda: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
    }[suffix]()
    path = tmp_path / f"table{suffix}{compression}"
    path.write_bytes(COMPRESS[compression](content.encode(encoding)))
    first = 1 if suffix == ".jsonl" else 2
    assert rows_of(path) == list(enumerate(rows, start=first))
    assert texts_of(path)[:2] == (TEXTS[encoding], [])
    name = "cp932" if encoding == "shift_jis" else encoding
    assert rows_of(path, encoding=name) == rows_of(path)


@pytest.mark.parametrize("compression", COMPRESS)
def test_parquet_is_read_alike_whatever_the_compression(tmp_path, compression):
    rows = [{"label": number, "text": text} for number, text in enumerate(TEXTS["utf-8"])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "plain")
    path = tmp_path / f"table.parquet{compression}"
    path.write_bytes(COMPRESS[compression]((tmp_path / "plain").read_bytes()))
    assert rows_of(path) == list(enumerate(rows, start=1))
    assert texts_of(path)[:2] == (TEXTS["utf-8"], [])


BAD_ROWS = {
    ".csv": "text,label\nbefore,1\na,b,c\nafter,2\n",
    ".tsv": "text\tlabel\nbefore\t1\na\nafter\t2\n",
    ".jsonl": '\n{"text": "before"}\nno json\n{"text": "after"}\n',
}


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", BAD_ROWS)
def test_a_bad_row_is_named_with_file_and_line_by_both(tmp_path, suffix, compression):
    path = tmp_path / f"table{suffix}{compression}"
    content = COMPRESS[compression](BAD_ROWS[suffix].encode())
    texts, (problem,), tally = texts_of(path, content)
    assert texts == ["before", "after"]
    assert (problem.file, problem.line, tally.bad_rows) == (str(path), 3, 1)
    assert problem.bytes == len(BAD_ROWS[suffix].splitlines()[2]) + (suffix == ".csv")
    with pytest.raises(InputError, match=rf"table\{suffix}{compression}:3: "):
        rows_of(path)


PLAIN = st.characters(codec="utf-8", exclude_categories=["Cc"], include_characters="\n\r\t")


@pytest.mark.slow
@in_any_folder
@given(
    rows=st.lists(st.fixed_dictionaries({"text": st.text(PLAIN), "label": st.text("ab")}), min_size=1),
    delimiter=st.sampled_from(",;\t|"),
    compression=st.sampled_from(sorted(COMPRESS)),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
    size=st.integers(1, 50),
)
def test_whatever_the_csv_module_writes_is_read_back(tmp_path, rows, delimiter, compression, encoding, size):
    path = tmp_path / f"a.csv{compression}"
    path.write_bytes(COMPRESS[compression](as_csv(rows, delimiter=delimiter).encode(encoding)))
    found = rows_of(path, quoting="double", delimiter=delimiter)
    assert [row for _, row in found] == rows
    texts, problems, _ = texts_of(path, size=size, quoting="double", delimiter=delimiter)
    assert texts == [row["text"].replace("\ufeff", "") for row in rows]
    assert problems == []


CSV_PARTS = [b"text", b",", b'"', b"\n", b"\r", b"a", b"\t", b"\xff", b"\0"]


CSV_PARTS = [b"text", b",", b'"', b"\n", b"\r", b"a", b"\t", b"\xff", b"\0"]


@pytest.mark.slow
@in_any_folder
@given(
    data=st.binary(max_size=200) | st.lists(st.sampled_from(CSV_PARTS)).map(b"".join), size=st.integers(1, 7)
)
def test_any_bytes_as_csv(tmp_path, data, size):
    whole = texts_of(tmp_path / "a.csv", data)
    assert texts_of(tmp_path / "a.csv", data, size=size) == whole
    # Where a task gets its rows, `prepare` gets the same texts, and nothing was left out.
    with suppress(InputError):
        rows = [row for _, row in rows_of(tmp_path / "a.csv")]
        if rows and "text" in rows[0] and b"\0" not in data:
            assert whole[:2] == ([row["text"].replace("\ufeff", "") for row in rows], [])


def test_real_files_are_read_whole(shared):
    counts = {
        "ko/nsmc/ratings_test.txt": 50_000,
        "ko/korsts/sts-train.tsv": 5749,
        "ja/jsts/train-v1.3.json": 12_451,
        "glue/RTE/dev.tsv": 277,
    }
    for name, count in counts.items():
        assert len(rows_of(shared / "data" / name)) == count, name


# --- CSV and TSV ---

ROWS = [{"text": 'a "b", c', "label": "1"}, {"text": "two\nlines", "label": "x"}, {"text": "", "label": "é"}]


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_csv_is_read_as_it_was_written_and_the_header_tells_the_delimiter(tmp_path, delimiter):
    found = rows_of(tmp_path / "a.csv", as_csv(ROWS, delimiter=delimiter))
    assert [row for _, row in found] == ROWS
    assert [line for line, _ in found] == [2, 3, 5]


def test_a_delimiter_that_is_given_goes_before_the_one_that_the_header_suggests(tmp_path):
    assert rows_of(tmp_path / "a.csv", "a,b;c\n1,2;3\n", delimiter=";") == [(2, {"a,b": "1,2", "c": "3"})]
    for tab in ("tab", "\\t", "\t"):
        assert rows_of(tmp_path / "a.csv", "a,b\tc\n1\t3\n", delimiter=tab) == [(2, {"a,b": "1", "c": "3"})]


@pytest.mark.parametrize("delimiter", ["", "ab", "\n", '"'])
def test_what_cannot_be_a_delimiter_is_refused(delimiter):
    with pytest.raises(InputError, match="delimiter"):
        Dialect(delimiter=delimiter)


def test_a_delimiter_within_quotes_of_the_header_does_not_count(tmp_path):
    assert rows_of(tmp_path / "a.csv", '"a,b,c";d\n1;2\n') == [(2, {"a,b,c": "1", "d": "2"})]


def test_quotes_in_a_tsv_belong_to_the_text(tmp_path):
    content = 'text\tlabel\n"it is\t0\nsay ""so""\t1\n'
    assert [row["text"] for _, row in rows_of(tmp_path / "a.tsv", content)] == ['"it is', 'say ""so""']


def test_quotes_in_a_tsv_are_read_if_that_is_asked_for(tmp_path):
    content = 'text\tlabel\n"a\tb ""c"""\t0\n'
    assert rows_of(tmp_path / "a.tsv", content, quoting="double") == [(2, {"text": 'a\tb "c"', "label": "0"})]


def test_quotes_in_a_csv_are_part_of_the_value_if_that_is_asked_for(tmp_path):
    content = 'text,label\n"so,0\n'
    assert rows_of(tmp_path / "a.csv", content, quoting="none") == [(2, {"text": '"so', "label": "0"})]


def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "one\u2028two\x85three\x0bfour"
    assert rows_of(tmp_path / "a.tsv", f"text\tlabel\r\n{text}\t0\r\n") == [(2, {"text": text, "label": "0"})]
    (tmp_path / "a.txt").write_bytes(f"{text}\r\n\nb".encode())
    assert list(read_lines(tmp_path / "a.txt")) == [(1, text), (2, ""), (3, "b")]
    assert rows_of(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False)) == [
        (1, {"text": text})
    ]


def test_exact_text_is_kept_but_for_the_byte_order_mark_in_front(tmp_path):
    text = "a\ufeffb\0c\ufffd\r\nd"
    content = "\ufeff" + as_csv([{"text": text}])
    assert rows_of(tmp_path / "a.csv", content) == [(2, {"text": text})]
    texts, problems, tally = texts_of(tmp_path / "a.csv")
    assert (texts, problems, tally.replaced_bytes) == (["abc\ufffd\r\nd"], [], 1)


def test_blank_lines_are_counted_and_left_out(tmp_path):
    for name in ("a.csv", "a.tsv"):
        assert [line for line, _ in rows_of(tmp_path / name, "text\n\na\n\n\nb\n\n")] == [3, 6]
    assert [line for line, _ in rows_of(tmp_path / "a.jsonl", '\n{"a": 1}\n \n{"a": 2}\n')] == [2, 4]


def test_a_text_longer_than_the_csv_module_allows_by_default_is_read(tmp_path):
    ((_, row),) = rows_of(tmp_path / "a.csv", f'text,label\n"{"a" * 200_000}",1\n')
    assert len(row["text"]) == 200_000


def test_one_column_needs_no_others_with_good_names(tmp_path):
    assert texts_of(tmp_path / "a.csv", ",text,x,x\n0,a,1,2\n")[:2] == (["a"], [])


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("body,n\na,1\n", ("'text'", "'body', 'n'")),
        ("text,text\na,b\n", ("'text'", "twice")),
        ("", ("columns",)),
    ],
)
def test_a_header_without_the_column_is_one_problem(tmp_path, content, names):
    texts, (problem,), _ = texts_of(tmp_path / "a.csv", content)
    assert (texts, problem.line, problem.bytes) == ([], 1, len(content))
    assert all(name in problem.reason for name in names)


def test_a_quote_that_is_never_closed_costs_what_it_swallows_and_no_more(tmp_path):
    swallowed = '"open,1\nb,2\n"c" x,3\n'
    texts, (problem,), tally = texts_of(tmp_path / "a.csv", f"text,label\na,1\n{swallowed}d,4\n")
    assert texts == ["a", "d"]
    assert (problem.line, problem.bytes, tally.bad_rows) == (3, len(swallowed), 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,1\nb,c,1\n", r"a\.csv:3: .*\b3\b.*\b2\b.*text, label"),
        ("a.tsv", "text\tlabel\na\n", r"a\.tsv:2: .*\b1\b.*\b2\b.*quoting"),
        ("a.csv", 'text,label\na,1\n"open,1\nb,2\n', r"a\.csv:3: "),
        ("a.csv", 'text,label\n"a" b,1\n', r"a\.csv:2: .*quoting"),
        ("a.csv", "text,label,text\n", r"a\.csv:1: .*'text'.* 'text', 'label', 'text'"),
        ("a.csv", ",text\n0,a\n", r"a\.csv:1: .*\b1\b.* '', 'text'.*index=False"),
        ("a.csv", "", r"a\.csv:1: "),
        ("a.csv", "text,label\rhi,1\r", r"a\.csv:1: "),
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"a\.jsonl:2: .*JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"a\.jsonl:2: "),
        ("a.json", '[{"a": 1}]\n', r"a\.json: .*jq -c"),
        ("a.json", '{\n"a": 1\n}\n', r"a\.json: .*jq -c"),
        ("a.jsonl", '{"a": "fine \\ud83d\\ude00"}\n{"a": "\\ud83d"}\n', r"a\.jsonl:2: "),
        ("a.csv", "text\nfine é\n".encode() + b"\xc3\xa9\xc3\xa9 \xe9\n", r"a\.csv:3: .*utf-8"),
        ("a.csv", "text\nfine\n".encode("utf-16")[:-1], r"a\.csv:2: .*utf-16"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1", r"a\.csv: .*binary"),
        ("a.csv.gz", gzip.compress(b"text\nfine\n" * 50, mtime=0)[:-9], r"a\.csv\.gz: .*gzip"),
        ("a.csv.gz", b"text\nfine\n", r"a\.csv\.gz: .*gzip"),
        ("a.csv.zst", b"text\nfine\n", r"a\.csv\.zst: .*zstd"),
        ("a.parquet", b"PAR1 no parquet", r"a\.parquet: .*parquet"),
        ("a.parquet.xz", b"PAR1 no xz", r"a\.parquet\.xz: .*xz"),
        ("a.xlsx", b"PK", r"a\.xlsx: .*\.csv \.tsv"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path / name, content)


def test_a_missing_file_is_named(tmp_path):
    for name in ("nothing.csv", "nothing.parquet"):
        with pytest.raises(InputError, match=rf"{name}: "):
            rows_of(tmp_path / name)


# --- JSON lines ---


def test_json_keeps_what_it_holds(tmp_path):
    row = {"words": ["a", "b"], "n": 1.5, "whole": 3, "none": None, "yes": True, "inner": {"a": [1]}}
    for name in ("a.jsonl", "a.json", "a.ndjson"):
        assert rows_of(tmp_path / name, json.dumps(row)) == [(1, row)]


def test_a_whole_pair_of_surrogates_is_a_character(tmp_path):
    assert rows_of(tmp_path / "a.jsonl", '{"a": "\\ud83d\\ude00"}') == [(1, {"a": "😀"})]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_every_line_is_a_row_and_blank_lines_are_nothing(tmp_path, size):
    rows = ["one", "two\n\nlines", "三\u2028四", '"quoted" \\ 😀']
    for end in ("\n \n", "\r\n", "\r"):
        text = end.join(json.dumps({"id": 1, "text": row}, ensure_ascii=size > 2) for row in rows)
        assert texts_of(tmp_path / "a.jsonl", text, size=size)[:2] == (rows, [])
        assert texts_of(tmp_path / "a.jsonl", text + end + end, size=size)[:2] == (rows, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('{"text": "never closed', "not JSON.*character 10"),
        ('{"text": "a"} {"text": "b"}', "not JSON"),
        ('{"text": "tab\there"}', "not JSON"),
        ("[1, 2]", "list, expected an object"),
        ('"text"', "string, expected an object"),
        ("null", "null, expected an object"),
        ('{"body": "a", "title": "b"}', "'text'.* 'body', 'title' .*--text_field"),
        ("{}", "'text'.*--text_field"),
        ('{"text": null}', "'text' is a null, expected a string"),
        ('{"text": 3}', "'text' is a number, expected a string"),
        ('{"text": true}', "'text' is a boolean, expected a string"),
        ('{"text": ["a"]}', "'text' is a list, expected a string"),
        ("[" * 100_000, "nested"),
        ('{"text": ' + '{"a":' * 100_000, "nested"),
    ],
)
def test_a_row_without_text_is_named_and_the_next_one_is_read(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    texts, (problem,), tally = texts_of(path, f'{{"text": "before"}}\n\n{line}\n{{"text": "after"}}\n')
    assert texts == ["before", "after"]
    assert (problem.file, problem.line, problem.bytes, tally.bad_rows) == (str(path), 3, len(line), 1)
    assert re.search(reason, problem.reason)


def test_many_keys_are_not_all_shown(tmp_path):
    _, (problem,), _ = texts_of(tmp_path / "a.jsonl", json.dumps({f"\ud800 {n}" * 20: n for n in range(500)}))
    assert "490" in problem.reason
    assert len(problem.reason.encode("utf-8")) < 2000


def test_odd_values_beside_the_text_do_no_harm(tmp_path):
    line = '{"id": ' + "9" * 10_000 + ', "score": NaN, "max": -Infinity, "float": 1e999, "text": "a"}'
    assert texts_of(tmp_path / "a.jsonl", line)[:2] == (["a"], [])


def test_escapes_for_what_no_file_can_hold_are_replaced_and_counted(tmp_path):
    content = r'{"text": "a\ud800b\u0000c\ufeffd\ud83d\ude00e\udc00"}'
    texts, problems, tally = texts_of(tmp_path / "a.jsonl", content)
    assert (texts, problems, tally.replaced_bytes) == (["a\ufffdbcd😀e\ufffd"], [], 18)


@pytest.mark.parametrize(
    "text", ['[{"text": "a"},\n {"text": "b"}]', '{\n  "text": "a"\n}', '\n[{"text": "a"}]']
)
def test_other_json_is_one_problem(tmp_path, text):
    texts, (problem,), tally = texts_of(tmp_path / "a.jsonl", text)
    assert (texts, problem.line, problem.bytes, tally.bad_rows) == ([], None, len(text), 0)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_above_the_limit_is_passed_over(tmp_path, monkeypatch, size):
    monkeypatch.setattr(tables, "LINE_LIMIT", 60)
    at_the_limit = json.dumps({"text": "x" * 48})
    long = '{"text": "' + "é" * 300 + '"}'
    content = f'{at_the_limit}\n{long}\n{{"text": "after"}}\n{at_the_limit}'
    texts, (problem,), tally = texts_of(tmp_path / "a.jsonl", content, size=size)
    assert texts == ["x" * 48, "after", "x" * 48]
    assert (problem.line, problem.bytes, tally.bad_rows) == (2, len(long.encode()), 1)
    assert "612" in problem.reason
    assert texts_of(tmp_path / "a.jsonl", long, size=size)[1][0].line == 1


# --- parquet ---


@pytest.mark.slow
def test_parquet_keeps_what_it_holds_and_its_rows_are_counted(tmp_path):
    rows = [
        {"text": f"é {n}", "words": ["a"] * n, "answers": {"text": ["x"], "start": [n]}} for n in range(3000)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    assert rows_of(tmp_path / "a.parquet") == list(enumerate(rows, start=1))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_one_column_is_read_whatever_holds_its_text(tmp_path, kind):
    rows = [f"row {n} 文" for n in range(1000)]
    values = (
        pa.array(rows).cast(kind) if not pa.types.is_dictionary(kind) else pa.array(rows).dictionary_encode()
    )
    pq.write_table(pa.table({"id": range(1000), "text": values}), tmp_path / "a.parquet", row_group_size=300)
    texts, problems, tally = texts_of(tmp_path / "a.parquet")
    assert (texts, problems) == (rows, [])
    assert tally.source_bytes == (tmp_path / "a.parquet").stat().st_size


def test_bad_bytes_in_a_string_column_cost_only_themselves(tmp_path):
    good, bad = "good 文".encode(), b"\xef\xbb\xbfbad \xff\0\xe6 value"
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, len(good), len(good + bad))))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(good + bad))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    texts, problems, tally = texts_of(tmp_path / "a.parquet")
    assert texts == ["good 文", "bad \ufffd\ufffd value"]
    assert (problems, tally.replaced_bytes) == ([], 3)
    with pytest.raises(InputError, match=r"a\.parquet:1: "):
        rows_of(tmp_path / "a.parquet")


def test_nulls_are_bad_rows_with_their_number(tmp_path):
    pq.write_table(pa.table({"text": ["a", None, "c", None]}), tmp_path / "a.parquet", row_group_size=3)
    texts, problems, tally = texts_of(tmp_path / "a.parquet")
    assert texts == ["a", "c"]
    assert [problem.line for problem in problems] == [2, 4]
    assert all("'text'" in problem.reason for problem in problems)
    assert tally.bad_rows == 2


@pytest.mark.parametrize(("field", "named"), [("text", "'body', 'n'"), ("n", "int64")])
def test_a_wrong_column_is_one_problem_that_names_the_others(tmp_path, field, named):
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    texts, (problem,), _ = texts_of(tmp_path / "a.parquet", field=field)
    assert texts == []
    assert f"{field!r}" in problem.reason
    assert named in problem.reason
    assert problem.bytes == (tmp_path / "a.parquet").stat().st_size


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_one_problem(tmp_path, data):
    texts, (problem,), _ = texts_of(tmp_path / "a.parquet", data)
    assert texts == []
    assert "parquet" in problem.reason
    assert "\n" not in problem.reason


def test_a_damaged_row_group_does_not_take_the_others_with_it(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [f"{n} " * 50 for n in range(30)]
    pq.write_table(
        pa.table({"text": rows}), path, row_group_size=10, compression="gzip", use_dictionary=False
    )
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    data[start : start + size] = bytes(size)
    texts, problems, _ = texts_of(path, bytes(data))
    assert texts == rows[:10] + rows[20:]
    assert [(problem.line, problem.reason[:12]) for problem in problems] == [(11, "row group 2:")]
    with pytest.raises(InputError, match=r"a\.parquet:11: "):
        rows_of(path)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"electra\[parquet\]"):
        rows_of(Path("a.parquet"))


# --- datasets of the Hub ---


def dataset(folder: Path, *rows: str, split: str = "train") -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return str(folder)


def rows_of_dataset(name: str) -> tuple[list[tuple[int, dict[str, str]]], list[ReadProblem]]:
    reading, problems = reading_of(Source(path=name, format="hf"))
    return list(read_table(reading, text_column="text")), problems


def test_a_local_dataset_streams_its_rows(tmp_path):
    name = dataset(tmp_path / "data", *(json.dumps({"text": f"row {n}", "n": n}) for n in range(5)))
    assert rows_of_dataset(name) == ([(n + 1, {"text": f"row {n}"}) for n in range(5)], [])


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(tmp_path, monkeypatch):
    def refuse(*names, **options):
        raise PermissionError(13, "Permission denied", "/home/nobody/.cache")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    reading, _ = reading_of(Source(path=dataset(tmp_path / "data", '{"text": "a"}'), format="hf"))
    with pytest.raises(InputError, match=r"/home/nobody/\.cache.*HF_HOME"):
        read_table(reading, text_column="text")


def test_a_dataset_without_the_field_is_refused_at_once(tmp_path):
    reading, _ = reading_of(Source(path=dataset(tmp_path / "data", '{"body": "a"}'), format="hf"))
    with pytest.raises(InputError, match=r"'text'.*'body'"):
        read_table(reading, text_column="text")


def test_rows_of_a_dataset_without_text_are_bad_rows(tmp_path):
    name = dataset(tmp_path / "data", '{"text": "a"}', '{"text": null}', '{"text": "c"}')
    rows, problems = rows_of_dataset(name)
    assert rows == [(1, {"text": "a"}), (3, {"text": "c"})]
    assert [problem.line for problem in problems] == [2]


def test_a_dataset_that_cannot_be_had_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in (str(tmp_path / "empty"), "no owner/has such a name!"):
        with pytest.raises(InputError, match=r"hf:NAME"):
            rows_of_dataset(name)


def test_a_dataset_name_is_asked_for_once_with_its_config_and_split(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name, timeout: asked.append(name))
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **options: asked.append((names, options["split"])) or 1 / 0
    )
    for path in ("owner/name", "owner/name:small@test"):
        with pytest.raises(InputError, match=rf"hf:{path}.*division by zero"):
            rows_of_dataset(path)
    assert asked == [
        "owner/name",
        (("owner/name", None), "train"),
        "owner/name",
        (("owner/name", "small"), "test"),
    ]
