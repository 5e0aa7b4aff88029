"""Options of pre-trained models: beside a plain loop over transformers' networks, and what is refused."""

import numpy as np
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.prediction import options as choosing
from electra.prediction.load import load
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city.", "music", "naïve café 日本語, don't stop reading!"]
OPTIONS = ["fast", "a large mountain", "reading cities"]
# Means of logarithms of probabilities that fp32 has computed in two layers, theirs and ours.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def model(run):
    return load(run)


def theirs_of(run, name, part):
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "final" / part)
    return tokenizer, getattr(transformers, name).from_pretrained(run / "final" / part).eval()


def filled(text, option, template):
    """The whole text and the characters of the option, by Python's own formatting."""
    before, after = template.split("{}")
    start = before.format(text=text)
    return f"{start}{option}{after.format(text=text)}", (len(start), len(start) + len(option))


@torch.no_grad()
def plain_scores(run, template, *, masked):
    """Text by text and option by option, as a user of transformers would write it."""
    name, part = ("ElectraForMaskedLM", "generator") if masked else ("ElectraForPreTraining", "discriminator")
    tokenizer, network = theirs_of(run, name, part)
    found = []
    for text in TEXTS:
        for option in OPTIONS:
            whole, (start, end) = filled(text, option, template)
            inputs = tokenizer(whole, return_tensors="pt", return_offsets_mapping=True)
            offsets = inputs.pop("offset_mapping")[0].tolist()
            places = [place for place, (a, b) in enumerate(offsets) if a < end and b > start]
            if masked:
                scores = []
                for place in places:
                    ids = inputs["input_ids"].clone()
                    ids[0, place] = tokenizer.mask_token_id
                    logits = network(**{**inputs, "input_ids": ids}).logits[0, place].double()
                    scores.append(logits.log_softmax(-1)[inputs["input_ids"][0, place]].item())
            else:
                logits = network(**inputs).logits[0, places].double()
                scores = (1 - logits.sigmoid()).log().tolist()
            found.append(float(np.mean(scores)))
    return np.array(found).reshape(len(TEXTS), len(OPTIONS))


@pytest.mark.parametrize("template", ["{text} It was {}.", "A {} one: {text}"])
@pytest.mark.parametrize("by", ["detection", "pseudo_likelihood"])
def test_scores_are_what_transformers_computes(run, model, template, by):
    expected = plain_scores(run, template, masked=by == "pseudo_likelihood")
    for answer, scores in zip(
        model.choose(TEXTS, options=OPTIONS, template=template, by=by), expected, strict=True
    ):
        # Logarithms may be as low as -30 with these weights: rounding is in proportion.
        assert answer["scores"] == pytest.approx(scores.tolist(), rel=ROUNDING, abs=ROUNDING)
        assert answer["choice"] == scores.argmax()
        assert answer["text"] == OPTIONS[scores.argmax()]
        shares = np.exp(scores) / np.exp(scores).sum()
        assert answer["probabilities"] == pytest.approx(shares.tolist(), rel=1e-4, abs=ROUNDING)


def test_a_template_without_a_place_for_the_text_follows_it(model):
    assert model.choose(TEXTS, options=OPTIONS) == model.choose(
        TEXTS, options=OPTIONS, template="{text} It was {}.", by="detection"
    )


@pytest.mark.parametrize(("objective", "kind"), [("mlm", "mlm"), ("electric", "two_tower")])
def test_other_objectives_choose_by_pseudo_likelihood(make_run, objective, kind):
    model = load(make_run(objective, kind=kind))
    assert "choose" in model.abilities
    found = model.choose(TEXTS, options=OPTIONS)
    assert found == model.choose(TEXTS, options=OPTIONS, by="pseudo_likelihood")
    # As the score of each token of the whole text says it.
    (scored,) = model.score([f"{TEXTS[1]} It was {OPTIONS[1]}."], tokens="show")
    tokens = [token["scores"]["pseudo_likelihood"] for token in scored["tokens"]]
    within = [token["start"] >= len("music It was ") and token["text"] != "." for token in scored["tokens"]]
    mean = np.mean([score for score, is_option in zip(tokens, within, strict=True) if is_option])
    assert found[1]["scores"][1] == pytest.approx(mean, rel=ROUNDING, abs=ROUNDING)
    with pytest.raises(InputError, match="by is detection"):
        model.choose(TEXTS, options=OPTIONS, by="detection")


def test_neither_order_nor_company_changes_a_choice(model, make_text, monkeypatch, assert_alike):
    texts = [make_text(1 + 7 * number % 40, seed=number) for number in range(12)]
    together = model.choose(texts, options=OPTIONS)
    monkeypatch.setattr(choosing, "ROWS_AT_ONCE", 5)
    assert_alike([model.choose([text], options=OPTIONS)[0] for text in texts], together)
    turned = model.choose(texts, options=OPTIONS[::-1])
    assert_alike([answer["scores"][::-1] for answer in turned], [answer["scores"] for answer in together])
    assert [answer["text"] for answer in turned] == [answer["text"] for answer in together]


def test_a_long_text_is_read_to_its_end(model, make_text):
    long = make_text(120)
    one, other = model.choose([long, f"{long} music"], options=OPTIONS)
    assert one["scores"] != pytest.approx(other["scores"], abs=1e-6)


def test_a_text_without_tokens_has_no_choice(model):
    nothing = {"choice": None, "text": None, "probabilities": [], "scores": []}
    empty, known = model.choose([" ", "music"], options=OPTIONS)
    assert (empty, known["choice"] is None) == (nothing, False)
    assert model.choose([], options=OPTIONS) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": ["old"]}, "^options has 1 texts"),
        ({"options": ["old", "old"]}, r"^options\[1\]"),
        ({"options": OPTIONS, "template": "It was."}, r"^template is .It was\.."),
        ({"options": OPTIONS, "by": "both"}, "^by is 'both'"),
        ({"options": OPTIONS, "by": "luck"}, "^by is 'luck'"),
        ({"choices": [["a", "b"]]}, r"^choices: .*give options"),
        ({}, "give options"),
    ],
)
def test_what_is_wrong_is_said(model, fields, message):
    with pytest.raises(InputError, match=message):
        model.choose(["music"], **fields)


def test_texts_are_needed_once(model):
    with pytest.raises(InputError, match=r"^texts"):
        model.choose(options=OPTIONS)
    with pytest.raises(InputError, match=r"^texts is one string"):
        model.choose("music", options=OPTIONS)


def test_fine_tuned_models_are_told_what_they_take(tuned_once):
    chooser, classifier = (
        load(tuned_once(family)[1]) for family in (MultipleChoice(), Classification(("a", "b")))
    )
    with pytest.raises(InputError, match=r"^options: .*give choices"):
        chooser.choose(["music"], options=OPTIONS)
    with pytest.raises(InputError, match=r"cannot choose: .*It can: embed, classify"):
        classifier.choose(["music"], options=OPTIONS)
    assert chooser.choose(questions=["music"], choices=[OPTIONS]) == chooser.choose(["music"], [OPTIONS])
