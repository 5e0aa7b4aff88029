import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.prediction.load import load

pytestmark = pytest.mark.numeric

TEXTS = [
    "The old river was in a small city.",
    "",
    "café 日本語 🙂 don't",
    " \n",
    "music",
    "e\u0301tude, naïve",
]


@pytest.fixture(scope="module")
def model(run):
    return load(run)


@pytest.mark.slow
@given(text=st.text(max_size=30) | st.text(alphabet="aé日🙂. \u0301", min_size=50, max_size=150))
def test_tokens_of_any_text_lead_back_to_it(model, text):
    (answer,) = model.detect([text])
    assert answer["text"] == text
    assert len(answer["tokens"]) == len(model.tokenizer.encode([text]).ids)
    done = 0
    for token in answer["tokens"]:
        assert done <= token["start"] <= token["end"]
        assert text[token["start"] : token["end"]] == token["text"]
        assert 0 <= token["replaced"] <= 1
        done = token["end"]


def numbers_in(value):
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, float) else []


METHODS = {
    "detect": lambda model, texts: model.detect(texts),
    "fill": lambda model, texts: model.fill([f"{text} [MASK] {text}" for text in texts], top=3),
    "corrupt": lambda model, texts: model.corrupt(texts),
    "embed": lambda model, texts: model.embed(texts),
    "score": lambda model, texts: model.score(texts, tokens="show"),
    "choose": lambda model, texts: model.choose(texts, options=["old", "a small city", "café"]),
}


@pytest.mark.parametrize("method", METHODS)
def test_batching_changes_nothing(model, make_text, method):
    texts = [*TEXTS, *(make_text(3 + 17 * number % 50, seed=number) for number in range(12)), make_text(120)]
    together = METHODS[method](model, texts)
    alone = [answer for text in texts for answer in METHODS[method](model, [text])]
    assert len(together) == len(texts)
    found, expected = numbers_in(together), numbers_in(alone)
    assert found
    # Scores are sums of log-probabilities, none of which is above 0: rounding grows with them.
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    json.dumps(together, allow_nan=False)


@pytest.mark.parametrize("ability", ["detect", "fill", "corrupt", "embed", "score"])
def test_whatever_yields_texts_is_as_good_as_a_list(model, ability):
    texts = [text for text in TEXTS if text.strip()]
    assert getattr(model, ability)(text for text in texts) == getattr(model, ability)(texts)
    assert getattr(model, ability)(dict.fromkeys(texts)) == getattr(model, ability)(tuple(texts))


@pytest.mark.parametrize("method", METHODS)
def test_threads_may_share_a_model(model, make_text, method):
    many = [[make_text(20, seed=10 * number + part) for part in range(3)] for number in range(6)]
    expected = [METHODS[method](model, texts) for texts in many]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda texts: METHODS[method](model, texts), many)) == expected


def test_an_empty_text_has_an_empty_answer(model):
    assert model.detect(["", " "]) == [{"text": "", "tokens": []}, {"text": " ", "tokens": []}]
    assert model.fill([""]) == [{"text": "", "masks": []}]
    assert model.fill(["no gap"]) == [{"text": "no gap", "masks": []}]
    assert model.corrupt([""]) == [{"text": "", "corrupted": "", "tokens": []}]
    assert model.detect([]) == model.fill([]) == model.corrupt([]) == model.embed([]) == []


@pytest.mark.parametrize("method", ["detect", "fill", "corrupt", "score", "embed"])
def test_a_single_string_is_refused(model, method):
    with pytest.raises(InputError, match=r"texts.*\['the river'\]"):
        getattr(model, method)("the river")


def test_candidates_are_counted(model):
    (answer,) = model.fill(["the [MASK]"], top=3)
    shares = [one["probability"] for one in answer["masks"][0]["candidates"]]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    (answer,) = model.fill(["the [MASK]"], top=10**6)
    assert len(answer["masks"][0]["candidates"]) == model.tokenizer.vocab_size
    with pytest.raises(InputError, match=r"top.*\b0\b"):
        model.fill(["[MASK]"], top=0)


def test_it_says_what_it_can(model, run):
    assert model.abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    assert repr(model) == f"Model('{run}', abilities={model.abilities})"
    assert model.labels == ()
    for call in (lambda: model.classify(["a"]), lambda: model.tag("a"), lambda: model.answer(["a"], ["a"])):
        with pytest.raises(InputError, match=r"embed, detect, fill, corrupt, score"):
            call()
