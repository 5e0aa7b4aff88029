import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from electra.errors import InputError
from electra.tasks.data.table_files import read_table

ROWS = [{"text": 'a "b", c', "label": "1"}, {"text": "two\nlines", "label": "x"}, {"text": "", "label": "é"}]


def rows_of(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_table(path, **options))


def as_csv(rows, *, delimiter=","):
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_csv_is_read_as_it_was_written_and_the_header_tells_the_delimiter(tmp_path, delimiter):
    found = rows_of(tmp_path / "a.csv", as_csv(ROWS, delimiter=delimiter))
    assert [row for _, row in found] == ROWS
    assert [line for line, _ in found] == [2, 3, 5]


def test_a_delimiter_that_is_given_goes_before_the_one_that_the_header_suggests(tmp_path):
    assert rows_of(tmp_path / "a.csv", "a,b;c\n1,2;3\n", delimiter=";") == [(2, {"a,b": "1,2", "c": "3"})]


def test_a_delimiter_within_quotes_of_the_header_does_not_count(tmp_path):
    assert rows_of(tmp_path / "a.csv", '"a,b,c";d\n1;2\n') == [(2, {"a,b,c": "1", "d": "2"})]


def test_quotes_in_a_tsv_belong_to_the_text(tmp_path):
    content = 'text\tlabel\n"it is\t0\nsay ""so""\t1\n'
    assert [row["text"] for _, row in rows_of(tmp_path / "a.tsv", content)] == ['"it is', 'say ""so""']


def test_quotes_in_a_tsv_are_read_if_that_is_asked_for(tmp_path):
    content = 'text\tlabel\n"a\tb ""c"""\t0\n'
    (row,) = rows_of(tmp_path / "a.tsv", content, quoting="double")
    assert row == (2, {"text": 'a\tb "c"', "label": "0"})


def test_quotes_in_a_csv_are_part_of_the_value_if_that_is_asked_for(tmp_path):
    (row,) = rows_of(tmp_path / "a.csv", 'text,label\n"so,0\n', quoting="none")
    assert row == (2, {"text": '"so', "label": "0"})


def test_only_a_line_feed_ends_a_line(tmp_path):
    text = "one\u2028two\x85three\x0bfour"
    assert rows_of(tmp_path / "a.tsv", f"text\tlabel\r\n{text}\t0\r\n") == [(2, {"text": text, "label": "0"})]
    assert rows_of(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False)) == [
        (1, {"text": text})
    ]


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    for name, content in {"a.csv": "text\nhi\n", "a.tsv": "text\nhi\n", "a.jsonl": '{"text": "hi"}'}.items():
        ((_, row),) = rows_of(tmp_path / name, b"\xef\xbb\xbf" + content.encode())
        assert row == {"text": "hi"}


def test_blank_lines_are_counted_and_left_out(tmp_path):
    for name in ("a.csv", "a.tsv"):
        assert [line for line, _ in rows_of(tmp_path / name, "text\n\na\n\n\nb\n\n")] == [3, 6]
    assert [line for line, _ in rows_of(tmp_path / "a.jsonl", '\n{"a": 1}\n \n{"a": 2}\n')] == [2, 4]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.TSV.gz", "a.jsonl.gz"])
def test_compressed_files_are_read(tmp_path, name):
    content = '{"text": "hi", "n": "1"}\n' if "json" in name else "text\tn\nhi\t1\n"
    ((_, row),) = rows_of(tmp_path / name, gzip.compress(content.encode()))
    assert row == {"text": "hi", "n": "1"}


def test_json_keeps_what_it_holds(tmp_path):
    row = {"words": ["a", "b"], "n": 1.5, "none": None, "yes": True, "inner": {"a": [1]}}
    for name in ("a.jsonl", "a.json", "a.ndjson"):
        assert rows_of(tmp_path / name, json.dumps(row)) == [(1, row)]


