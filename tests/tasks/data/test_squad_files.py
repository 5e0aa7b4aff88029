import json

from electra.tasks.data.squad import write_squad_files

BEST = [{"text": "Oslo", "probability": 1.0, "start_logit": 2.0, "end_logit": 3.0}]


def test_files_of_questions_that_all_have_answers(tmp_path):
    folder = tmp_path / "new"
    paths = write_squad_files(folder, {"q1": {"answer": "Oslo", "text": "Oslo", "n_best": BEST}})
    assert [path.name for path in paths] == ["predictions.json", "nbest_predictions.json"]
    assert sorted(folder.iterdir()) == sorted(paths)
    assert json.loads(paths[0].read_text()) == {"q1": "Oslo"}
    assert json.loads(paths[1].read_text()) == {"q1": BEST}


def test_files_of_questions_that_may_have_none(tmp_path):
    said = {
        "q1": {"answer": "", "text": "Kraków", "null_odds": 1.5, "n_best": BEST},
        "q2": {"answer": "Oslo", "text": "Oslo", "null_odds": -4.0, "n_best": BEST},
    }
    write_squad_files(tmp_path, said)
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    assert read["predictions"] == {"q1": "Kraków", "q2": "Oslo"}
    assert read["null_odds"] == {"q1": 1.5, "q2": -4.0}
    assert read["final_predictions"] == {"q1": "", "q2": "Oslo"}
