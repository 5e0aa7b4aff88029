"""`electra import` and `electra export --push` with a Hub on loopback."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file

import electra
from electra import cli, files
from electra.model.store import open_model
from electra.tasks.families.classification import Classification
from electra.tasks.model import load_model
from hub_server import TOKEN, Hub, serving

huggingface_hub = pytest.importorskip("huggingface_hub", reason="the client of the Hub is in the extra hf")
# The client uploads large files in a way that its network library would like to be rid of.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
WEIGHT = "layers.1.attention.query.weight"
NAME = "org/tiny"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub that the client of this process asks, with an empty cache and nobody logged in."""
    with serving(Hub()) as found:
        constants = huggingface_hub.constants
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        # Its storage is a service of its own; files then go the old way.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield found


@pytest.fixture
def logged_in(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, tokenizer):
    """A BERT in every form of weights, with what else lies in such repositories."""
    folder = tmp_path_factory.mktemp("theirs") / "bert"
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 32, "intermediate_size": 48}
    more = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **more))
    model.save_pretrained(folder)
    tokenizer.save(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for name in ("tf_model.h5", "flax_model.msgpack", "README.md", "onnx/model.onnx"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"nothing that is read")
    return folder


def bring(*words, code=cli.OK):
    assert cli.main(["import", "--from", "transformers", *map(str, words)]) == code


def same_weights(place, foreign):
    theirs = load_file(foreign / "model.safetensors")["bert.encoder.layer.1.attention.self.query.weight"]
    return torch.equal(open_model(place).encoder_state()[WEIGHT], theirs)


READ = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}


def test_a_name_is_fetched_as_far_as_it_is_read(hub, foreign, tmp_path):
    commit = hub.put(foreign, NAME).sha()
    bring(NAME, "--out", tmp_path / "ours")
    assert same_weights(tmp_path / "ours", foreign)
    assert hub.fetched() == READ
    assert not hub.tokens
    source = files.read_manifest(tmp_path / "ours", kind="model")["imported_from"]
    assert source["paths"] == [NAME]
    assert source["revisions"] == [commit]
    assert (tmp_path / "cache" / "models--org--tiny" / "snapshots" / commit / "config.json").exists()
    assert cli.main(["export", f"--model={tmp_path / 'ours'}", "--to=transformers", "--out=back"]) == cli.OK
    assert f"{NAME} at {commit}" in (tmp_path / "back" / "README.md").read_text()


@pytest.mark.parametrize("form", ["shards", "bin", "shards of bin"])
def test_weights_in_any_form(form, hub, foreign, tmp_path):
    folder = shutil.copytree(foreign, tmp_path / "theirs")
    (folder / "model.safetensors").unlink()
    if form == "shards":
        transformers.BertForMaskedLM.from_pretrained(foreign).save_pretrained(folder, max_shard_size="20KB")
    if form == "shards of bin":
        state = torch.load(folder / "pytorch_model.bin")
        (folder / "pytorch_model.bin").unlink()
        places = {}
        for number, half in enumerate((list(state)[:20], list(state)[20:])):
            name = f"pytorch_model-0000{number + 1}-of-00002.bin"
            torch.save({key: state[key] for key in half}, folder / name)
            places |= dict.fromkeys(half, name)
        files.write_json(folder / "pytorch_model.bin.index.json", {"weight_map": places})
    hub.put(folder, NAME)
    bring(NAME, "--out", tmp_path / "ours")
    assert same_weights(tmp_path / "ours", foreign)
    suffixes = {name.rpartition(".")[2] for name in hub.fetched()} - {"json", "txt"}
    assert suffixes == ({"safetensors"} if form == "shards" else {"bin"})


def test_an_earlier_revision(hub, foreign, tmp_path, capsys):
    first = hub.put(foreign, NAME).sha()
    changed = shutil.copytree(foreign, tmp_path / "changed")
    (changed / "config.json").write_text("{}")
    hub.put(changed, NAME)
    bring(NAME, "--revision", first, "--out", tmp_path / "ours")
    assert same_weights(tmp_path / "ours", foreign)
    bring(NAME, "--out", tmp_path / "never", code=cli.BAD_INPUT)
    assert "model_type" in capsys.readouterr().err
    bring(NAME, "--revision", "nowhere", "--out", tmp_path / "never", code=cli.BAD_INPUT)
    assert "revision" in capsys.readouterr().err
    bring(foreign, "--revision", first, "--out", tmp_path / "never", code=cli.BAD_INPUT)
    assert "--revision" in capsys.readouterr().err


