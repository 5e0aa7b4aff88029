"""`electra finetune` as a person runs it: whole commands on small data, stopped, continued, refused."""

import json
import pickle
import random
import re
import shutil
import signal
import statistics
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra import cli, config, files
from electra.report import write_report
from electra.tasks import sweep
from electra.tasks.config import FinetuneConfig
from electra.tasks.finetuning import SeedPiece, jobs, keep_seed, train_on_node
from electra.tasks.model import load_model
from electra.tasks.step import FinetuneProblem
from electra.train.distributed import World
from local_cluster import TEST_SECONDS, typed_on_cluster
from processes import start

SENTENCE = "the old river was in a small city and the new model is to read of large mountain water"
WORDS = SENTENCE.split()
KEYS = {
    "seeds": 3,
    "dropout": 0.05,
    "train.epochs": 5,
    "train.batch_size": 8,
    "train.learning_rate": 0.002,
    "train.layer_decay": 1.0,
    "pooling": "cls",
    # Numbers are compared: what `auto` chooses depends on the processor.
    "train.precision": "fp32",
    "log.log_every": 1,
}


def write_sst2(folder, *, train=64, dev=24):
    """Sentences that are positive if they say `fast`."""
    folder.mkdir(parents=True)
    rng = random.Random(0)
    for split, size in (("train", train), ("dev", dev)):
        lines = ["sentence\tlabel"]
        for number in range(size):
            words = rng.choices(WORDS, k=rng.randint(4, 12))
            words[rng.randrange(len(words))] = "fast" if number % 2 else "water"
            lines.append(f"{' '.join(words)}\t{number % 2}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_cola(folder):
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for split, size in (("train", 32), ("dev", 12)):
        lines = [f"x\t{number % 2}\t*\t{' '.join(rng.choices(WORDS, k=6))}" for number in range(size)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    write_sst2(folder / "SST-2")
    write_cola(folder / "CoLA")
    return folder


@pytest.fixture(scope="module")
def tune(model, data):
    """Run the command on the small model."""

    def run(out, *, code=cli.OK, **changes):
        assert cli.main(command(model, data, out, **changes)) == code

    return run


def command(model, data, out, /, **changes):
    keys = {"model": model, "task": "sst2", "data": data, "out": out, **KEYS}
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    return ["finetune", *(f"--{key}={value}" for key, value in keys.items() if value is not None)]


@pytest.fixture(scope="module")
def tuned(tune, tmp_path_factory):
    """An uninterrupted fine-tuning of three seeds."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    tune(out, ensemble="on")
    return out


def scores_of(out):
    return json.loads((out / "scores.json").read_text())


def assert_same_seed(folder, other, *, task="sst2"):
    """Bit for bit, but for the clock and for what changes nothing."""
    ours, theirs = (json.loads((place / "scores.json").read_text()) for place in (folder, other))
    for content in (ours, theirs):
        del content["train"]["seconds"]
        for key in ("out", "checkpoint"):
            del content["facts"]["config"][key]
    assert ours == theirs
    mine, its = (load_file(place / "model" / task / "model.safetensors") for place in (folder, other))
    assert mine.keys() == its.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, its[name]), name


@pytest.fixture
def interrupt(monkeypatch):
    """Raise a signal while a step of a seed is worked on."""

    def at(*places):
        begin, left = FinetuneProblem.begin, set(places)

        def begin_or_signal(self, *, step, batch_number, progress):
            if (self.seed, step) in left:
                left.remove((self.seed, step))
                signal.raise_signal(signal.SIGTERM)
            return begin(self, step=step, batch_number=batch_number, progress=progress)

        monkeypatch.setattr(FinetuneProblem, "begin", begin_or_signal)

    return at


@pytest.mark.slow
def test_the_folder_holds_what_is_promised(tuned):
    content = scores_of(tuned)
    assert (content["task"], content["kind"], content["main_score"]) == ("sst2", "classification", "accuracy")
    assert content["labels"] == ["negative", "positive"]
    assert content["seeds"] == [0, 1, 2]
    summary = content["splits"]["dev"]["scores"]["accuracy"]
    assert len(summary["values"]) == 3
    assert summary["median"] == statistics.median(summary["values"])
    assert summary["mean"] == pytest.approx(statistics.fmean(summary["values"]))
    assert summary["std"] == pytest.approx(statistics.stdev(summary["values"]))
    assert content["train"]["examples"] == 64
    assert content["train"]["steps"] == 40
    assert content["train"]["learning_rate"] == 0.002
    assert [record["epoch"] for record in content["history"] if record["seed"] == 1] == [1, 2, 3, 4, 5]
    assert content["history"][0]["train_loss"] > 0
    assert 0 <= content["history"][0]["dev"]["accuracy"] <= 1
    matrix = content["splits"]["dev"]["confusion"]
    assert sum(map(sum, matrix["counts"])) == 24
    lines = (tuned / "predictions" / "dev.jsonl").read_text().splitlines()
    assert len(lines) == 24
    assert json.loads(lines[0]).keys() == {"id", "label", "probabilities"}
    assert (tuned / "report.html").stat().st_size > 1000
    assert not list(tuned.glob("seed-*/checkpoints"))


def test_errors_predictions_and_model_are_of_the_median_seed(tuned):
    content = scores_of(tuned)
    values = content["splits"]["dev"]["scores"]["accuracy"]["values"]
    seed = content["median_seed"]
    assert values[seed] == statistics.median_low(values)
    assert f"seed {seed}" in content["notes"][-1]
    final = load_model(tuned)
    assert final.facts["seed"] == seed
    assert final.facts["score"] == values[seed]
    wrong = round(24 * (1 - values[seed]))
    assert len(content["splits"]["dev"]["errors"]) == wrong
    predicted = (tuned / f"seed-{seed}" / "predictions" / "sst2.dev.jsonl").read_text()
    assert (tuned / "predictions" / "dev.jsonl").read_text() == predicted


def test_it_learns_the_rule(tuned):
    assert scores_of(tuned)["splits"]["dev"]["scores"]["accuracy"]["median"] > 0.8


def test_an_ensemble_is_one_more_row(tuned):
    content = scores_of(tuned)["splits"]["dev"]
    assert content["ensemble"].keys() == content["scores"].keys()
    assert content["ensemble"]["accuracy"] > 0.8


def test_seeds_differ(tuned):
    heads = [
        load_file(tuned / f"seed-{seed}" / "model" / "sst2" / "model.safetensors")["classifier.dense.weight"]
        for seed in (0, 1)
    ]
    assert not torch.equal(*heads)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [[(0, 5)], [(0, 1), (1, 20), (2, 8)]])
def test_stopped_and_continued_is_bit_for_bit_the_same(tune, tuned, tmp_path, interrupt, stops):
    interrupt(*stops)
    for _ in stops:
        tune(tmp_path / "out", code=cli.INTERRUPTED, checkpoint__save_every=4, ensemble="on")
    tune(tmp_path / "out", checkpoint__save_every=4, ensemble="on")
    for seed in range(3):
        assert_same_seed(tmp_path / "out" / f"seed-{seed}", tuned / f"seed-{seed}")
    assert scores_of(tmp_path / "out")["splits"] == scores_of(tuned)["splits"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"train__precision": "bf16"}, {"mask_prob": 0.1}])
def test_the_same_holds_in_bf16_and_with_hidden_tokens(tune, tmp_path, interrupt, changes):
    keys = {"seeds": 1, "train__epochs": 1, "checkpoint__save_every": 2, **changes}
    tune(tmp_path / "whole", **keys)
    interrupt((0, 5))
    tune(tmp_path / "parts", code=cli.INTERRUPTED, **keys)
    tune(tmp_path / "parts", **keys)
    assert_same_seed(tmp_path / "parts" / "seed-0", tmp_path / "whole" / "seed-0")


@pytest.mark.slow
def test_a_crash_costs_only_what_came_after_the_last_checkpoint(tune, tuned, tmp_path, monkeypatch):
    begin, worked_on = FinetuneProblem.begin, []

    def begin_or_crash(self, *, step, batch_number, progress):
        worked_on.append((self.seed, step))
        if worked_on.count((1, 11)) == 1 and (self.seed, step) == (1, 11):
            raise RuntimeError("the machine is gone")
        return begin(self, step=step, batch_number=batch_number, progress=progress)

    monkeypatch.setattr(FinetuneProblem, "begin", begin_or_crash)
    with pytest.raises(RuntimeError, match="gone"):
        tune(tmp_path / "out", checkpoint__save_every=10, ensemble="on")
    tune(tmp_path / "out", checkpoint__save_every=10, ensemble="on")
    assert worked_on.count((0, 11)) == 1
    assert worked_on.count((1, 9)) == 1
    assert worked_on.count((1, 10)) == 2
    for seed in range(3):
        assert_same_seed(tmp_path / "out" / f"seed-{seed}", tuned / f"seed-{seed}")


@pytest.mark.slow
def test_killed_and_continued_is_bit_for_bit_the_same(model, data, tune, tuned, tmp_path):
    out = tmp_path / "out"
    keys = {"model": model, "task": "sst2", "data": data, "out": out, "ensemble": "on", **KEYS}
    command = [sys.executable, "-m", "electra", "finetune", "--checkpoint.save_every=3"]
    process = start([*command, *(f"--{key}={value}" for key, value in keys.items())])
    # In the middle of the second of three seeds.
    metrics, deadline = out / "seed-1" / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.is_file() and metrics.read_text().count('"kind": "train"') >= 8):
        assert process.poll() is None, "it was over before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not (out / "scores.json").is_file()
    tune(out, ensemble="on", checkpoint__save_every=3)
    for seed in (0, 1, 2):
        assert_same_seed(out / f"seed-{seed}", tuned / f"seed-{seed}")
    assert scores_of(out)["splits"] == scores_of(tuned)["splits"]


@pytest.mark.slow
def test_finished_seeds_are_not_trained_again(tune, tuned, tmp_path, monkeypatch):
    shutil.copytree(tuned, tmp_path / "out")
    worked_on = []
    begin = FinetuneProblem.begin

    def note_and_begin(self, *, step, batch_number, progress):
        worked_on.append(self.seed)
        return begin(self, step=step, batch_number=batch_number, progress=progress)

    monkeypatch.setattr(FinetuneProblem, "begin", note_and_begin)
    tune(tmp_path / "out")
    assert not worked_on
    tune(tmp_path / "out", seeds=4)
    assert set(worked_on) == {3}
    assert scores_of(tmp_path / "out")["seeds"] == [0, 1, 2, 3]


def test_other_settings_are_refused_with_the_key(tune, tuned, capsys):
    before = (tuned / "scores.json").read_bytes()
    tune(tuned, train__learning_rate=0.02, code=cli.BAD_INPUT)
    message = capsys.readouterr().err
    assert re.search(r"train\.learning_rate.*\b0\.002\b.*\b0\.02\b", message)
    assert "--out" in message
    assert (tuned / "scores.json").read_bytes() == before


def test_other_data_is_refused(tune, tuned, tmp_path, capsys):
    write_sst2(tmp_path / "SST-2", train=40)
    tune(tuned, data=tmp_path, code=cli.BAD_INPUT)
    assert "--data" in capsys.readouterr().err


@pytest.mark.slow
def test_the_saved_config_does_the_same_again(tuned, tmp_path):
    out = tmp_path / "again"
    assert cli.main(["finetune", "--config", str(tuned / "config.yaml"), "--out", str(out)]) == cli.OK
    assert scores_of(out)["splits"] == scores_of(tuned)["splits"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"learning_rate": 3e-4, "epochs": 3.0, "batch_size": 32, "clip_norm": 1.0}),
        ([], {"warmup_fraction": 0.1, "weight_decay": 0.01, "optimizer": "adam_as_google"}),
        (["--train.epochs=7"], {"epochs": 7.0, "learning_rate": 3e-4}),
        (["--train.learning_rate=0.5"], {"learning_rate": 0.5, "epochs": 3.0}),
        (["--train.steps=5"], {"steps": 5, "epochs": None}),
        (["--train.max_time=1m"], {"epochs": None}),
        (["--train.steps=5", "--train.epochs=2"], {"steps": 5, "epochs": 2.0}),
    ],
)
def test_what_is_not_given_is_the_papers(model, data, words, expected):
    words = [f"--model={model}", "--task=sst2", f"--data={data}", "--dry_run=true", *words]
    given = config.read(FinetuneConfig, words, prog="electra finetune")
    (job,) = jobs(given, World(), torch.device("cpu"))
    train = job.settings.train
    assert {key: getattr(train, key) for key in expected} == expected


def read_settings(model, data, *words):
    words = [f"--model={model}", "--task=sst2", f"--data={data}", "--dry_run=true", *words]
    given = config.read(FinetuneConfig, words, prog="electra finetune")
    (job,) = jobs(given, World(), torch.device("cpu"))
    (task,) = job.study.tasks
    assert task.family.head_pooling == job.settings.pooling
    return job.settings.pooling, job.settings.train.layer_decay


def forget_reading(model, place):
    """The same run as it was written before manifests told of tokens."""
    folder = shutil.copytree(model, place)
    content = files.read_manifest(folder / "final", kind="model")
    assert content["tokens_read"] > 0
    kept = {key: value for key, value in content.items() if key not in ("tokens_read", "files", "sha256")}
    files.write_manifest(folder / "final", kept)
    return folder


@pytest.mark.slow
def test_pooling_and_layer_decay_fit_the_encoder(model, data, tuned, tmp_path):
    assert read_settings(model, data) == ("mean", 1.0)
    assert read_settings(model, data, "--pooling=auto", "--train.layer_decay=auto") == ("mean", 1.0)
    assert read_settings(model, data, "--pooling=cls") == ("cls", 1.0)
    assert read_settings(model, data, "--train.layer_decay=0.9") == ("mean", 0.9)
    # The control is treated with the same care.
    assert read_settings("none", data, f"--like={model}") == ("mean", 1.0)
    assert read_settings(forget_reading(model, tmp_path / "before"), data) == ("cls", 0.8)
    # One that was fine-tuned before keeps what its head reads, and tells what its encoder has read.
    assert read_settings(tuned, data) == ("cls", 1.0)


@pytest.mark.slow
def test_a_pooling_that_no_head_has_is_refused(tune, tmp_path, capsys):
    rows = ["text,other,label", *(f"a fast model {number},a small city,{number % 5}" for number in range(30))]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    keys = {
        "task": "csv",
        "data": tmp_path / "pairs.csv",
        "own__kind": "similarity",
        "own__text_pair": "other",
    }
    tune(tmp_path / "out", **keys, pooling="mean", code=cli.BAD_INPUT)
    assert "--own.pooling" in capsys.readouterr().err
    tune(tmp_path / "out", **keys, pooling=None, seeds=1, train__steps=1, train__epochs=None)
    assert "pooling" not in scores_of(tmp_path / "out")["train"]
    again = ["finetune", "--config", str(tmp_path / "out" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert cli.main(again) == cli.OK


AVERAGED = {"pooling": None, "train__layer_decay": None, "train__epochs": 4}


@pytest.fixture(scope="module")
def more_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    write_sst2(folder / "SST-2", train=320, dev=40)
    return folder


@pytest.fixture(scope="module")
def averaged(tune, more_data, tmp_path_factory):
    """Fine-tuned with what fits a lightly trained encoder."""
    out = tmp_path_factory.mktemp("averaged") / "out"
    tune(out, **AVERAGED, data=more_data, seeds=2, ensemble="on")
    return out


@pytest.mark.slow
def test_the_mean_of_all_states_learns_the_rule(averaged, model, more_data):
    content = scores_of(averaged)
    assert (content["train"]["pooling"], content["train"]["layer_decay"]) == ("mean", 1.0)
    saved = yaml.safe_load((averaged / "config.yaml").read_text())
    assert (saved["pooling"], saved["train"]["layer_decay"]) == ("mean", 1.0)
    assert content["splits"]["dev"]["scores"]["accuracy"]["median"] > 0.8
    found = load_model(averaged)
    read = files.read_manifest(model / "final", kind="model")["tokens_read"]
    assert (found.family.head_pooling, found.facts["tokens_read"]) == ("mean", read)
    values = json.loads((averaged / "final" / "config.json").read_text())
    # transformers has no such head.
    assert values["architectures"] == ["ElectraModel"]
    assert (averaged / "final" / "head.safetensors").is_file()
    assert cli.main(["evaluate", f"--model={averaged}", "--task=sst2", f"--data={more_data}"]) == cli.OK


@pytest.mark.slow
def test_what_was_chosen_holds_when_the_run_goes_on(tune, averaged, more_data, model, tmp_path, capsys):
    # The same weights, of which nobody knows any more how much they have read.
    before = forget_reading(model, tmp_path / "before")
    out = shutil.copytree(averaged, tmp_path / "out")
    more = {**AVERAGED, "model": before, "data": more_data, "seeds": 3}
    tune(out, **more, ensemble="on")
    assert scores_of(out)["train"]["pooling"] == "mean"
    assert len(scores_of(out)["seeds"]) == 3
    tune(out, **{**more, "pooling": "cls"}, ensemble="on", code=cli.BAD_INPUT)
    assert "pooling: mean -> cls" in capsys.readouterr().err


def test_a_run_that_began_before_there_was_a_choice_goes_on_by_cls(tune, tuned, tmp_path):
    out = shutil.copytree(tuned, tmp_path / "out")
    environment = json.loads((out / "environment.json").read_text())
    for key in ("pooling", "layer_decay"):
        del environment["choices"][key]
    (out / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    for seed in range(3):
        path = out / f"seed-{seed}" / "scores.json"
        content = json.loads(path.read_text())
        del content["facts"]["config"]["pooling"]
        path.write_text(json.dumps(content), encoding="utf-8")
    tune(out, ensemble="on", pooling=None)
    assert scores_of(out)["splits"] == scores_of(tuned)["splits"]


def test_a_dry_run_says_everything_and_writes_nothing(tune, tmp_path, capsys):
    tune(tmp_path / "out", dry_run="true")
    out = capsys.readouterr().out
    assert "train 64, dev 24" in out
    assert "negative 32 (50%), positive 32 (50%)" in out
    assert "40 steps of 8 examples" in out
    assert "parameters" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_random_weights_for_control(tune, model, tmp_path):
    tune(tmp_path / "none", model="none", like=model, seeds=1, train__steps=1, train__epochs=None)
    assert re.fullmatch(rf"random\b.* {model}", scores_of(tmp_path / "none")["model"])
    tune(tmp_path / "beside", baseline=tmp_path / "none", seeds=1, train__steps=1, train__epochs=None)
    content = scores_of(tmp_path / "beside")
    assert (
        content["baseline"]["splits"]["dev"]["scores"]
        == scores_of(tmp_path / "none")["splits"]["dev"]["scores"]
    )
    assert content["baseline"]["model"].startswith("random")


@pytest.mark.slow
def test_a_fine_tuned_model_is_a_start_for_another_task(tune, tuned, tmp_path, capsys):
    tune(tmp_path / "out", model=tuned, task="cola", seeds=1, train__steps=1, train__epochs=None)
    assert re.search(r"fine-tuned.*\bsst2\b", scores_of(tmp_path / "out")["model"])


@pytest.mark.slow
def test_fewer_examples_are_told(tune, tmp_path, capsys):
    tune(tmp_path / "out", seeds=1, limit_train=20, limit_eval=10, train__epochs=1)
    content = scores_of(tmp_path / "out")
    assert content["partial"]
    assert content["splits"]["dev"]["limit"] == 10
    assert any(re.match(r"train: 20\b.*\b64\b", note) for note in content["notes"])
    assert content["train"]["steps"] == 3
    assert "10 examples" in capsys.readouterr().out


@pytest.mark.slow
def test_several_tasks_share_an_encoder(tune, tmp_path):
    tune(tmp_path / "out", task="sst2,cola", seeds=2, train__epochs=1)
    for task in ("sst2", "cola"):
        assert scores_of(tmp_path / "out" / task)["task"] == task
        assert load_model(tmp_path / "out" / task).task == task
    weights = [
        load_file(tmp_path / "out" / "seed-0" / "model" / task / "model.safetensors")
        for task in ("sst2", "cola")
    ]
    shared = "electra.encoder.layer.0.attention.self.query.weight"
    assert torch.equal(weights[0][shared], weights[1][shared])
    assert not torch.equal(*(weight["classifier.dense.weight"] for weight in weights))
    history = scores_of(tmp_path / "out" / "cola")["history"]
    assert "mcc" in history[0]["dev"]


@pytest.mark.slow
def test_glue_runs_what_a_folder_has(tune, tmp_path, capsys):
    tune(tmp_path / "out", task="glue", seeds=1, train__epochs=1)
    out = capsys.readouterr().out
    table = out[out.rindex("this model") :]
    medians = json.loads((tmp_path / "out" / "glue.json").read_text())["medians"]
    assert medians.keys() == {"cola", "sst2"}
    assert (
        medians["sst2"]
        == scores_of(tmp_path / "out" / "sst2")["splits"]["dev"]["scores"]["accuracy"]["median"]
    )
    assert f"{50 * sum(medians.values()):.2f}" in table.splitlines()[0]
    assert re.search("average.* cola, sst2", table)
    assert re.search("GLUE.* mrpc", table)
    assert "longer" in table


@pytest.mark.slow
def test_a_sweep_shows_its_trials_and_says_what_dev_was_used_for(tune, tmp_path, capsys):
    tune(tmp_path / "out", seeds=1, train__epochs=1, sweep__trials=3)
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    best = max(record["trials"], key=lambda trial: trial["score"])
    content = scores_of(tmp_path / "out")
    assert content["train"]["learning_rate"] == best["learning_rate"]
    assert any(re.search(r"\b3 trials\b.*\bdev\b", note) for note in content["notes"])
    shown = [line for line in capsys.readouterr().out.splitlines() if "trial " in line]
    assert len(shown) == 3
    # What was chosen can be run again without the search.
    again = ["finetune", "--config", str(tmp_path / "out" / "config.yaml"), "--out", str(tmp_path / "again")]
    assert cli.main(again) == cli.OK
    assert scores_of(tmp_path / "again")["splits"] == content["splits"]


def test_without_optuna_the_error_names_the_extra(tune, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    tune(tmp_path / "out", seeds=1, sweep__trials=2, code=cli.BAD_INPUT)
    assert "electra[sweep]" in capsys.readouterr().err


def test_without_matplotlib_only_the_page_is_missing(tune, tuned, tmp_path, capsys, monkeypatch):
    shutil.copytree(tuned, tmp_path / "out")
    (tmp_path / "out" / "report.html").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("electra.run.finetune.write_report", write_report)
    tune(tmp_path / "out")
    assert "electra[report]" in capsys.readouterr().out
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_your_own_table_by_a_task_file(tune, tmp_path, capsys):
    rows = ["id,body,topic"]
    rows += [
        f'{number},"a {"fast" if number % 2 else "small"} model, {number}",{number % 2}'
        for number in range(40)
    ]
    (tmp_path / "news.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    keys = {"data": "news.csv", "text": "body", "label": "topic", "id": "id"}
    (tmp_path / "topics.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    task = tmp_path / "topics.yaml"
    tune(tmp_path / "out", task=task, data=None, seeds=1, train__epochs=1)
    content = scores_of(tmp_path / "out")
    assert content["task"] == "topics"
    assert content["labels"] == ["0", "1"]
    assert any("held out" in note for note in content["notes"])
    assert load_model(tmp_path / "out").facts["input"]["text"] == "body"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "sst3"}, "'sst2'"),
        ({"task": "ax"}, "mnli"),
        ({"task": "mrpc"}, "mrpc.*MRPC"),
        ({"task": "sst2,sst2"}, "'sst2,sst2'"),
        ({"model": "none"}, "--like"),
        ({"model": "nowhere"}, "nowhere"),
        ({"like": "nowhere"}, "--like.*--model none"),
        ({"data": None}, "--data"),
        ({"max_length": 9999}, "max_length.*9999"),
        ({"seeds": 0}, r"seeds.*\b0\b"),
        ({"limit_train": 0}, r"limit_train.*\b0\b"),
        ({"mask_prob": 1}, "mask_prob.*1"),
        ({"decoding": "words"}, "decoding.*sst2"),
        ({"decoding": "crf"}, "decoding.*crf"),
        ({"train__epochs": 0}, r"train\.epochs.*\b0"),
        ({"train__parallel": "fsdp"}, "ddp"),
        ({"baseline": "nowhere"}, "nowhere"),
        ({"out": ""}, "--out"),
    ],
)
def test_bad_input_is_refused_at_once_and_by_name(tune, tmp_path, capsys, changes, message):
    changes = dict(changes)
    tune(changes.pop("out", tmp_path / "out"), code=cli.BAD_INPUT, **changes)
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [({}, "scheme"), ({"decoding": "words"}, "words")])
def test_tags_of_chunks_keep_to_their_scheme_unless_words_are_asked_for(tune, tmp_path, words, expected):
    rng = random.Random(0)
    for split in ("train", "test"):
        sentences = [rng.choices(WORDS, k=6) for _ in range(12)]
        tags = ("O", "B-X", "I-X", "O", "B-X", "O")
        text = "\n\n".join("\n".join(map(" ".join, zip(one, tags, strict=True))) for one in sentences)
        (tmp_path / f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    out = tmp_path / "out"
    tune(out, task="conll", data=tmp_path, pooling=None, seeds=1, train__epochs=1, **words)
    about = json.loads((out / "final" / "config.json").read_text())["electra_task"]
    assert about["settings"]["decoding"] == expected


REAL = {
    "stsb": ("glue", {}),
    "rte": ("glue", {}),
    "conll2000": ("tagging/conll2000", {}),
    "conllu": ("tagging/ud-ewt", {}),
    "squad_v2": ("squad", {"squad.train": "squadshifts/*wiki*.json"}),
    "csv": ("ko/nsmc", {"own.text": "document", "own.id": "id", "own.empty": "skip"}),
}


@pytest.mark.slow
def test_pairs_that_are_compared_with_each_other_stay_in_one_batch(tune, tmp_path, capsys):
    rows = "".join(f"a {word},the {word}\n" for word in WORDS)
    (tmp_path / "pairs.csv").write_text(f"text,other\n{rows}", encoding="utf-8")
    keys = {"own__kind": "similarity", "own__text_pair": "other", "own__similarity_loss": "contrastive"}
    keys["pooling"] = None
    options = {"task": "csv", "data": tmp_path / "pairs.csv", "seeds": 1, "train__epochs": 1, **keys}
    tune(tmp_path / "out", code=cli.BAD_INPUT, train__micro_batch=4, **options)
    assert "--train.micro_batch all" in capsys.readouterr().err
    tune(tmp_path / "out", **options)
    assert scores_of(tmp_path / "out")["main_score"] == "mrr"


@pytest.mark.slow
@pytest.mark.parametrize("task", REAL)
def test_real_data_goes_all_the_way(tune, shared, tmp_path, task):
    folder, keys = REAL[task]
    data = shared / "data" / folder
    if "squad.train" in keys:
        keys = {"squad.train": next(data.glob(keys["squad.train"]))}
    limits = {"limit_train": 24, "limit_eval": 12, "max_length": 96, "train.epochs": 1, "pooling": None}
    tune(tmp_path / "out", **{"task": task, "data": data, "seeds": 2, "ensemble": "on", **limits, **keys})
    content = scores_of(tmp_path / "out")
    for entry in content["splits"].values():
        summary = entry["scores"][content["main_score"]]
        assert len(summary["values"]) == 2
        assert all(value is not None and -1 <= value <= 1 for value in summary["values"])
        assert entry["ensemble"].keys() == entry["scores"].keys()
    assert load_model(tmp_path / "out").task == task


@pytest.mark.slow
def test_muon_with_layer_decay_learns_and_is_resumed_exactly(tune, tmp_path, interrupt):
    keys = {"train__optimizer": "muon", "train__layer_decay": 0.9, "seeds": 1, "keep_checkpoints": True}
    tune(tmp_path / "whole", **keys)
    interrupt((0, 17))
    tune(tmp_path / "parts", **keys, code=cli.INTERRUPTED)
    tune(tmp_path / "parts", **keys)
    assert_same_seed(tmp_path / "whole" / "seed-0", tmp_path / "parts" / "seed-0")
    state = sorted((tmp_path / "whole" / "seed-0" / "checkpoints").glob("*/state.json"))[-1]
    groups = json.loads(state.read_text())["optimizer"]["groups"]
    rates = [group["lr_scale"] for group in groups if group["update"] == "muon"]
    # Of two layers, relative to the learning rate of the head, 0.002.
    assert sorted(rates) == pytest.approx([1.5 * 0.9**2, 1.5 * 0.9])


def test_a_sweep_keeps_muons_rate_in_proportion(model, data, tmp_path):
    words = [f"--model={model}", "--task=sst2", f"--data={data}", f"--out={tmp_path / 'out'}", "--seeds=1"]
    words += ["--train.optimizer=muon", "--train.learning_rate=0.001", "--train.matrix_learning_rate=0.02"]
    given = config.read(FinetuneConfig, words, prog="electra finetune")
    (job,) = jobs(given, World(), torch.device("cpu"))
    train = job.changed(out=str(tmp_path / "trial"), learning_rate=0.003, epochs=2).settings.train
    assert train.matrix_learning_rate == pytest.approx(0.06)


def test_a_piece_has_all_that_a_seed_needs(tune, model, data, tmp_path):
    keys = {"seeds": 2, "train__epochs": 1}
    tune(tmp_path / "here", **keys)
    words = command(model, data, tmp_path / "there", **keys, cluster="local")[1:]
    given = config.read(FinetuneConfig, words, prog="electra finetune")
    (job,) = jobs(given, World(), torch.device("cpu"))
    # As another machine gets it.
    piece = pickle.loads(pickle.dumps(SeedPiece(job=job, seed=1)))
    content = train_on_node(piece)
    assert not (tmp_path / "there").exists()
    keep_seed(SeedPiece(job=job, seed=1), content)
    assert_same_seed(tmp_path / "here" / "seed-1", tmp_path / "there" / "seed-1")


@pytest.mark.long(reason="Ray nodes, each of which is several Python processes")
@pytest.mark.timeout(TEST_SECONDS)
def test_a_cluster_trains_the_same_models(tune, model, data, tmp_path, capsys):
    keys = {"task": "glue", "seeds": 2, "train__epochs": 1}
    shown = typed_on_cluster(*command(model, data, tmp_path / "there", **keys)).stderr
    assert sorted(re.findall(r"seed (\d) of (\w+) is trained, on node", shown)) == [
        *(("0", "cola"), ("0", "sst2"), ("1", "cola"), ("1", "sst2")),
    ]
    tune(tmp_path / "here", **keys)
    for task in ("cola", "sst2"):
        mine, its = (tmp_path / place / task for place in ("here", "there"))
        for seed in (0, 1):
            assert_same_seed(mine / f"seed-{seed}", its / f"seed-{seed}", task=task)
        ours, theirs = scores_of(mine), scores_of(its)
        for content in (ours, theirs):
            del content["train"]["seconds"]
        assert ours == theirs
        # No reports are written in this process.
        names = {path.name for path in its.iterdir()} - {"report.html"}
        assert {path.name for path in mine.iterdir()} == names
    assert (tmp_path / "there" / "glue.json").read_bytes() == (tmp_path / "here" / "glue.json").read_bytes()
    # A finished seed is not trained again, wherever it was trained.
    shutil.rmtree(tmp_path / "there" / "cola" / "seed-1")
    tune(tmp_path / "there", **keys)
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("seed ")][-1:] == [
        "seed 1"
    ]
    assert_same_seed(
        tmp_path / "here" / "cola" / "seed-1", tmp_path / "there" / "cola" / "seed-1", task="cola"
    )


@pytest.mark.long(reason="Ray nodes, each of which is several Python processes")
@pytest.mark.timeout(TEST_SECONDS)
def test_a_sweep_on_a_cluster_finds_the_same(tune, model, data, tmp_path):
    keys = {"seeds": 1, "train__epochs": 1, "sweep__trials": 6, "sweep__at_once": 2, "sweep__looks": 1}
    tune(tmp_path / "here", **keys)
    typed_on_cluster(*command(model, data, tmp_path / "there", **keys))
    mine, its = (json.loads((tmp_path / place / "sweep.json").read_text()) for place in ("here", "there"))
    assert mine == its
    assert [len(trial["seen"]) for trial in mine["trials"]] == [1] * 6
    assert not any(trial["is_stopped"] for trial in mine["trials"][:4])
    assert_same_seed(tmp_path / "here" / "seed-0", tmp_path / "there" / "seed-0")


@pytest.mark.slow
def test_a_trial_below_the_others_is_stopped(tune, tmp_path, monkeypatch, capsys):
    # The bar is above anything that a score can be.
    monkeypatch.setattr(sweep, "bars", lambda trials, *, looks: [2.0 if len(trials) == 1 else None] * looks)
    tune(tmp_path / "out", seeds=1, train__epochs=1, sweep__trials=2, sweep__looks=3)
    first, second = json.loads((tmp_path / "out" / "sweep.json").read_text())["trials"]
    assert (first["is_stopped"], second["is_stopped"]) == (False, True)
    assert (len(first["seen"]), len(second["seen"])) == (3, 1)
    assert second["score"] == second["seen"][0]
    assert scores_of(tmp_path / "out")["train"]["learning_rate"] == first["learning_rate"]
    assert "stopped" in capsys.readouterr().out
    # It did not go on to its end.
    evaluated = [
        record["step"]
        for line in (tmp_path / "out" / "sweep" / "trial-001" / "metrics.jsonl").read_text().splitlines()
        if (record := json.loads(line))["kind"] == "valid"
    ]
    assert len(evaluated) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "somewhere"}, "cluster is 'somewhere'"),
        ({"cluster_gpus": 0.25}, "--cluster"),
        ({"sweep__at_once": 0}, "sweep.at_once"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(tune, tmp_path, capsys, changes, message):
    tune(tmp_path / "out", code=cli.BAD_INPUT, **changes)
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
