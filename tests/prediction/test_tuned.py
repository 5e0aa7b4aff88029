import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.windows import AbandonedError, computing_while
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.answers import AnswerExample
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import MAX_PAIR_WINDOWS, TextExample, pair_windows
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging, TaggingExample
from electra.tasks.inference import outputs_of, predict_examples
from electra.text.windows import windows

pytestmark = pytest.mark.numeric

WHERE = {"id": "0", "where": "here"}
FAMILIES = {
    "classification": Classification(("bad", "fair", "good")),
    "multi_label": MultiLabel(("red", "blue")),
    "regression": Regression(low=1.0, high=5.0),
}
NOTHING = {
    "classification": {"label": None, "probabilities": {}},
    "multi_label": {"labels": [], "probabilities": {}},
    "regression": {"value": None},
}


def predicted(tuned, *examples):
    return predict_examples(tuned.model, tuned.task, examples, tuned.tokenizer, max_length=tuned.max_length)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_pairs_that_fit_are_judged_as_in_evaluation(make_tuned, family, assert_alike):
    tuned, folder = make_tuned(FAMILIES[family])
    model = load(folder)
    assert model.abilities == ("embed", "classify")
    assert model.labels == FAMILIES[family].labels()
    texts, pairs = ["the old river", "", "music"], ["a small city", "café", ""]
    alone = [TextExample(**WHERE, text=text) for text in texts]
    both = [TextExample(**WHERE, text=a, text_pair=b) for a, b in zip(texts, pairs, strict=True)]
    expected = predicted(tuned, *alone)
    expected[1] = NOTHING[family]
    assert_alike(model.classify(texts), expected)
    assert_alike(model.classify(texts, pairs), predicted(tuned, *both))
    assert model.classify([""], [" "]) == [NOTHING[family]]
    assert model.classify([]) == []


def test_a_long_text_gets_the_mean_of_its_windows(make_tuned, make_text):
    tuned, folder = make_tuned(FAMILIES["classification"])
    text = make_text(60)
    ids = tuned.tokenizer.encode([text]).ids
    found = windows(len(ids), room=22)
    assert len(found) > 2
    pieces = [tuned.tokenizer.tokens(ids[window.start : window.stop]) for window in found]
    assert not any(token.startswith("##") for piece in pieces for token in piece[:1])
    examples = [TextExample(**WHERE, text=tuned.tokenizer.decode(ids[w.start : w.stop])) for w in found]
    rows = tuned.family.rows(examples, tuned.tokenizer, max_length=24)
    outputs = outputs_of(tuned.model, tuned.task, rows, pad_id=tuned.tokenizer.pad_id)
    mean = np.average(outputs, axis=0, weights=[window.num_judged for window in found])
    (answer,) = load(folder).classify([text])
    assert list(answer["probabilities"].values()) == pytest.approx(mean.tolist(), abs=1e-5)
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-6)


def test_the_end_of_a_long_text_counts(make_tuned, make_text):
    _, folder = make_tuned(FAMILIES["regression"])
    model = load(folder)
    first, last = make_text(80, seed=1), make_text(20, seed=2)
    one, other = model.classify([first, f"{first} {last}"])
    assert one["value"] != pytest.approx(other["value"], abs=1e-4)
    one, other = model.classify(["river", "river"], [first, f"{first} {last}"])
    assert one["value"] != pytest.approx(other["value"], abs=1e-4)


@pytest.mark.parametrize(
    ("lengths", "num_windows"),
    [
        ((5, 5), (1, 1)),
        ((5, 40), (1, 5)),
        ((40, 5), (5, 1)),
        ((40, 0), (3, 0)),
        ((0, 40), (0, 3)),
        ((0, 0), (0, 0)),
    ],
)
def test_of_a_pair_only_the_longer_text_is_cut(lengths, num_windows):
    found = pair_windows(*lengths, max_length=20)
    sides = [{part.first for part in found}, {part.second for part in found}]
    for side, length, expected in zip(sides, lengths, num_windows, strict=True):
        judged = sorted((window.judged, window.judged_stop) for window in side)
        assert sum(stop - start for start, stop in judged) == length
        assert len([window for window in side if window.stop]) == expected
    for part in found:
        num_tokens = sum(window.stop - window.start for window in part)
        assert num_tokens + (3 if lengths[1] else 2) <= 20


def test_two_long_texts_meet_in_all_their_windows():
    found = pair_windows(30, 30, max_length=20)
    assert len(found) == len({part.first for part in found}) * len({part.second for part in found}) > 9
    assert sum(part.weight for part in found) == 30 * 30


