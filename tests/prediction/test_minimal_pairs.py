import json

import pytest

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.minimal_pairs import score_minimal_pairs

PAIRS = {
    "order": [("river old the", "the old river"), ("city a in", "in a city"), ("is music", "music is")],
    # The tokenizer knows no case: a tie, whatever the model.
    "case": [("the Old river", "the old river"), ("the ☃", "the music")],
}


@pytest.fixture(scope="module")
def model(run):
    return load(run)


@pytest.fixture
def folder(tmp_path):
    for name, pairs in PAIRS.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{bad}\n{good}\n" for bad, good in pairs))
    return tmp_path


def test_the_higher_sum_wins_and_a_tie_is_half(model, folder):
    found = score_minimal_pairs(model, folder)
    assert found.methods == ("detection", "pseudo_likelihood")
    for method in found.methods:
        expected = {}
        for name, pairs in PAIRS.items():
            sums = [
                [answer["scores"][method]["sum"] for answer in model.score([good, bad])]
                for bad, good in pairs
            ]
            points = [0.5 if good == bad else float(good > bad) for good, bad in sums]
            expected[name] = sum(points) / len(points)
        assert {name: one.accuracies[method] for name, one in found.phenomena.items()} == expected
        assert found.phenomena["case"].ties[method] == 1
        # Two phenomena, whatever the number of their pairs.
        assert found.accuracies[method] == pytest.approx((expected["order"] + expected["case"]) / 2)
    assert found.accuracy == found.accuracies["detection"]
    assert found.phenomena["order"].accuracy == found.phenomena["order"].accuracies["detection"]
    assert found.num_pairs == 5
    assert [one.num_unknown for one in found.phenomena.values()] == [1, 0]


def test_turning_all_pairs_round_turns_the_accuracy_round(model, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("turned")
    for name, pairs in PAIRS.items():
        (other / f"{name}.txt").write_text("".join(f"{good}\n{bad}\n" for bad, good in pairs))
    found, turned = (score_minimal_pairs(model, path, by="detection") for path in (folder, other))
    assert turned.accuracy == pytest.approx(1 - found.accuracy)
    assert turned.data_sha256 != found.data_sha256


def test_a_result_is_written_as_plain_data(model, folder, tmp_path):
    found = score_minimal_pairs(model, folder, by="detection", limit=2)
    path = tmp_path / "new" / "result.json"
    found.write(path, model="M", data="D")
    content = json.loads(path.read_text())
    assert content["accuracy"] == {"detection": found.accuracy}
    assert (content["pairs"], content["limit"], content["methods"]) == (4, 2, ["detection"])
    assert content["phenomena"]["order"]["pairs"] == 2
    assert content["data_sha256"] == score_minimal_pairs(model, folder, limit=2).data_sha256


def test_a_folder_of_blimp_gives_the_same(model, folder, tmp_path_factory):
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": name}
        for name, pairs in sorted(PAIRS.items())
        for bad, good in pairs
    ]
    path = tmp_path_factory.mktemp("blimp") / "all.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert score_minimal_pairs(model, path, by="detection") == score_minimal_pairs(
        model, folder, by="detection"
    )


def test_phenomena_are_announced(model, folder):
    told = []
    score_minimal_pairs(model, folder, by="detection", on_phenomenon=lambda *one: told.append(one))
    assert told == [("case", 0.0), ("order", 0.5)]


def test_a_gap_is_named_with_its_line(model, folder):
    (folder / "gap.txt").write_text("a b\nb a\nthe [MASK]\nthe river\n")
    with pytest.raises(InputError, match=r"gap\.txt:3 holds \[MASK\]"):
        score_minimal_pairs(model, folder)
    with pytest.raises(InputError, match="by is 'chance'"):
        score_minimal_pairs(model, folder, by="chance")