def test_parquet_keeps_what_it_holds_and_its_rows_are_counted(tmp_path):
    rows = [
        {"text": f"é {n}", "words": ["a"] * n, "answers": {"text": ["x"], "start": [n]}} for n in range(3000)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    assert list(read_table(tmp_path / "a.parquet")) == list(enumerate(rows, start=1))
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert list(read_table(tmp_path / "b.parquet.gz")) == list(enumerate(rows, start=1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "text,label\na,1\nb,c,1\n",
            r"a\.csv:3: 3 values, but the header names 2 columns \(text, lab",
        ),
        ("a.tsv", "text\tlabel\na\n", r"a\.tsv:2: 1 values, but the header names 2 columns"),
        ("a.csv", 'text,label\na,1\n"open,1\nb,2\n', r"a\.csv:3: not readable as CSV from here"),
        ("a.csv", 'text,label\n"a" b,1\n', r"a\.csv:2: .* or give quoting none"),
        (
            "a.csv",
            "text,label,text\n",
            r"a\.csv:1: column 'text' is there twice, found 'text', 'label', 'text'",
        ),
        ("a.csv", ",text\n0,a\n", r"a\.csv:1: column 1 has no name, found '', 'text'.*index=False"),
        ("a.csv", "", r"a\.csv:1: expected the names of the columns"),
        ("a.csv", "text,label\rhi,1\r", r"a\.csv:1: not readable as CSV"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"a\.jsonl:2: not JSON"),
        ("a.json", '[{"a": 1}]\n', r"a\.json:1: not a JSON object but .*jq -c"),
        ("a.json", '{\n"a": 1\n}\n', r"a\.json:1: not JSON.* one object a line"),
        ("a.jsonl", '{"a": "fine \\ud83d\\ude00"}\n{"a": "\\ud83d"}\n', r"a\.jsonl:2: half of a"),
        ("a.csv", b"text\nfine\ncaf\xe9\n", r"a\.csv:3: byte 0xe9 at position 4 of the line is not UTF-8"),
        ("a.csv", "text\nfine\n".encode("utf-16"), "UTF-16"),
        (
            "a.csv.gz",
            gzip.compress(b"text\nfine\n" * 50, mtime=0)[:-9],
            r"a\.csv\.gz: cannot be read after line \d+",
        ),
        ("a.csv.gz", b"text\nfine\n", r"a\.csv\.gz: cannot be read after line 0"),
        ("a.parquet", b"PAR1 no parquet", r"a\.parquet: cannot be read as parquet after row 0"),
        ("a.xlsx", b"PK", r"a\.xlsx: unknown kind of table, expected \.csv \.tsv"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path / name, content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.csv: no such file"):
        list(read_table(tmp_path / "nothing.csv"))


def test_a_whole_pair_of_surrogates_is_a_character(tmp_path):
    assert rows_of(tmp_path / "a.jsonl", '{"a": "\\ud83d\\ude00"}') == [(1, {"a": "😀"})]


def test_a_text_longer_than_the_csv_module_allows_by_default_is_read(tmp_path):
    ((_, row),) = rows_of(tmp_path / "a.csv", f'text,label\n"{"a" * 200_000}",1\n')
    assert len(row["text"]) == 200_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"text": st.text(st.characters(exclude_categories=["Cs"])), "label": st.text("ab")}
        ),
        min_size=1,
    ),
    delimiter=st.sampled_from(",;\t|"),
)
def test_whatever_the_csv_module_writes_is_read_back(tmp_path, rows, delimiter):
    content = as_csv(rows, delimiter=delimiter)
    found = rows_of(tmp_path / "a.csv", content, quoting="double", delimiter=delimiter)
    assert [row for _, row in found] == rows


def test_real_files_are_read_whole(shared):
    counts = {
        "ko/nsmc/ratings_test.txt": 50_000,
        "ko/korsts/sts-train.tsv": 5749,
        "ja/jsts/train-v1.3.json": 12_451,
        "glue/RTE/dev.tsv": 277,
    }
    for name, count in counts.items():
        assert sum(1 for _ in read_table(shared / "data" / name)) == count, name
