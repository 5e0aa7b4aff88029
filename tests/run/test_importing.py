import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from electra import cli, files
from electra.errors import InputError
from electra.model import names
from electra.model.store import open_model
from electra.run.importing import as_options, main
from electra.tasks.model import load_model
from electra.tensors import read_tensors
from electra.text import tokenizer as tokenizers
from foreign_models import write_bundle

HEADS = ["--num_attention_heads", "2"]
# Those of the values of the runs here that are not read off the shapes.
KEYS = ["train.steps=20", "train.batch_size=8", "train.learning_rate=0.01", "checkpoint.save_every=4"]
MORE_KEYS = ["log.log_every=1", "log.evaluate_every=10", "valid_rows=16", "train.precision=fp32"]


def write_checkpoint(step_folder: Path, prefix: Path) -> None:
    """A checkpoint of ours as the original code would have saved it."""
    weights = read_tensors(step_folder / "model.safetensors")
    moments = read_tensors(step_folder / "optimizer.safetensors")
    variables = names.to_tensorflow(weights)
    for ours, theirs in (("exp_avg", "adam_m"), ("exp_avg_sq", "adam_v")):
        own = {name.removesuffix(f".{ours}"): moments[name] for name in moments if name.endswith(f".{ours}")}
        variables |= {f"{name}/{theirs}": array for name, array in names.to_tensorflow(own).items()}
    variables["global_step"] = np.array(int(step_folder.name.removeprefix("step-")), np.int64)
    write_bundle(prefix, variables)


@pytest.fixture(scope="module")
def checkpoint(whole, runs, tmp_path_factory):
    """Step 16 of a run, with moments, as a TensorFlow checkpoint with its vocabulary."""
    folder = tmp_path_factory.mktemp("tensorflow")
    write_checkpoint(whole / "checkpoints" / "step-00000016", folder / "model.ckpt-16")
    (folder / "vocab.txt").write_bytes((runs.data / "tokenizer" / "vocab.txt").read_bytes())
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--from", "tensorflow", "P", "--out", "D"],
            ["--source", "tensorflow", "--path", "P", "--out", "D"],
        ),
        (["--from=transformers", "P", "Q"], ["--source=transformers", "--path", "P", "Q"]),
        (["P", "--from", "tensorflow"], ["--path", "P", "--source", "tensorflow"]),
        (["--out", "D", "--from", "tensorflow"], ["--out", "D", "--source", "tensorflow"]),
        (["--from"], ["--source"]),
        ([], []),
    ],
)
def test_from_is_a_word_of_the_command(words, expected):
    assert as_options(words) == expected


