"""Models of transformers' own classes for tasks, with random weights -> the same answers here."""

import csv
import json
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import electra
from electra import cli, files
from electra.errors import InputError
from electra.formats.onnx import export_onnx
from electra.serve.app import build_app
from electra.serve.limits import Limits
from electra.tasks.families.classification import Classification
from electra.tasks.families.tagging import TaggingExample
from electra.tasks.model import load_model
from running import ask, serving

pytestmark = pytest.mark.numeric

# Two layers of 32 numbers in fp32, computed in another order by another program.
CLOSE = {"rtol": 0, "atol": 1e-5}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = ["the old river was in a small city", "new music is fast", "café"]


@dataclass(frozen=True)
class Kind:
    """A class of transformers, keys of its config, and what it becomes here."""

    architecture: str
    config: dict[str, Any]
    family: str
    ability: str


def labels(*names):
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


SEQUENCE, MULTI = "ElectraForSequenceClassification", "multi_label_classification"
KINDS = {
    "one class": Kind(SEQUENCE, labels("good", "bad", "fair"), "classification", "classify"),
    "no names": Kind(SEQUENCE, {"num_labels": 2}, "classification", "classify"),
    "several": Kind(SEQUENCE, {**labels("red", "blue"), "problem_type": MULTI}, "multi_label", "classify"),
    "one of several": Kind(SEQUENCE, {**labels("toxic"), "problem_type": MULTI}, "multi_label", "classify"),
    "value": Kind(SEQUENCE, labels("stars"), "regression", "classify"),
    "tags": Kind("ElectraForTokenClassification", labels(*TAGS), "tagging", "tag"),
    "answers": Kind("ElectraForQuestionAnswering", {}, "question_answering", "answer"),
    "choices": Kind("ElectraForMultipleChoice", {}, "multiple_choice", "choose"),
    "choices of one layer": Kind(
        "ElectraForMultipleChoice",
        {"summary_use_proj": False, "summary_activation": "linear"},
        "multiple_choice",
        "choose",
    ),
}
FOUR = ("one class", "tags", "answers", "choices")


