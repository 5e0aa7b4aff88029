import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from electra.errors import InputError
from electra.prediction.load import load
from electra.tasks.families.classification import Classification

BOTH = ("embed", "detect", "fill", "corrupt", "score", "choose")
TEXT = ["The old river was in a small city"]


def test_every_way_to_name_a_run(run):
    models = [load(path) for path in (run, str(run), run / "final", run / "final" / "discriminator")]
    assert {model.abilities for model in models} == {BOTH}
    assert all(model.detect(TEXT) == models[0].detect(TEXT) for model in models)
    assert all(model.embed(TEXT) == models[0].embed(TEXT) for model in models)
    generator = load(run / "final" / "generator")
    assert generator.abilities == BOTH
    # Vectors are of the encoder that was asked for: here, the generator's, which is half as wide.
    assert len(generator.embed(TEXT)[0]) == 16
    assert len(models[0].embed(TEXT)[0]) == 32
    assert generator.corrupt(TEXT) == models[0].corrupt(TEXT)


@pytest.mark.parametrize("position", ["alibi", "rotary"])
def test_a_run_in_our_own_layout(make_run, position):
    model = load(make_run(position_embedding_type=position))
    assert model.abilities == BOTH
    (turn,) = model.corrupt(TEXT)
    assert len(turn["tokens"]) == 8


@pytest.mark.parametrize(
    ("objective", "kind", "abilities"),
    [
        ("mlm", "mlm", ("embed", "fill", "score", "choose")),
        ("electra_15", "mlm", BOTH),
        ("replace_mlm", "mlm", ("embed", "fill", "score", "choose")),
        ("electra", "uniform", ("embed", "detect", "score", "choose")),
        ("electric", "two_tower", ("embed", "score", "choose")),
    ],
)
def test_abilities_follow_from_what_was_trained(make_run, objective, kind, abilities):
    assert load(make_run(objective, kind=kind)).abilities == abilities


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("ElectraForPreTraining", ("embed", "detect", "score", "choose")),
        ("ElectraForMaskedLM", ("embed", "fill", "score", "choose")),
        ("ElectraModel", ("embed",)),
        ("BertModel", ("embed",)),
        ("BertForMaskedLM", ("embed", "fill", "score", "choose")),
    ],
)
def test_a_folder_of_transformers(tmp_path, tokenizer, name, abilities):
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    model = kind(kind.config_class(vocab_size=tokenizer.vocab_size + 3, **sizes))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.abilities == abilities
    assert len(loaded.embed(TEXT)[0]) == 32
    if "fill" in abilities:
        # Of the padded vocabulary only what the tokenizer has is proposed.
        (answer,) = loaded.fill(["[MASK]"], top=10**6)
        shares = [one["probability"] for one in answer["masks"][0]["candidates"]]
        assert len(shares) == tokenizer.vocab_size
        assert sum(shares) == pytest.approx(1, abs=1e-5)


def test_a_single_network_and_a_neighbour_of_another_vocabulary(run, tmp_path):
    alone = shutil.copytree(run / "final" / "discriminator", tmp_path / "alone" / "discriminator")
    assert load(alone).abilities == ("embed", "detect", "score", "choose")
    other = shutil.copytree(run / "final" / "generator", tmp_path / "alone" / "generator")
    assert load(alone).abilities == BOTH
    content = json.loads((other / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert load(alone).abilities == ("embed", "detect", "score", "choose")


def test_a_fine_tuned_model_and_its_folder(make_tuned):
    _, folder = make_tuned(Classification(("bad", "good")))
    models = [load(path) for path in (folder, folder / "final")]
    assert models[0].classify(TEXT) == models[1].classify(TEXT)
    assert models[0].reader.max_length == 24


def test_as_many_tokens_are_read_as_in_training(make_run, run):
    assert load(run).reader.max_length == 32
    trained = make_run(facts={"seq_length": 16})
    model = load(trained)
    assert model.reader.max_length == model.generator.reader.max_length == 16
    assert load(trained, max_length=24).reader.max_length == 24
    assert load(trained / "final" / "generator").reader.max_length == 16
    with pytest.raises(InputError, match=r"max_length.*33.*\b8\b.*\b32\b"):
        load(trained, max_length=33)


def test_what_cannot_be_used_is_refused(run):
    with pytest.raises(InputError, match=r"engine.*'abacus'.*torch"):
        load(run, engine="abacus")
    for device in ("abacus", "cuda:99"):
        with pytest.raises(InputError, match=rf"device.*'{device}'"):
            load(run, device=device)
    with pytest.raises(InputError, match="no/such/folder"):
        load("no/such/folder")
    assert load(run, device="auto").detect(TEXT)


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_damaged_weights_of_either_network_are_refused(run, tmp_path, part):
    copied = shutil.copytree(run, tmp_path / "run")
    weights = copied / "final" / part / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=rf"{part}/model\.safetensors.*damaged"):
        load(copied)


def test_a_head_that_is_not_whole_is_refused(run, tmp_path):
    folder = shutil.copytree(run / "final" / "generator", tmp_path / "generator")
    tensors = load_file(folder / "model.safetensors")
    untied = {**tensors, "generator_lm_head.weight": tensors["generator_lm_head.weight"] + 1}
    save_file(untied, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"generator_lm_head\.weight"):
        load(folder)
    save_file(
        {k: v for k, v in tensors.items() if "LayerNorm.bias" not in k or "generator" not in k},
        folder / "model.safetensors",
    )
    with pytest.raises(InputError, match=r"\bnorm\.bias"):
        load(folder)


def test_weights_of_torch_are_read_as_tensors_alone(run, tmp_path):
    folder = shutil.copytree(run / "final" / "discriminator", tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert load(folder).detect(["the old river"]) == load(run).detect(["the old river"])
