import numpy as np
import pytest
import torch
import transformers

from electra.predict.load import load
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
