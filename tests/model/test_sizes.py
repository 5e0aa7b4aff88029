import dataclasses
import json
from pathlib import Path

import pytest
import torch

from electra.errors import InputError
from electra.model.sizes import (
    GENERATOR_WIDTH,
    PRESETS,
    EncoderConfig,
    generator_config,
    transformers_obstacle,
)

# Counted in the authors' graph: both encoders with shared embeddings, and their heads.
PARAMETERS = {"small": 14_196_219, "base": 119_386_427, "large": 354_655_291}
SMALL_PARTS = {"discriminator": 13_483_008, "discriminator_head": 66_049, "generator_head": 39_098}
SMALL_GENERATOR_ALONE = 608_064


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def pair(name):
    discriminator = EncoderConfig.preset(name)
    return discriminator, generator_config(discriminator, width=GENERATOR_WIDTH[name])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_of_the_paper(name, build):
    with torch.device("meta"):
        model = build(*pair(name))
    assert count(model) == PARAMETERS[name]


def test_parameter_counts_of_the_parts_of_small(build):
    with torch.device("meta"):
        model = build(*pair("small"))
    assert {part: count(model[part]) for part in SMALL_PARTS} == SMALL_PARTS
    embeddings = count(model["discriminator"].embeddings)
    assert count(model["generator"]) - embeddings == SMALL_GENERATOR_ALONE
    assert model["generator"].embeddings is model["discriminator"].embeddings


@pytest.mark.parametrize("name", ["small", "base", "large"])
def test_configs_are_the_authors(name, shared: Path):
    facts = json.loads((shared / "oracles/google-electra/google_variables.json").read_text())[name]
    for ours, theirs in zip(pair(name), (facts["disc"], facts["gen"]), strict=True):
        common = {key: value for key, value in theirs.items() if key != "hidden_act"}
        assert {key: getattr(ours, key) for key in common} == common


def test_a_generator_keeps_the_embeddings_and_the_size_of_heads():
    discriminator = EncoderConfig.preset("base")
    generator = generator_config(discriminator, width=0.5, depth=0.25)
    assert (generator.hidden_size, generator.intermediate_size) == (384, 1536)
    assert (generator.num_attention_heads, generator.head_size) == (6, 64)
    assert (generator.num_hidden_layers, generator.embedding_size) == (3, 768)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_can_be_expressed_in_transformers(name):
    assert transformers_obstacle(EncoderConfig.preset(name)) is None
    other = EncoderConfig.preset(name, position_embedding_type="rotary")
    assert "'rotary'" in transformers_obstacle(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "hidden_size.*128.*num_attention_heads.*5"),
        ({"hidden_size": 0}, r"hidden_size.*\b0\b"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob.*1\.0"),
        ({"initializer_range": 0.0}, r"initializer_range.*0\.0"),
        ({"position_embedding_type": "sine"}, "position_embedding_type.*'sine'.*absolute, rotary, alibi"),
        ({"position_embedding_type": "rotary", "hidden_size": 6, "num_attention_heads": 2}, r"rotary.*\b3\b"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        EncoderConfig.preset("tiny", **changes)


def test_an_unknown_size_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'huge'.*tiny, small, base, large"):
        EncoderConfig.preset("huge")


def test_a_generator_of_nothing_is_refused(tiny):
    with pytest.raises(InputError, match=r"depth.*0\.1"):
        generator_config(tiny, width=0.5, depth=0.1)


def test_a_config_is_frozen(tiny):
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.hidden_size = 64
