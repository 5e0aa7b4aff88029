"""The public names, used as README and docs use them."""

import dataclasses
import inspect
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import electra
from electra.errors import InputError
from electra.formats.export import ExportConfig
from electra.prediction.score_data import ScoreConfig
from electra.pretraining.config import ModelConfig, PretrainRunConfig
from electra.tasks.config import FinetuneConfig
from electra.tasks.evaluation import EvaluateConfig, PredictConfig
from electra.text.dataset import PrepareConfig
from electra.train.schedule import TrainConfig

README = Path(__file__).parents[1] / "README.md"
SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"
SMALL = ModelConfig(size="tiny", hidden_size=32, embedding_size=16, intermediate_size=64)
FUNCTIONS = {
    "prepare": PrepareConfig,
    "pretrain": PretrainRunConfig,
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "score": ScoreConfig,
    "export": ExportConfig,
}
# For a command line only: what writes nothing.
COMMAND_ONLY = {"dry_run", "verify"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = [" ".join(SENTENCE.split()[number % 7 :]) + "." for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join(f"{text} {number}" for number, text in enumerate(texts)))
    return folder


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    return electra.prepare(
        corpus=[corpus],
        out=tmp_path_factory.mktemp("data") / "DATA",
        vocab_size=300,
        seq_length=32,
        valid_fraction=0.1,
        workers=1,
    )


def small_run(data, out, **changes):
    return electra.pretrain(
        data=data,
        out=out,
        model=SMALL,
        generator={"width": 0.5},
        train={"steps": 4, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"},
        checkpoint={"save_every": 4},
        **changes,
    )


def test_importing_takes_neither_torch_nor_numpy():
    code = "import sys, electra; print({'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_the_public_names():
    assert set(electra.__all__) == {"__version__", "load", "doctor", *FUNCTIONS}
    with pytest.raises(AttributeError, match="train_it"):
        _ = electra.train_it


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_key_of_a_command_is_a_keyword_with_an_example(name):
    function = getattr(electra, name)
    assert inspect.isfunction(function)
    assert "electra." in function.__doc__
    parameters = inspect.signature(function).parameters
    keys = {field.name for field in dataclasses.fields(FUNCTIONS[name])} - COMMAND_ONLY
    assert parameters.keys() - {"config"} == keys
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"cluster": "somewhere"}, ("cluster", "ray://HOST:PORT")),
        ({"cluster": "ray://127.0.0.1:1"}, ("ray://127.0.0.1:1",)),
        ({"cluster": "local", "cluster_workers": 0}, ("cluster_workers",)),
        ({"cluster_workers": 2}, ("cluster_workers",)),
        ({"max_restarts": 2}, ("max_restarts",)),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_a_cluster_that_cannot_be_meant_is_refused_before_anything_is_made(data, tmp_path, keys, names):
    with pytest.raises(InputError) as caught:
        small_run(data, tmp_path / "run", **keys)
    assert all(name in str(caught.value) for name in names)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_functions_stay_functions_when_everything_is_imported():
    modules = ["formats.export", "prediction.load", "pretraining.build", "tasks.finetuning", "text.dataset"]
    code = "".join(f"import electra.{module}\n" for module in modules)
    code += "import inspect\n"
    code += "".join(f"assert inspect.isfunction(electra.{name})\n" for name in FUNCTIONS)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_from_a_folder_of_text_to_answers(data, tmp_path, monkeypatch, capsys):
    assert data.counts["rows"] > 0
    assert data.counts["valid_rows"] > 0
    assert data.tokenizer().vocab_size == data.manifest["tokenizer"]["vocab_size"]
    handler = signal.getsignal(signal.SIGINT)
    run = small_run(data, tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
    assert (Path(run), str(run), run / "final") == (run.path, str(run.path), tmp_path / "run" / "final")
    assert (run.steps, run.best_step) == (4, 4)
    assert run.tokens > 0
    assert 0 <= run.metrics["discriminator_auc"] <= 1
    assert Path(run.report).is_file()
    assert run.load().abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    (answer,) = electra.load(run).detect(["The old river was in a small city."])
    assert answer["tokens"][1]["text"] == "old"
    assert 0 < answer["tokens"][1]["replaced"] < 1

    table, own = write_task(tmp_path), {"text": "sentence", "label": "verdict"}
    tuned = electra.finetune(
        model=run,
        task="csv",
        data=table,
        out=tmp_path / "classifier",
        seeds=2,
        own=own,
        train={"epochs": 1, "batch_size": 8, "device": "cpu"},
    )
    assert len(tuned.scores["csv"]["dev"]["accuracy"]) == 2
    assert tuned.median == tuned.medians["csv"]
    assert tuned.median in tuned.scores["csv"]["dev"]["accuracy"] or 0 <= tuned.median <= 1
    assert Path(tuned.reports["csv"]).is_file()
    assert tuned.load().classify(["a small city"])[0]["label"] in ("good", "bad")
    with pytest.raises(InputError, match="csv"):
        tuned.load("sst2")

    found = electra.evaluate(model=tuned, data=table, own=own, out=tmp_path / "scores", device="cpu")
    assert found.score == found.scores["dev"]["accuracy"]
    assert (found.path / "scores.json").is_file()
    said = electra.predict(model=tuned, input=table, own=own, out=tmp_path / "said.jsonl", device="cpu")
    assert len(said) == 40
    assert {row["label"] for row in said} <= {"good", "bad"}
    assert said.path.read_text().count("\n") == 40
    exported = electra.export(model=tuned, to="transformers", out=tmp_path / "hf", data=table, own=own)
    assert exported.scores["dev", "accuracy"] == (found.score, found.score)
    assert exported.load().classify(["a small city"]) == tuned.load().classify(["a small city"])

    # Again, from its own config: it is finished, and stays as it is.
    before = (run / "final" / "manifest.json").read_bytes()
    again = electra.pretrain(out=run, config=run / "config.yaml")
    assert (again.path, again.steps) == (run.path, 4)
    assert (run / "final" / "manifest.json").read_bytes() == before
    assert "electra" not in capsys.readouterr().out, "a library does not print"
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})


