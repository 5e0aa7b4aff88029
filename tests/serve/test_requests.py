import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.serve.errors import RefusalError
from electra.serve.limits import Limits
from electra.serve.requests import MAX_CANDIDATES, REQUESTS, body_schema, read_call

LIMITS = Limits(max_texts=8, max_characters=1_000)


def read(ability, body, *, limits=LIMITS):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_call(ability, raw, limits, row_length=32)


def test_a_body_becomes_a_call():
    call = read("corrupt", {"texts": ["a", "bcd"], "seed": 7})
    assert call.ability == "corrupt"
    assert call.columns == {"texts": ["a", "bcd"]}
    assert call.options == {"mask_prob": 0.15, "seed": 7}
    assert (call.size, call.cost) == (2, 4)


def test_pairs_are_a_column_if_they_are_given():
    assert read("classify", {"texts": ["a"]}).options == {"pairs": None}
    both = read("classify", {"texts": ["a"], "pairs": ["b"]})
    assert (both.columns, both.options) == ({"texts": ["a"], "pairs": ["b"]}, {})


def test_words_may_come_cut():
    call = read("tag", {"texts": ["one text", ["two", "words"]]})
    assert call.columns == {"texts": ["one text", ["two", "words"]]}
    assert call.cost == 8 + 4 + 6


@pytest.mark.parametrize(
    ("ability", "body", "field"),
    [
        ("detect", b"", "body"),
        ("detect", b"{", "body"),
        ("detect", b"[]", "body"),
        ("detect", b"null", "body"),
        ("detect", b"[" * 100_000, "body"),
        ("detect", b'{"texts":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
        ("detect", b'{"texts": ["\xff\xfe"]}', "body"),
        ("detect", b'{"texts": ["\xed\xa0\x80"]}', "body"),
        ("detect", rb'{"texts": ["\ud800"]}', "body"),
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
        ("similarity", {"texts": ["a"]}, "pairs"),
        ("similarity", {"texts": ["a"], "pairs": []}, "pairs"),
        ("classify", {"texts": ["a"], "pairs": ["b", "c"]}, "pairs"),
        ("classify", {"texts": ["a" * 300], "pairs": ["b" * 300]}, "texts"),
        ("tag", {"texts": [["a", 1]]}, "texts[0]"),
        ("tag", {"texts": [[""] * 1_001]}, "texts"),
        ("answer", {"questions": ["a"], "contexts": []}, "contexts"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(ability, body, field):
    with pytest.raises(RefusalError) as caught:
        read(ability, body)
    assert caught.value.status == 422
    assert (caught.value.error.field or "").startswith(field)
    assert len(caught.value.error.message) < 400


def test_a_message_does_not_repeat_the_text():
    with pytest.raises(RefusalError) as caught:
        read("detect", {"texts": ["fine"], "private": "secret"})
    assert "secret" not in caught.value.error.message


def test_candidates_are_bounded():
    limits = Limits()
    text = "[MASK]" * (MAX_CANDIDATES // 100)
    assert read("fill", {"texts": [text], "top": 100}, limits=limits).size == 1
    with pytest.raises(RefusalError, match="ask for fewer"):
        read("fill", {"texts": [text, "[MASK]"], "top": 100}, limits=limits)


@pytest.mark.parametrize("ability", REQUESTS)
def test_the_example_of_the_description_is_right(ability):
    schema = body_schema(ability, LIMITS)
    (example,) = schema["examples"]
    assert read(ability, example).size == len(example.get("texts") or example["questions"])
    assert schema["additionalProperties"] is False
    assert '"maxItems": 8' in json.dumps(schema)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: json.dumps({"texts": [text]}).encode()))
def test_any_bytes_are_a_call_or_a_refusal(body):
    # Nothing else may be raised.
    with contextlib.suppress(RefusalError):
        assert read("tag", body).columns["texts"] == json.loads(body)["texts"]
