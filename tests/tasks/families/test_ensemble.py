import numpy as np
import pytest

from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.answers import AnswerExample
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity

EXAMPLE = TextExample(id="1", where="here", text="a", label=0)


def test_probabilities_are_averaged_not_votes_counted():
    outputs = [[np.array([0.49, 0.51])], [np.array([0.49, 0.51])], [np.array([0.9, 0.1])]]
    (said,) = Classification(("no", "yes")).averaged([EXAMPLE], [], outputs)
    assert said["label"] == "no"
    assert said["probabilities"]["no"] == pytest.approx((0.49 + 0.49 + 0.9) / 3)


class Said(QuestionAnswering):
    """Whose outputs are the predictions themselves."""

    def predictions(self, examples, rows, outputs):
        return list(outputs)


def answer(text, probability, *, null_odds, other):
    candidates = [{"text": text, "probability": probability}, {"text": other, "probability": 1 - probability}]
    return {"answer": text, "text": text, "start": 3, "end": 5, "null_odds": null_odds, "n_best": candidates}


def test_answers_are_put_together_by_their_probability():
    family = Said(answerability="on", null_threshold=0.0)
    example = AnswerExample(id="1", where="here", question="q", context="c")
    models = [
        [answer("cat", 0.6, null_odds=-1.0, other="dog")],
        [answer("dog", 0.9, null_odds=-2.0, other="cat")],
    ]
    (said,) = family.averaged([example], [], models)
    assert said["text"] == said["answer"] == "dog"
    assert said["n_best"][0] == {"text": "dog", "probability": pytest.approx((0.4 + 0.9) / 2)}
    assert said["null_odds"] == pytest.approx(-1.5)
    doubting = [[{**one[0], "null_odds": 1.0}] for one in models]
    (said,) = family.averaged([example], [], doubting)
    assert (said["text"], said["answer"]) == ("dog", "")


def test_ranks_have_no_mean():
    assert Similarity(loss="contrastive").ensemble_obstacle
    assert Similarity().ensemble_obstacle is None
    assert Classification(("no", "yes")).ensemble_obstacle is None
