"""`electra predict` as a person runs it, on small models with random weights."""

import contextlib
import csv
import json
import re
import signal
import subprocess
import sys
import time
import zipfile

import pytest

import electra
from electra import cli
from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import torch_generator
from electra.tasks import precision, stream
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.tagging import Tagging
from electra.tasks.model import FineTuned, TaskModel, save_model
from electra.text import tokenizer as tokenizers
from local_cluster import TEST_SECONDS, typed_on_cluster
from ray_nodes import PATIENCE, ray_nodes

FAMILIES = {
    "cola": Classification(("unacceptable", "acceptable"), ("mcc",)),
    "mnli": Classification(("entailment", "neutral", "contradiction"), ("accuracy",)),
    "stsb": Regression(low=0, high=5),
    "topics": MultiLabel(("sport", "art")),
    "conllu": Tagging(("DET", "NOUN"), "tokens"),
    "squad_v2": QuestionAnswering(answerability="on"),
}
PAIRS = {"mnli": {"text_pair": "text_pair"}, "stsb": {"text_pair": "text_pair"}}


@pytest.fixture(scope="module")
def models(runs, tmp_path_factory):
    """A folder with a model for each task, named as `finetune --task glue` names them."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tokenizers.load_tokenizer(runs.data / "tokenizer")
    for task, family in FAMILIES.items():
        encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
        initialise(encoder, std=0.2, generator=torch_generator(0, task))
        facts = {"seed": 0, "input": PAIRS.get(task, {})}
        model = TaskModel(encoder, {task: family})
        tuned = FineTuned(model=model, task=task, tokenizer=tokenizer, max_length=32, facts=facts)
        save_model(tuned, folder / task / "final")
    return folder


def predict(model, *words, code=cli.OK):
    assert cli.main(["predict", "--model", str(model), "--precision", "fp32", *map(str, words)]) == code


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('text\n"the old, small river"\nthe new city\n', encoding="utf-8")
    return path


def rows_of(path, delimiter=","):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_a_table_has_the_text_beside_the_answer(models, texts, tmp_path):
    predict(models / "cola", "--input", texts, "--out", tmp_path / "said.csv")
    rows = rows_of(tmp_path / "said.csv")
    assert [row["text"] for row in rows] == ["the old, small river", "the new city"]
    assert all(row["label"] in FAMILIES["cola"].labels() for row in rows)
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)


def test_lines_of_json_have_all_that_the_model_says(models, texts, tmp_path):
    predict(models / "cola", "--input", texts, "--out", tmp_path / "said.jsonl")
    records = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == ["2", "3"]
    assert all(sum(record["probabilities"].values()) == pytest.approx(1) for record in records)


def test_a_plain_text_has_an_example_in_each_line(models, tmp_path):
    (tmp_path / "texts.txt").write_text("the old river\n\nthe city\n", encoding="utf-8")
    predict(models / "topics", "--input", tmp_path / "texts.txt", "--out", tmp_path / "said.tsv")
    rows = rows_of(tmp_path / "said.tsv", "\t")
    assert [(row["id"], row["text"]) for row in rows] == [("1", "the old river"), ("3", "the city")]
    predict(models / "conllu", "--input", tmp_path / "texts.txt", "--out", tmp_path / "tags.csv")
    assert [len(row["tags"].split()) for row in rows_of(tmp_path / "tags.csv")] == [3, 2]


def test_columns_may_have_other_names(models, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"a": "the river", "b": "a city"}\n', encoding="utf-8")
    columns = ("--own.text", "a", "--own.text_pair", "b")
    predict(models / "stsb", "--input", tmp_path / "pairs.jsonl", "--out", tmp_path / "said.csv", *columns)
    (row,) = rows_of(tmp_path / "said.csv")
    assert (row["text"], row["text_pair"]) == ("the river", "a city")
    float(row["value"])


@pytest.fixture
def glue(tmp_path):
    pair_header = "index\tsentence1\tsentence2\n"
    for name, content in {
        "CoLA/test.tsv": "index\tsentence\n0\tthe river\n1\ta city\n",
        "MNLI/test_matched.tsv": pair_header + "0\tthe river\ta city\n",
        "MNLI/test_mismatched.tsv": pair_header + "0\tthe city\ta river\n",
        "AX/diagnostic.tsv": pair_header + "0\tthe city\ta river\n1\tthe city\ta model\n",
        "RTE/test.tsv": pair_header + "0\tthe city\ta river\n",
    }.items():
        path = tmp_path / "glue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path / "glue"


def test_all_test_sets_become_one_submission(models, glue, tmp_path, capsys):
    predict(models, "--task", "glue", "--data", glue, "--out", tmp_path / "submission.zip")
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert sorted(archive.namelist()) == ["AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]
        lines = archive.read("AX.tsv").decode().splitlines()
    assert lines[0] == "index\tprediction"
    assert {line.split("\t")[1] for line in lines[1:]} <= set(FAMILIES["mnli"].labels())
    out = capsys.readouterr().out
    assert re.search(r"\brte\b.*model", out)
    assert "SST-2.tsv" in out


def test_one_split_of_a_task(models, glue, tmp_path):
    words = ("--task", "mnli", "--data", glue, "--split", "test_matched", "--out", tmp_path / "said.jsonl")
    predict(models / "mnli", *words)
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 1


def test_squad_has_its_official_files(models, tmp_path):
    question = {"id": "q1", "question": "which river", "answers": [], "is_impossible": True}
    paragraph = {"context": "the old river was in a small city", "qas": [question]}
    content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(content), encoding="utf-8")
    words = ("--task", "squad_v2", "--data", tmp_path, "--split", "dev", "--out", tmp_path / "official")
    predict(models / "squad_v2", *words)
    said = json.loads((tmp_path / "official" / "predictions.json").read_text())
    assert said["q1"] in paragraph["context"]
    odds = json.loads((tmp_path / "official" / "null_odds.json").read_text())
    assert isinstance(odds["q1"], float)


@pytest.mark.parametrize(
    ("task", "words", "message"),
    [
        ("cola", ["--input", "nowhere.csv", "--out", "said.csv"], r"--input.*nowhere\.csv"),
        ("cola", ["--task", "cola", "--out", "said.csv"], "--data"),
        ("cola", ["--out", "said.csv"], "--input.*--task"),
        ("cola", ["--input", "{texts}", "--out", "said.xlsx"], r"said\.xlsx.*\.jsonl.*\.csv.*\.tsv"),
        ("cola", ["--input", "{texts}", "--out", "said.zip"], r"said\.zip.*GLUE"),
        ("cola", ["--input", "{texts}", "--out", "said"], r"said\.csv"),
        ("mnli", ["--input", "{texts}", "--out", "said.csv"], "'text_pair'"),
        ("cola", ["--task", "ax", "--data", "{glue}", "--out", "said.csv"], "mnli"),
        ("mnli", ["--task", "mnli", "--data", "{glue}", "--out", "said.csv"], "--split"),
        (
            "cola",
            ["--task", "cola", "--data", "{glue}", "--split", "dev", "--out", "said.csv"],
            r"'dev'.*\btest\b",
        ),
    ],
)
def test_bad_input_is_refused_by_name(
    models, texts, glue, tmp_path, monkeypatch, capsys, task, words, message
):
    monkeypatch.chdir(tmp_path)
    predict(models / task, *[word.format(texts=texts, glue=glue) for word in words], code=cli.BAD_INPUT)
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error
    assert not list(tmp_path.glob("said*"))


@pytest.mark.parametrize("task", ["cola", "stsb", "topics", "conllu"])
def test_bf16_predicts_too_and_is_announced(models, tmp_path, capsys, task):
    path = tmp_path / "texts.csv"
    path.write_text("text,text_pair,tokens\nthe old river,a city,the old\na city,the river,a city\n")
    columns = ["--own.text", "tokens"] if task == "conllu" else []
    words = ["--model", str(models / task), "--input", str(path), *columns]
    for name in ("fp32", "bf16"):
        out = str(tmp_path / f"{name}.jsonl")
        assert cli.main(["predict", *words, "--out", out, "--precision", name]) == cli.OK
        assert f"{task}: computes in {name} (as asked for)" in capsys.readouterr().out
    said = [(tmp_path / f"{name}.jsonl").read_text() for name in ("fp32", "bf16")]
    assert len(said[0].splitlines()) == len(said[1].splitlines()) == 2
    assert said[0] != said[1]


@pytest.mark.parametrize(("tolerance", "chosen"), [(0.0, "fp32"), (1.0, "bf16")])
def test_auto_compares_with_fp32_on_the_first_examples(
    models, texts, tmp_path, capsys, monkeypatch, tolerance, chosen
):
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "bf16")
    monkeypatch.setattr(precision, "TOLERANCE", tolerance)
    # Without the labels: they may be others even where no probability is far from that of fp32.
    words = ["--model", str(models / "topics"), "--input", str(texts)]
    monkeypatch.setattr(MultiLabel, "predictions", probabilities_alone)
    assert cli.main(["predict", *words, "--out", str(tmp_path / "auto.jsonl")]) == cli.OK
    shown = capsys.readouterr().out
    assert f"computes in {chosen} (auto" in shown
    assert ("says something else: [0].probabilities" in shown) == (chosen == "fp32")
    predicted = (tmp_path / "auto.jsonl").read_text()
    assert cli.main(["predict", *words, "--out", str(tmp_path / "as.jsonl"), "--precision", chosen]) == cli.OK
    assert predicted == (tmp_path / "as.jsonl").read_text()


def probabilities_alone(family, examples, rows, outputs):
    return [{"probabilities": [float(p) for p in output]} for output in outputs]


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        (["--precision", "fp8"], "", r"precision.*fp8"),
        (["--precision", "fp16", "--device", "cpu"], "", "fp16.*CUDA"),
        ([], "int8", "ELECTRA_AUTO_PRECISION is 'int8'"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(
    models, texts, tmp_path, capsys, monkeypatch, words, variable, message
):
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", variable)
    command = ["predict", "--model", str(models / "cola"), "--input", str(texts)]
    assert cli.main([*command, "--out", str(tmp_path / "said.csv"), *words]) == cli.BAD_INPUT
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "said.csv").exists()


NEEDLESS = (
    "matplotlib",
    "transformers",
    "fastapi",
    "uvicorn",
    "pydantic",
    "datasets",
    "pandas",
    "onnxruntime",
)


@pytest.mark.slow
def test_predicting_imports_no_more_than_it_needs(models, texts, tmp_path):
    code = "import sys; from electra import cli; assert cli.main(sys.argv[1:]) == 0; print(*sys.modules)"
    words = ["predict", "--model", models / "cola", "--input", texts, "--out", tmp_path / "said.csv"]
    command = [sys.executable, "-c", code, *map(str, words), "--precision", "fp32"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = found.stdout.splitlines()[-1].split()
    assert "torch" in modules
    assert not {*NEEDLESS} & {*modules}
    # Nor what training needs.
    assert not {"electra.train.engine", "electra.tasks.study", "rich.progress"} & {*modules}
    assert not {"torch._dynamo", "torch.distributed.fsdp", "sympy"} & {*modules}


def many_texts(path, *, count):
    words = ("the", "old", "small", "river", "new", "city", "a", "model")
    rows = [
        {
            "name": f"n{number}",
            "text": " ".join(words[(number * 7 + place) % 8] for place in range(1 + number % 9)),
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


KILLED = """
import os, signal, sys
from electra import cli
from electra.tasks import evaluation, stream
stream._KEEP_EVERY_SECONDS = 0.0
written, pieces = evaluation.written, []
def killing(*arguments, **keys):
    pieces.append(1)
    if len(pieces) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return written(*arguments, **keys)
