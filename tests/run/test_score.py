"""`electra score` as a person runs it: on random weights, and on a model that has learned an order."""

import csv
import gzip
import json
import random

import pytest

import electra
from electra import cli
from electra.errors import InputError
from electra.tasks.families.classification import Classification

GOOD, BAD = "the old river was in a small city", "river the in old a was city small"


def score(model, *words, code=cli.OK):
    assert cli.main(["score", "--model", str(model), "--precision", "fp32", *map(str, words)]) == code


def rows_of(path, delimiter=","):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs"
    path.mkdir()
    (path / "order.txt").write_text(f"{BAD}\n{GOOD}\nmusic is new\nnew music is\n", encoding="utf-8")
    (path / "case.txt").write_text("The river\nthe river\n", encoding="utf-8")
    return path


def test_texts_are_scored_and_shown(run, capsys):
    score(run, "--text", GOOD, BAD)
    shown = capsys.readouterr().out
    expected = electra.load(run, precision="fp32").score([GOOD, BAD])
    precision, head, *lines = shown.splitlines()
    assert "fp32" in precision
    assert head.split()[:4] == ["detection", "per", "token", "pseudo_likelihood"]
    for line, answer in zip(lines, expected, strict=True):
        assert line.endswith(answer["text"])
        assert f"{answer['scores']['detection']['sum']:.3f}" in line
        assert f"{answer['scores']['pseudo_likelihood']['mean']:.3f}" in line


def test_tokens_are_shown_one_below_the_other(run, capsys):
    score(run, "--text", "the river", "--tokens", "show", "--by", "detection")
    _, _, text, first, second = capsys.readouterr().out.splitlines()
    assert text.split()[-2:] == ["the", "river"]
    assert (first.split()[-1], second.split()[-1]) == ("the", "river")
    both = sum(float(line.split()[0]) for line in (first, second))
    assert float(text.split()[1]) == pytest.approx(both, abs=0.0016)  # three numbers of three decimals


def test_a_text_in_brackets_is_a_text(run, capsys):
    score(run, "--text", "[the river", "--by", "detection")
    assert capsys.readouterr().out.rstrip().endswith("[the river")


def test_a_file_has_a_text_in_each_line(run, tmp_path, capsys, assert_alike):
    path, out = tmp_path / "texts.txt.gz", tmp_path / "new" / "scores.jsonl"
    path.write_bytes(gzip.compress("\n".join(["the river", "", *["music, ä"] * 30]).encode("latin-1")))
    score(run, "--data", path, "--out", out, "--encoding", "latin-1", "--tokens", "show")
    found = lines_of(out)
    assert [row["id"] for row in found] == [1, *range(3, 33)]
    assert_alike(
        found[0], {"id": 1, **electra.load(run, precision="fp32").score(["the river"], tokens="show")[0]}
    )
    assert found[1]["text"] == "music, ä"
    assert "and 11 more" in capsys.readouterr().out


def test_a_table_of_pairs_says_which_text_is_preferred(run, tmp_path, capsys):
    path, out = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    path.write_text(f'good;bad\n"{GOOD}";{BAD}\nthe river;The river\n', encoding="utf-8")
    words = ["--data", path, "--text_column", "good", "--pair_column", "bad"]
    score(run, *words, "--out", out)
    first, second = rows_of(out)
    one, other = electra.load(run, precision="fp32").score([GOOD, BAD])
    for method in ("detection", "pseudo_likelihood"):
        sums = [answer["scores"][method]["sum"] for answer in (one, other)]
        assert float(first[f"{method}_sum"]) == pytest.approx(sums[0], rel=1e-5)
        assert float(first[f"pair_{method}_sum"]) == pytest.approx(sums[1], rel=1e-5)
        assert first[f"{method}_preferred"] == ("text" if sums[0] > sums[1] else "pair")
        assert second[f"{method}_preferred"] == "tie"
    assert (first["text"], first["pair"], first["id"]) == (GOOD, BAD, "2")
    assert "better" in capsys.readouterr().out
    score(run, *words, "--out", tmp_path / "scores.tsv")
    assert rows_of(tmp_path / "scores.tsv", delimiter="\t") == rows_of(out)


