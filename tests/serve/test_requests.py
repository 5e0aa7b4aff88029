import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.serve.app import build_app
from electra.serve.errors import ApiError
from electra.serve.limits import Limits
from electra.serve.requests import (
    ENDPOINTS,
    MAX_CANDIDATES,
    bounds_schema,
    endpoint_of,
    make_call,
    pair_cost,
)
from electra.tasks.families.table import task_abilities
from running import ask, serving

ABILITIES = (*ENDPOINTS, *(name for name in task_abilities() if name not in ENDPOINTS))
LIMITS = Limits(max_texts=8, max_characters=1_000, max_options=4, max_option_characters=30)


def read(ability, body, *, limits=LIMITS, is_tuned=True):
    request = endpoint_of(ability, is_tuned=is_tuned).request.model_validate(body)
    return make_call(ability, request, limits, row_length=32)


def test_a_body_becomes_a_call():
    call = read("corrupt", {"texts": ["a", "bcd"], "seed": 7})
    assert call.ability == "corrupt"
    assert call.columns == {"texts": ["a", "bcd"]}
    assert call.options == {"mask_prob": 0.15, "seed": 7}
    assert (call.size, call.cost) == (2, 4)


def test_pairs_are_a_column_if_they_are_given():
    alone = read("classify", {"texts": ["abc"]})
    assert (alone.options, alone.cost) == ({"pairs": None}, 3)
    both = read("classify", {"texts": ["a"], "pairs": ["b"]})
    assert (both.columns, both.options, both.cost) == ({"texts": ["a"], "pairs": ["b"]}, {}, 2)


def test_words_may_come_cut():
    call = read("tag", {"texts": ["one text", ["two", "words"]]})
    assert call.columns == {"texts": ["one text", ["two", "words"]]}
    assert call.cost == 8 + 4 + 6


def test_a_question_is_read_with_each_of_its_choices():
    call = read("choose", {"questions": ["abcd"], "choices": [["e", "fg", ""]]})
    assert call.columns == {"questions": ["abcd"], "choices": [["e", "fg", ""]]}
    assert call.cost == 3 * 4 + 3 + 3


def test_a_text_is_read_once_more_for_each_masked_token():
    text, long = "a" * 40, "a" * 400
    assert read("score", {"texts": [text], "by": "detection"}).cost == 40
    for by in ("auto", "pseudo_likelihood", "both"):
        assert read("score", {"texts": [text, text], "by": by}).cost == 2 * (40 + 10 * 40)
    many = Limits(max_characters=100_000)
    # In a window of 32 tokens.
    assert read("score", {"texts": [long]}, limits=many).cost == 400 + 100 * 4 * 32


def test_two_long_texts_cost_more_than_their_characters():
    short, long = "a" * 10, "a" * 1_000
    assert pair_cost([short, short], [short, long], row_length=100) == 20 + 1_010
    assert pair_cost([long], [long], row_length=100) == 20_000
    # Up to a number of rows, and then as their length.
    assert pair_cost([long * 3], [long * 3], row_length=100) == 64 * 4 * 100
    assert pair_cost([long * 300], [long], row_length=100) == 3 * 300_000


@pytest.mark.parametrize("ability", ABILITIES)
def test_the_example_of_the_description_is_right(ability):
    example = endpoint_of(ability, is_tuned=True).example
    assert read(ability, example).size == len(example.get("texts") or example["questions"])


@pytest.mark.parametrize("ability", ABILITIES)
def test_the_description_has_the_limits_of_the_server(ability):
    schema = endpoint_of(ability, is_tuned=True).request.model_json_schema()
    assert schema["additionalProperties"] is False
    bounds = bounds_schema(endpoint_of(ability, is_tuned=True), LIMITS)["properties"]
    assert set(bounds) == set(schema["properties"]) & {
        *("texts", "pairs", "questions", "contexts", "choices")
    }
    assert all(bound == {"maxItems": 8} for bound in bounds.values())


class Part:
    """Stands in for the parts of a model that the app looks at."""

    max_length, task = 32, "everything"


