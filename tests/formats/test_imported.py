"""Folders as transformers itself writes them, and what an import makes of them."""

import json

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from electra import files
from electra.errors import InputError
from electra.formats.imported import Imported, read_transformers, write_imported
from electra.model import names
from electra.model.store import open_model, require_networks
from electra.text import tokenizer as tokenizers
from foreign_models import build_model, tiny_sizes, write_vocabulary

pytestmark = pytest.mark.numeric

SIZES = {
    "vocab_size": 70,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 12,
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is in the extra hf")


@pytest.fixture
def save(transformers, tmp_path):
    """A class of transformers -> the folder and the weights of a random model."""

    def save_model(name, folder="theirs", vocab_size=70, **changes):
        kind = "Electra" if name.startswith("Electra") else "Bert"
        extra = {"embedding_size": 16} if kind == "Electra" else {}
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, **extra, **changes})
        torch.manual_seed(0)
        model = getattr(transformers, name)(config)
        model.save_pretrained(tmp_path / folder)
        write_vocabulary(tmp_path / folder / "vocab.txt", vocab_size)
        return tmp_path / folder, model

    return save_model


@pytest.mark.parametrize(
    ("name", "part"), [("ElectraForPreTraining", "discriminator"), ("ElectraForMaskedLM", "generator")]
)
def test_a_part_of_electra_with_its_head(name, part, save):
    folder, model = save(name)
    imported = read_transformers([folder])
    assert list(imported.sizes) == [part]
    assert imported.sizes[part].num_attention_heads == 4
    theirs = names.to_transformers(imported.state, part)
    assert theirs.keys() == model.state_dict().keys()
    assert all(torch.equal(theirs[key], tensor) for key, tensor in model.state_dict().items())
    assert imported.left_out == ()
    assert len(imported.source["sha256"][0]) == 64


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("BertModel", {"pooler.dense.weight", "pooler.dense.bias"}),
        ("BertForTokenClassification", {"classifier.weight", "classifier.bias"}),
        ("ElectraModel", set()),
        ("ElectraForTokenClassification", {"classifier.weight", "classifier.bias"}),
    ],
)
def test_anything_else_of_that_shape_is_an_encoder(name, left_out, save):
    folder, model = save(name)
    imported = read_transformers([folder])
    assert list(imported.sizes) == ["encoder"]
    assert set(imported.left_out) == left_out
    body = getattr(model, model.base_model_prefix, model).state_dict()
    key = "encoder.layer.1.attention.self.query.weight"
    assert torch.equal(imported.state["encoder.layers.1.attention.query.weight"], body[key])
    expected = {key for key in body if "pooler" not in key and not key.endswith("position_ids")}
    assert len(imported.state) == len(expected)


def test_a_pair_becomes_one_model(save):
    pair = [save("ElectraForMaskedLM", "generator")[0], save("ElectraForPreTraining", "discriminator")[0]]
    imported = read_transformers(pair)
    assert list(imported.sizes) == ["discriminator", "generator"]
    assert imported.source["paths"] == [str(folder) for folder in pair]


def test_pairs_that_do_not_belong_together(save):
    one, _ = save("ElectraForPreTraining", "one")
    with pytest.raises(InputError, match=r"one\b.*ElectraForPreTraining.*ElectraForMaskedLM"):
        read_transformers([one, one])
    with pytest.raises(InputError, match=r"one\b.*\bbert\b"):
        read_transformers([one, save("BertModel", "bert")[0]])
    other, _ = save("ElectraForMaskedLM", "other", vocab_size=69)
    with pytest.raises(InputError, match=r"one\b.*other\b.*tokenizers"):
        read_transformers([one, other])


def test_a_head_that_is_not_tied_is_refused(save):
    folder, model = save("ElectraForMaskedLM")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["generator_lm_head.weight"] += 1
    safetensors.torch.save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"generator_lm_head\.weight"):
        read_transformers([folder])


def test_folders_that_cannot_be_imported(save, tmp_path):
    with pytest.raises(InputError, match=r"config\.json.*Hub"):
        read_transformers([tmp_path / "google/electra-small"])
    folder, _ = save("ElectraForPreTraining", vocab_size=90)
    with pytest.raises(InputError, match=r"\b90\b.*\b70\b"):
        read_transformers([folder])
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match="num_hidden_layers is 3, expected 2"):
        read_transformers([folder])
    (folder / "config.json").write_text(json.dumps({**values, "model_type": "electra-own"}))
    with pytest.raises(InputError, match="ours"):
        read_transformers([folder])