@pytest.mark.parametrize("lengths", [(3_000, 3_000), (3_000, 300), (300, 3_000), (200, 180)])
def test_the_time_for_two_long_texts_grows_with_their_length(lengths):
    found = pair_windows(*lengths, max_length=20)
    sides = [{part.first for part in found}, {part.second for part in found}]
    for side, length in zip(sides, lengths, strict=True):
        assert sum(window.num_judged for window in side) == length
    most = max(map(len, sides))
    assert most <= len(found) == len(set(found)) <= max(MAX_PAIR_WINDOWS, most)
    # No window of either text counts much more than another.
    for place, side in enumerate(sides):
        times = Counter(part[place] for part in found)
        assert set(times) == side
        assert max(times.values()) <= 2 * min(times.values())


def test_two_long_texts_that_are_not_too_long_meet_in_all_their_windows():
    found = pair_windows(50, 50, max_length=20)
    sides = [{part.first for part in found}, {part.second for part in found}]
    assert len(found) == math.prod(map(len, sides)) <= MAX_PAIR_WINDOWS
    assert found == sorted(found)


def test_a_fine_tuned_model_stops_when_nobody_waits_for_it(make_tuned, make_text):
    _, folder = make_tuned(Classification(("bad", "good")))
    model = load(folder)
    texts = [make_text(2_000, seed=seed) for seed in range(20)]
    asked = []
    with computing_while(lambda: len(asked.append(1) or asked) < 3), pytest.raises(AbandonedError):
        model.classify(texts)
    assert len(asked) == 3


def test_similarity_is_the_cosine(make_tuned, assert_alike):
    for pooling in ("mean", "cls"):
        tuned, folder = make_tuned(Similarity(pooling=pooling))
        model = load(folder)
        texts, pairs = ["the old river", "music"], ["a small river", "café music"]
        examples = [TextExample(**WHERE, text=a, text_pair=b) for a, b in zip(texts, pairs, strict=True)]
        assert_alike(model.similarity(texts, pairs), predicted(tuned, *examples))
        cosine = np.dot(*(model.embed([text])[0] for text in (texts[0], pairs[0])))
        assert model.similarity(texts, pairs)[0]["similarity"] == pytest.approx(cosine, abs=1e-6)
        assert model.similarity(["", "a"], ["a", "a"]) == [
            {"similarity": 0.0},
            {"similarity": pytest.approx(1)},
        ]


def test_words_are_tagged_as_in_evaluation(make_tuned):
    tuned, folder = make_tuned(Tagging(("ADJ", "DET", "NOUN"), "tokens"))
    model = load(folder)
    words = ["The", "café", "don't", "日本"]
    (expected,) = predicted(tuned, TaggingExample(**WHERE, words=tuple(words), tags=None))
    given, text, empty, blank = model.tag([words, "The café, (日本) ", [], " "])
    assert [word["tag"] for word in given["words"]] == expected["tags"]
    assert [word["text"] for word in given["words"]] == words
    assert given["chunks"] == []
    for answer in (given, text):
        for word in answer["words"]:
            assert answer["text"][word["start"] : word["end"]] == word["text"]
    assert [word["text"] for word in text["words"]] == ["The", "café", ",", "(", "日", "本", ")"]
    assert empty == {"text": "", "words": [], "chunks": []}
    assert blank == {"text": " ", "words": [], "chunks": []}


def test_chunks_lead_back_to_the_text(make_tuned, make_text):
    _, folder = make_tuned(Tagging(("B-X", "I-X", "E-X", "S-X", "O"), "entities"))
    text = make_text(150)
    (answer,) = load(folder).tag([text])
    assert len(answer["words"]) == len(text.replace("日本語", "日 本 語").split())
    assert answer["chunks"]
    starts = {word["start"]: word["tag"] for word in answer["words"]}
    for chunk in answer["chunks"]:
        assert text[chunk["start"] : chunk["end"]] == chunk["text"]
        assert starts[chunk["start"]] == "B-X"
        assert chunk["type"] == "X"
    tags = [word["tag"] for word in answer["words"]]
    assert len(answer["chunks"]) == tags.count("B-X")


@pytest.mark.parametrize("answerability", ["on", "off"])
def test_answers_are_those_of_evaluation(make_tuned, make_text, answerability):
    # So that something is always answered: random weights are often in doubt.
    family = QuestionAnswering(answerability=answerability, max_query_length=8, null_threshold=1e9)
    tuned, folder = make_tuned(family)
    model = load(folder)
    questions = ["the old river was", "", "music", "a city"]
    contexts = [make_text(90), make_text(20), " ", "The café, naïve!"]
    found = model.answer(questions, contexts)
    for number in (0, 3):
        example = AnswerExample(**WHERE, question=questions[number], context=contexts[number])
        (expected,) = predicted(tuned, example)
        assert contexts[number][found[number]["start"] : found[number]["end"]] == found[number]["text"]
        assert found[number]["text"] == expected["answer"]
        assert found[number]["score"] == pytest.approx(expected["n_best"][0]["probability"], abs=1e-5)
        if answerability == "on":
            share = 1 / (1 + math.exp(-expected["null_odds"]))
            assert found[number]["no_answer"] == pytest.approx(share, abs=1e-5)
        else:
            assert found[number]["no_answer"] is None
    nothing = {"text": "", "start": None, "end": None, "score": 0.0, "no_answer": 1.0}
    assert found[1] == found[2] == nothing


