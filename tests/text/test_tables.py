import gzip
import json
import sys
from pathlib import Path

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from electra.errors import InputError
from electra.text.quarantine import Problem, Reading, Tally
from electra.text.sources import Source, find_sources
from electra.text.tables import open_dataset, read_parquet


def reading_of(source: Source) -> tuple[Reading, list[Problem]]:
    problems: list[Problem] = []
    return Reading(source=source, tally=Tally(), quarantine=problems.append), problems


def read(path: Path, *, field: str = "text") -> tuple[list[str], list[Problem], Tally]:
    (source,) = find_sources([str(path)]).sources
    reading, problems = reading_of(source)
    return list(read_parquet(field, reading)), problems, reading.tally


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_one_column_is_read_whatever_holds_its_text(tmp_path, kind):
    rows = [f"row {n} 文" for n in range(1000)]
    values = (
        pa.array(rows).cast(kind) if not pa.types.is_dictionary(kind) else pa.array(rows).dictionary_encode()
    )
    pq.write_table(pa.table({"id": range(1000), "text": values}), tmp_path / "a.parquet", row_group_size=300)
    texts, problems, tally = read(tmp_path / "a.parquet")
    assert (texts, problems) == (rows, [])
    assert tally.source_bytes == (tmp_path / "a.parquet").stat().st_size


def test_bad_bytes_in_a_string_column_cost_only_themselves(tmp_path):
    good, bad = "good 文".encode(), b"\xef\xbb\xbfbad \xff\0\xe6 value"
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, len(good), len(good + bad))))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(good + bad))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    texts, problems, tally = read(tmp_path / "a.parquet")
    assert texts == ["good 文", "bad \ufffd\ufffd value"]
    assert (problems, tally.replaced_bytes) == ([], 3)


def test_nulls_are_bad_rows_with_their_number(tmp_path):
    pq.write_table(pa.table({"text": ["a", None, "c", None]}), tmp_path / "a.parquet", row_group_size=3)
    texts, problems, tally = read(tmp_path / "a.parquet")
    assert texts == ["a", "c"]
    assert [(problem.line, problem.reason) for problem in problems] == [
        (2, "column 'text' is null"),
        (4, "column 'text' is null"),
    ]
    assert tally.bad_rows == 2


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("text", "no field 'text'; it has 'body', 'n' (--text_field)"),
        ("n", "column 'n' holds int64, expected string"),
    ],
)
def test_a_wrong_column_is_one_problem_that_names_the_others(tmp_path, field, reason):
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    texts, (problem,), _ = read(tmp_path / "a.parquet", field=field)
    assert (texts, problem.reason) == ([], reason)
    assert problem.bytes == (tmp_path / "a.parquet").stat().st_size


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_one_problem(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    texts, (problem,), _ = read(tmp_path / "a.parquet")
    assert texts == []
    assert problem.reason.startswith("cannot be read as parquet")
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
    path.write_bytes(data)
    texts, problems, _ = read(path)
    assert texts == rows[:10] + rows[20:]
    assert [(problem.line, problem.reason[:12]) for problem in problems] == [(11, "row group 2:")]


def test_a_compressed_parquet_file_is_unpacked_first(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert read(tmp_path / "b.parquet.gz")[:2] == (["a", "b"], [])


def test_a_missing_file_is_a_problem(tmp_path):
    reading, problems = reading_of(Source(path=str(tmp_path / "a.parquet"), format="parquet"))
    assert list(read_parquet("text", reading)) == []
    assert problems[0].reason == "cannot be read as parquet: No such file or directory"


def dataset(folder: Path, *rows: str, split: str = "train") -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return str(folder)


def test_a_local_dataset_streams_its_rows(tmp_path):
    name = dataset(tmp_path / "data", *(json.dumps({"text": f"row {n}", "n": n}) for n in range(5)))
    reading, problems = reading_of(Source(path=name, format="hf"))
    assert list(open_dataset("text", reading)) == [f"row {n}" for n in range(5)]
    assert problems == []


def test_a_dataset_without_the_field_is_refused_at_once(tmp_path):
    reading, _ = reading_of(Source(path=dataset(tmp_path / "data", '{"body": "a"}'), format="hf"))
    with pytest.raises(InputError, match="no field 'text'; it has 'body'"):
        open_dataset("text", reading)


def test_rows_of_a_dataset_without_text_are_bad_rows(tmp_path):
    name = dataset(tmp_path / "data", '{"text": "a"}', '{"text": null}', '{"text": "c"}')
    reading, problems = reading_of(Source(path=name, format="hf"))
    assert list(open_dataset("text", reading)) == ["a", "c"]
    assert [problem.line for problem in problems] == [2]


def test_a_dataset_that_cannot_be_had_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in (str(tmp_path / "empty"), "no owner/has such a name!"):
        reading, _ = reading_of(Source(path=name, format="hf"))
        with pytest.raises(InputError, match=r"cannot be opened.*NAME"):
            open_dataset("text", reading)


def test_a_dataset_name_is_asked_for_once_with_its_config_and_split(monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name, timeout: asked.append(name))
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **options: asked.append((names, options["split"])) or 1 / 0
    )
    for path in ("owner/name", "owner/name:small@test"):
        with pytest.raises(InputError, match=f"hf:{path} cannot be opened: division by zero"):
            open_dataset("text", reading_of(Source(path=path, format="hf"))[0])
    assert asked == [
        "owner/name",
        (("owner/name", None), "train"),
        "owner/name",
        (("owner/name", "small"), "test"),
    ]


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"electra\[parquet\]"):
        list(read_parquet("text", reading_of(Source(path="a.parquet", format="parquet"))[0]))