@pytest.fixture
def model():
    return build_model(*tiny_sizes())


@pytest.fixture
def imported(model, tmp_path):
    discriminator, generator = tiny_sizes()
    return Imported(
        sizes={"discriminator": discriminator, "generator": generator},
        state=model.state_dict(),
        tokenizer=tokenizers.load_tokenizer(write_vocabulary(tmp_path / "vocab.txt", 70)),
        source={"format": "tensorflow", "path": "model.ckpt"},
        step=7,
    )


def test_a_folder_like_that_of_a_run(imported, model, tmp_path):
    out = tmp_path / "out"
    write_imported(imported, out)
    manifest = files.read_manifest(out, kind="model")
    assert not list(files.damaged_files(out, manifest))
    assert (manifest["encoder"], manifest["step"]) == ("discriminator", 7)
    assert manifest["obstacles"] == {"discriminator": None, "generator": None}
    assert manifest["imported_from"] == {"format": "tensorflow", "path": "model.ckpt"}
    folder = open_model(out)
    encoder = folder.encoder()
    assert folder.tokenizer.content_hash == imported.tokenizer.content_hash
    for name, tensor in model["discriminator"].state_dict().items():
        assert torch.equal(encoder.state_dict()[name], tensor), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "vocab.txt"]


def test_both_parts_load_in_transformers_and_compute_the_same(imported, model, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra hf")
    write_imported(imported, tmp_path / "out")
    ids_BL = torch.tensor([[2, 9, 10, 11, 3], [2, 30, 31, 32, 3]])
    theirs, report = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / "out" / "discriminator", output_loading_info=True
    )
    assert not any(report.values())
    with torch.no_grad():
        logits_BL = model["discriminator_head"](model["discriminator"](ids_BL))
        torch.testing.assert_close(theirs.eval()(ids_BL).logits, logits_BL, rtol=0, atol=1e-5)
        generator = model["generator"]
        table_VE = generator.embeddings.word_embeddings.weight
        token_logits = model["generator_head"](generator(ids_BL), table_VE)
        theirs, report = transformers.ElectraForMaskedLM.from_pretrained(
            tmp_path / "out" / "generator", output_loading_info=True
        )
        assert not any(report.values())
        torch.testing.assert_close(theirs.eval()(ids_BL).logits, token_logits, rtol=0, atol=1e-5)


def test_out_and_back_is_the_same_bit_for_bit(imported, model, tmp_path):
    write_imported(imported, tmp_path / "1")
    back = read_transformers([tmp_path / "1" / "generator", tmp_path / "1" / "discriminator"])
    assert back.sizes == imported.sizes
    assert list(back.sizes) == ["discriminator", "generator"]
    assert back.state.keys() == imported.state.keys()
    assert all(torch.equal(back.state[name], tensor) for name, tensor in imported.state.items())
    write_imported(back, tmp_path / "2")
    for part in imported.sizes:
        for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
            pair = [(tmp_path / folder / part / name).read_bytes() for folder in ("1", "2")]
            assert pair[0] == pair[1], name


def test_nothing_is_written_over(imported, tmp_path):
    (tmp_path / "out").mkdir()
    write_imported(imported, tmp_path / "out")
    with pytest.raises(InputError, match="empty"):
        write_imported(imported, tmp_path / "out")


def test_what_fails_leaves_nothing_behind(imported, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write_manifest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_imported(imported, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]


def test_weights_are_written_in_a_file_of_their_own_part(imported, tmp_path):
    write_imported(imported, tmp_path / "out")
    held = load_file(tmp_path / "out" / "generator" / "model.safetensors")
    assert not any(name.startswith("discriminator") for name in held)
    assert "generator_lm_head.bias" in held


def test_weights_that_are_not_of_the_sizes(imported):
    lacking = {name: tensor for name, tensor in imported.state.items() if not name.endswith("key.bias")}
    with pytest.raises(InputError, match=r"here.*key\.bias.*\b3\b"):
        require_networks(imported.sizes, lacking, where="here")
    with pytest.raises(InputError, match=r"here.*\bgate\b"):
        require_networks(imported.sizes, {**imported.state, "gate": torch.zeros(1)}, where="here")
