"""Classes by their words: rows, the loss and its start, and models that others read."""

import json
import math

import numpy as np
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.formats.export import ExportConfig, export_model
from electra.prediction.load import load
from electra.tasks.batches import collate
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.families.options import Options, options_family, words_of
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, find_start, load_model, save_model, zero_shot

pytestmark = pytest.mark.numeric

FAMILY = Options(("bad", "good", "odd"), ("old", "a small city", "café"))
TEXTS = ["the river", "new music is fast", "don't stop"]
EXAMPLES = [
    TextExample(id=str(number), where=f"dev.csv:{number}", text=text, label=number)
    for number, text in enumerate(TEXTS)
]


def test_a_row_for_each_word_and_the_rows_of_a_text_are_a_unit(tokenizer):
    rows = FAMILY.rows(EXAMPLES, tokenizer, max_length=24)
    assert [(row.example, row.unit, row.origin.shown.option) for row in rows] == [
        (text, text, option) for text in range(3) for option in range(3)
    ]
    whole, word = (
        tokenizer.encode([text]).ids.tolist() for text in ("the river It was a small city.", "a small city")
    )
    assert rows[1].input_ids.tolist() == [tokenizer.cls_id, *whole, tokenizer.sep_id]
    place = rows[1].origin
    assert rows[1].input_ids[place.first : place.stop].tolist() == word
    assert not rows[1].token_type_ids.any()
    assert [row.targets["label"] for row in rows[::3]] == [0, 1, 2]


class Given(torch.nn.Module):
    """A head that finds every token replaced as probably as it is told, row by row."""

    def __init__(self, *replaced):
        super().__init__()
        self.replaced = torch.tensor(replaced)

    def forward(self, hidden_BLD):
        return self.replaced.logit()[:, None].expand(hidden_BLD.shape[:2])


def test_the_loss_and_the_probabilities_in_closed_form(tokenizer):
    rows = FAMILY.rows(EXAMPLES[1:2], tokenizer, max_length=24)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    hidden, head = torch.zeros(*batch.input_ids_BL.shape, 4), Given(0.9, 0.4, 0.7)
    # exp(mean log p(original)) is p(original) where all tokens are alike: 0.1, 0.6 and 0.3.
    (loss,) = FAMILY.losses(head, hidden, batch).tolist()
    assert loss == pytest.approx(-math.log(0.6), rel=1e-5)
    (said,) = FAMILY.predictions(EXAMPLES[1:2], rows, FAMILY.outputs(head, hidden, batch))
    assert said["label"] == "good"
    assert said["probabilities"] == pytest.approx({"bad": 0.1, "good": 0.6, "odd": 0.3}, rel=1e-5)
    assert FAMILY.scores(EXAMPLES[1:2], [said])["accuracy"].value == 1


@pytest.mark.parametrize("head", ["plain", "with_cls"])
def test_before_training_it_says_what_choose_says(make_run, head):
    run = make_run(discriminator_head=head)
    tuned = zero_shot(str(run), FAMILY, task="options")
    assert tuned.family.detection_head == head
    said = predict_examples(tuned.model, "options", EXAMPLES, tuned.tokenizer, max_length=tuned.max_length)
    for one, chosen in zip(said, load(run).choose(TEXTS, options=FAMILY.words), strict=True):
        # One batch and another, in fp32.
        assert list(one["probabilities"].values()) == pytest.approx(chosen["probabilities"], abs=1e-5)
        assert FAMILY.words[FAMILY.labels().index(one["label"])] == chosen["text"]


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    """A model that is as pre-trained, in a folder as fine-tuning leaves it."""
    tuned = zero_shot(str(run), FAMILY, task="options")
    folder = tmp_path_factory.mktemp("options") / "final"
    save_model(FineTuned(model=tuned.model, task="options", tokenizer=tuned.tokenizer, max_length=24), folder)
    return folder


def test_classify_and_long_texts(saved, run, make_text, assert_alike):
    model = load(saved)
    assert (model.abilities, model.labels) == (("embed", "classify"), FAMILY.labels())
    said = model.classify([*TEXTS, "", make_text(100)])
    chosen = load(run, max_length=24).choose([*TEXTS, "", make_text(100)], options=FAMILY.words)
    assert said[3] == {"label": None, "probabilities": {}}
    assert_alike(
        [list(one["probabilities"].values()) for one in said], [one["probabilities"] for one in chosen]
    )
    with pytest.raises(InputError, match=r"^pairs"):
        model.classify(["a"], ["b"])


