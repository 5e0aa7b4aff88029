"""What other libraries load of our exports, each by that library itself where it is installed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import electra
from electra import cli
from electra.errors import InputError
from electra.run import export, finetune

pytestmark = [pytest.mark.numeric, pytest.mark.slow]

TEXTS = ["the old river is in a city", "new water"]
PAIR = ("the old river", "a small city")


def find_package() -> Path | None:
    """Where npm has installed transformers.js: beside the checkout's files, or where a variable says."""
    places = [Path(os.environ.get("ELECTRA_NODE_FOLDER", "")), Path(__file__).parents[2]]
    return next((one for one in places if (one / "node_modules/@huggingface/transformers").is_dir()), None)


NODE, PACKAGE = shutil.which("node"), find_package()
with_node = pytest.mark.skipif(
    NODE is None or PACKAGE is None,
    reason="transformers.js is not installed: npm install --prefix DIR --ignore-scripts "
    "@huggingface/transformers@3, and ELECTRA_NODE_FOLDER=DIR",
)

# Loads a folder as its documentation says, and prints what came out.
SCRIPT = """
import { createRequire } from "node:module";
const [place, models, folder, dtype, task, texts, pair] = JSON.parse(process.argv[2]);
const library = createRequire(place + "/")("@huggingface/transformers");
const { AutoModel, AutoTokenizer, env, pipeline } = library;
env.allowRemoteModels = false;
env.localModelPath = models;
const found = {};
const tokenizer = await AutoTokenizer.from_pretrained(folder);
const inputs = await tokenizer(pair[0], { text_pair: pair[1] });
for (const [name, tensor] of Object.entries(inputs)) found[name] = Array.from(tensor.data, Number);
if (task) {
  const run = await pipeline(task, folder, { dtype });
  const options = task === "feature-extraction" ? { pooling: "mean", normalize: true } : { top_k: null };
  const output = await run(texts, options);
  found.output = output.tolist ? output.tolist() : output;
} else {
  const model = await AutoModel.from_pretrained(folder, { dtype });
  found.output = Array.from((await model(inputs)).logits.data);
}
console.log(JSON.stringify(found));
"""