@pytest.fixture(scope="session")
def foreign(tmp_path_factory, tokenizer):
    """`foreign(kind)`: the folder of a model as transformers writes it, and the model; made once."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("theirs") / "model"
            made[name] = folder, write_foreign(KINDS[name], folder, tokenizer)
        return made[name]

    return make


def write_foreign(kind, folder, tokenizer, **changes):
    sizes = {"vocab_size": tokenizer.vocab_size, "embedding_size": 16, "hidden_size": 32}
    more = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    # Wide, so that logits differ as those of a trained model.
    rest = {"max_position_embeddings": 32, "initializer_range": 0.4}
    config = transformers.ElectraConfig(**{**sizes, **more, **rest, **kind.config, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, kind.architecture)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.2)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def in_form(form, folder, model, out):
    """The same folder with its weights in another form."""
    shutil.copytree(folder, out)
    if form == "safetensors":
        return out
    (out / "model.safetensors").unlink()
    state = {**model.state_dict(), "electra.embeddings.position_ids": torch.arange(32)[None]}
    parts = {"bin": [state], "shards of bin": [dict(list(state.items())[:9]), dict(list(state.items())[9:])]}
    if form == "shards of safetensors":
        model.save_pretrained(out, max_shard_size="20KB")
        assert (out / "model.safetensors.index.json").is_file()
    elif form == "bin":
        torch.save(state, out / "pytorch_model.bin")
    else:
        places = {}
        for number, part in enumerate(parts[form]):
            torch.save(part, out / f"pytorch_model-{number}.bin")
            places |= dict.fromkeys(part, f"pytorch_model-{number}.bin")
        files.write_json(out / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})
    return out


def batch(tokenizer):
    """Rows of two segments with padding."""
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(5, tokenizer.vocab_size, size=(4, 12)))
    mask = torch.tensor([[1] * 12, [1] * 9 + [0] * 3, [1] * 5 + [0] * 7, [1] * 12])
    ids[:, 0] = tokenizer.cls_id
    types = (torch.arange(12) > 4).long()[None] * mask
    return {"input_ids": ids * mask, "token_type_ids": types, "attention_mask": mask}


@torch.no_grad()
def their_logits(model, inputs):
    """By name, without what stands at padding."""
    if isinstance(model, transformers.ElectraForMultipleChoice):
        output = {"logits": model(**{name: one[None] for name, one in inputs.items()}).logits[0][:, None]}
    else:
        output = {name: one for name, one in model(**inputs).items() if "logits" in name}
    return {name: at_text(one, inputs) for name, one in output.items()}


def at_text(logits, inputs):
    mask = inputs["attention_mask"]
    if logits.shape[:2] != mask.shape:
        return logits
    return logits * (mask if logits.dim() == 2 else mask[..., None])


@torch.no_grad()
def our_logits(folder, inputs):
    tuned = load_model(folder)
    hidden = tuned.model.encoder(
        inputs["input_ids"],
        token_type_ids_BL=inputs["token_type_ids"],
        attention_mask_BL=inputs["attention_mask"],
    )
    head = tuned.model.head(tuned.task)
    found = tuned.family.onnx_outputs(head, hidden, inputs["attention_mask"])
    return {name: at_text(one, inputs) for name, one in found.items()}


def assert_same_logits(found, expected):
    assert found.keys() == expected.keys()
    for name, logits in expected.items():
        assert logits.std() > 0.01
        torch.testing.assert_close(found[name], logits, **CLOSE)


def run(command, *words, code=cli.OK, **keys):
    options = [f"--{key.replace('__', '.')}={value}" for key, value in keys.items()]
    assert cli.main([command, *map(str, words), *options]) == code


def bring(folder, out, *words, code=cli.OK):
    run("import", "--from", "transformers", folder, "--out", out, *words, code=code)
    return out


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_theirs(name, foreign, tokenizer):
    folder, model = foreign(name)
    inputs = batch(tokenizer)
    assert_same_logits(our_logits(folder, inputs), their_logits(model, inputs))
    tuned = load_model(folder)
    assert tuned.family.name == KINDS[name].family
    assert tuned.max_length == 32
    assert electra.load(folder, precision="fp32").abilities == ("embed", KINDS[name].ability)
    if "id2label" in KINDS[name].config and name != "value":
        assert tuned.family.labels() == tuple(KINDS[name].config["id2label"].values())


@pytest.mark.parametrize("form", ["bin", "shards of bin", "shards of safetensors"])
@pytest.mark.parametrize("name", FOUR)
def test_weights_in_any_form(name, form, foreign, tokenizer, tmp_path):
    folder, model = foreign(name)
    inputs = batch(tokenizer)
    place = in_form(form, folder, model, tmp_path / "model")
    assert_same_logits(our_logits(place, inputs), their_logits(model, inputs))


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("name", KINDS)
def test_there_and_back_again(name, form, foreign, tokenizer, tmp_path, capsys):
    """transformers -> `electra import` -> `electra export` -> transformers."""
    folder, model = foreign(name)
    ours = bring(in_form(form, folder, model, tmp_path / "theirs"), tmp_path / "ours")
    printed = capsys.readouterr().out
    assert "left out" not in printed
    assert all(label in printed for label in load_model(ours).family.labels())
    run("export", model=ours, to="transformers", out=tmp_path / "back", license="mit")
    kind = getattr(transformers, KINDS[name].architecture)
    back, report = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()), report
    inputs = batch(tokenizer)
    assert_same_logits(our_logits(ours, inputs), their_logits(model, inputs))
    assert_same_logits(their_logits(back.eval(), inputs), their_logits(model, inputs))
    assert back.config.id2label == model.config.id2label
    assert back.config.label2id == model.config.label2id
    if KINDS[name].config.get("problem_type"):
        assert back.config.problem_type == model.config.problem_type
    again = load_model(tmp_path / "back")
    assert again.family.settings() == load_model(ours).family.settings()
    card = (tmp_path / "back" / "README.md").read_text()
    assert "| Imported from | transformers: theirs |" in card
    assert str(tmp_path) not in (tmp_path / "back" / "config.json").read_text() + card


@torch.no_grad()
def test_classes_values_and_labels_as_a_pipeline_gives_them(foreign):
    for name in ("one class", "several", "value", "no names"):
        folder, _ = foreign(name)
        apply = {"several": "sigmoid", "value": "none"}.get(name, "softmax")
        pipeline = transformers.pipeline(
            "text-classification", model=str(folder), top_k=None, function_to_apply=apply
        )
        for text, said in zip(TEXTS, electra.load(folder, precision="fp32").classify(TEXTS), strict=True):
            theirs = {one["label"]: one["score"] for one in pipeline([text])[0]}
            ours = {"stars": said["value"]} if name == "value" else said["probabilities"]
            assert ours == pytest.approx(theirs, abs=1e-5)


@torch.no_grad()
def test_tags_are_those_of_the_first_piece_of_a_word(foreign):
    folder, model = foreign("tags")
    words = ["the", "old", "café", "river", "日本"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    (share_LT,) = model(**encoded).logits.softmax(-1)
    firsts = [encoded.word_ids().index(number) for number in range(len(words))]
    (said,) = electra.load(folder, precision="fp32").tag([words])
    for place, word in zip(firsts, said["words"], strict=True):
        # We round it to four digits.
        assert share_LT[place].max().item() == pytest.approx(word["confidence"], abs=6e-5)
    assert {word["tag"] for word in said["words"]} <= {*TAGS}
    types = [TAGS[number].partition("-")[2] for number in share_LT[firsts].argmax(-1).tolist()]
    assert [word["tag"].partition("-")[2] for word in said["words"]] == types


@torch.no_grad()
def test_an_answer_has_the_best_start_and_end(foreign, tokenizer):
    folder, model = foreign("answers")
    question, context = "new music ?", "the old river was in a small city and water is fast"
    (said,) = electra.load(folder, precision="fp32").answer([question], [context])
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(
        question, context, return_tensors="pt", return_offsets_mapping=True
    )
    offsets = encoded.pop("offset_mapping")[0]
    output = model(**encoded)
    inside = [place for place, kind in enumerate(encoded.sequence_ids()) if kind == 1]
    spans = {
        (first, last): (output.start_logits[0, first] + output.end_logits[0, last]).item()
        for first in inside
        for last in inside
        if first <= last
    }
    first, last = max(spans, key=spans.__getitem__)
    assert (said["start"], said["end"]) == (offsets[first][0], offsets[last][1])


@torch.no_grad()
@pytest.mark.parametrize("name", ["choices", "choices of one layer"])
def test_choices_are_as_probable(name, foreign):
    folder, model = foreign(name)
    question, choices = "the old river", ["was in a small city", "new music", "fast"]
    (said,) = electra.load(folder, precision="fp32").choose([question], [choices])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([question] * 3, choices, padding=True, return_tensors="pt")
    logits = model(**{key: ids[None] for key, ids in inputs.items()}).logits[0]
    assert said["probabilities"] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR)
def test_a_graph_says_the_same(name, foreign, tokenizer, tmp_path, assert_alike):
    folder, model = foreign(name)
    run("export", model=folder, to="onnx", out=tmp_path / "graph")
    requests = {
        "classify": {"texts": TEXTS},
        "tag": {"texts": TEXTS},
        "answer": {"questions": ["new ?"], "contexts": [TEXTS[0]]},
        "choose": {"questions": ["new"], "choices": [["music", "river"]]},
    }
    ability = KINDS[name].ability
    ours = electra.load(folder, precision="fp32").ask(ability, **requests[ability])
    assert_alike(electra.load(tmp_path / "graph", engine="onnx").ask(ability, **requests[ability]), ours)
    with serving(build_app(electra.load(folder, precision="fp32"), limits=Limits())) as url:
        served = ask(url, f"/{ability}", requests[ability]).content["results"]
    assert_alike(served, ours)
    inputs = {key: value.numpy() for key, value in batch(tokenizer).items()}
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
    for key, logits in their_logits(model, batch(tokenizer)).items():
        found = torch.from_numpy(session.run([key], inputs)[0])
        torch.testing.assert_close(at_text(found, batch(tokenizer)), logits, rtol=1e-4, atol=1e-4)


def test_an_int8_graph_of_two_layers(foreign, tmp_path):
    check = export_onnx(
        foreign("one class")[0], tmp_path, part="discriminator", precision="int8", max_length=None
    )
    assert np.isfinite(check.largest_difference)


SENTENCE = "the old river was in a small city and new music is fast to read of large mountain water"
WORDS = SENTENCE.split()


def sentences(count, *, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(count)]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def labelled(name, model, folder, count, *, seed):
    """Examples whose labels are what the model itself says, so that its score is known."""
    texts = sentences(count, seed=seed)
    said = electra.load(folder, precision="fp32")
    match KINDS[name].family:
        case "classification":
            return [
                {"text": t, "label": one["label"]} for t, one in zip(texts, said.classify(texts), strict=True)
            ]
        case "multi_label":
            return [
                {"text": t, "label": "|".join(one["labels"])}
                for t, one in zip(texts, said.classify(texts), strict=True)
            ]
        case "regression":
            return [
                {"text": t, "label": one["value"]} for t, one in zip(texts, said.classify(texts), strict=True)
            ]
        case "tagging":
            lists = [text.split() for text in texts]
            return [
                {"tokens": words, "tags": [word["tag"] for word in one["words"]]}
                for words, one in zip(lists, said.tag(lists), strict=True)
            ]
        case "question_answering":
            questions = [text.split()[0] for text in texts]
            return [
                {
                    "question": q,
                    "context": t,
                    "answers": [{"text": one["text"], "answer_start": one["start"]}],
                }
                for q, t, one in zip(questions, texts, said.answer(questions, texts), strict=True)
            ]
        case "multiple_choice":
            choices = [[text, *sentences(2, seed=number)] for number, text in enumerate(texts)]
            return [
                {"prompt": "the old", "choices": given, "label": one["choice"]}
                for given, one in zip(choices, said.choose(["the old"] * count, choices), strict=True)
            ]


BEST = {
    "one class": ("classification", "accuracy"),
    "several": ("multi_label", "exact_match"),
    "value": ("regression", "pearson"),
    "tags": ("tagging", "f1"),
    "answers": ("answering", "exact_match"),
    "choices": ("multiple_choice", "accuracy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BEST)
def test_evaluated_predicted_and_trained_further_by_the_commands(name, foreign, tmp_path):
    """With the head as it came: a training that changes hardly anything scores what it scored before."""
    folder, model = foreign(name)
    kind, score = BEST[name]
    suffix = "csv" if kind in ("classification", "multi_label", "regression") else "jsonl"
    for split, count in (("train", 24), ("dev", 16)):
        path = tmp_path / "data" / f"{split}.{suffix}"
        write_rows(path, labelled(name, model, folder, count, seed=len(split)))
    dev, columns = tmp_path / "data" / f"dev.{suffix}", {"task": "csv", "own__kind": kind}
    ours = bring(folder, tmp_path / "ours")
    for place in (folder, ours):
        out = tmp_path / f"scores of {place.name}"
        run("evaluate", model=place, data=dev, out=out, precision="fp32", **columns)
        content = json.loads((out / "scores.json").read_text())
        assert content["splits"]["dev"]["scores"][score]["values"] == pytest.approx([1.0], abs=1e-6)
    run("predict", model=ours, input=dev, out=tmp_path / "said.jsonl", precision="fp32", own__kind=kind)
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 16
    # Random weights say tags that keep to no scheme.
    if kind == "tagging":
        columns["decoding"] = "words"
    run(
        "finetune", model=folder, data=tmp_path / "data", out=tmp_path / "further", seeds=1, max_length=32,
        train__learning_rate=1e-7, train__epochs=1, train__precision="fp32", train__cores=1, dropout=0.0,
        **columns,
    )  # fmt: skip
    further = json.loads((tmp_path / "further" / "scores.json").read_text())
    assert further["splits"]["dev"]["scores"][score]["values"] == pytest.approx([1.0], abs=1e-3)
    before, after = load_model(folder).family, load_model(tmp_path / "further").family
    assert set(after.labels()) >= set(before.labels()) - {"B-PER", "I-PER", "B-LOC", "I-LOC"}
    assert getattr(after, "head_layers", None) == getattr(before, "head_layers", None)
    assert getattr(after, "span_kind", None) == getattr(before, "span_kind", None)
    run("export", model=tmp_path / "further", to="transformers", out=tmp_path / "back")
    opened = getattr(transformers, KINDS[name].architecture).from_pretrained(tmp_path / "back")
    if name == "value":
        assert opened.config.id2label == {0: "stars"}


def test_what_cannot_be_read_leaves_the_encoder(tokenizer, tmp_path, capsys):
    """Heads that are none of ours are named, with the option that leaves them out."""
    summary = {"summary_type": "mean"}
    cases = {
        "many values": (Kind(SEQUENCE, {"num_labels": 3, "problem_type": "regression"}, "", ""), "3 values"),
        "mean": (Kind("ElectraForMultipleChoice", summary, "", ""), "summary_type"),
    }
    for name, (kind, reason) in cases.items():
        folder = tmp_path / name.replace(" ", "-")
        write_foreign(kind, folder, tokenizer)
        with pytest.raises(InputError, match=rf"{reason}.*--part encoder"):
            electra.load(folder)
        bring(folder, tmp_path / "never", code=cli.BAD_INPUT)
        error = capsys.readouterr().err
        assert "--part encoder" in error
        assert "Traceback" not in error
        assert not (tmp_path / "never").exists()
        ours = bring(folder, tmp_path / f"{name} encoder", "--part", "encoder")
        assert electra.load(ours, precision="fp32").abilities == ("embed",)
        assert "classifier" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id2label": {"0": "a"}}, "id2label.*3 outputs"),
        ({"id2label": ["a", "b", "c"]}, "id2label.*3 outputs"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label.*name of its own"),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "id2label.*from 0"),
        ({"problem_type": "guessing"}, "problem_type is 'guessing'"),
        ({"problem_type": "regression"}, "regression with 3 values"),
    ],
)
def test_configs_that_do_not_fit_their_head(changes, reason, foreign, tmp_path):
    folder = shutil.copytree(foreign("one class")[0], tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(InputError, match=reason):
        electra.load(folder)


def test_one_class_alone_is_none(foreign, tmp_path):
    folder = shutil.copytree(foreign("value")[0], tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    values["problem_type"] = "single_label_classification"
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"single_label_classification with one label.*--part encoder"):
        electra.load(folder)


@pytest.mark.parametrize("name", FOUR)
def test_a_head_without_its_weights(name, foreign, tmp_path):
    folder, model = foreign(name)
    place = in_form("safetensors", folder, model, tmp_path / "model")
    (place / "model.safetensors").unlink()
    torch.save(model.electra.state_dict(), place / "pytorch_model.bin")
    with pytest.raises(InputError, match=rf"{KINDS[name].architecture}.*lack .*weight"):
        electra.load(place)


@pytest.mark.parametrize(
    ("tags", "scheme", "marking", "trained"),
    [
        (TAGS, "entities", "iob2", ["B-PER", "I-PER", "O", "B-LOC"]),
        (
            ("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC"),
            "entities",
            "bioes",
            ["B-PER", "E-PER", "O", "S-LOC"],
        ),
        # As models of CoNLL 2003 have them, where no two chunks of a type touch.
        (("B-LOC", "I-LOC", "I-PER", "O"), "entities", "iob1", ["I-PER", "I-PER", "O", "I-LOC"]),
        (("NOUN", "VERB", "O"), "tokens", "bioes", None),
        (("O", "B-PER", "U-PER"), "tokens", "bioes", None),
    ],
)
def test_tags_of_any_scheme(tags, scheme, marking, trained, tokenizer, tmp_path):
    write_foreign(Kind("ElectraForTokenClassification", labels(*tags), "", ""), tmp_path, tokenizer)
    family = load_model(tmp_path).family
    assert (family.tags, family.scheme, family.marking) == (tags, scheme, marking)
    if trained is not None:
        example = TaggingExample(
            id="0",
            where="here",
            words=("the", "old", "river", "city"),
            tags=("B-PER", "I-PER", "O", "B-LOC"),
        )
        (row,) = family.rows([example], tokenizer, max_length=32)
        assert [tags[number] for number in row.targets["tags"]] == trained


@pytest.mark.parametrize("name", FOUR)
def test_a_head_comes_along_below_a_wrapper(name, foreign, tokenizer, tmp_path):
    folder, model = foreign(name)
    place = in_form("safetensors", folder, model, tmp_path / "model")
    (place / "model.safetensors").unlink()
    state = {f"model.{key}": one for key, one in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, place / "pytorch_model.bin")
    inputs = batch(tokenizer)
    assert_same_logits(our_logits(place, inputs), their_logits(model, inputs))


def test_trained_further_in_transformers(tokenizer, make_tuned, tmp_path):
    """A classifier of ours that transformers has changed is read as transformers has it, once told so."""
    _, tuned = make_tuned(Classification(("bad", "good")))
    run("export", model=tuned, to="transformers", out=tmp_path / "ours")
    model = transformers.ElectraForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        model.classifier.dense.weight.add_(0.1)
    model.save_pretrained(tmp_path / "further")
    tokenizer.save(tmp_path / "further")
    with pytest.raises(InputError, match=r"classifier\.dense\.weight.*electra_task"):
        load_model(tmp_path / "further")
    values = json.loads((tmp_path / "further" / "config.json").read_text())
    del values["electra_task"]
    (tmp_path / "further" / "config.json").write_text(json.dumps(values))
    inputs = batch(tokenizer)
    assert_same_logits(our_logits(tmp_path / "further", inputs), their_logits(model, inputs))
