import itertools
import json
import logging
import re
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

from electra.errors import InputError
from electra.formats.onnx import Graph, OnnxCheck, check_batches, check_graph, export_onnx, quiet
from electra.model.store import open_model
from electra.prediction.load import load
from electra.prediction.onnx_engine import open_session
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging

pytestmark = pytest.mark.numeric

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Of the largest number of an output: fp32 rounds to 6e-8 of it, some hundred times on the way through.
EXACT = 1e-5
SLOW = pytest.mark.slow
CLASSES = Classification(("bad", "fair", "good"))
FAMILIES = {
    "classification": (CLASSES, ("logits",)),
    "regression": (Regression(low=1.0, high=5.0), ("logits",)),
    "mean": (Classification(("bad", "fair", "good"), head_pooling="mean"), ("logits",)),
    "tagging": (Tagging(("B-X", "I-X", "E-X", "S-X", "O"), "entities"), ("logits",)),
    "similarity": (Similarity(pooling="max"), ("sentence_embedding",)),
    "plain": (QuestionAnswering(head="plain", answerability="off"), ("start_logits", "end_logits")),
    "joint": (QuestionAnswering(head="joint", answerability="on"), ()),
}


def make_inputs(batch, length, *, vocab_size):
    random = np.random.default_rng(batch * length)
    ids = random.integers(vocab_size, size=(batch, length))
    mask = (np.arange(length) < random.integers(1, length, size=(batch, 1), endpoint=True)).astype(np.int64)
    return dict(zip(INPUTS, (ids, mask, random.integers(2, size=(batch, length))), strict=True))


def assert_exact(found, expected):
    assert np.abs(found - expected).max() < EXACT * max(1.0, np.abs(expected).max())


def as_tensors(inputs):
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "part"),
    [
        ("absolute", "discriminator"),
        pytest.param("rotary", "encoder", marks=SLOW),
        pytest.param("alibi", "generator", marks=SLOW),
    ],
)
def test_every_size_of_a_batch_gives_what_torch_gives(run, make_run, export_once, position, part):
    source = run if position == "absolute" else make_run(position_embedding_type=position)
    folder, check = export_once(source, part=part)
    assert check.largest_difference < EXACT
    session = open_session(folder / "model.onnx")
    network = "generator" if part == "generator" else "discriminator"
    # In double precision, since torch itself rounds as much.
    encoder = open_model(source / "final" / network).encoder().eval().double()
    for batch, length in itertools.product(range(1, 6), (1, 2, 3, 7, 8, 16, 31, 32)):
        inputs = make_inputs(batch, length, vocab_size=encoder.config.vocab_size)
        (found,) = session.run(["last_hidden_state"], inputs)
        ids, mask, types = as_tensors(inputs).values()
        with torch.no_grad():
            expected = encoder(ids, attention_mask_BL=mask, token_type_ids_BL=types).numpy()
        text = inputs["attention_mask"] == 1
        assert_exact(found[text], expected[text])