def test_minimal_pairs_of_a_run_are_kept_for_its_report(run, pairs, tmp_path, capsys):
    score(run, "--task", "minimal_pairs", "--data", pairs, "--out", tmp_path / "mine.json")
    shown = capsys.readouterr().out
    content = json.loads((tmp_path / "mine.json").read_text())
    assert content["phenomena"]["case"]["accuracy"] == {"detection": 0.5, "pseudo_likelihood": 0.5}
    for name, accuracy in (("case", 0.5), ("mean of all", content["accuracy"]["detection"])):
        (line,) = (line for line in shown.splitlines() if line.strip().startswith(name))
        assert f"{accuracy:.1%}" in line
    # Not a whole run: it has no metrics, so nothing is written there unless it is named.
    score(run, "--task", "minimal_pairs", "--data", pairs)
    assert not (run / "minimal_pairs.json").exists()


def test_python_gives_what_the_command_does(run, pairs, tmp_path, assert_alike):
    found = electra.score(
        model=run, text=[GOOD, BAD], by="detection", out=tmp_path / "scores.jsonl", precision="fp32"
    )
    assert list(found) == lines_of(tmp_path / "scores.jsonl")
    assert (len(found), found[1]["text"], found.path) == (2, BAD, tmp_path / "scores.jsonl")
    assert found.accuracy is None
    assert_alike(electra.score(model=run, text=GOOD, by="detection", precision="fp32").rows, found.rows[:1])
    of_pairs = electra.score(model=run, task="minimal_pairs", data=pairs, by="detection", limit=1)
    assert [row["phenomenon"] for row in of_pairs] == ["case", "order"]
    assert of_pairs.accuracy == of_pairs.accuracies["detection"]
    assert of_pairs.accuracy == sum(row["accuracy"]["detection"] for row in of_pairs) / 2
    with pytest.raises(InputError, match="by: expected"):
        electra.score(model=run, text=GOOD, by="luck")


@pytest.mark.parametrize("words", [["--text", GOOD], ["--task", "minimal_pairs"]])
def test_bf16_scores_too_and_is_announced(run, pairs, tmp_path, capsys, words):
    words = [*words, *(["--data", str(pairs)] if "--task" in words else [])]
    assert cli.main(["score", "--model", str(run), *words, "--precision", "bf16"]) == cli.OK
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.strip() == "computes in bf16 (as asked for)"
    assert rest


@pytest.mark.parametrize(("words", "message"), [(["fp8"], "fp8"), (["fp16", "--device", "cpu"], "CUDA")])
def test_a_precision_that_cannot_be_is_refused(run, capsys, words, message):
    command = ["score", "--model", str(run), "--text", GOOD, "--precision"]
    assert cli.main([*command, *words]) == cli.BAD_INPUT
    assert message in capsys.readouterr().err


