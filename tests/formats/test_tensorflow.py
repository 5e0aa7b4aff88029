import json
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.formats.tensorflow import read_tensorflow, recognise
from electra.model import names
from electra.model.heads import gather_positions
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, generator_config
from electra.model.store import require_networks
from foreign_models import build_model, tiny_sizes, write_bundle, write_vocabulary

pytestmark = pytest.mark.numeric


def slots(variables, *, seed):
    random = np.random.default_rng(seed)
    return {
        f"{name}/{slot}": random.random(array.shape).astype(np.float32)
        for name, array in variables.items()
        for slot in ("adam_m", "adam_v")
    }


@pytest.fixture
def model():
    return build_model(*tiny_sizes())


def write(folder, variables, *, vocab_size=70):
    write_bundle(folder / "model.ckpt", variables)
    write_vocabulary(folder / "vocab.txt", vocab_size)
    return folder


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_weights_sizes_and_tokenizer_are_recognised(tmp_path, model):
    imported = read_tensorflow(write(tmp_path, names.to_tensorflow(model.state_dict())))
    assert_equal(imported.state, model.state_dict())
    discriminator, generator = tiny_sizes()
    assert imported.sizes == {"discriminator": discriminator, "generator": generator}
    assert next(iter(imported.sizes)) == "discriminator"
    assert imported.tokenizer.describe()["case"] == "lower"
    assert imported.source["format"] == "tensorflow"
    assert (imported.step, imported.moments, imported.left_out) == (0, {}, ())