@pytest.mark.slow
def test_a_run_goes_on_from_a_tensorflow_checkpoint_bit_for_bit(checkpoint, whole, runs, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS]
    main([*words, "--run", str(run), "--data", str(runs.data), "--pretrain", *KEYS, *MORE_KEYS])
    printed = capsys.readouterr().out
    assert re.search("step 16.*Adam", printed)
    assert f"electra pretrain --config {run / 'config.yaml'}" in printed
    assert cli.main(["pretrain", "--config", str(run / "config.yaml")]) == cli.OK
    assert runs.events(run, "resumed") == [16]
    # What it had read before it was imported, nobody knows.
    assert files.read_manifest(run / "final", kind="model")["tokens_read"] is None
    steps = [record["step"] for record in runs.lines(run, "train")]
    assert steps == [17, 18, 19, 20]
    for name in ("model", "optimizer"):
        ours, theirs = (
            load_file(folder / "checkpoints" / "step-00000020" / f"{name}.safetensors")
            for folder in (run, whole)
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    final = [load_file(folder / "final" / "discriminator" / "model.safetensors") for folder in (run, whole)]
    assert all(torch.equal(final[0][key], tensor) for key, tensor in final[1].items())


def test_without_a_run_the_model_alone_is_written(checkpoint, whole, tmp_path):
    out = tmp_path / "model"
    main(["--from", "tensorflow", str(checkpoint / "model.ckpt-16"), "--out", str(out), *HEADS])
    weights = read_tensors(whole / "checkpoints" / "step-00000016" / "model.safetensors")
    encoder = open_model(out).encoder()
    name = "layers.1.attention.query.weight"
    assert torch.equal(encoder.state_dict()[name], weights[f"discriminator.{name}"])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.slow
def test_the_parts_of_a_run_come_back_from_transformers_and_can_be_trained(whole, runs, tmp_path, capsys):
    parts = [str(whole / "final" / part) for part in ("discriminator", "generator")]
    run, out = tmp_path / "run", tmp_path / "model"
    goal = ["--run", str(run), "--data", str(runs.data), "--pretrain", *KEYS, "train.steps=2"]
    main(["--from", "transformers", *parts, "--out", str(out), *goal])
    for part in ("discriminator", "generator"):
        pair = [load_file(folder / part / "model.safetensors") for folder in (whole / "final", out)]
        assert pair[0].keys() == pair[1].keys()
        assert all(torch.equal(pair[1][name], tensor) for name, tensor in pair[0].items())
    assert cli.main(["pretrain", "--config", str(run / "config.yaml")]) == cli.OK
    assert runs.events(run, "resumed") == [0]
    trained = runs.lines(run, "train")[0]["loss"], runs.lines(whole, "train")[0]["loss"]
    # It has learned 20 steps before its first one.
    assert trained[0] < trained[1]
    assert "Adam" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_can_be_counted_anew(checkpoint, runs, tmp_path):
    run = tmp_path / "run"
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS, "--step", "0"]
    main([*words, "--run", str(run), "--data", str(runs.data)])
    state = json.loads((run / "checkpoints" / "step-00000000" / "state.json").read_text())
    assert state["step"] == 0
    assert state["config"]["train"]["batch_size"] == 64, "the values of the nearest size"
    moments = load_file(run / "checkpoints" / "step-00000000" / "optimizer.safetensors")
    assert any(moment.any() for moment in moments.values())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--from"),
        (["--from", "tensorflow", "P"], "--out DIR"),
        (["--from", "caffe", "P", "--out", "D"], "source"),
        (["--from", "transformers", "P", "--out", "D", "--vocab", "V"], "--vocab.*TensorFlow"),
        (["--from", "tensorflow", "P", "Q", "--out", "D"], r"\b2 checkpoints"),
        (["--from", "tensorflow", "P", "--out", "D", "--run", "R"], "--run.*--data"),
        (["--from", "tensorflow", "P", "--out", "D", "--step", "1"], "--run RUN"),
        (["--from", "tensorflow", "P", "--out", "D", "--step", "-1"], "step.*-1"),
        (["--from", "tensorflow", "P", "--out", "D", "--part", "encoder"], "--part.*transformers"),
        (["--from", "tensorflow", "P", "--out", "D", "--prefix", "model."], "--prefix.*transformers"),
        (["--from", "transformers", "P", "--out", "D", "--part", "head"], "part"),
    ],
)
def test_words_that_do_not_fit(words, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=reason):
        main(words)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["train.steps=16"], r"step 16.*train\.steps"),
        (["train.steps=20", "train.optimizer=adamw"], r"train\.optimizer.*adamw.*adam_as_google"),
        (["train.steps=20", "train.optimizer=muon"], r"train\.optimizer.*muon.*adam_as_google"),
        (["train.steps=20", "model.embedding_start=spectral"], r"model\.embedding_start"),
        (["train.steps=20", "model.num_hidden_layers=3"], "--pretrain.*networks"),
        (["train.stepps=20"], r"train\.stepps.*'train\.steps'"),
    ],
)
def test_runs_that_cannot_go_on(keys, reason, checkpoint, runs, tmp_path):
    words = ["--from", "tensorflow", str(checkpoint), "--out", str(tmp_path / "model"), *HEADS]
    with pytest.raises(InputError, match=reason):
        main([*words, "--run", str(tmp_path / "run"), "--data", str(runs.data), "--pretrain", *keys])
    assert not list(tmp_path.iterdir())


