"""Scores of texts: beside transformers' own networks, in any order and batch, and what is refused."""

import numpy as np
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.scoring import METHODS
from electra.tasks.families.classification import Classification

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city.", "music", "naïve café 日本語 🙂, don't stop reading (cities)!"]
# Logarithms of fp32: their scale is the score's, and a sum has as many roundings as tokens.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def model(run):
    return load(run)


def with_ends(ids, tokenizer):
    return torch.tensor([[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id]])


@torch.no_grad()
def test_detection_is_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForPreTraining.from_pretrained(run / "final" / "discriminator").eval()
    for answer in model.score(TEXTS, by="detection", tokens="show"):
        ids = tokenizer.encode([answer["text"]]).ids
        expected_T = (1 - theirs(with_ends(ids, tokenizer)).logits.double().sigmoid()).log()[0, 1:-1]
        found_T = [token["scores"]["detection"] for token in answer["tokens"]]
        assert found_T == pytest.approx(expected_T.tolist(), rel=ROUNDING, abs=ROUNDING)
        scores = answer["scores"]["detection"]
        assert scores["sum"] == pytest.approx(expected_T.sum().item(), rel=ROUNDING, abs=ROUNDING)
        assert scores["mean"] == pytest.approx(expected_T.mean().item(), rel=ROUNDING, abs=ROUNDING)
        assert answer["num_tokens"] == len(ids)


@torch.no_grad()
def test_pseudo_likelihood_is_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForMaskedLM.from_pretrained(run / "final" / "generator").eval()
    for answer in model.score(TEXTS, by="pseudo_likelihood", tokens="show"):
        ids = tokenizer.encode([answer["text"]]).ids
        expected_T = []
        for place, token in enumerate(ids.tolist(), start=1):
            masked = with_ends(ids, tokenizer)
            masked[0, place] = tokenizer.mask_id
            expected_T.append(theirs(masked).logits.double().log_softmax(-1)[0, place, token].item())
        found_T = [token["scores"]["pseudo_likelihood"] for token in answer["tokens"]]
        assert found_T == pytest.approx(expected_T, rel=ROUNDING, abs=ROUNDING)
        assert answer["scores"]["pseudo_likelihood"]["sum"] == pytest.approx(sum(expected_T), rel=ROUNDING)