def test_transformers_opens_it_as_a_discriminator(saved, tokenizer):
    assert json.loads((saved / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]
    theirs = transformers.ElectraForPreTraining.from_pretrained(saved).eval()
    rows = FAMILY.rows(EXAMPLES[:1], tokenizer, max_length=24)
    row = rows[1]
    with torch.no_grad():
        logits_L = theirs(torch.from_numpy(row.input_ids.astype(np.int64))[None]).logits[0].double()
    tuned = load_model(saved)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    score = tuned.model(batch, "options").outputs[1]
    place = slice(row.origin.first, row.origin.stop)
    assert score == pytest.approx((1 - logits_L[place].sigmoid()).log().mean().item(), rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["transformers", "onnx"])
def test_exports_say_the_same(saved, tmp_path, form, assert_alike):
    out = tmp_path / "exported"
    made = export_model(ExportConfig(model=str(saved), to=form, out=str(out)))
    assert_alike(load(out, engine=made.engine).classify(TEXTS), load(saved).classify(TEXTS))


@pytest.mark.slow
def test_a_modern_discriminator_is_exported_with_its_head(make_run, tmp_path, assert_alike):
    run = make_run(backbone="modern", position_embedding_type="rotary")
    tuned = zero_shot(str(run), FAMILY, task="options")
    save_model(tuned, tmp_path / "final")
    export_model(ExportConfig(model=str(tmp_path / "final"), to="transformers", out=str(tmp_path / "out")))
    assert_alike(load(tmp_path / "out").classify(TEXTS), load(tmp_path / "final").classify(TEXTS))


def test_training_goes_on_with_other_labels(saved):
    start = find_start(str(saved), like="", dropout=None)
    model = start.model({"other": Options(("x", "y"), ("music", "water"))}, seed=1)
    before = load_model(saved).model.head("options").state_dict()
    for name, tensor in model.head("other").state_dict().items():
        assert torch.equal(tensor, before[name])


def test_models_without_a_discriminator_are_refused(make_run, tuned_once):
    for run in (make_run("mlm"), make_run("electric", kind="two_tower")):
        with pytest.raises(InputError, match=rf"{run} has no discriminator"):
            zero_shot(str(run), FAMILY, task="options")
    _, folder = tuned_once(Classification(("bad", "good")))
    with pytest.raises(InputError, match=r"--options are for a pre-trained model.*fine-tuned for task"):
        zero_shot(str(folder), FAMILY, task="options")
    with pytest.raises(InputError, match=r"fine-tuned for classification has lost"):
        find_start(str(folder), like="", dropout=None).model({"options": FAMILY}, seed=0)


def test_an_untrained_encoder_has_an_untrained_head(run):
    start = find_start("none", like=str(run), dropout=None)
    assert start.model({"options": FAMILY}, seed=0).head("options") is not None


def test_words_as_a_person_writes_them():
    assert words_of(["positive=great", " odd "]) == {"positive": "great", "odd": "odd"}
    for entry in ("=great", "positive=", ""):
        with pytest.raises(InputError, match="expected such as positive=great"):
            words_of([entry])
    with pytest.raises(InputError, match="'a' has two words, 'b' and 'c'"):
        words_of(["a=b", "a=c"])
    family = options_family(["1=great", "0=terrible"], "{}")
    assert (family.labels(), family.words) == (("0", "1"), ("terrible", "great"))
    with pytest.raises(InputError, match="1 given"):
        options_family(["great"], "{}")


def test_what_does_not_go_together_is_refused(tokenizer):
    with pytest.raises(InputError, match="2 labels and 1 words"):
        Options(("a", "b"), ("a",))
    with pytest.raises(InputError, match="detection_head is 'cls'"):
        Options(("a", "b"), ("a", "b"), detection_head="cls")
    with pytest.raises(InputError, match="template is 'no'"):
        Options(("a", "b"), ("a", "b"), template="no")
    with pytest.raises(InputError, match="the word for 'b' is 'ΩΩ', unknown"):
        Options(("a", "b"), ("old", "ΩΩ")).rows(EXAMPLES, tokenizer, max_length=24)
    pair = TextExample(id="1", where="dev.csv:1", text="a", text_pair="b")
    with pytest.raises(InputError, match=r"dev\.csv:1: a pair"):
        FAMILY.rows([pair], tokenizer, max_length=24)


def test_examples_of_classification_are_as_good():
    assert FAMILY.can_judge(Classification(FAMILY.labels()))
    assert not FAMILY.can_judge(Classification(("a", "b")))
    assert not FAMILY.can_judge(MultipleChoice())