def test_what_cannot_be_read_is_refused_before_its_weights_are_fetched(hub, foreign, tmp_path, capsys):
    other = shutil.copytree(foreign, tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "deberta-v2"}')
    hub.put(other, NAME)
    bring(NAME, "--out", tmp_path / "never", code=cli.BAD_INPUT)
    assert "model_type is 'deberta-v2'" in capsys.readouterr().err
    assert hub.fetched() == {"config.json"}


def test_a_folder_goes_before_a_name(hub, foreign, tmp_path):
    shutil.copytree(foreign, tmp_path / NAME)
    bring(NAME, "--out", tmp_path / "ours")
    assert same_weights(tmp_path / "ours", foreign)
    assert not hub.asked


def test_a_fine_tuned_model_comes_with_its_head(hub, make_tuned, tmp_path, capsys):
    _, tuned = make_tuned(Classification(("bad", "good")))
    assert cli.main(["export", f"--model={tuned}", "--to=transformers", "--out=sent"]) == cli.OK
    commit = hub.put(tmp_path / "sent", NAME).sha()
    bring(NAME, "--out", tmp_path / "ours")
    text = ["the old river"]
    assert electra.load(tmp_path / "ours").classify(text) == electra.load(tuned).classify(text)
    source = load_model(tmp_path / "ours").facts["imported_from"]
    assert source["paths"] == [NAME]
    assert source["revisions"] == [commit]
    # A discriminator and its generator are both of the Hub, or both here.
    bring(NAME, tmp_path / "sent", "--out", tmp_path / "never", code=cli.BAD_INPUT)
    assert "two folders" in capsys.readouterr().err


