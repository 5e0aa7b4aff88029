import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.predict.load import load
from electra.predict.pretrained import fuse, splice
from electra.text.spans import locate

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def model(run):
    return load(run)


def spliced(text, tokenizer, changes):
    """The text with tokens replaced by their number."""
    (tokens,) = locate([text], tokenizer)
    ids = {token: number for number, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    new_T = tokens.ids_T.copy()
    for place, token in changes.items():
        new_T[place] = ids[token]
    return splice(text, tokens, new_T, tokenizer, tokenizer.continues_word())


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("The  OLD River!", {1: "small"}, "The  small River!"),
        ("The old\triver", {0: "river", 2: "the"}, "river old\tthe"),
        # A piece that continues a word is joined to what stands before it.
        ("the old river", {1: "##s"}, "thes river"),
        ("old", {0: "##s"}, "s"),
        # A new word beside another does not grow together with it, in front or behind.
        ("river.", {1: "city"}, "river city"),
        ("(old)", {0: "the", 2: "river"}, "the old river"),
        ("a-a", {1: "the"}, "a the a"),
        ("(old)", {1: "river"}, "(river)"),
        ("日本語", {1: "日"}, "日日語"),
        ("日本語", {1: "the"}, "日the語"),
        ("cafe\u0301 the", {0: "old"}, "old the"),
        ("", {}, ""),
        (" \t", {}, " \t"),
    ],
)
def test_only_replaced_tokens_change(tokenizer, text, changes, expected):
    found = spliced(text, tokenizer, changes)
    assert found.text == expected
    for place, token in changes.items():
        start, end = found.spans[place]
        assert found.text[start:end] == token.removeprefix("##")


@given(text=st.text(alphabet="the old rivé日🙂.,()\t", max_size=60), seed=st.integers(0, 50))
def test_the_rest_of_the_text_stays_as_it_was(model, text, seed):
    (turn,) = model.corrupt([text], seed=seed, mask_prob=0.3)
    assert turn["text"] == text
    kept, done, corrupted_done = [], 0, 0
    for token in turn["tokens"]:
        assert text[token["start"] : token["end"]] == token["text"]
        now = turn["corrupted"][token["corrupted_start"] : token["corrupted_end"]]
        if token["replaced"]:
            assert token["masked"]
            assert token["original"] != token["corrupted"]
            assert now == token["corrupted"].removeprefix("##")
        else:
            assert token["original"] == token["corrupted"]
            assert now == token["text"]
        kept.append(
            (text[done : token["start"]], turn["corrupted"][corrupted_done : token["corrupted_start"]])
        )
        done, corrupted_done = token["end"], token["corrupted_end"]
    assert text[done:] == turn["corrupted"][corrupted_done:]
    for before, after in kept:
        assert before == after or {before.strip(), after.strip()} == {""}
    if not any(token["replaced"] for token in turn["tokens"]):
        assert turn["corrupted"] == text


def test_a_turn_is_a_function_of_text_and_seed(model, make_text):
    texts = [make_text(60, seed=seed) for seed in range(4)]
    together = model.corrupt(texts, seed=1)
    assert together == model.corrupt(texts, seed=1)
    for text, turn in zip(texts, together, strict=True):
        (alone,) = model.corrupt([text], seed=1)
        assert alone["corrupted"] == turn["corrupted"]
    assert [turn["corrupted"] for turn in together] != [
        turn["corrupted"] for turn in model.corrupt(texts, seed=2)
    ]
    json.dumps(together, allow_nan=False)


def test_as_many_tokens_are_masked_as_asked_for(model, tokenizer, make_text):
    text = make_text(200)
    num_tokens = len(tokenizer.encode([text]).ids)
    for share in (0.15, 0.5, 1.0):
        (turn,) = model.corrupt([text], mask_prob=share)
        assert sum(token["masked"] for token in turn["tokens"]) == round(share * num_tokens)
    (turn,) = model.corrupt(["river"])
    assert [token["masked"] for token in turn["tokens"]] == [True]
    for wrong in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"mask_prob is .*, expected above 0"):
            model.corrupt([text], mask_prob=wrong)


def test_the_discriminator_judges_the_corrupted_text(model, make_text):
    (turn,) = model.corrupt([make_text(20)], mask_prob=0.4)
    ids = model.tokenizer.tokens(range(model.tokenizer.vocab_size))
    new_T = np.array([ids.index(token["corrupted"]) for token in turn["tokens"]], np.uint32)
    (expected,) = model.discriminator.suspicions([new_T])
    assert [token["suspicion"] for token in turn["tokens"]] == pytest.approx(expected.tolist(), abs=1e-6)
    assert any(token["replaced"] for token in turn["tokens"])


def test_what_would_be_read_as_one_word():
    assert fuse("a", "b")
    assert fuse("9", "é")
    assert not fuse("a", ".")
    assert not fuse("日", "a")
    assert not fuse("", "a")