evaluation.written = killing
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["said.jsonl", "said.csv"])
def test_a_killed_command_goes_on_where_it_was(models, tmp_path, monkeypatch, capsys, name):
    input = many_texts(tmp_path / "texts.jsonl", count=7 * stream.PIECE_EXAMPLES + 5)
    words = ("--input", input, "--out", tmp_path / name, "--own.id", "name")
    command = [
        sys.executable,
        "-c",
        KILLED,
        "predict",
        "--model",
        models / "cola",
        "--precision",
        "fp32",
        *words,
    ]
    assert subprocess.run([*map(str, command)], capture_output=True).returncode == -signal.SIGKILL
    assert not (tmp_path / name).exists()
    computed = []
    predict_piece = stream.predict_piece

    def counted(tuned, piece, **keys):
        computed.append(piece[0].id)
        return predict_piece(tuned, piece, **keys)

    monkeypatch.setattr(stream, "predict_piece", counted)
    predict(models / "cola", *words)
    assert computed[0] == f"n{3 * stream.PIECE_EXAMPLES}"
    assert len(computed) == 5
    assert "384 of 901 examples are there already" in capsys.readouterr().out
    predict(models / "cola", *words[:2], "--out", tmp_path / f"whole-{name}", *words[4:])
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert len(computed) == 5 + 8
    # Nothing is left over.
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", name, f"whole-{name}"}


