import dataclasses
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.seeds import torch_generator
from electra.tasks.batches import collate
from electra.tasks.families.answering import AnswerExample, QuestionAnswering, answer_mask
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging, TaggingExample
from electra.tasks.folders import FineTuned, copy_head, load_encoder, load_model, save_model
from electra.tasks.inference import predict
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
WHERE = {"id": "0", "where": "here"}
TEXT = TextExample(**WHERE, text="the film was lovely", text_pair="the music seemed rather dull to me")
CHOICE = ChoiceExample(**WHERE, prompt="the day was", choices=("warm", "cold and grey", "to me"))
SENTENCE = TaggingExample(**WHERE, words=("the", "lovely", "house"), tags=None)
QUESTION = AnswerExample(
    **WHERE, question="the film was", context="the story was dull and grey", answers=(), is_impossible=False
)

CASES = {
    "classification": (Classification(("bad", "fair", "good")), TEXT),
    "many classes": (Classification([f"c{number}" for number in range(100)]), TEXT),
    "multi_label": (MultiLabel(("red", "blue")), TEXT),
    "regression": (Regression(low=1.0, high=5.0), TEXT),
    "multiple_choice": (MultipleChoice(), CHOICE),
    "tagging": (Tagging(("ADJ", "DET", "NOUN"), "tokens"), SENTENCE),
    "plain answers": (QuestionAnswering(head="plain", answerability="off"), QUESTION),
    "joint answers": (QuestionAnswering(head="joint", answerability="on"), QUESTION),
    "similarity": (Similarity(), TEXT),
}


def tuned_model(encoder, tokenizer, family):
    model = TaskModel(encoder, {"a task.v1": family}, seed=5).eval()
    for name, weight in model.head("a task.v1").named_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch_generator(0, name))
    return FineTuned(
        model=model, task="a task.v1", tokenizer=tokenizer, max_length=32, facts={"seed": 5, "scores": {}}
    )


def answers(tuned, example):
    return predict(tuned.model, tuned.task, [example], tuned.tokenizer, max_length=tuned.max_length)


@pytest.fixture
def loud(caplog):
    """What transformers says while it loads; nothing may be missing or left over."""
    transformers_logging.enable_propagation()
    yield caplog
    transformers_logging.disable_propagation()


def batch_of(tuned, example):
    rows = tuned.family.rows([example], tuned.tokenizer, max_length=tuned.max_length)
    return collate(rows, pad_id=tuned.tokenizer.pad_id, device=CPU)


def inputs_of(batch):
    return {
        "input_ids": batch.input_ids_BL,
        "token_type_ids": batch.token_type_ids_BL,
        "attention_mask": batch.attention_mask_BL,
    }


@pytest.mark.parametrize("position", ["absolute", "alibi"])
@pytest.mark.parametrize("case", CASES)
def test_a_model_comes_back_as_it_was(tmp_path, tiny_config, tokenizer, case, position):
    family, example = CASES[case]
    encoder = Encoder(dataclasses.replace(tiny_config, position_embedding_type=position))
    initialise(encoder, std=0.05, generator=torch_generator(0))
    tuned = tuned_model(encoder, tokenizer, family)
    save_model(tuned, tmp_path / "final")
    for path in (tmp_path, tmp_path / "final"):
        again = load_model(path)
        assert (again.task, again.max_length, again.facts) == (tuned.task, 32, {"seed": 5, "scores": {}})
        assert answers(again, example) == answers(tuned, example)
        for name, tensor in tuned.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], tensor), name
    config = json.loads((tmp_path / "final" / "config.json").read_text())
    assert config["model_type"] == ("electra" if position == "absolute" else "electra-own")


CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "multi_label": transformers.AutoModelForSequenceClassification,
    "regression": transformers.AutoModelForSequenceClassification,
    "multiple_choice": transformers.AutoModelForMultipleChoice,
    "tagging": transformers.AutoModelForTokenClassification,
    "plain answers": transformers.AutoModelForQuestionAnswering,
}


@pytest.mark.parametrize("case", CLASSES)
@torch.no_grad()
def test_transformers_computes_the_same(tmp_path, tiny_encoder, tokenizer, loud, case):
    family, example = CASES[case]
    tuned = tuned_model(tiny_encoder, tokenizer, family)
    save_model(tuned, tmp_path / "final")
    model, report = CLASSES[case].from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not any(report.values()), report
    assert not loud.records, loud.text
    batch, head = batch_of(tuned, example), tuned.model.head(tuned.task)
    hidden_BLD = tiny_encoder(
        batch.input_ids_BL,
        token_type_ids_BL=batch.token_type_ids_BL,
        attention_mask_BL=batch.attention_mask_BL,
    )
    inputs = inputs_of(batch)
    close = {"rtol": 1e-4, "atol": 1e-5}
    match case:
        case "classification" | "multi_label":
            torch.testing.assert_close(model(**inputs).logits, head(hidden_BLD), **close)
            assert model.config.id2label == dict(enumerate(family.labels()))
            assert model.config.problem_type.startswith("multi" if case == "multi_label" else "single")
        case "regression":
            (prediction,) = answers(tuned, example)
            assert model(**inputs).logits.item() == pytest.approx(prediction["value"], rel=1e-4)
        case "multiple_choice":
            logits = model(**{name: tensor[None] for name, tensor in inputs.items()}).logits
            torch.testing.assert_close(logits[0], head(hidden_BLD), **close)
        case "tagging":
            torch.testing.assert_close(model(**inputs).logits, head(hidden_BLD), **close)
            assert model.config.id2label == dict(enumerate(family.labels()))
        case "plain answers":
            output = model(**inputs)
            mask_BL = answer_mask(batch)
            for found, expected in zip(
                (output.start_logits, output.end_logits), head.span(hidden_BLD, mask_BL), strict=True
            ):
                torch.testing.assert_close(found[mask_BL == 1], expected[mask_BL == 1], **close)


