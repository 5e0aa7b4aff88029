import gzip
import json

import pytest

from electra.errors import InputError
from electra.tasks.data.catalogue import TaskSource, task_names
from electra.tasks.data.minimal_pairs import load_minimal_pairs

LINES = "he are here .\nhe is here .\nshe have one .\nshe has one .\n"


def as_blimp(uid, number):
    return {"sentence_good": f"good {number}", "sentence_bad": f"bad {number}", "UID": uid, "other": 3}


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_pairs_with_the_unacceptable_text_first(tmp_path):
    path = write(tmp_path / "agreement-simple.txt", LINES)
    ((name, pairs),) = load_minimal_pairs(path).items()
    assert name == "agreement-simple"
    assert [pair.good for pair in pairs] == ["he is here .", "she has one ."]
    assert [pair.bad for pair in pairs] == ["he are here .", "she have one ."]
    assert [pair.where for pair in pairs] == [f"{path}:1", f"{path}:3"]


def test_a_folder_has_a_file_for_each_phenomenon(tmp_path):
    write(tmp_path / "b.txt", LINES)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("ä\nö\n".encode("utf-16")))
    write(tmp_path / "c.csv", 'sentence_bad,sentence_good\n"a, c",b\n')
    write(tmp_path / "notes.pdf", "not read")
    write(tmp_path / ".hidden.txt", "one line")
    found = load_minimal_pairs(tmp_path)
    assert {name: len(pairs) for name, pairs in found.items()} == {"a": 1, "b": 2, "c": 1}
    assert found["a"][0][:2] == ("ö", "ä")
    assert found["c"][0][:2] == ("b", "a, c")


def test_lines_of_blimp_name_their_phenomenon(tmp_path):
    rows = [as_blimp("x", 1), as_blimp("y", 2), as_blimp("x", 3)]
    path = write(tmp_path / "all.jsonl", "\n".join(map(json.dumps, rows)))
    found = load_minimal_pairs(path)
    assert {name: [pair.good for pair in pairs] for name, pairs in found.items()} == {
        "x": ["good 1", "good 3"],
        "y": ["good 2"],
    }


def test_a_limit_draws_the_same_pairs_of_each_phenomenon(tmp_path):
    lines = "".join(f"bad {number}\ngood {number}\n" for number in range(50))
    for name in "ab":
        write(tmp_path / f"{name}.txt", lines)
    found = load_minimal_pairs(tmp_path, limit=8)
    assert found == load_minimal_pairs(tmp_path, limit=8)
    places = {name: [int(pair.good.split()[1]) for pair in pairs] for name, pairs in found.items()}
    assert all(len(of_one) == 8 and of_one == sorted(of_one) for of_one in places.values())
    assert places["a"] != places["b"]
    assert max(places["a"]) > 20
    assert load_minimal_pairs(tmp_path, limit=99) == load_minimal_pairs(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "one\ntwo\nthree\n", r"a\.txt:3: 3 lines.*no partner"),
        ("a.txt", "one\n\ntwo\n", r"a\.txt:2: an empty line"),
        ("a.txt", "one\ntwo\nthree\nthree\n", r"a\.txt:3: both texts of the pair are 'three'"),
        ("a.txt", "\n\n", r"a\.txt: no pairs"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": ""}', r"a\.jsonl:1: 'sentence_bad' is empty"),
        ("a.jsonl", '{"good": "a", "sentence_bad": "b"}', r"a\.jsonl:1: no column 'sentence_good'"),
        ("a.jsonl", '{"sentence_good": ["a"], "sentence_bad": "b"}', r"a\.jsonl:1.*expected a single text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        load_minimal_pairs(write(tmp_path / name, text).parent)


def test_blank_lines_at_the_end_do_not_matter(tmp_path):
    assert len(load_minimal_pairs(write(tmp_path / "a.txt", f"{LINES}\n \n"))["a"]) == 2


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="no minimal pairs in it"):
        load_minimal_pairs(tmp_path)
    write(tmp_path / "agreement.txt", LINES)
    with pytest.raises(InputError, match=r"did you mean 'agreement\.txt'"):
        load_minimal_pairs(tmp_path / "agrement.txt")
    with pytest.raises(InputError, match="limit is 0"):
        load_minimal_pairs(tmp_path, limit=0)
    write(tmp_path / "agreement.jsonl", json.dumps(as_blimp("agreement", 1)))
    with pytest.raises(InputError, match=r"phenomenon agreement is in .* as well"):
        load_minimal_pairs(tmp_path)


def test_it_is_no_task_to_fine_tune_on():
    with pytest.raises(InputError, match="electra score --model RUN --task minimal_pairs"):
        task_names(TaskSource(task="minimal_pairs", data="PAIRS"))


@pytest.mark.slow
def test_zorro(shared):
    found = load_minimal_pairs(shared / "data" / "minimal-pairs" / "zorro")
    assert len(found) == 23
    assert {len(pairs) for pairs in found.values()} == {2000}
    first = found["irregular-verb"][0]
    assert (first.good, first.bad) == (
        "Michael chose the good one some time ago .",
        "Michael chosen the good one some time ago .",
    )
