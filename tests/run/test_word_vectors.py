"""Word vectors by `electra pretrain --objective negative_sampling` and `electra export --to word2vec`."""

import json
import re

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import electra
from electra import cli, files
from electra.errors import InputError
from electra.run import export

pytestmark = pytest.mark.numeric

# Of the keys that make other encoders small, those that a bag has.
BAG = {
    "objective": "negative_sampling",
    "model__embedding_size": 32,
    "model__intermediate_size": "null",
    "train__learning_rate": 0.05,
}


@pytest.fixture(scope="module")
def bag(runs, tmp_path_factory):
    run = tmp_path_factory.mktemp("bag") / "run"
    runs.pretrain(run, **BAG)
    return run


def exported(model, out, *words):
    export.main(["--model", str(model), "--to", "word2vec", "--out", str(out), *words])
    return out


@pytest.mark.slow
def test_a_run_has_the_defaults_of_word2vec_and_learns(bag, runs):
    written = yaml.safe_load((bag / "config.yaml").read_text())
    assert written["model"]["backbone"] == "bag"
    assert written["generator"]["kind"] == "unigram"
    assert written["generator"]["temperature"] == pytest.approx(1 / 0.75)
    assert written["generator"]["correct_token"] == "forbidden"
    assert written["negative_sampling"]["negatives"] == 5
    lines = runs.lines(bag, "train")
    # Vectors begin near zero, where no candidate is more probable than another: 6 ln 2.
    assert lines[0]["loss"] == pytest.approx(6 * np.log(2), rel=1e-2)
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    assert {"discriminator_auc", "fixed_auc"} <= runs.lines(bag, "valid")[-1]["metrics"].keys()
    row = json.loads((bag / "samples.jsonl").read_text().splitlines()[-1])["rows"][0]
    assert row["replaced"] == [int(a != b) for a, b in zip(row["original"], row["corrupted"], strict=True)]


@pytest.mark.slow
def test_stopped_and_continued_is_the_same(runs, tmp_path, interrupt):
    runs.assert_continues_exactly(
        tmp_path, interrupt, **BAG, model__dropout=0.1, train__steps=8, log__evaluate_every=4
    )


@pytest.mark.slow
def test_its_model_embeds_texts_by_their_words(bag, tmp_path):
    model = electra.load(bag, precision="fp32")
    assert model.abilities == ("embed",)
    same, other = model.embed(["the old river", "the old river in a city"])
    assert np.asarray(same).shape == np.asarray(other).shape == (32,)
    # And in a graph it is the same.
    export.main(["--model", str(bag), "--to", "onnx", "--out", str(tmp_path / "graph")])
    graph = electra.load(tmp_path / "graph", engine="onnx")
    assert np.asarray(graph.embed(["the old river"])[0]) == pytest.approx(np.asarray(same), abs=1e-5)
    with pytest.raises(InputError, match="backbone='bag'"):
        export.main(["--model", str(bag), "--to", "transformers", "--out", str(tmp_path / "refused")])
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_a_run_and_from_its_model(bag, runs, tmp_path, other_vocabulary):
    keys = {"train__steps": 2, "train__learning_rate": 1e-6, "start": bag}
    runs.pretrain(tmp_path / "again", **{**BAG, **keys})
    assert runs.lines(tmp_path / "again", "train")[0]["loss"] < 0.9 * runs.lines(bag, "train")[0]["loss"]
    # A folder has the vectors of the encoder alone, as word2vec's has.
    runs.pretrain(tmp_path / "folder", **{**BAG, **keys, "start": bag / "final" / "discriminator"})
    started = json.loads((tmp_path / "folder" / "environment.json").read_text())["started_from"]
    assert started["random"] == ["output_vectors"]
    words = runs.words(tmp_path / "words", data=other_vocabulary, **{**BAG, **keys})
    assert cli.main(words) == cli.OK


def test_vectors_are_the_input_embeddings_and_gensim_reads_them(bag, tmp_path, capsys):
    out = exported(bag, tmp_path / "vectors", "--words", "river", "the", "--license", "mit")
    printed = capsys.readouterr().out
    assert files.read_manifest(out, kind="word vectors")
    card = (out / "README.md").read_text()
    assert "license: mit" in card
    gensim = pytest.importorskip("gensim.models", reason="gensim, of the extra dev, is not installed")
    read = gensim.KeyedVectors.load_word2vec_format(out / "vectors.txt")
    table = load_file(bag / "final" / "discriminator" / "model.safetensors")
    table = table["discriminator.embeddings.word_embeddings.weight"]
    vocabulary = (bag / "final" / "discriminator" / "vocab.txt").read_text().splitlines()
    assert read.index_to_key == [
        word for word in vocabulary if not word.startswith("##") and word not in electra_special(vocabulary)
    ]
    for word in ("river", "the", "."):
        assert torch.equal(torch.tensor(read[word]), table[vocabulary.index(word)])
    # What was printed are gensim's neighbours.
    for word in ("river", "the"):
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [word]]
        assert line.split()[1::2] == [name for name, _ in read.most_similar(word, topn=5)]
    # The lines on the card run as they stand.
    code = card.split("```python\n")[1].split("```")[0].replace('folder = "."', f"folder = {str(out)!r}")
    scope = {}
    exec(code, scope)
    assert len(scope["nearest"]) == 10


def electra_special(vocabulary):
    return [word for word in vocabulary if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]


@pytest.mark.slow
def test_any_model_has_vectors(whole, tmp_path):
    """Of the generator it has the same table, which both share; from Python as from the command line."""
    made = electra.export(model=whole, to="word2vec", out=tmp_path / "all", tokens="all", part="generator")
    lines = (tmp_path / "all" / "vectors.txt").read_text().splitlines()
    manifest = json.loads((whole / "final" / "discriminator" / "config.json").read_text())
    assert lines[0] == f"{manifest['vocab_size']} {manifest['embedding_size']}"
    assert len(lines) == manifest["vocab_size"] + 1
    assert {"[MASK]", "##r"} <= {line.split(" ")[0] for line in lines}
    assert all(len(others) == 5 for others in made.neighbours.values())
    assert made.neighbours
    with pytest.raises(InputError, match="no model"):
        made.load()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to=word2vec", "--words", "rivr"], r"rivr.*'river'"),
        (["--to=word2vec", "--data=FILE"], "--data"),
        (["--to=word2vec", "--tokens=some"], "tokens"),
        (["--to=transformers", "--tokens=all"], "--tokens"),
        (["--to=onnx", "--words", "river"], "--words"),
    ],
)
def test_wrong_words_write_nothing(bag, tmp_path, words, message, capsys):
    command = ["export", "--model", str(bag), "--out", str(tmp_path / "out"), *words]
    assert cli.main(command) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"model__num_hidden_layers": 2},
        {"objective": "electra"},
        {"model__backbone": "electra"},
        {"generator__kind": "mlm"},
        {"output_bias": "frequencies"},
        {"discriminator_head": "with_cls"},
        {"negative_sampling__negatives": 0},
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(runs, tmp_path, changes):
    keys = {**BAG, "model__backbone": "bag", **changes}
    runs.pretrain(tmp_path / "run", code=2, **keys)
    assert not (tmp_path / "run" / "checkpoints").exists()