@pytest.mark.parametrize("case", ["joint answers", "similarity", "many classes"])
@torch.no_grad()
def test_transformers_sees_the_encoder_of_what_it_has_no_head_for(
    tmp_path, tiny_encoder, tokenizer, loud, case
):
    family, example = CASES[case]
    tuned = tuned_model(tiny_encoder, tokenizer, family)
    save_model(tuned, tmp_path / "final")
    model, report = transformers.AutoModel.from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not any(report.values()), report
    assert not loud.records, loud.text
    batch = batch_of(tuned, example)
    hidden_BLD = tiny_encoder(
        batch.input_ids_BL,
        token_type_ids_BL=batch.token_type_ids_BL,
        attention_mask_BL=batch.attention_mask_BL,
    )
    found = model(**inputs_of(batch)).last_hidden_state
    text = batch.attention_mask_BL == 1
    torch.testing.assert_close(found[text], hidden_BLD[text], rtol=1e-4, atol=1e-5)


def test_a_pipeline_of_transformers_says_the_label(tmp_path, tiny_encoder, tokenizer):
    family = Classification(("bad", "good"))
    tuned = tuned_model(tiny_encoder, tokenizer, family)
    save_model(tuned, tmp_path / "final")
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "final"))
    for text in ("the film was lovely", "a grey day"):
        (said,) = answers(tuned, TextExample(**WHERE, text=text))
        found = pipeline(text)[0]
        assert found["label"] == said["label"]
        assert found["score"] == pytest.approx(said["probabilities"][said["label"]], abs=1e-5)


def test_an_encoder_goes_on_to_another_task(tmp_path, tiny_encoder, tokenizer):
    labels = ("no", "yes")
    tuned = tuned_model(tiny_encoder, tokenizer, Classification(labels))
    save_model(tuned, tmp_path / "mnli")
    encoder, _ = load_encoder(str(tmp_path / "mnli"))
    assert torch.equal(encoder.embeddings.norm.weight, tiny_encoder.embeddings.norm.weight)
    families = {"same": Classification(labels), "other": Classification(("yes", "no")), "value": Regression()}
    model = TaskModel(encoder, families)
    again = load_model(tmp_path / "mnli")
    assert [copy_head(again, model, task) for task in families] == [True, False, False]
    trained = tuned.model.head("a task.v1").output.weight
    assert torch.equal(model.head("same").output.weight, trained)
    assert not torch.equal(model.head("other").output.weight, trained)


def test_a_folder_for_sentence_transformers(tmp_path, tiny_encoder, tokenizer):
    save_model(tuned_model(tiny_encoder, tokenizer, Similarity(pooling="cls")), tmp_path / "final")
    assert json.loads((tmp_path / "final" / "1_Pooling" / "config.json").read_text())[
        "pooling_mode_cls_token"
    ]


def test_an_older_folder_is_replaced_and_nothing_is_left_over(tmp_path, tiny_encoder, tokenizer):
    for labels in (("a", "b"), ("x", "y")):
        save_model(tuned_model(tiny_encoder, tokenizer, Classification(labels)), tmp_path / "final")
    assert load_model(tmp_path / "final").family.labels() == ("x", "y")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_what_is_not_ours_is_refused(tmp_path, tiny_encoder, tokenizer):
    folder = tmp_path / "final"
    save_model(tuned_model(tiny_encoder, tokenizer, Classification(("bad", "good"))), folder)
    (folder / "README.md").write_text("A card.")
    load_model(folder)

    plain = shutil.copytree(folder, tmp_path / "plain")
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "electra_task": None}))
    with pytest.raises(InputError, match=r"was not fine-tuned.*electra finetune"):
        load_model(plain)

    further = shutil.copytree(folder, tmp_path / "further")
    tensors = load_file(further / "model.safetensors")
    tensors["classifier.dense.weight"][40, 3] = 0.01
    save_file(tensors, further / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors: .*train again"):
        load_model(further)
    (further / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"classifier\.dense\.weight is not as we write it"):
        load_model(further)
    del tensors["classifier.out_proj.weight"]
    save_file(tensors, further / "model.safetensors")
    with pytest.raises(InputError, match=r"lacks classifier\.out_proj\.weight"):
        load_model(further)