@pytest.mark.slow
def test_a_run_in_a_thread_of_a_notebook_or_server(data, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.report.write_report", lambda folder: "not written: this is a test")
    runs = []
    thread = threading.Thread(target=lambda: runs.append(small_run(data, tmp_path / "run")))
    thread.start()
    thread.join()
    assert [run.steps for run in runs] == [4]


def write_task(folder: Path) -> Path:
    lines = [f"{'the small river' if number % 2 else 'a large city'} {number}," for number in range(40)]
    rows = [f"{line}{('good', 'bad')[number % 2]}" for number, line in enumerate(lines)]
    (folder / "task.csv").write_text("\n".join(["sentence,verdict", *rows]))
    return folder / "task.csv"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: electra.pretrain(out="x", data="d", train={"step": 3}), r"'train.step'.*'train.steps'"),
        (lambda: electra.pretrain(out="x", data="d", train=3), r"train\b.*\b3\b"),
        (lambda: electra.pretrain(out="x", data="d", model={"size": "huge"}), r"model\.size.*huge"),
        (lambda: electra.pretrain(out="x"), "--data"),
        (lambda: electra.pretrain(out="x", config="nowhere.yaml"), "nowhere.yaml"),
        (lambda: electra.prepare(corpus="a", out="x", valid_fraction=2), "valid_fraction.*2"),
        (lambda: electra.finetune(out="x", model="m", task="cola", seeds=0), "seeds.*0"),
        (lambda: electra.finetune(out="x", model="m"), "--task"),
        (lambda: electra.evaluate(model="m"), "--data"),
        (lambda: electra.predict(model="m"), "--input"),
        (lambda: electra.export(model="no/such/folder", to="onnx", out="x"), "no/such/folder"),
        (lambda: electra.load("no/such/folder"), "no/such/folder"),
    ],
)
def test_a_mistake_is_named_by_its_key(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        call()
    assert not list(tmp_path.iterdir())


def test_a_key_that_there_is_not_is_pythons_own_error():
    with pytest.raises(TypeError, match="corpsu"):
        electra.prepare(corpsu="a", out="x")


def test_a_group_may_be_an_instance_of_its_class(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("electra.pretraining.build.build", lambda settings, engine: seen.append(settings))
    with pytest.raises(AttributeError):
        electra.pretrain(data=data, out=tmp_path, model={"size": "base"}, train=TrainConfig(batch_size=7))
    # What the instance does not change is the paper's, not the class's.
    assert (seen[0].train.batch_size, seen[0].train.learning_rate) == (7, 2e-4)