def test_data_of_another_tokenizer_or_a_part_alone(checkpoint, whole, runs, other_data, tmp_path):
    goal = ["--out", str(tmp_path / "model"), "--run", str(tmp_path / "run"), "--data"]
    with pytest.raises(InputError, match=r"electra prepare --tokenizer"):
        main(["--from", "tensorflow", str(checkpoint), *HEADS, *goal, str(other_data)])
    alone = str(whole / "final" / "discriminator")
    with pytest.raises(InputError, match=r"--run.*generator.*discriminator"):
        main(["--from", "transformers", alone, *goal, str(runs.data)])
    assert not list(tmp_path.iterdir())


def test_folders_that_are_full_are_refused_before_anything_is_read(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="empty"):
        main(["--from", "tensorflow", "nowhere", "--out", str(tmp_path)])


def write_foreign(folder, name, data, **changes):
    """A model of transformers with random weights, and the tokenizer of some data."""
    words = tokenizers.load_tokenizer(data / "tokenizer")
    kind = name.partition("For")[0].removesuffix("Model")
    sizes = {"vocab_size": words.vocab_size, "hidden_size": 32, "intermediate_size": 64}
    more = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, name)(config)
    model.save_pretrained(folder)
    words.save(folder)
    return model


def first_weights(runs, out, **keys):
    """Those of a run whose networks are left to what it starts from, before its first step."""
    structure = (
        "model.size",
        "model.hidden_size",
        "model.embedding_size",
        "model.intermediate_size",
        "generator.width",
    )
    given = runs.words(out, train__steps=2, checkpoint__keep_last=20, checkpoint__save_every=1, **keys)
    told = {f"--{key.replace('__', '.')}={value}" for key, value in keys.items()}
    left = tuple(f"--{key}=" for key in structure)
    assert cli.main([word for word in given if word in told or not word.startswith(left)]) == cli.OK
    return read_tensors(min((out / "checkpoints").iterdir()) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_an_encoder_of_berts_shape_is_fine_tuned_and_pre_trained_further(name, runs, tmp_path, capsys):
    model = write_foreign(tmp_path / "bert", name, runs.data)
    # Of a masked language model, the encoder alone begins a discriminator.
    part = ["--part", "encoder"] if name == "BertForMaskedLM" else []
    words = ["--from", "transformers", str(tmp_path / "bert"), "--out", str(tmp_path / "ours")]
    assert cli.main(["import", *words, *part]) == cli.OK
    printed = capsys.readouterr().out
    assert "left out" in printed
    body = getattr(model, "bert", model).state_dict()
    query = body["encoder.layer.1.attention.self.query.weight"]
    assert torch.equal(
        open_model(tmp_path / "ours").encoder_state()["layers.1.attention.query.weight"], query
    )

    lines = [f"the {word} river\t{number}" for _ in range(6) for number, word in enumerate(("old", "new"))]
    for split in ("train", "dev"):
        path = tmp_path / "data" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    keys = ["--seeds=1", "--train.epochs=1", "--train.precision=fp32", "--train.cores=1", "--max_length=32"]
    words = [f"--model={tmp_path / 'ours'}", "--task=csv", f"--data={tmp_path / 'data'}", *keys]
    assert cli.main(["finetune", *words, f"--out={tmp_path / 'tuned'}"]) == cli.OK
    assert load_model(tmp_path / "tuned").family.labels() == ("0", "1")

    first = first_weights(runs, tmp_path / "run", start=tmp_path / "ours", generator__width=0.5)
    assert torch.equal(first["discriminator.layers.1.attention.query.weight"], query)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"objective": "electra"}])