def assert_as_transformers(folder, theirs, outputs):
    session = open_session(folder / "model.onnx")
    inputs = make_inputs(4, 9, vocab_size=theirs.config.vocab_size)
    with torch.no_grad():
        expected = theirs.eval()(**as_tensors(inputs))
    for output, found in zip(outputs, session.run(list(outputs), inputs), strict=True):
        wanted = expected[output].numpy()
        assert found.shape == wanted.shape
        text = inputs["attention_mask"] == 1 if wanted.shape[:2] == (4, 9) else ...
        assert_exact(found[text], wanted[text])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "kind"), [("discriminator", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")]
)
def test_the_logits_are_those_of_transformers(run, export_once, part, kind):
    folder, check = export_once(run, part=part)
    assert check.outputs == ("last_hidden_state", "logits")
    theirs = getattr(transformers, kind).from_pretrained(run / "final" / part)
    assert_as_transformers(folder, theirs, ["logits"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["classification", *(pytest.param(name, marks=SLOW) for name in FAMILIES if name[0] != "c")]
)
def test_heads_that_are_plain_functions_are_in_the_graph(tuned_once, export_once, name):
    family, outputs = FAMILIES[name]
    _, source = tuned_once(family)
    folder, check = export_once(source)
    assert check.outputs == ("last_hidden_state", *outputs)
    assert check.largest_difference < EXACT
    kind = json.loads((source / "final" / "config.json").read_text())["architectures"][0]
    if kind != "ElectraModel":
        assert_as_transformers(folder, getattr(transformers, kind).from_pretrained(source / "final"), outputs)


@SLOW
def test_a_regression_of_large_values_is_no_wrong_graph(tuned_once, export_once):
    _, source = tuned_once(Regression(low=0.0, high=1e6))
    _, check = export_once(source)
    assert check.scales["logits"] > 1e5
    assert check.largest_difference < EXACT


def test_one_file_that_asks_for_nothing_else(run, export_once):
    folder, check = export_once(run)
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.onnx", "config.json", "head.safetensors", *tokenizer_files}
    assert check.size_bytes == (folder / "model.onnx").stat().st_size
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [opset.domain for opset in model.opset_import] == [""]
    assert [value.name for value in model.graph.input] == list(INPUTS)
    for value in (*model.graph.input, *model.graph.output):
        batch, length = value.type.tensor_type.shape.dim[:2]
        assert (batch.dim_param, length.dim_param) == ("batch", "length")


def test_queries_keys_and_values_are_one_product(run, export_once):
    folder, _ = export_once(run)
    model = onnx.load(folder / "model.onnx")
    shapes = [tuple(weight.dims) for weight in model.graph.initializer]
    assert shapes.count((32, 96)) == 2
    names = [weight.name for weight in model.graph.initializer]
    assert not any("attention.query" in name for name in names)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=SLOW)])
def test_a_graph_tells_nothing_of_the_machine_it_was_made_on(run, export_once, precision):
    folder, _ = export_once(run, precision=precision)
    content = (folder / "model.onnx").read_bytes()
    # With a slash: a user may have no other home than the root.
    for word in (b"site-packages", b"onnx_graph.py", b"stack_trace", f"{Path.home()}/".encode()):
        assert word not in content


@SLOW
def test_an_encoder_alone_says_nothing_of_a_head(run, tuned_once, export_once, tmp_path):
    folder, check = export_once(run, part="encoder")
    assert check.outputs == ("last_hidden_state",)
    assert not (folder / "head.safetensors").exists()
    _, source = tuned_once(CLASSES)
    check = export_onnx(source, tmp_path, part="encoder", precision="fp32", max_length=16)
    config = json.loads((tmp_path / "config.json").read_text())
    assert check.outputs == ("last_hidden_state",)
    assert config["architectures"] == ["ElectraModel"]
    assert config["electra_onnx"]["max_length"] == 16
    assert "electra_task" not in config


def test_a_check_says_how_large_and_how_near():
    check = OnnxCheck(
        precision="int8",
        size_bytes=2_140_000,
        differences={"last_hidden_state": 0.25, "logits": 3e-6},
        scales={"last_hidden_state": 2.5, "logits": 1.0},
    )
    assert check.largest_difference == 0.1
    assert re.search(r"int8.*\b2\.1 MB.*last_hidden_state 2\.5e-01.*logits 3\.0e-06", check.describe())


@SLOW
def test_int8_is_smaller_and_near(run, tuned_once, export_once):
    _, source = tuned_once(CLASSES)
    exact_folder, exact = export_once(source)
    folder, check = export_once(source, precision="int8")
    assert check.outputs == exact.outputs
    assert exact.largest_difference < EXACT < check.largest_difference < 1.5
    assert check.size_bytes == (folder / "model.onnx").stat().st_size
    sizes = []
    for place in (exact_folder, folder):
        weights = onnx.load(place / "model.onnx").graph.initializer
        sizes.append(sum(onnx.numpy_helper.to_array(weight).nbytes for weight in weights))
    assert sizes[1] < 0.4 * sizes[0]
    kinds = [node.op_type for node in onnx.load(folder / "model.onnx").graph.node]
    # Four products in each of two layers, the projection and the head.
    assert kinds.count("MatMulInteger") == 10