def test_what_is_there_of_other_examples_or_another_model_is_not_taken(models, tmp_path):
    path = tmp_path / "said.jsonl"
    first = {"model": "a", "input": "b"}
    with contextlib.suppress(KeyboardInterrupt), stream.Unfinished(path, first) as unfinished:
        unfinished.add(b"one\n")
        raise KeyboardInterrupt
    with contextlib.suppress(KeyboardInterrupt), stream.Unfinished(path, first) as unfinished:
        assert unfinished.num_pieces == 1
        with pytest.raises(InputError, match=r"said\.jsonl.*another"), stream.Unfinished(path, first):
            pass
        raise KeyboardInterrupt
    # Bytes that were written after the last note are not known to be whole.
    with (tmp_path / ".said.jsonl.part").open("ab") as file:
        file.write(b"half a li")
    with (
        contextlib.suppress(KeyboardInterrupt),
        stream.Unfinished(path, {**first, "model": "c"}) as unfinished,
    ):
        assert unfinished.num_pieces == 0
        raise KeyboardInterrupt
    with stream.Unfinished(path, {**first, "model": "c"}) as unfinished:
        unfinished.add(b"two\n")
    assert path.read_bytes() == b"two\n"


def test_a_bad_line_at_the_end_is_refused_before_the_first_prediction(models, tmp_path, monkeypatch, capsys):
    input = many_texts(tmp_path / "texts.jsonl", count=2 * stream.PIECE_EXAMPLES)
    monkeypatch.setattr(stream, "predict_piece", None)
    for line, message in (
        ('{"name": "x", "text": ""}', "'text' is empty"),
        ('{"name": "n3", "text": "x"}', "unique"),
    ):
        whole = input.read_text()
        input.write_text(f"{whole}{line}\n")
        words = ("--input", input, "--out", tmp_path / "said.csv", "--own.id", "name")
        predict(models / "cola", *words, code=cli.BAD_INPUT)
        assert re.search(rf"texts\.jsonl:257: .*{message}", capsys.readouterr().err)
        input.write_text(whole)
    assert not (tmp_path / "said.csv").exists()


