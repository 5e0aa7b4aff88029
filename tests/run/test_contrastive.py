"""`electra finetune --task contrastive` as a person runs it: text without labels -> vectors."""

import json
import random
import signal

import numpy as np
import pytest

import electra
from electra import cli
from electra.tasks.model import load_model
from electra.tasks.step import FinetuneProblem

SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"
TEXTS = ["the old river", "a small city was in water", "large mountain model to read of the new"]
KEYS = {
    "task": "contrastive",
    "seeds": 2,
    "dropout": 0.1,
    "contrastive.held_out": 40,
    "train.epochs": 4,
    "train.batch_size": 16,
    "train.learning_rate": 0.002,
    # Numbers are compared: what `auto` chooses depends on the processor.
    "train.precision": "fp32",
    "log.log_every": 1,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents, each about three words that stand among many which say nothing."""
    folder, rng = tmp_path_factory.mktemp("contrastive") / "text", random.Random(0)
    folder.mkdir()
    filling = ["the", "was", "in", "a", "and", "is", "to", "of"]
    topics = sorted({*SENTENCE.split()} - {*filling})
    documents = [" ".join(rng.choices([*filling, *rng.sample(topics, k=3)], k=150)) for _ in range(240)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of sentences, and the share of words that they have in common as their similarity."""
    # A name before "dev" in the alphabet, which is not the order of what counts.
    path, rng = tmp_path_factory.mktemp("STS") / "dev.tsv", random.Random(1)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(40):
        first, second = (rng.sample(SENTENCE.split(), k=6) for _ in range(2))
        lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{len({*first} & {*second}) / 6 * 5:.3f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tune(model, text, pairs):
    def run(out, *, code=cli.OK, **changes):
        keys = {"model": model, "data": text, "out": out, "contrastive.similarity": pairs, **KEYS}
        keys |= {key.replace("__", "."): value for key, value in changes.items()}
        words = [f"--{key}={value}" for key, value in keys.items() if value is not None]
        assert cli.main(["finetune", *words]) == code

    return run


@pytest.fixture(scope="module")
def tuned(tune, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "out"
    tune(out)
    return out


def scores_of(out):
    return json.loads((out / "scores.json").read_text())


def spearman(vectors, labels):
    stats = pytest.importorskip("scipy.stats", reason="scipy is in the extra tasks")
    first, second = np.array(vectors[::2]), np.array(vectors[1::2])
    return stats.spearmanr((first * second).sum(axis=1), labels).statistic


def read_pairs(path):
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [text for row in rows for text in row[:2]], [float(row[2]) for row in rows]


def test_it_learns_what_belongs_together_and_says_what_it_was_before(tuned, pairs, model, capsys):
    content = scores_of(tuned)
    assert (content["task"], content["kind"], content["main_score"]) == (
        "contrastive",
        "similarity",
        "accuracy",
    )
    name = f"{pairs.parent.name}-dev"
    assert content["splits"].keys() == {"dev", name}
    assert content["main_split"] == "dev"
    before, after = content["before"], content["splits"]
    assert after["dev"]["examples"] <= 40
    assert not after[name]["scores"].keys() & {"accuracy", "mrr"}, "these pairs are only to be valued"
    assert after["dev"]["scores"]["accuracy"]["median"] > before["dev"]["scores"]["accuracy"]["median"]
    texts, labels = read_pairs(pairs)
    # Labels are not learned from, and both scores are those of the vectors that the models give to anyone.
    start = electra.load(model, precision="fp32").embed(texts, pooling="mean")
    start = np.array(start) / np.linalg.norm(start, axis=1, keepdims=True)
    assert before[name]["scores"]["spearman"]["median"] == pytest.approx(spearman(start, labels), abs=1e-3)
    final = electra.load(tuned, precision="fp32")
    value = after[name]["scores"]["spearman"]["values"][content["median_seed"]]
    assert value == pytest.approx(spearman(final.embed(texts), labels), abs=1e-3)


def test_the_vectors_have_length_one_and_the_pooling_is_recorded(tuned):
    vectors = np.array(electra.load(tuned).embed(TEXTS))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    final = load_model(tuned)
    assert (final.family.pooling, final.family.loss, final.task) == ("mean", "contrastive", "contrastive")
    said = electra.load(tuned, precision="fp32").similarity(TEXTS[:1], TEXTS[1:2])
    assert said[0]["similarity"] == pytest.approx(vectors[0] @ vectors[1], abs=0.03)


@pytest.mark.slow
@pytest.mark.numeric
def test_sentence_transformers_gives_our_vectors(tuned, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is in the extra dev")
    electra.export(model=tuned, to="transformers", out=tmp_path / "exported")
    theirs = package.SentenceTransformer(str(tmp_path / "exported"), device="cpu").encode(TEXTS)
    ours = np.array(electra.load(tuned, precision="fp32").embed(TEXTS))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)
    assert np.ptp(ours @ ours.T) > 0.01, "the texts must differ for this to say something"


@pytest.mark.slow
@pytest.mark.numeric
def test_a_graph_of_onnx_gives_our_vectors(tuned, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra onnx")
    electra.export(model=tuned, to="onnx", out=tmp_path / "graph")
    theirs = electra.load(tmp_path / "graph", engine="onnx").embed(TEXTS)
    ours = electra.load(tuned, precision="fp32").embed(TEXTS)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_stopped_and_continued_is_the_same(tune, tuned, tmp_path, monkeypatch):
    begin, left = FinetuneProblem.begin, {(0, 5), (1, 9)}

    def begin_or_signal(self, *, step, batch_number, progress):
        if (self.seed, step) in left:
            left.remove((self.seed, step))
            signal.raise_signal(signal.SIGTERM)
        return begin(self, step=step, batch_number=batch_number, progress=progress)

    monkeypatch.setattr(FinetuneProblem, "begin", begin_or_signal)
    for code in (cli.INTERRUPTED, cli.INTERRUPTED, cli.OK):
        tune(tmp_path / "parts", code=code)
    ours, theirs = (scores_of(out)["splits"] for out in (tmp_path / "parts", tuned))
    assert ours == theirs
    for vectors in zip(*(electra.load(out).embed(TEXTS) for out in (tmp_path / "parts", tuned)), strict=True):
        assert vectors[0] == vectors[1]


@pytest.mark.slow
def test_dropout_and_pairs_with_negatives_are_learned_too(tune, tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "text_a,text_b,negative\nthe old river,old river water,a new model\na city,small city,\n",
        encoding="utf-8",
    )
    own = {"own.text": "text_a", "own.text_pair": "text_b", "own.negative": "negative"}
    keys = {"contrastive.pairs": tmp_path / "pairs.csv", "contrastive.views": "dropout", **own}
    tune(tmp_path / "out", seeds=1, train__epochs=1, **keys)
    content = scores_of(tmp_path / "out")
    assert any("2 pairs" in note and "1 with a negative" in note for note in content["notes"])
    assert content["history"][-1]["train_loss"] > 0


@pytest.mark.slow
def test_it_is_evaluated_on_text_on_sets_and_on_stsb(tuned, text, pairs, tmp_path, capsys):
    value = scores_of(tuned)["splits"]["dev"]["scores"]["accuracy"]
    held = electra.evaluate(model=tuned, data=text, contrastive={"held_out": 40}, precision="fp32")
    assert held.scores["dev"]["accuracy"] == pytest.approx(value["values"][scores_of(tuned)["median_seed"]])
    words = ["evaluate", f"--model={tuned}", "--task=contrastive", f"--contrastive.similarity={pairs}"]
    assert cli.main([*words, f"--out={tmp_path}"]) == cli.OK
    (entry,) = scores_of(tmp_path)["splits"].values()
    # GLUE's columns: sentences and score are the last three of ten.
    folder = tmp_path / "STS-B"
    folder.mkdir()
    header, *rows = (line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines())
    names = ["index", "genre", "filename", "year", "old_index", "source1", "source2", *header]
    lines = ["\t".join(names), *("\t".join([str(n), *"xxxxxx", *row]) for n, row in enumerate(rows))]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    glue = electra.evaluate(model=tuned, task="stsb", data=folder)
    assert glue.scores["dev"]["spearman"] == pytest.approx(entry["scores"]["spearman"]["median"])


def test_what_cannot_be_learned_is_refused_before_training(tune, tmp_path, capsys):
    for keys, message in (
        ({"data": tmp_path / "none"}, "no such file"),
        ({"data": None}, "no training examples"),
        ({"contrastive__views": "dropout", "dropout": 0.0}, "--dropout 0.1"),
        ({"train__micro_batch": 4}, "--train.micro_batch all"),
        ({"pooling": "cls"}, "--contrastive.pooling"),
        ({"contrastive__views": "mirror"}, "mirror"),
        ({"contrastive__similarity": tmp_path / "none.tsv"}, "none.tsv"),
    ):
        tune(tmp_path / "out", code=cli.BAD_INPUT, **keys)
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
