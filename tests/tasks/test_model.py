import dataclasses
import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.names import layer_depth
from electra.model.sizes import EncoderConfig
from electra.model.store import open_model
from electra.seeds import torch_generator
from electra.tasks.batches import collate
from electra.tasks.families.answering import QuestionAnswering, answer_mask
from electra.tasks.families.answers import AnswerExample
from electra.tasks.families.choice import ChoiceExample, MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging, TaggingExample
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, TaskModel, copy_head, find_start, load_model, save_model

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
TASKS = {"mood": Classification(("bad", "good")), "train.csv": Regression(), "keys": Classification("abc")}


@pytest.fixture
def batch(tokenizer, make_opinions):
    rows = TASKS["mood"].rows(make_opinions(5), tokenizer, max_length=16)
    return collate(rows, pad_id=tokenizer.pad_id, device=CPU)


def test_every_task_has_a_head_whatever_its_name(tiny_encoder):
    model = TaskModel(tiny_encoder, TASKS)
    assert [model.head(task).output.out_features for task in TASKS] == [2, 1, 3]
    depths = {name: layer_depth(name, num_layers=2) for name, _ in model.named_parameters()}
    assert {depth for name, depth in depths.items() if name.startswith("heads.")} == {3}
    assert {depth for name, depth in depths.items() if name.startswith("encoder.")} == {0, 1, 2}


def test_heads_start_from_the_seed_and_leave_the_encoder_alone(tiny_encoder):
    before = {name: tensor.clone() for name, tensor in tiny_encoder.state_dict().items()}
    first, same, other = (TaskModel(tiny_encoder, TASKS, seed=seed) for seed in (0, 0, 1))
    weights = [model.head("mood").output.weight for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], first.head("keys").output.weight[:2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny_encoder.state_dict().items())


def test_training_gives_losses_and_prediction_outputs_too(tiny_encoder, batch):
    model = TaskModel(tiny_encoder, TASKS)
    trained = model.train()(batch, "mood")
    judged = model.eval()(batch, "mood")
    assert trained.losses_U.shape == judged.losses_U.shape == (5,)
    assert (len(trained.outputs), len(judged.outputs)) == (0, 5)
    probability = torch.tensor(
        [float(output[row.targets["label"]]) for output, row in zip(judged.outputs, batch.rows, strict=True)]
    )
    torch.testing.assert_close(-probability.log(), judged.losses_U.detach(), rtol=1e-5, atol=1e-6)


def test_without_targets_there_are_only_outputs(tiny_encoder, tokenizer, make_opinions):
    rows = TASKS["mood"].rows(make_opinions(3), tokenizer, max_length=16)
    unknown = [
        type(row)(input_ids=row.input_ids, token_type_ids=row.token_type_ids, example=0, unit=row.unit)
        for row in rows
    ]
    judged = TaskModel(tiny_encoder, TASKS).eval()(collate(unknown, pad_id=0, device=CPU), "mood")
    assert judged.losses_U is None
    assert len(judged.outputs) == 3


def test_only_the_task_at_work_learns(tiny_encoder, batch):
    model = TaskModel(tiny_encoder, TASKS)
    model(batch, "mood").losses_U.sum().backward()
    assert model.head("mood").output.weight.grad is not None
    assert model.head("keys").output.weight.grad is None
    assert all(weight.grad is not None for weight in model.encoder.parameters())


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
    return predict_examples(tuned.model, tuned.task, [example], tuned.tokenizer, max_length=tuned.max_length)


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
    encoder = open_model(tmp_path / "mnli").encoder()
    assert torch.equal(encoder.embeddings.norm.weight, tiny_encoder.embeddings.norm.weight)
    families = {"same": Classification(labels), "other": Classification(("yes", "no")), "value": Regression()}
    model = TaskModel(encoder, families)
    again = load_model(tmp_path / "mnli")
    assert [copy_head(again, model, task) for task in families] == [True, True, False]
    trained = tuned.model.head("a task.v1").output.weight
    assert torch.equal(model.head("same").output.weight, trained)
    # The same labels in another order: so are the rows of its head.
    assert torch.equal(model.head("other").output.weight, trained.flip(0))


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
    (plain / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"electra finetune"):
        load_model(plain)

    further = shutil.copytree(folder, tmp_path / "further")
    tensors = load_file(further / "model.safetensors")
    tensors["classifier.dense.weight"][40, 3] = 0.01
    save_file(tensors, further / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors.*damaged"):
        load_model(further)
    (further / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"classifier\.dense\.weight"):
        load_model(further)
    del tensors["classifier.out_proj.weight"]
    save_file(tensors, further / "model.safetensors")
    with pytest.raises(InputError, match=r"classifier\.out_proj\.weight"):
        load_model(further)


ANSWERS = Classification(("no", "yes"))


@pytest.fixture
def tuned(tokenizer, tmp_path):
    encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    initialise(encoder, std=0.02, generator=torch_generator(5, "encoder"))
    model = TaskModel(encoder, {"first": ANSWERS}, seed=9)
    save_model(FineTuned(model=model, task="first", tokenizer=tokenizer, max_length=32), tmp_path / "tuned")
    return tmp_path / "tuned"


def same(model, other):
    state = other.encoder.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in model.encoder.state_dict().items())


def test_every_seed_begins_with_the_same_encoder_and_its_own_head(tuned):
    start = find_start(str(tuned), like="", dropout=None)
    other = Classification(("a", "b", "c"))
    first, second = (start.model({"other": other}, seed=seed) for seed in (0, 1))
    assert same(first, second)
    weights = [model.head("other").output.weight for model in (first, second)]
    assert not torch.equal(*weights)


def test_a_head_that_was_trained_for_the_same_labels_is_kept(tuned):
    start = find_start(str(tuned), like="", dropout=None)
    assert start.tuned is not None
    model = start.model({"second": ANSWERS}, seed=0)
    assert torch.equal(model.head("second").output.weight, start.tuned.model.head("first").output.weight)
    assert re.search(r"fine-tuned.*\bfirst\b", start.description())


def test_random_weights_have_a_shape_and_depend_on_the_seed(tuned):
    start = find_start("none", like=str(tuned), dropout=0.3)
    first, again, second = (start.model({"any": ANSWERS}, seed=seed) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, second)
    assert first.encoder.config.hidden_size == 128
    assert first.encoder.config.hidden_dropout_prob == 0.3
    assert re.fullmatch(rf"random\b.* {tuned}", start.description())


def test_the_hash_is_of_the_weights(tuned):
    hashed = find_start(str(tuned), like="", dropout=None).sha256
    assert hashed == find_start(str(tuned), like="", dropout=0.5).sha256
    assert hashed != find_start("none", like=str(tuned), dropout=None).sha256


@pytest.mark.parametrize(("path", "like", "message"), [("none", "", "--like RUN"), ("x", "y", "--like")])
def test_what_makes_no_sense_is_refused(path, like, message):
    with pytest.raises(InputError, match=message):
        find_start(path, like=like, dropout=None)
