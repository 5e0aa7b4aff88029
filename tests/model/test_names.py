import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.model import heads, names
from electra.model.encoder import Encoder
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, generator_config
from original_heads import TASK_HEADS


def shapes(state):
    return {name: list(tensor.shape) for name, tensor in state.items()}


def pair(config):
    return config, generator_config(config, width=0.25)


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_every_variable_of_the_authors_is_one_tensor_of_ours(size, shared: Path, build):
    facts = json.loads((shared / "oracles/google-electra/google_variables.json").read_text())[size]
    config = EncoderConfig.preset(size)
    with torch.device("meta"):
        model = build(config, generator_config(config, width=GENERATOR_WIDTH[size]))
    ours = shapes(dict(model.named_parameters(remove_duplicate=False)))
    translated = {}
    for name, shape in facts["variables"]:
        own = names.translate(name, names.MODEL, "tensorflow", "ours")
        assert names.translate(own, names.MODEL, "ours", "tensorflow") == name
        translated[own] = shape[::-1] if name.endswith("kernel") else shape
    assert translated == {name: shape for name, shape in ours.items() if "generator.embeddings" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "small", "base", "large"])
@pytest.mark.parametrize(
    ("part", "model_class"), [("discriminator", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")]
)
def test_every_tensor_of_transformers_is_one_of_ours(part, model_class, size, build):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra hf")
    config = EncoderConfig.preset(size)
    configs = config, generator_config(config, width=GENERATOR_WIDTH[size])
    values = names.to_transformers_config(configs[part == "generator"])
    with torch.device("meta"):
        ours = build(*configs).state_dict()
        theirs = getattr(transformers, model_class)(transformers.ElectraConfig(**values)).state_dict()
    assert shapes(names.to_transformers(ours, part)) == shapes(theirs)
    assert shapes(names.from_transformers(theirs, part)) == {
        name: shape for name, shape in shapes(ours).items() if name.startswith((f"{part}.", f"{part}_head."))
    }


@pytest.mark.parametrize("column", names.Names._fields)
@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_the_table_names_nothing_twice(part, column):
    column_names = [getattr(row, column) for row in names.role_table(part)]
    assert len(set(column_names)) == len(column_names)
    assert all(column_names)


def test_tensorflow_and_back_is_the_same_model(tiny, build):
    state = build(*pair(tiny)).state_dict()
    variables = names.to_tensorflow(state)
    assert not any(name.startswith("generator/embeddings/") for name in variables)
    kernel = variables["electra/encoder/layer_1/intermediate/dense/kernel"]
    expected = state["discriminator.layers.1.feed_forward.inner.weight"].numpy().T
    assert np.array_equal(kernel, expected)
    back = names.from_tensorflow(variables)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_embeddings_that_are_not_shared_stay_apart(tiny, build):
    model = build(*pair(tiny))
    model["generator"] = Encoder(pair(tiny)[1])
    state = model.state_dict()
    variables = names.to_tensorflow(state)
    assert "generator/embeddings/word_embeddings" in variables
    back = names.from_tensorflow(variables)
    name = "generator.embeddings.word_embeddings.weight"
    assert torch.equal(back[name], state[name])


def test_shared_embeddings_found_under_the_generator_only_are_the_discriminators(tiny, build):
    # What named_parameters gives if the generator comes first.
    parameters = dict(build(*pair(tiny)).named_parameters())
    assert "discriminator.embeddings.norm.bias" not in parameters
    once = names.name_shared_once(parameters)
    assert "discriminator.embeddings.norm.bias" in once
    assert "generator.embeddings.norm.bias" not in once
    assert names.name_shared_twice(once).keys() == build(*pair(tiny)).state_dict().keys()


def test_an_encoder_shared_as_a_whole_is_named_once(tiny, build):
    model = build(tiny, tiny)
    model["generator"] = model["discriminator"]
    state = model.state_dict()
    variables = names.to_tensorflow(state)
    assert not any(name.startswith("generator/") for name in variables)
    assert names.from_tensorflow(variables).keys() == state.keys()


def test_optimizer_slots_of_a_checkpoint_are_left_out():
    bias = np.zeros(3, dtype=np.float32)
    name = "electra/encoder/layer_0/output/dense/bias"
    state = names.from_tensorflow({name: bias, f"{name}/adam_m": bias, "global_step": bias})
    assert list(state) == ["discriminator.layers.0.feed_forward.output.bias"]


def test_an_unknown_tensor_is_an_error_that_names_it():
    with pytest.raises(InputError, match=r"'electra/encoder/layer_0/gate/kernel'.*tensorflow"):
        names.from_tensorflow({"electra/encoder/layer_0/gate/kernel": np.zeros((2, 2), dtype=np.float32)})


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_bert_encoder_is_ours_without_its_pooler(prefix):
    config = EncoderConfig.preset("tiny", vocab_size=50, embedding_size=128)
    state = names.encoder_to_transformers(Encoder(config).state_dict())
    theirs = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    theirs |= {
        f"{prefix}pooler.dense.weight": torch.zeros(2, 2),
        f"{prefix}embeddings.position_ids": torch.zeros(2),
    }
    if prefix:
        theirs["classifier.weight"] = torch.zeros(2, 2)
    Encoder(config).load_state_dict(names.encoder_from_transformers(theirs))


@pytest.mark.parametrize("name", TASK_HEADS)
def test_every_tensor_of_a_task_head_is_in_the_table(name, tiny):
    arguments = {"ClassificationHead": [3], "TaggingHead": [5]}
    head: nn.Module = getattr(heads, name)(tiny, *arguments.get(name, []))
    assert [row.ours for row in names.tensors(TASK_HEADS[name])] == list(head.state_dict())


def test_depth_of_every_parameter_agrees_with_the_authors_layers(tiny, build):
    """By the names of the original, in which a layer's number and the embeddings' scope are told apart."""
    model = build(tiny, tiny)
    ours = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(ours) > 60
    for name in ours:
        original = names.translate(name, names.MODEL, "ours", "tensorflow")
        depth = names.layer_depth(name, num_layers=tiny.num_hidden_layers)
        if "encoder/layer_" in original:
            assert f"encoder/layer_{depth - 1}/" in original
        elif "embeddings" in original:
            assert depth == 0
        else:
            assert depth == tiny.num_hidden_layers + 1
            assert "predictions" in original


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.attention.query.weight", True),
        ("discriminator.layers.11.feed_forward.inner.weight", True),
        ("generator.left.layers.1.attention.output.weight", True),
        ("encoder.layers.1.attention.output.bias", False),
        ("layers.0.attention_norm.weight", False),
        ("discriminator.projection.weight", False),
        ("generator.embeddings.word_embeddings.weight", False),
        ("generator_head.transform.weight", False),
    ],
)
def test_which_parameters_are_matrices_of_layers(name, expected):
    assert names.is_layer_matrix(name) == expected