def test_moments_and_step_come_along(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    adam = slots(variables, seed=1)
    more = {"global_step": np.array(1234, np.int64), "temperature": np.array(1, np.float32)}
    imported = read_tensorflow(write(tmp_path, {**variables, **adam, **more}))
    assert imported.step == 1234
    assert imported.left_out == ("temperature",)
    kernel = "electra/encoder/layer_1/output/dense/kernel"
    ours = "discriminator.layers.1.feed_forward.output.weight"
    for moment, slot in (("exp_avg", "adam_m"), ("exp_avg_sq", "adam_v")):
        assert imported.moments[moment].keys() == model.state_dict().keys()
        assert np.array_equal(imported.moments[moment][ours].numpy(), adam[f"{kernel}/{slot}"].T)


def test_moments_of_some_weights_only_are_refused(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    adam = slots(variables, seed=1)
    del adam["electra/embeddings/word_embeddings/adam_v"]
    with pytest.raises(InputError, match=r"word_embeddings/adam_v"):
        read_tensorflow(write(tmp_path, {**variables, **adam}))


def test_a_model_of_a_task_is_an_encoder(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    encoder = {name: array for name, array in variables.items() if name.startswith("electra/")}
    head = {"task_specific/cola/dense/kernel": np.zeros((64, 2), np.float32)}
    imported = read_tensorflow(write(tmp_path, {**encoder, **head}))
    assert imported.sizes == {"encoder": tiny_sizes()[0]}
    assert imported.left_out == ("task_specific/cola/dense/kernel",)
    assert_equal(
        {name.removeprefix("encoder."): tensor for name, tensor in imported.state.items()},
        model["discriminator"].state_dict(),
    )


def test_a_model_of_masked_words_is_a_generator(tmp_path):
    """Of the original without its own generator: the head stands on the one encoder."""
    size, _ = tiny_sizes()
    model = build_model(size, size)
    model["generator"] = model["discriminator"]
    variables = names.to_tensorflow(model.state_dict())
    kept = {name: array for name, array in variables.items() if not name.startswith("discriminator_pred")}
    imported = read_tensorflow(write(tmp_path, kept))
    assert imported.sizes == {"generator": size}
    assert_equal(
        imported.state,
        {name: tensor for name, tensor in model.state_dict().items() if name.startswith("generator")},
    )


def test_the_vocabulary_must_fit_the_table(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    folder = write(tmp_path, variables, vocab_size=69)
    with pytest.raises(InputError, match=r"\b69\b.*\b70\b"):
        read_tensorflow(folder)
    other = write_vocabulary(tmp_path / "elsewhere" / "words.txt", 70)
    assert read_tensorflow(folder, vocabulary=other).tokenizer.vocab_size == 70
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"vocab\.txt.*--vocab"):
        read_tensorflow(folder)


def test_what_is_no_electra_is_refused_with_its_name(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    with pytest.raises(InputError, match=r"model\.ckpt.*'resnet/kernel'"):
        read_tensorflow(write(tmp_path / "1", {**variables, "resnet/kernel": np.zeros(1, np.float32)}))
    del variables["electra/encoder/layer_0/attention/self/key/bias"]
    with pytest.raises(InputError, match=r"discriminator\.layers\.0\.attention\.key\.bias"):
        read_tensorflow(write(tmp_path / "2", variables))
    with pytest.raises(InputError, match=r"model\.ckpt.*discriminator\.layers\.0\."):
        read_tensorflow(write(tmp_path / "3", {"global_step": np.array(1, np.int64)}))
    whole = {"electra/embeddings/word_embeddings": np.zeros((70, 8), np.int32)}
    with pytest.raises(InputError, match=r"word_embeddings.*int32"):
        read_tensorflow(write(tmp_path / "4", whole))


def test_shapes_that_do_not_fit_each_other_are_refused(tmp_path, model):
    variables = names.to_tensorflow(model.state_dict())
    variables["electra/embeddings/LayerNorm/beta"] = np.zeros(9, np.float32)
    with pytest.raises(InputError, match=r"embeddings\.norm\.bias.*\[9\].*\[8\]"):
        read_tensorflow(write(tmp_path, variables))


def test_heads_can_be_told(tmp_path, model):
    folder = write(tmp_path, names.to_tensorflow(model.state_dict()))
    sizes = read_tensorflow(folder, num_attention_heads=4).sizes
    # Of one size in both encoders: 16.
    assert [size.num_attention_heads for size in sizes.values()] == [4, 1]
    with pytest.raises(InputError, match="--num_attention_heads"):
        read_tensorflow(folder, num_attention_heads=5)


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_every_size_of_the_authors_is_recognised(size, shared: Path):
    facts = json.loads((shared / "oracles/google-electra/google_variables.json").read_text())[size]
    once = {}
    for name, shape in facts["variables"]:
        ours = names.translate(name, names.MODEL, "tensorflow", "ours")
        once[ours] = torch.empty(shape[::-1] if name.endswith("kernel") else shape, device="meta")
    state = names.name_shared_twice(once)
    sizes = recognise(state, where=size)
    require_networks(sizes, state, where=size)
    expected = EncoderConfig.preset(size)
    generator = generator_config(expected, width=GENERATOR_WIDTH[size])
    assert sizes == {"discriminator": expected, "generator": generator}


@pytest.fixture
def authors(shared: Path, tmp_path):
    folder = shared / "oracles" / "google-electra"
    with np.load(folder / "pretrain_mini.npz") as arrays:
        dump = dict(arrays)
    vocabulary = write_vocabulary(tmp_path / "vocab.txt", 100)
    facts = json.loads((folder / "pretrain_mini.json").read_text())
    return folder / "mini_ckpt", vocabulary, dump, facts


def test_the_authors_checkpoint_computes_what_they_dumped(authors):
    checkpoint, vocabulary, dump, facts = authors
    imported = read_tensorflow(checkpoint, vocabulary=vocabulary)
    for role, short in (("discriminator", "disc"), ("generator", "gen")):
        expected = names.from_transformers_config({**facts[short], "embedding_size": 32})
        assert imported.sizes[role] == expected
    variables = names.to_tensorflow(imported.state)
    for name, array in variables.items():
        assert np.array_equal(array, dump[f"w/{name}"]), name
    assert len(variables) == 112

    model = build_model(imported.sizes["discriminator"], imported.sizes["generator"], seed=5)
    model.load_state_dict(imported.state)
    given = {key: torch.from_numpy(array).long() for key, array in dump.items() if array.dtype == np.int32}
    context = {"token_type_ids_BL": given["in/segment_ids"], "attention_mask_BL": given["in/input_mask"]}
    hidden_BLD = model["discriminator"](given["out/fake_input_ids"], **context)
    is_text = given["in/input_mask"].bool()
    logits_BL = model["discriminator_head"](hidden_BLD)
    close(logits_BL[is_text], torch.from_numpy(dump["out/disc_logits"])[is_text])
    generator = model["generator"]
    masked_BPD = gather_positions(
        generator(given["out/masked_input_ids"], **context), given["out/masked_lm_positions"]
    )
    close(
        model["generator_head"](masked_BPD, generator.embeddings.word_embeddings.weight),
        torch.from_numpy(dump["out/mlm_logits"]),
    )


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_authors_slots_are_moments(authors, tmp_path):
    """Their dump of the fifth step, written as the checkpoint that they would have saved."""
    _, vocabulary, dump, _ = authors
    scopes = ("step4/w/", "step4/slot/")
    variables = {name.removeprefix(s): dump[name] for s in scopes for name in dump if name.startswith(s)}
    write_bundle(tmp_path / "model.ckpt-5", {**variables, "global_step": np.array(5, np.int64)})
    imported = read_tensorflow(tmp_path / "model.ckpt-5", vocabulary=vocabulary)
    assert imported.step == 5
    for moment, slot in (("exp_avg", "adam_m"), ("exp_avg_sq", "adam_v")):
        assert imported.moments[moment].keys() == imported.state.keys()
        for name, array in names.to_tensorflow(imported.moments[moment]).items():
            assert np.array_equal(array, variables[f"{name}/{slot}"]), name
