"""The public names, used as README and docs use them."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import electra
from electra.errors import InputError

README = Path(__file__).parents[1] / "README.md"
SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = [" ".join(SENTENCE.split()[number % 7 :]) + "." for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join(f"{text} {number}" for number, text in enumerate(texts)))
    return folder


def test_importing_takes_neither_torch_nor_numpy():
    code = "import sys, electra; print({'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_the_public_names():
    assert electra.__all__ == ["__version__", "finetune", "load", "prepare", "pretrain"]
    assert all(callable(getattr(electra, name)) for name in electra.__all__ if name != "__version__")
    assert inspect.signature(electra.pretrain) == inspect.signature(electra.prepare)
    with pytest.raises(AttributeError, match="has no attribute 'train_it'"):
        _ = electra.train_it


def test_from_a_folder_of_text_to_answers(corpus, tmp_path, monkeypatch, capsys):
    data = electra.prepare(
        corpus=[corpus], out=tmp_path / "DATA", vocab_size=300, seq_length=32, valid_fraction=0.1, workers=1
    )
    run = electra.pretrain(
        data=data,
        out=tmp_path / "run",
        model={"size": "tiny", "hidden_size": 32, "embedding_size": 16, "intermediate_size": 64},
        generator={"width": 0.5},
        train={"steps": 4, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"},
        checkpoint={"save_every": 4},
    )
    assert (data, run) == (tmp_path / "DATA", tmp_path / "run")
    model = electra.load(run)
    assert model.abilities == ("embed", "detect", "fill", "corrupt")
    (answer,) = model.detect(["The old river was in a small city."])
    assert answer["tokens"][1]["text"] == "old"
    assert 0 < answer["tokens"][1]["replaced"] < 1
    tuned = electra.finetune(
        model=run,
        task="csv",
        data=write_task(tmp_path),
        out=tmp_path / "classifier",
        seeds=1,
        own={"text": "sentence", "label": "verdict"},
        train={"epochs": 1, "batch_size": 8, "device": "cpu"},
    )
    classifier = electra.load(tuned)
    assert classifier.classify(["a small city"])[0]["label"] in ("good", "bad")
    # Again, although the package of that name was imported meanwhile: it is finished, and stays as it is.
    before = (run / "final" / "manifest.json").read_bytes()
    assert electra.pretrain(data=data, out=run, config=run / "config.yaml") == run
    assert (run / "final" / "manifest.json").read_bytes() == before
    assert "by what was held out" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})


def write_task(folder: Path) -> Path:
    lines = [f"{'the small river' if number % 2 else 'a large city'} {number}," for number in range(40)]
    rows = [f"{line}{('good', 'bad')[number % 2]}" for number, line in enumerate(lines)]
    (folder / "task.csv").write_text("\n".join(["sentence,verdict", *rows]))
    return folder / "task.csv"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: electra.prepare(out="x", corpsu=["a"]), r"unknown key 'corpsu'; did you mean 'corpus'"),
        (lambda: electra.pretrain(out="x", data="d", train={"step": 3}), r"unknown key 'train.step'"),
        (lambda: electra.pretrain(out="x"), r"give --data DIR and --out RUN"),
        (lambda: electra.finetune(out="x", model="m", task="cola", seeds=0), r"seeds is 0"),
        (lambda: electra.load("no/such/folder"), r"there is no folder no/such/folder"),
    ],
)
def test_a_mistake_is_named_as_on_the_command_line(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_values_reach_the_command_as_they_are(monkeypatch):
    seen = []
    command = importlib.import_module("electra.run.finetune")
    monkeypatch.setattr(command, "main", lambda words: seen.append(command.read_settings(words)))
    electra.finetune(
        out="OUT",
        model=Path("a run"),
        task="cola",
        limit_train=None,
        dry_run=True,
        dropout=0.25,
        health={"spike_factor": float("inf")},
        own={"text": "my text"},
    )
    (settings,) = seen
    assert (settings.model, settings.out, settings.task) == ("a run", "OUT", "cola")
    assert (settings.limit_train, settings.dry_run, settings.dropout) == (None, True, 0.25)
    assert settings.health.spike_factor == float("inf")
    assert settings.own.text == "my text"


def test_a_watched_process_that_fails_is_an_error_and_not_the_end(monkeypatch):
    command = importlib.import_module("electra.run.pretrain")
    monkeypatch.setattr(command, "main", lambda words: sys.exit(0))
    assert electra.pretrain(out="RUN") == Path("RUN")
    monkeypatch.setattr(command, "main", lambda words: sys.exit(1))
    with pytest.raises(RuntimeError, match="electra pretrain ended with code 1"):
        electra.pretrain(out="RUN")
