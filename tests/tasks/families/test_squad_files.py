import json

from electra.tasks.families.answering import QuestionAnswering

BEST = [{"text": "Oslo", "probability": 1.0, "start_logit": 2.0, "end_logit": 3.0}]


def test_files_of_questions_that_all_have_answers(tmp_path):
    folder = tmp_path / "new"
    said = {"q1": {"answer": "Oslo", "text": "Oslo", "n_best": BEST}}
    QuestionAnswering(answerability="off").write_official(folder, said)
    read = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert read == {"predictions.json": {"q1": "Oslo"}, "nbest_predictions.json": {"q1": BEST}}


def test_files_of_questions_that_may_have_none(tmp_path):
    said = {
        "q1": {"answer": "", "text": "Kraków", "null_odds": 1.5, "n_best": BEST},
        "q2": {"answer": "Oslo", "text": "Oslo", "null_odds": -4.0, "n_best": BEST},
    }
    QuestionAnswering(answerability="on").write_official(tmp_path, said)
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    assert read["predictions"] == {"q1": "Kraków", "q2": "Oslo"}
    assert read["null_odds"] == {"q1": 1.5, "q2": -4.0}
    assert read["final_predictions"] == {"q1": "", "q2": "Oslo"}