def test_what_was_fetched_before_is_used_when_the_hub_is_silent(hub, foreign, tmp_path, monkeypatch):
    hub.put(foreign, NAME)
    bring(NAME, "--out", tmp_path / "1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    bring(NAME, "--out", tmp_path / "2")
    assert same_weights(tmp_path / "2", foreign)


def closed_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def fail(case, hub, foreign, monkeypatch):
    """Make the Hub refuse, in one of the ways that it has."""
    if case == "gated":
        hub.put(foreign, NAME, gated=True)
    elif case == "private":
        hub.put(foreign, NAME, private=True)
    elif case == "down":
        hub.failing = ("/api", 503, "The Hub is down")
    elif case == "refused":
        # As a careless proxy might, which repeats what it was sent.
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        hub.failing = ("/api", 403, f"Bearer {TOKEN} is not welcome")
    elif case == "unreachable":
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    elif case == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    elif case == "no weights":
        hub.put(foreign / "onnx", NAME)


CASES = {
    "missing": ["not found", "hf auth login"],
    "private": ["not found", "hf auth login"],
    "gated": ["gated", "hf auth login"],
    "refused": ["403", "hf auth login"],
    "down": ["503"],
    "unreachable": ["cannot be reached"],
    "offline": ["HF_HUB_OFFLINE"],
    "no weights": ["config.json"],
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_hub_does_not_give_is_said_shortly(case, hub, foreign, monkeypatch, tmp_path, capsys):
    fail(case, hub, foreign, monkeypatch)
    bring(NAME, "--out", tmp_path / "never", code=cli.BAD_INPUT)
    error = capsys.readouterr().err
    for part in CASES[case]:
        assert part in error
    if case != "no weights":
        assert f"hf download {NAME} --local-dir" in error
    assert TOKEN not in error
    assert "Traceback" not in error
    assert len(error) < 500
    assert not (tmp_path / "never").exists()


def test_a_private_model_of_ones_own(hub, foreign, logged_in, tmp_path):
    hub.put(foreign, NAME, private=True)
    bring(NAME, "--out", tmp_path / "ours")
    assert same_weights(tmp_path / "ours", foreign)
    assert hub.tokens == {TOKEN}


def test_words_that_are_no_name(hub, tmp_path, capsys):
    for words in ("no/such/folder", "../model", "/nowhere"):
        bring(words, "--out", tmp_path / "never", code=cli.BAD_INPUT)
        assert "config.json" in capsys.readouterr().err
    assert not hub.asked


def export(model, out, *words, code=cli.OK):
    assert cli.main(["export", f"--model={model}", "--to=transformers", f"--out={out}", *words]) == code


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pushed_and_fetched_again_it_is_the_same(hub, logged_in, make_tuned, tmp_path, capsys):
    _, tuned = make_tuned(Classification(("bad", "good")))
    export(tuned, "sent", "--push", NAME, "--private")
    assert f"{hub.address}/{NAME}" in capsys.readouterr().out
    found = hub.repositories[f"models/{NAME}"]
    assert found.private
    assert found.commits == [files_of(tmp_path / "sent")]
    assert {"README.md", "config.json", "model.safetensors"} <= found.commits[0].keys()
    bring(NAME, "--out", tmp_path / "back")
    text = ["the old river", "new music"]
    assert electra.load(tmp_path / "back").classify(text) == electra.load(tuned).classify(text)
    # Transformers' own way to it.
    opened = transformers.AutoModelForSequenceClassification.from_pretrained(
        huggingface_hub.snapshot_download(NAME, endpoint=hub.address)
    )
    assert opened.config.id2label == {0: "bad", 1: "good"}


def test_nothing_of_an_earlier_model_is_left_but_what_is_not_its_own(hub, logged_in, run, tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    names = ("pytorch_model.bin", "head.safetensors", "model-00001-of-00002.safetensors", "notes.md")
    for name in names:
        (before / name).write_bytes(b"old")
    hub.put(before, NAME)
    made = electra.export(model=run, to="transformers", out=tmp_path / "sent", push=NAME)
    assert made.address == f"{hub.address}/{NAME}"
    last = hub.repositories[f"models/{NAME}"].commits[-1]
    assert last == {**files_of(tmp_path / "sent"), "notes.md": b"old"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--private"], "--push"),
        (["--push", "no-owner"], "OWNER/NAME"),
        (["--push", "a/b/c"], "OWNER/NAME"),
        (["--push", NAME], "hf auth login"),
    ],
)
def test_a_push_that_cannot_be_is_refused_before_the_export(words, reason, hub, run, tmp_path, capsys):
    export(run, "sent", *words, code=cli.BAD_INPUT)
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "sent").exists()
    assert not hub.asked


def test_a_push_that_fails_leaves_the_folder(hub, logged_in, run, tmp_path, monkeypatch, capsys):
    cases = {
        "private": (lambda: hub.put(tmp_path / "sent 0", NAME), ["--private"], "everybody"),
        "forbidden": (
            lambda: setattr(hub, "failing", (f"/api/models/{NAME}/preupload", 403, f"{TOKEN} may not write")),
            [],
            "403",
        ),
        "unreachable": (
            lambda: monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}"),
            [],
            "cannot be reached",
        ),
    }
    export(run, "sent 0")
    for number, (prepare, words, reason) in enumerate(cases.values(), start=1):
        prepare()
        export(run, f"sent {number}", "--push", NAME, *words, code=cli.BAD_INPUT)
        error = capsys.readouterr().err
        assert reason in error
        assert f"sent {number} is whole" in error
        assert TOKEN not in error
        assert "Traceback" not in error
        assert electra.load(tmp_path / f"sent {number}").abilities
    assert len(hub.repositories[f"models/{NAME}"].commits) == 1


@pytest.mark.slow
def test_from_the_shell(hub, foreign, tmp_path):
    """With the environment alone, as a person has it."""
    hub.put(foreign, NAME)
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "electra", "import", "--from", "transformers", NAME, "--out", "ours"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == cli.OK, done.stderr
    assert same_weights(tmp_path / "ours", foreign)
    assert hub.fetched() == READ
    config = json.loads((tmp_path / "ours" / "generator" / "config.json").read_text())
    assert config["architectures"] == ["ElectraForMaskedLM"]