@pytest.mark.numeric
def test_pieces_say_what_the_model_says_of_all_at_once(models, tmp_path):
    input = many_texts(tmp_path / "texts.jsonl", count=2 * stream.PIECE_EXAMPLES + 3)
    predict(models / "cola", "--input", input, "--out", tmp_path / "said.jsonl")
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    model = electra.load(models / "cola", precision="fp32")
    texts = [json.loads(line)["text"] for line in input.read_text().splitlines()]
    expected = model.classify(texts)
    assert [one["id"] for one in said] == [str(number) for number in range(1, len(texts) + 1)]
    for one, other in zip(said, expected, strict=True):
        # Other batches, so that sums of fp32 are rounded in another order.
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "nowhere"], "cluster is 'nowhere'.*ray://"),
        (["--cluster_gpus", "0.5"], "--cluster"),
        (["--cluster", "local", "--cluster_gpus", "-1"], "cluster_gpus is -1"),
        (["--cluster", "ray://127.0.0.1:1"], "127.0.0.1:1"),
        (["--cluster", "ray://a..b:10001"], r"a\.\.b:10001"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(models, texts, tmp_path, capsys, words, message):
    pytest.importorskip("ray")
    predict(models / "cola", "--input", texts, "--out", tmp_path / "said.csv", *words, code=cli.BAD_INPUT)
    assert re.search(message, capsys.readouterr().err)
    assert not [path for path in tmp_path.iterdir() if "said" in path.name]


def test_a_cluster_is_for_files_of_ones_own(models, glue, tmp_path, capsys):
    words = ("--task", "cola", "--data", glue, "--out", tmp_path / "said.csv", "--cluster", "local")
    predict(models / "cola", *words, code=cli.BAD_INPUT)
    assert "--input" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(TEST_SECONDS)
def test_a_cluster_writes_the_same_bytes(models, tmp_path):
    input = many_texts(tmp_path / "texts.jsonl", count=5 * stream.PIECE_EXAMPLES + 7)
    words = ("--input", input, "--out")
    predict(models / "cola", *words, tmp_path / "here.jsonl")
    given = ("--model", models / "cola", "--precision", "fp32", *words, tmp_path / "there.jsonl")
    shown = typed_on_cluster("predict", *given).stdout
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()
    assert "647 on node" in shown


@pytest.mark.long(reason="Ray nodes, each of which is several Python processes")
@pytest.mark.timeout(TEST_SECONDS)
def test_a_node_that_dies_in_the_middle_changes_no_byte(models, tmp_path):
    input = many_texts(tmp_path / "texts.jsonl", count=150 * stream.PIECE_EXAMPLES)
    words = ["--model", models / "cola", "--precision", "fp32", "--input", input, "--out"]
    with ray_nodes(2) as nodes:
        command = ["predict", *map(str, words), str(tmp_path / "there.jsonl"), "--cluster", "auto"]
        process = nodes.electra(command)
        part = tmp_path / ".there.jsonl.part"
        end = time.monotonic() + PATIENCE
        while not (part.is_file() and part.stat().st_size) and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        nodes.kill(1)
        out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == cli.OK, error
    done = {node: int(count.replace(",", "")) for count, node in re.findall(r"([\d,]+) on node (\S+)", out)}
    assert "node-0" in done
    assert sum(done.values()) == 150 * stream.PIECE_EXAMPLES
    predict(models / "cola", *words[4:], tmp_path / "here.jsonl")
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