def test_a_masked_language_model_is_trained_further_as_such_or_as_a_generator(keys, runs, tmp_path):
    model = write_foreign(tmp_path / "bert", "BertForMaskedLM", runs.data)
    main(["--from", "transformers", str(tmp_path / "bert"), "--out", str(tmp_path / "ours")])
    first = first_weights(runs, tmp_path / "run", start=tmp_path / "ours", **keys)
    theirs = model.state_dict()
    for ours, name in (
        ("generator.layers.1.attention.query.weight", "bert.encoder.layer.1.attention.self.query.weight"),
        ("generator_head.dense.weight", "cls.predictions.transform.dense.weight"),
        ("generator.embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.weight"),
    ):
        assert torch.equal(first[ours], theirs[name])
    began = json.loads((tmp_path / "run" / "environment.json").read_text())["started_from"]
    assert began["random"] == (["discriminator", "discriminator_head"] if keys else [])
    objective = files.read_manifest(tmp_path / "run" / "final", kind="model")["config"]["objective"]
    assert objective == keys.get("objective", "mlm")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("DebertaV2Model", "model_type is 'deberta-v2'"),
        ("ModernBertModel", "ModernBERTs"),
        ("RobertaModel", "model_type is 'roberta'"),
        ("DistilBertModel", "model_type is 'distilbert'"),
        ("T5Model", "model_type is 't5'"),
        ("GPT2Model", "model_type is 'gpt2'"),
    ],
)
def test_what_cannot_be_read_is_told_what_can_be(name, reason, runs, tmp_path, capsys):
    folder = tmp_path / "theirs"
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    write_foreign(folder, name, runs.data, **(special if name == "ModernBertModel" else {}))
    for words in (
        ["import", "--from", "transformers", str(folder), "--out", str(tmp_path / "ours")],
        [
            "finetune",
            "--model",
            str(folder),
            "--task=csv",
            f"--data={tmp_path}",
            f"--out={tmp_path / 'tuned'}",
        ],
        ["export", "--model", str(folder), "--to=onnx", f"--out={tmp_path / 'graph'}"],
    ):
        assert cli.main(words) == cli.BAD_INPUT
        error = capsys.readouterr().err
        assert reason in error
        assert re.search(r"can be:.*'electra' or 'bert'", error)
        assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_fine_tuned_model_is_imported_with_its_head_or_without(runs, tmp_path, capsys):
    names_of_labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = write_foreign(
        tmp_path / "theirs", "ElectraForSequenceClassification", runs.data, **names_of_labels
    )
    source = ["--from", "transformers", str(tmp_path / "theirs")]
    main([*source, "--out", str(tmp_path / "whole")])
    printed = capsys.readouterr().out
    assert re.search(r"task +classification\n *labels +no, yes\n", printed)
    tuned = load_model(tmp_path / "whole")
    assert tuned.family.labels() == ("no", "yes")
    assert torch.equal(tuned.model.head(tuned.task).output.weight, model.classifier.out_proj.weight)
    manifest = files.read_manifest(tmp_path / "whole", kind="fine-tuned model")
    assert not list(files.damaged_files(tmp_path / "whole", manifest))
    assert tuned.facts["imported_from"]["path"] == "theirs"

    main([*source, "--out", str(tmp_path / "encoder"), "--part", "encoder"])
    assert "classifier.dense.bias" in capsys.readouterr().out
    assert open_model(tmp_path / "encoder").role == "encoder"

    with pytest.raises(InputError, match=r"--run.*classification.*electra pretrain --start"):
        main(
            [
                *source,
                "--out",
                str(tmp_path / "third"),
                "--run",
                str(tmp_path / "run"),
                "--data",
                str(runs.data),
            ]
        )
    with pytest.raises(InputError, match="empty"):
        main([*source, "--out", str(tmp_path / "whole")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "theirs", "whole"]


def test_of_two_encoders_one_is_chosen(runs, tmp_path, capsys):
    model = write_foreign(tmp_path / "theirs", "ElectraModel", runs.data)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    twins = {f"{side}.{name}": one for side in ("left", "right") for name, one in model.state_dict().items()}
    torch.save(twins, tmp_path / "theirs" / "pytorch_model.bin")
    words = ["import", "--from", "transformers", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]
    assert cli.main(words) == cli.BAD_INPUT
    assert "--prefix" in capsys.readouterr().err
    assert cli.main([*words, "--prefix", "right."]) == cli.OK
    assert "left.embeddings" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "theirs")
    assert open_model(tmp_path / "ours").encoder().config.hidden_size == 32