def test_a_graph_has_a_precision_of_its_own(run, export_once, capsys):
    folder, _ = export_once(run)
    words = ["--model", str(folder), "--engine", "onnx", "--text", GOOD, "--by", "detection"]
    assert cli.main(["score", *words]) == cli.OK
    assert "computes in fp32 (that of the graph)" in capsys.readouterr().out
    assert cli.main(["score", *words, "--precision", "bf16"]) == cli.BAD_INPUT
    assert "ONNX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --text"),
        (["--text", "a", "--data", "b.txt"], "give either --text"),
        (["--text", " "], "text[0] is empty"),
        (["--text", "the [MASK] river"], "text[0] holds [MASK]"),
        (["--text", "a", "--limit", "3"], "limit is 3"),
        (["--text", "a", "--pair_column", "b"], "pair_column is 'b'"),
        (["--text", "a", "--out", "a.xlsx"], "--out a.xlsx"),
        (["--text", "a", "--out", "a.csv", "--tokens", "show"], "tokens is show"),
        (["--data", "TEXTS.txt", "--pair_column", "b"], "pair_column is 'b'"),
        (["--data", "nothing.txt"], "nothing.txt: no such file"),
        (["--data", "TABLE.csv"], "TABLE.csv:2: 'text' is empty"),
        (["--data", "TABLE.csv", "--text_column", "txet"], "no column 'txet'"),
        (["--data", "EMPTY.txt"], "EMPTY.txt: no text in it"),
        (["--task", "minimal_pairs"], "give --data"),
        (["--task", "minimal_pairs", "--data", "x", "--tokens", "show"], "tokens is 'show'"),
        (["--task", "minimal_pairs", "--data", "x", "--out", "a.csv"], "expected .json"),
        (["--task", "minimal_pairs", "--data", "TEXTS.txt", "--limit", "0"], "limit is 0"),
        (["--task", "minimal_pairs", "--data", "TEXTS.txt"], "TEXTS.txt:1: 1 lines"),
    ],
)
def test_bad_input_is_refused_with_its_name(run, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXTS.txt").write_text("a text\n")
    (tmp_path / "TABLE.csv").write_text('text,other\n" ",a\n')
    (tmp_path / "EMPTY.txt").write_text("\n\n")
    score(run, *words, code=cli.BAD_INPUT)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()


def test_a_model_that_cannot_score_is_refused(make_tuned, capsys, pairs):
    _, folder = make_tuned(Classification(("bad", "good")))
    for words in (["--text", "a"], ["--task", "minimal_pairs", "--data", pairs]):
        score(folder, *words, code=cli.BAD_INPUT)
        assert "cannot score texts" in capsys.readouterr().err


DETERMINERS, ADJECTIVES = ["the", "a", "this", "one"], ["old", "new", "small", "large"]
NOUNS, VERBS = ["river", "city", "model", "song", "bird"], ["was", "is", "had", "saw"]


def sentence(generator):
    """Determiner, adjective, noun, verb, determiner, noun: an order that never varies."""
    classes = (DETERMINERS, ADJECTIVES, NOUNS, VERBS, DETERMINERS, NOUNS)
    return [generator.choice(words) for words in classes]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run of some seconds, after which words have their places: 100 % with each of four seeds tried."""
    folder, generator = tmp_path_factory.mktemp("learned"), random.Random(3)
    texts = [" ".join(sentence(generator)) + " ." for _ in range(1500)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    data = electra.prepare(
        corpus=folder / "text.txt",
        out=folder / "data",
        vocab_size=256,
        seq_length=16,
        duplicates="keep",
        workers=1,
    )
    return electra.pretrain(
        data=data,
        out=folder / "run",
        model={
            "size": "tiny",
            "hidden_size": 32,
            "embedding_size": 32,
            "intermediate_size": 64,
            "dropout": 0.0,
        },
        generator={"width": 1.0},
        train={
            "steps": 80,
            "batch_size": 32,
            "learning_rate": 2e-3,
            "warmup_steps": 10,
            "precision": "fp32",
            "device": "cpu",
        },
    )


@pytest.mark.slow
@pytest.mark.numeric
def test_a_model_prefers_the_order_that_it_has_read(learned, tmp_path, capsys):
    """Two neighbours of another class exchanged: chance is 50 %, with a spread of 5 % for a hundred pairs."""
    generator = random.Random(4)
    lines = []
    for _ in range(100):
        good = sentence(generator)
        place = generator.choice([0, 1, 2, 3, 4])
        bad = [*good[:place], good[place + 1], good[place], *good[place + 2 :]]
        lines += [f"{' '.join(bad)} .", f"{' '.join(good)} ."]
    (tmp_path / "order.txt").write_text("\n".join(lines))
    score(learned, "--task", "minimal_pairs", "--data", tmp_path / "order.txt")
    content = json.loads((learned / "minimal_pairs.json").read_text())
    assert content["accuracy"]["pseudo_likelihood"] > 0.8
    assert content["accuracy"]["detection"] > 0.8
    assert "minimal_pairs.json" in capsys.readouterr().out
    assert cli.main(["report", str(learned)]) == cli.OK
    assert "minimal pairs by detection" in capsys.readouterr().out
    assert "Minimal pairs" in (learned / "report.html").read_text()