@SLOW
def test_a_table_that_is_used_twice_becomes_int8_twice(run, export_once):
    folder, check = export_once(run, part="generator", precision="int8")
    weights = onnx.load(folder / "model.onnx").graph.initializer
    exact = [weight for weight in weights if weight.data_type == onnx.TensorProto.FLOAT]
    assert max(np.prod(weight.dims) for weight in exact) < 16 * 201
    assert check.outputs == ("last_hidden_state", "logits")


def test_what_a_model_does_not_have_is_not_exported(make_run, tuned_once, tmp_path):
    options = {"precision": "fp32", "max_length": None}
    with pytest.raises(InputError, match=r"discriminator.*embed, fill"):
        export_onnx(make_run("mlm"), tmp_path, part="discriminator", **options)
    _, source = tuned_once(CLASSES)
    with pytest.raises(InputError, match=r"generator.*embed, classify"):
        export_onnx(source, tmp_path, part="generator", **options)
    with pytest.raises(InputError, match=r"max_length.*99.*\b8\b.*\b32\b"):
        export_onnx(source, tmp_path, part="encoder", precision="fp32", max_length=99)
    assert not list(tmp_path.iterdir())


def test_an_export_is_not_exported_again(run, export_once, tmp_path):
    folder, _ = export_once(run)
    with pytest.raises(InputError, match="ONNX"):
        export_onnx(folder, tmp_path, part="encoder", precision="fp32", max_length=None)


def test_a_graph_that_computes_something_else_is_refused(run, export_once):
    folder, _ = export_once(run)
    model = load(run)
    graph = Graph(model.reader.encoder, model.discriminator.head).eval()
    options = {"precision": "fp32", "max_length": 32}
    check = check_graph(folder / "model.onnx", graph, model.tokenizer, **options)
    assert check.largest_difference < EXACT
    with torch.no_grad():
        graph.head.output.bias += 0.1
    with pytest.raises(InputError, match=r"logits 1\.0e-01"):
        check_graph(folder / "model.onnx", graph, model.tokenizer, **options)
    with torch.no_grad():
        graph.head.output.bias.fill_(torch.nan)
    with pytest.raises(InputError, match="logits nan"):
        check_graph(folder / "model.onnx", graph, model.tokenizer, **options)


def test_rows_of_the_check_are_padded_and_of_all_lengths(tokenizer):
    found = list(check_batches(tokenizer, max_length=32))
    assert [inputs["input_ids"].shape for inputs in found] == [(1, 32), (2, 24), (3, 17), (4, 10), (5, 3)]
    for inputs in found:
        is_padding = inputs["attention_mask"] == 0
        assert (inputs["input_ids"][is_padding] == tokenizer.pad_id).all()
        assert (inputs["input_ids"][:, 0] == tokenizer.cls_id).all()
        assert inputs["attention_mask"].sum(axis=1).min() >= 3
    assert any((inputs["attention_mask"] == 0).any() for inputs in found)
    assert any(inputs["token_type_ids"].any() for inputs in found)


@SLOW
def test_nothing_is_said_on_the_way(run, tmp_path, capfd, caplog):
    export_onnx(run, tmp_path, part="discriminator", precision="int8", max_length=None)
    assert capfd.readouterr() == ("", "")
    # Torch keeps a trace of its own, which nobody sees.
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_quiet_ends(capsys, caplog):
    with quiet():
        print("hidden")
        logging.getLogger("other").warning("hidden")
        warnings.warn("hidden", stacklevel=1)
    print("shown")
    logging.getLogger("other").warning("shown")
    assert capsys.readouterr().out == "shown\n"
    assert [record.message for record in caplog.records] == ["shown"]
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", stacklevel=1)
