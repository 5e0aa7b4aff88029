"""Phrases that a generator of `replaced_span` rewrites as one."""

import json

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.phrases import PhraseRule, choose_phrases

pytestmark = pytest.mark.numeric

TEXT = "The old river was in a small city, and the new model is fast to read."


def settings(length, max_tokens=4):
    return {
        "config": {
            "objective": "replaced_span",
            "replaced_span": {"max_tokens": max_tokens, "length": length},
            "masking": {"max_span_words": 3},
        },
        "seq_length": 32,
    }


@pytest.fixture(scope="module", params=["original", "own"])
def length(request):
    return request.param


@pytest.fixture(scope="module")
def model(make_run, length):
    found = load(make_run("replaced_span", facts=settings(length)))
    if length == "own":
        # Of a generator that has learned nothing hardly any phrase would end.
        with torch.no_grad():
            found.generator.head.bias[found.tokenizer.sep_id] += 4
    return found


def phrases(turn):
    """The entries of each phrase, by its number."""
    found = {}
    for token in turn["tokens"]:
        found.setdefault(token["phrase"], []).append(token)
    return found


def test_a_text_is_cut_into_phrases_of_words():
    continues_T = np.array([0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0], bool)
    rule = PhraseRule(max_tokens=4, max_words=3, length="own")
    sizes = set()
    for seed in range(50):
        random = np.random.default_rng(seed)
        cut = choose_phrases(random, continues_T, rule, mask_prob=0.3, borders=[7, 16])
        assert [phrase.start for phrase in cut] == [0, *(phrase.stop for phrase in cut[:-1])]
        assert cut[-1].stop == 16
        assert 7 in {phrase.stop for phrase in cut}
        for phrase in cut:
            sizes.add(phrase.stop - phrase.start)
            # A word is cut only if it is longer than what is written as one.
            assert not continues_T[phrase.start] or phrase.start == 12
        masked = [phrase for phrase in cut if phrase.uniform_N is not None]
        assert 1 <= sum(phrase.stop - phrase.start for phrase in masked) <= 5
    assert sizes == {1, 2, 3, 4}
    assert choose_phrases(random, continues_T[:0], rule, mask_prob=0.3, borders=[]) == []


@pytest.mark.parametrize("mask_prob", [0.15, 0.5, 1.0])
def test_a_phrase_is_one_entry(model, length, mask_prob):
    lengths = set()
    for seed in range(8):
        (turn,) = model.corrupt([TEXT], mask_prob=mask_prob, seed=seed)
        assert sorted(phrases(turn)) == list(range(len(phrases(turn))))
        done = 0
        for own in phrases(turn).values():
            assert len(own) == 1 or not any(token["masked"] for token in own)
            for token in own:
                assert TEXT[token["start"] : token["end"]] == token["text"]
                new = turn["corrupted"][token["corrupted_start"] : token["corrupted_end"]]
                assert token["corrupted_start"] >= done
                done = token["corrupted_end"]
                assert token["replaced"] == (token["original"] != token["corrupted"])
                assert token["replaced"] or new == token["text"]
                sizes = [len(token[key].split()) for key in ("original", "corrupted")]
                assert 1 <= min(sizes) <= max(sizes) <= 4
                if token["masked"]:
                    lengths.add(sizes[1] - sizes[0])
        if mask_prob == 1:
            assert all(token["masked"] for token in turn["tokens"])
    assert len(lengths) > 1 if length == "own" else lengths == {0}


def test_the_discriminator_judges_what_was_written(model):
    (turn,) = model.corrupt([TEXT], mask_prob=0.5, seed=1)
    names = model.tokenizer.tokens(range(model.tokenizer.vocab_size))
    sizes = [len(token["corrupted"].split()) for token in turn["tokens"]]
    ids = [names.index(name) for token in turn["tokens"] for name in token["corrupted"].split()]
    (expected,) = model.discriminator.suspicions([np.array(ids, np.uint32)])
    parts = np.split(expected, np.cumsum(sizes)[:-1])
    found = [token["suspicion"] for token in turn["tokens"]]
    assert found == pytest.approx([part.max() for part in parts], abs=1e-6)


def test_a_turn_is_a_function_of_text_and_seed(model, make_text):
    texts = [make_text(60, seed=seed) for seed in range(3)]
    together = model.corrupt(texts, seed=1)
    for text, turn in zip(texts, together, strict=True):
        assert model.corrupt([text], seed=1)[0]["corrupted"] == turn["corrupted"]
    assert together != model.corrupt(texts, seed=2)
    json.dumps(together, allow_nan=False)
    assert model.corrupt(["", "river"])[0] == {"text": "", "corrupted": "", "tokens": []}


def test_first_tokens_are_those_of_a_masked_language_model(make_run):
    """With phrases of one token the writer draws from the distribution that `fill` shows."""
    model = load(make_run("replaced_span", facts=settings("original", max_tokens=1)))
    turns = [turn for seed in range(200) for turn in model.corrupt(["river city"], mask_prob=0.5, seed=seed)]
    drawn = [token["corrupted"] for turn in turns for token in turn["tokens"][:1] if token["masked"]]
    (filled,) = model.fill(["[MASK] city"], top=model.tokenizer.vocab_size)
    share = {one["token"]: one["probability"] for one in filled["masks"][0]["candidates"]}
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    total = sum(value for name, value in share.items() if name not in special)
    best = max(share.keys() - {*special}, key=share.__getitem__)
    expected = share[best] / total
    # Four standard deviations of a share of so many draws.
    spread = 4 * (expected * (1 - expected) / len(drawn)) ** 0.5
    assert len(drawn) > 60
    assert abs(drawn.count(best) / len(drawn) - expected) < spread


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": "four"}, "max_tokens is 'four'"),
        ({"length": "long"}, "length is 'long'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(make_run, spans, words):
    facts = {"config": {"objective": "replaced_span", "replaced_span": spans}}
    with pytest.raises(InputError, match=words):
        load(make_run("replaced_span", facts=facts))


def test_other_generators_rewrite_tokens(make_run):
    (turn,) = load(make_run()).corrupt([TEXT])
    assert {token["phrase"] for token in turn["tokens"]} == {None}