class Everything:
    """A model that has every ability, for tests of what comes before the model."""

    path, labels, tuned, reader, task_ability = "everything", (), Part, Part, None
    abilities = ABILITIES

    def tag(self, texts):
        joined = (text if isinstance(text, str) else " ".join(text) for text in texts)
        return [{"text": text, "words": [], "chunks": []} for text in joined]

    def fill(self, texts, top):
        return [{"text": text, "masks": []} for text in texts]

    def ask(self, ability, **fields):
        return getattr(self, ability)(**fields)

    def __getattr__(self, ability):
        """What has to be refused must not get here."""
        raise AttributeError(ability)


@pytest.fixture(scope="module")
def url():
    with serving(build_app(Everything(), limits=LIMITS)) as address:
        yield address


REFUSED = [
    ("choose", {"questions": ["a"], "choices": ["b"]}, "choices[0]"),
    ("choose", {"questions": ["a"], "choices": [["b", 1]]}, "choices[0][1]"),
    ("choose", {"questions": ["a"], "choices": [["b", "c"]] * 2}, "choices"),
    ("choose", {"questions": ["a" * 300], "choices": [["b"] * 4]}, "questions"),
    ("choose", b'{"questions": ["a"], "choices": [["b", "\\ud800"]]}', "choices[0][1]"),
    ("detect", b"", "body"),
    ("detect", b"{", "body"),
    ("detect", b"[]", "body"),
    ("detect", b"null", "body"),
    ("detect", b"[" * 100_000, "body"),
    ("detect", b'{"texts":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
    ("detect", b'{"texts": ["\xff\xfe"]}', "body"),
    ("detect", b'{"texts": ["\xed\xa0\x80"]}', "texts[0]"),
    ("detect", rb'{"texts": ["\ud800"]}', "texts[0]"),
    ("detect", rb'{"texts": [], "\ud800": 1}', "?"),
    ("tag", rb'{"texts": ["a", ["b", "\ud800"]]}', "texts[1]"),
    ("detect", b'{"texts": ' + b"1" * 5_000 + b"}", "body"),
    ("detect", {}, "texts"),
    ("detect", {"texts": None}, "texts"),
    ("detect", {"texts": "a text"}, "texts"),
    ("detect", {"texts": ["a", 1]}, "texts[1]"),
    ("detect", {"texts": ["a"], "top": 1}, "top"),
    ("detect", {"texts": ["a"] * 9}, "texts"),
    ("detect", {"texts": ["a" * 600, "b" * 600]}, "texts"),
    ("fill", {"texts": ["a"], "top": 0}, "top"),
    ("fill", {"texts": ["a"], "top": "5"}, "top"),
    ("fill", {"texts": ["a"], "top": True}, "top"),
    ("corrupt", {"texts": ["a"], "mask_prob": 0}, "mask_prob"),
    ("corrupt", {"texts": ["a"], "mask_prob": 1.5}, "mask_prob"),
    ("corrupt", b'{"texts": ["a"], "mask_prob": NaN}', "mask_prob"),
    ("corrupt", b'{"texts": ["a"], "mask_prob": 1e999}', "mask_prob"),
    ("corrupt", {"texts": ["a"], "seed": -1}, "seed"),
    ("corrupt", {"texts": ["a"], "seed": 2**64}, "seed"),
    ("embed", {"texts": ["a"], "pooling": "median"}, "pooling"),
    ("score", {"texts": ["a"], "by": "luck"}, "by"),
    ("score", {"texts": ["a"], "tokens": True}, "tokens"),
    ("similarity", {"texts": ["a"]}, "pairs"),
    ("similarity", {"texts": ["a"], "pairs": []}, "pairs"),
    ("classify", {"texts": ["a"], "pairs": ["b", "c"]}, "pairs"),
    ("classify", {"texts": ["a" * 300], "pairs": ["b" * 300]}, "texts"),
    ("tag", {"texts": [["a", 1]]}, "texts[0]"),
    ("tag", {"texts": [[""] * 1_001]}, "texts"),
    ("answer", {"questions": ["a"], "contexts": []}, "contexts"),
]


@pytest.mark.parametrize(("ability", "body", "field"), REFUSED)
def test_what_is_wrong_is_refused_by_its_name(url, ability, body, field):
    answer = ask(url, f"/{ability}", body)
    assert answer.status == 422
    assert answer.error["field"].startswith(field)
    assert len(answer.error["message"]) < 400


@pytest.mark.parametrize(
    ("ability", "name", "nearest"), [("detect", "text", "texts"), ("answer", "context", "contexts")]
)
def test_an_unknown_field_is_refused_with_the_nearest_one(url, ability, name, nearest):
    answer = ask(url, f"/{ability}", {**endpoint_of(ability, is_tuned=True).example, name: "secret"})
    assert (answer.status, answer.error["field"]) == (422, name)
    assert f"'{nearest}'" in answer.error["message"]
    assert "secret" not in answer.error["message"]


def test_a_misspelt_field_is_not_called_missing(url):
    assert ask(url, "/detect", {"text": ["a"]}).error["field"] == "text"


def test_candidates_are_bounded():
    limits = Limits()
    text = "[MASK]" * (MAX_CANDIDATES // 100)
    assert read("fill", {"texts": [text], "top": 100}, limits=limits).size == 1
    with pytest.raises(ValueError, match=r"top\n"):
        read("fill", {"texts": [text, "[MASK]"], "top": 100}, limits=limits)
    with pytest.raises(ValueError, match=r"top\n"):
        read("fill", {"texts": ["[MASK]" * (MAX_CANDIDATES // 5 + 1)]}, limits=limits)


def test_limits_are_those_of_the_server():
    body = {"texts": ["a"] * 20}
    assert read("detect", body, limits=Limits(max_texts=20)).size == 20
    with pytest.raises(ApiError) as caught:
        read("detect", body, limits=Limits(max_texts=19))
    assert (caught.value.status_code, caught.value.error.field) == (422, "texts")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: json.dumps({"texts": [text]}).encode()))
def test_any_bytes_get_results_or_an_error(url, body):
    answer = ask(url, "/tag", body)
    assert answer.status in (200, 422)
    if answer.status == 200:
        assert [result["text"] for result in answer.content["results"]] == json.loads(body)["texts"]
    else:
        assert answer.error["field"]


def options(**changes):
    """The body of a pre-trained model's `choose`."""
    return {"texts": ["abcd", "ef"], "options": ["good", "bad"], **changes}


def test_a_text_is_read_with_each_option():
    call = read("choose", options(by="detection"), is_tuned=False)
    assert call.columns == {"texts": ["abcd", "ef"]}
    assert call.options == {"options": ["good", "bad"], "template": "It was {}.", "by": "detection"}
    assert (call.size, call.cost) == (2, 2 * (6 + 2 * len("It was {}.") + len("goodbad")))
    # One more reading for each token of an option, roughly.
    slower = read("choose", options(by="auto"), is_tuned=False)
    assert slower.cost == call.cost + 6 + 2 * len("It was {}.good")
    with pytest.raises(ApiError) as caught:
        read("choose", options(texts=["a" * 500]), is_tuned=False)
    assert (caught.value.status_code, caught.value.error.field) == (422, "texts")


def test_a_text_that_is_read_several_times_costs_more():
    request = endpoint_of("classify", is_tuned=True).request.model_validate({"texts": ["abc"]})
    assert make_call("classify", request, LIMITS, row_length=32, num_readings=5).cost == 15


def test_options_are_bounded_and_described():
    endpoint = endpoint_of("choose", is_tuned=False)
    assert bounds_schema(endpoint, LIMITS)["properties"] == {
        "texts": {"maxItems": 8},
        "options": {"maxItems": 4},
    }
    assert endpoint.request.model_json_schema()["properties"]["options"]["minItems"] == 2


class PreTrained(Everything):
    tuned, abilities = None, tuple(ENDPOINTS)


@pytest.fixture(scope="module")
def pretrained_url():
    with serving(build_app(PreTrained(), limits=LIMITS)) as address:
        yield address


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"options": ["a", "b", "c", "d", "e"]}, "options"),
        ({"options": ["a"]}, "options"),
        ({"options": ["a", 1]}, "options[1]"),
        ({"options": ["a", "b" * 31]}, "options[1]"),
        ({"options": "ab"}, "options"),
        ({"options": ["a", "\udc80"]}, "options[1]"),
        ({"template": "{}" + "a" * 30}, "template"),
        ({"template": 3}, "template"),
        ({"by": "both"}, "by"),
        ({"choices": [["a", "b"]]}, "choices"),
        ({"texts": ["a"] * 9}, "texts"),
    ],
)
def test_wrong_options_are_refused_by_their_name(pretrained_url, changes, field):
    answer = ask(pretrained_url, "/choose", json.dumps(options(**changes)).encode())
    assert (answer.status, answer.error["field"]) == (422, field)