def in_node(folder: Path, *, dtype: str = "fp32", task: str = "") -> dict:
    script = folder.parent / "load.mjs"
    script.write_text(SCRIPT)
    words = json.dumps([str(PACKAGE), str(folder.parent), folder.name, dtype, task, TEXTS, PAIR])
    done = subprocess.run(
        [str(NODE), str(script), words], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tuned(whole, tmp_path_factory):
    """A classifier of two classes."""
    folder = tmp_path_factory.mktemp("tuned")
    rows = [f"the {word} river is {number},{word}" for number, word in enumerate(["old", "new"] * 16)]
    (folder / "mine.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    keys = {"model": whole, "task": "csv", "data": folder / "mine.csv", "out": folder / "classifier"}
    finetune.main(
        [f"--{key}={value}" for key, value in {**keys, "train.epochs": 1, "pooling": "cls"}.items()]
    )
    return folder / "classifier"


def to_js(model, out, *words):
    layout = ["--layout", "transformers_js"]
    export.main(["--model", str(model), "--to", "onnx", "--out", str(out), *layout, *words])
    return out


def test_the_folder_is_laid_out_as_transformers_js_documents_it(whole, tmp_path):
    """config, tokenizer, and graphs in a folder onnx by the names of their precision."""
    out = to_js(whole, tmp_path / "fp32")
    small = to_js(whole, tmp_path / "int8", "--to", "onnx-int8")
    for folder, graph in ((out, "model.onnx"), (small, "model_quantized.onnx")):
        assert (folder / "onnx" / graph).is_file()
        assert not (folder / "model.onnx").exists()
        assert json.loads((folder / "config.json").read_text())["model_type"] == "electra"
        assert (
            json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
            == "ElectraTokenizer"
        )
        assert (folder / "tokenizer.json").is_file()
    # It is loaded from there by us too, and a changed byte is seen.
    expected = electra.load(whole).detect(TEXTS)[0]["tokens"]
    found = electra.load(out, engine="onnx").detect(TEXTS)[0]["tokens"]
    assert [one["replaced"] for one in found] == pytest.approx(
        [one["replaced"] for one in expected], abs=1e-3
    )
    graph = out / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"onnx/model.onnx is damaged"):
        electra.load(out, engine="onnx")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to=transformers"], "--layout"),
        (["--to=word2vec"], "--layout"),
        (["--to=onnx", "--layout=js"], "layout"),
    ],
)
def test_a_layout_is_of_graphs_only(whole, tmp_path, words, message, capsys):
    keys = [f"--model={whole}", f"--out={tmp_path / 'out'}", "--layout=transformers_js", *words]
    assert cli.main(["export", *keys]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@with_node
def test_transformers_js_classifies(tuned, tmp_path):
    found = in_node(to_js(tuned, tmp_path / "classifier"), task="text-classification")
    ours = electra.load(tuned, precision="fp32").classify(TEXTS)
    for theirs, mine in zip(found["output"], ours, strict=True):
        # Another engine in fp32.
        assert {one["label"]: one["score"] for one in theirs} == pytest.approx(
            mine["probabilities"], abs=1e-4
        )


@with_node
def test_transformers_js_embeds_and_reads_pairs_in_two_segments(whole, tmp_path):
    found = in_node(to_js(whole, tmp_path / "encoder", "--part", "encoder"), task="feature-extraction")
    ours = electra.load(whole, precision="fp32")
    np.testing.assert_allclose(found["output"], np.asarray(ours.embed(TEXTS)), atol=1e-4)
    first, second = (len(ours.detect([text])[0]["tokens"]) for text in PAIR)
    assert found["token_type_ids"] == [0] * (first + 2) + [1] * (second + 1)


@with_node
def test_transformers_js_detects_in_int8(whole, tmp_path):
    """It has no class for the discriminator: AutoModel gives the logits of the graph as they are."""
    out = to_js(whole, tmp_path / "int8", "--to", "onnx-int8")
    found = in_node(out, dtype="q8")
    assert len(found["output"]) == len(found["input_ids"])
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(out / "onnx" / "model_quantized.onnx")
    names = ("input_ids", "attention_mask", "token_type_ids")
    (expected,) = session.run(["logits"], {name: np.array([found[name]], np.int64) for name in names})
    # The same rounded weights; numbers between layers are rounded to a 256th of their range as they come.
    np.testing.assert_allclose(found["output"], expected[0], atol=0.05)


def test_curated_transformers_has_the_encoder(whole, tmp_path):
    from curated_transformers.layers import AttentionMask
    from curated_transformers.models.electra import ELECTRAEncoder
    from fsspec.implementations.local import LocalFileSystem
    from transformers import AutoModel, AutoTokenizer

    out = tmp_path / "encoder"
    export.main(["--model", str(whole), "--to", "transformers", "--part", "encoder", "--out", str(out)])
    encoder = ELECTRAEncoder.from_fsspec(fs=LocalFileSystem(), model_path=str(out)).eval()
    batch = AutoTokenizer.from_pretrained(out)(TEXTS, padding=True, return_tensors="pt")
    text_BL = batch["attention_mask"].bool()
    with torch.no_grad():
        found = encoder(
            batch["input_ids"], attention_mask=AttentionMask(text_BL), type_ids=batch["token_type_ids"]
        )
        expected = AutoModel.from_pretrained(out).eval()(**batch)
    # Two ways to add up a hundred products of numbers around 1 in float32.
    torch.testing.assert_close(
        found.last_hidden_layer_state[text_BL], expected.last_hidden_state[text_BL], rtol=0, atol=1e-5
    )


# Of what spaCy's plug-ins import.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_spacy_has_the_word_vectors(whole, tmp_path):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install 'spacy>=3.8,<4'")
    from spacy.training.initialize import convert_vectors

    export.main(["--model", str(whole), "--to", "word2vec", "--out", str(tmp_path / "vectors")])
    lines = (tmp_path / "vectors" / "vectors.txt").read_text(encoding="utf-8").splitlines()[1:]
    expected = {line.split(" ")[0]: np.array(line.split(" ")[1:], np.float32) for line in lines}
    pipeline = spacy.blank("en")
    # What `spacy init vectors` does.
    convert_vectors(pipeline, tmp_path / "vectors" / "vectors.txt", truncate=0, prune=-1)
    doc = pipeline("the old river")
    for token in doc:
        np.testing.assert_array_equal(token.vector, expected[token.text])
