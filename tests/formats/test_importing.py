import pytest
import torch
from safetensors.torch import load_file

from electra import files
from electra.errors import InputError
from electra.formats.imported import Imported, check_shapes, write_imported
from electra.formats.transformers import read_transformers
from electra.tasks.folders import load_encoder
from electra.text import tokenizer as tokenizers
from foreign_models import build_model, tiny_sizes, write_vocabulary

pytestmark = pytest.mark.numeric


@pytest.fixture
def model():
    return build_model(*tiny_sizes())


@pytest.fixture
def imported(model, tmp_path):
    discriminator, generator = tiny_sizes()
    return Imported(
        sizes={"discriminator": discriminator, "generator": generator},
        state=model.state_dict(),
        tokenizer=tokenizers.load(write_vocabulary(tmp_path / "vocab.txt", 70)),
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
    encoder, tokenizer = load_encoder(str(out))
    assert tokenizer.content_hash == imported.tokenizer.content_hash
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
    with pytest.raises(InputError, match="exists and is not empty"):
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
    with pytest.raises(InputError, match=r"here lacks weight .*key\.bias, and 3 more"):
        check_shapes(imported.sizes, lacking, where="here")
    with pytest.raises(InputError, match="here has an unknown weight gate"):
        check_shapes(imported.sizes, {**imported.state, "gate": torch.zeros(1)}, where="here")
