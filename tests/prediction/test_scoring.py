"""Scores of texts: beside transformers' own networks, in any order and batch, and what is refused."""

import json
import random

import numpy as np
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.model.heads import DiscriminatorHeadWithCls
from electra.model.store import open_model
from electra.prediction import pretrained
from electra.prediction.load import load
from electra.tasks.families.classification import Classification
from electra.text.windows import windows

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city.", "music", "naïve café 日本語 🙂, don't stop reading (cities)!"]
# Logarithms of probabilities that fp32 has computed in two layers, theirs and ours: errors are in proportion
# to the logits, which the wide random weights make as large as 30.
ROUNDING = 3e-5


@pytest.fixture(scope="module")
def model(run):
    return load(run)


@pytest.fixture(scope="module")
def electric(make_run):
    return make_run("electric", kind="two_tower")


def near(values):
    return pytest.approx(values, rel=ROUNDING, abs=ROUNDING)


def with_ends(ids, tokenizer):
    return torch.tensor([[tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id]])


@torch.no_grad()
def logits_of(theirs, ids, tokenizer):
    return theirs(with_ends(ids, tokenizer)).logits[0, 1:-1].double()


@torch.no_grad()
def masked_log_probabilities(theirs, ids, tokenizer):
    """Their log p(token | all others), one token after the other."""
    found = []
    for place, token in enumerate(ids.tolist()):
        masked = ids.copy()
        masked[place] = tokenizer.mask_id
        found.append(logits_of(theirs, masked, tokenizer)[place].log_softmax(-1)[token].item())
    return found


def scores_of_tokens(answer, method):
    return [token["scores"][method] for token in answer["tokens"]]


def test_detection_is_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForPreTraining.from_pretrained(run / "final" / "discriminator").eval()
    for answer in model.score(TEXTS, by="detection", tokens="show"):
        ids = tokenizer.encode([answer["text"]]).ids
        expected_T = (1 - logits_of(theirs, ids, tokenizer).sigmoid()).log()
        assert scores_of_tokens(answer, "detection") == near(expected_T.tolist())
        assert answer["scores"]["detection"] == near(
            {"sum": expected_T.sum().item(), "mean": expected_T.mean().item()}
        )
        assert answer["num_tokens"] == len(ids)
        assert [token["text"] for token in answer["tokens"]] == [
            answer["text"][token["start"] : token["end"]] for token in answer["tokens"]
        ]


def test_pseudo_likelihood_is_what_transformers_computes(run, model, tokenizer):
    theirs = transformers.ElectraForMaskedLM.from_pretrained(run / "final" / "generator").eval()
    for answer in model.score(TEXTS, by="pseudo_likelihood", tokens="show"):
        expected_T = masked_log_probabilities(theirs, tokenizer.encode([answer["text"]]).ids, tokenizer)
        assert scores_of_tokens(answer, "pseudo_likelihood") == near(expected_T)
        assert answer["scores"]["pseudo_likelihood"] == near(
            {"sum": sum(expected_T), "mean": sum(expected_T) / len(expected_T)}
        )


def test_energies_are_a_pseudo_likelihood_in_one_pass(electric, tokenizer):
    theirs = transformers.ElectraForPreTraining.from_pretrained(electric / "final" / "discriminator").eval()
    for answer in load(electric).score(TEXTS, tokens="show"):
        ids = tokenizer.encode([answer["text"]]).ids
        assert answer["scores"].keys() == {"pseudo_likelihood"}
        energies_T = logits_of(theirs, ids, tokenizer)
        assert scores_of_tokens(answer, "pseudo_likelihood") == near((-energies_T).tolist())


def test_energies_of_a_head_that_looks_at_cls(make_run):
    run = make_run("electric", kind="two_tower", discriminator_head="with_cls")
    folder = open_model(run)
    head = DiscriminatorHeadWithCls(folder.config).eval()
    scope = "discriminator_head."
    of_head = {name: tensor for name, tensor in folder.tensors.items() if name.startswith(scope)}
    head.load_state_dict({name.removeprefix(scope): tensor for name, tensor in of_head.items()})
    ids = folder.tokenizer.encode(TEXTS[:1]).ids
    (answer,) = load(run).score(TEXTS[:1], tokens="show")
    with torch.no_grad():
        energies_T = head(folder.encoder().eval()(with_ends(ids, folder.tokenizer)))[0, 1:-1]
    assert scores_of_tokens(answer, "pseudo_likelihood") == near((-energies_T).tolist())