def test_a_model_in_doubt_gives_no_answer(make_tuned):
    tuned, _ = make_tuned(QuestionAnswering(answerability="on", null_threshold=-1e9))
    _, folder = make_tuned(tuned.family)
    (answer,) = load(folder).answer(["river"], ["the old river"])
    assert (answer["text"], answer["start"], answer["end"]) == ("", None, None)
    assert 0 < answer["no_answer"] < 1


def test_a_question_is_not_cut(make_tuned, make_text):
    _, folder = make_tuned(QuestionAnswering(answerability="off", max_query_length=8))
    with pytest.raises(InputError, match=r"questions\[1\].*\d+.*\b8\b"):
        load(folder).answer(["river", make_text(20)], ["the old river"] * 2)


def test_choices_are_those_of_evaluation(make_tuned):
    tuned, folder = make_tuned(MultipleChoice())
    model = load(folder)
    assert model.abilities == ("embed", "choose")
    questions = ["the old river", "music", ""]
    choices = [["a city", "café", "the music was"], ["old", "small"], ["", "river"]]
    examples = [
        ChoiceExample(**WHERE, prompt=question, choices=tuple(of_question))
        for question, of_question in zip(questions, choices, strict=True)
    ]
    found = model.choose(questions, choices)
    for answer, expected, of_question in zip(found, predicted(tuned, *examples), choices, strict=True):
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert answer["choice"] == expected["choice"]
        assert answer["text"] == of_question[expected["choice"]]
    assert model.choose([], []) == []
    assert model.ask("choose", questions=questions, choices=choices) == found


def test_the_end_of_a_long_question_and_of_a_long_choice_counts(make_tuned, make_text):
    _, folder = make_tuned(MultipleChoice())
    model = load(folder)
    long, longer = make_text(80, seed=1), f"{make_text(80, seed=1)} {make_text(20, seed=2)}"
    one, other = model.choose([long, longer], [["river", "music"]] * 2)
    assert one["probabilities"] != pytest.approx(other["probabilities"], abs=1e-5)
    one, other = model.choose(["river"] * 2, [[long, "music"], [longer, "music"]])
    assert one["probabilities"] != pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("choices", "place"),
    [([["a"]], r"choices\[0\].*\b1\b"), (["ab"], r"choices\[0\]"), ("ab", "choices"), ([["a", 1]], r"\[1\]")],
)
def test_fewer_than_two_choices_are_refused(make_tuned, choices, place):
    _, folder = make_tuned(MultipleChoice())
    with pytest.raises(InputError, match=place):
        load(folder).choose(["river"], choices)
    with pytest.raises(InputError, match=r"1 questions.*2 choices"):
        load(folder).choose(["river"], [["a", "b"]] * 2)


def test_a_model_has_only_its_own_ability(make_tuned):
    _, folder = make_tuned(FAMILIES["classification"])
    model = load(folder)
    with pytest.raises(InputError, match=r"\btag\b.*embed, classify"):
        model.tag(["a"])
    with pytest.raises(InputError, match=r"\bsimilarity\b"):
        model.similarity(["a"], ["a"])
    with pytest.raises(InputError, match=r"1 texts.*2 pairs"):
        model.classify(["a"], ["a", "b"])
    assert dataclasses.is_dataclass(model)


def once(values):
    """What can be gone through one time, as a generator."""
    return (once(value) if isinstance(value, list) else value for value in values)


@pytest.mark.parametrize(
    ("family", "ability", "fields"),
    [
        (FAMILIES["classification"], "embed", {"texts": ["the old river", "music"]}),
        (FAMILIES["classification"], "classify", {"texts": ["the old river", "music"]}),
        (FAMILIES["multi_label"], "classify", {"texts": ["the old river"], "pairs": ["a small city"]}),
        (FAMILIES["regression"], "classify", {"texts": ["the old river"], "pairs": ["a small city"]}),
        (Similarity(), "similarity", {"texts": ["the old river"], "pairs": ["a small city"]}),
        (Tagging(("A", "B"), "tokens"), "tag", {"texts": ["the old river", ["small", "city"], "music"]}),
        (
            QuestionAnswering(answerability="off"),
            "answer",
            {"questions": ["old"], "contexts": ["the old river"]},
        ),
        (MultipleChoice(), "choose", {"questions": ["old"], "choices": [["river", "city", "music"]]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_yields_texts_is_as_good_as_a_list(tuned_once, family, ability, fields):
    model = load(tuned_once(family)[1])
    found = getattr(model, ability)(**{name: once(values) for name, values in fields.items()})
    assert found == getattr(model, ability)(**fields)
    assert found == model.ask(ability, **{name: once(values) for name, values in fields.items()})
    first = next(iter(fields))
    with pytest.raises(InputError, match=rf"{first} is of type int, expected a list"):
        model.ask(ability, **{**fields, first: 3})