def test_a_long_text_is_scored_window_by_window(run, model, tokenizer, make_text):
    text = make_text(60)
    ids = tokenizer.encode([text]).ids
    found = windows(len(ids), room=30)
    assert len(found) > 2
    (answer,) = model.score([text], tokens="show")
    detector, filler = (
        getattr(transformers, name).from_pretrained(run / "final" / part).eval()
        for name, part in (("ElectraForPreTraining", "discriminator"), ("ElectraForMaskedLM", "generator"))
    )
    for window in found:
        inside = ids[window.start : window.stop]
        judged = slice(window.judged - window.start, window.judged_stop - window.start)
        expected = {
            "detection": (1 - logits_of(detector, inside, tokenizer).sigmoid()).log().tolist(),
            "pseudo_likelihood": masked_log_probabilities(filler, inside, tokenizer),
        }
        for method, values_T in expected.items():
            scored_T = scores_of_tokens(answer, method)[window.judged : window.judged_stop]
            assert scored_T == near(values_T[judged])


def test_neither_order_nor_company_changes_a_score(model, make_text, monkeypatch):
    # Several groups of masked copies, the last of which is not full.
    monkeypatch.setattr(pretrained, "COPIES", 7)
    texts = [make_text(1 + 5 * number % 23, seed=number) for number in range(15)]
    shuffled = random.Random(1).sample(texts, len(texts))
    together = {answer["text"]: answer for answer in model.score(texts)}
    for answer in model.score(shuffled):
        alone = model.score([answer["text"]])[0]["scores"]
        for method in ("detection", "pseudo_likelihood"):
            expected = near(together[answer["text"]]["scores"][method])
            assert answer["scores"][method] == expected
            assert alone[method] == expected


def test_the_same_tokens_have_the_same_score(model, make_text):
    long = [make_text(20, seed=number) for number in range(5)]
    first, *_, last = model.score(["the old river", *long, "The  OLD river"])
    assert first["scores"] == last["scores"]
    assert first["text"] != last["text"]


def test_confident_errors_stay_finite(run):
    """A probability of a replacement that rounds to 1 has a complement of 0, and 0 no logarithm."""
    sure = load(run)
    with torch.no_grad():
        sure.discriminator.head.output.bias.fill_(200.0)
    (answer,) = sure.score(["the old river"], by="detection")
    assert -250 < answer["scores"]["detection"]["mean"] < -150


def test_a_text_without_tokens_has_no_score(model):
    for answer in model.score(["", " \n"], tokens="show"):
        assert answer["num_tokens"] == 0
        assert answer["tokens"] == []
        nothing = {"sum": None, "mean": None}
        assert answer["scores"] == {"detection": nothing, "pseudo_likelihood": nothing}
    assert model.score([]) == []
    json.dumps(model.score(["", "music"]), allow_nan=False)


def test_unknown_tokens_are_scored_and_counted(model):
    known, unknown = model.score(["the old river", "the ☃ river"])
    assert known["num_unknown"] == 0
    assert unknown["num_unknown"] == 1
    assert np.isfinite(unknown["scores"]["pseudo_likelihood"]["sum"])


def test_the_method_can_be_chosen(model, run):
    assert set(model.score(["music"])[0]["scores"]) == {"detection", "pseudo_likelihood"}
    assert set(model.score(["music"], by="both")[0]["scores"]) == {"detection", "pseudo_likelihood"}
    assert set(model.score(["music"], by="detection")[0]["scores"]) == {"detection"}
    assert "tokens" not in model.score(["music"])[0]


@pytest.mark.parametrize(
    ("objective", "kind", "by", "message"),
    [
        (
            "mlm",
            "mlm",
            "detection",
            r"by is detection, but the model has no discriminator.*use pseudo_likelihood",
        ),
        ("mlm", "mlm", "both", r"by is both, but the model has no discriminator"),
        ("electra", "uniform", "pseudo_likelihood", r"no generator.*use detection"),
        ("electric", "two_tower", "detection", r"gives energies"),
        ("all_tokens_mlm", "mlm", "detection", r"no discriminator with its head"),
        ("electra", "mlm", "luck", r"by is 'luck', expected one of auto"),
    ],
)
def test_a_method_without_its_network_is_refused(make_run, objective, kind, by, message):
    model = load(make_run(objective, kind=kind))
    with pytest.raises(InputError, match=message):
        model.score(["music"], by=by)
    assert len(model.score(["music"])[0]["scores"]) >= 1


def test_a_fine_tuned_model_is_refused(make_tuned):
    _, folder = make_tuned(Classification(("bad", "good")))
    model = load(folder)
    assert "score" not in model.abilities
    with pytest.raises(InputError, match=r"cannot score texts.* It can: embed, classify"):
        model.score(["music"])


def test_bad_texts_are_refused_by_their_place(model):
    with pytest.raises(InputError, match=r"texts\[1\] holds \[MASK\]"):
        model.score(["music", "the [MASK] river"])
    with pytest.raises(InputError, match=r"texts\[0\] is of type int"):
        model.score([3])
    with pytest.raises(InputError, match=r"tokens is 'yes', expected one of hide, show"):
        model.score(["music"], tokens="yes")
