"""Fixtures: finished runs and fine-tuned models in folders, made once for all tests of a process."""

import dataclasses

import pytest
import torch
from torch import nn

from electra.formats.onnx import export_onnx
from electra.model.encoder import Encoder, ZeroLinear, initialise
from electra.model.sizes import EncoderConfig
from electra.model.store import write_networks
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import TokenFacts
from electra.pretraining.objectives import build_objective
from electra.seeds import python_random, torch_generator
from electra.tasks.families.table import describe_family
from electra.tasks.model import FineTuned, TaskModel, save_model
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import Tokenizer, TokenizerConfig

SENTENCE = (
    "the old river was in a small city and new music is fast to read of large mountain water café 日本語"
)
WORDS = SENTENCE.split()
SAMPLE = [*WORDS, "don't stop , . ! ( ) - 한국어 🙂 Zürich naïve reading cities playing"]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A WordPiece vocabulary of a few words and of many letters."""
    return tokenizers.train(SAMPLE * 5, TokenizerConfig(vocab_size=320))


@pytest.fixture(scope="session")
def tiny_config(tokenizer: Tokenizer) -> EncoderConfig:
    """A very small encoder that reads 32 tokens at once."""
    return EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
    )


@torch.no_grad()
def move_from_start(module):
    """Move what a modern backbone starts with, zeros and ones, as training would."""
    for number, part in enumerate(module.modules()):
        random = torch_generator(0, str(number))
        if isinstance(part, ZeroLinear):
            part.weight.normal_(std=0.4, generator=random)
        elif isinstance(part, nn.LayerNorm) and part.bias is None:
            part.weight.add_(0.2 * torch.randn(part.weight.shape, generator=random))


def random_text(num_words: int, *, seed: int = 0) -> str:
    return " ".join(python_random(seed, "text").choices(WORDS, k=num_words))


@pytest.fixture(scope="session")
def make_text():
    """`make_text(num_words, seed=0)`: words that the tokenizer knows."""
    return random_text


@pytest.fixture(scope="session")
def make_run(tmp_path_factory, tokenizer, tiny_config):
    """`make_run(objective, facts={}, **changes)`: a finished run as `electra pretrain` leaves it."""

    def make(objective="electra", facts=None, kind="mlm", discriminator_head="plain", **changes):
        config = dataclasses.replace(tiny_config, **changes)
        special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        tokens = TokenFacts(vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id, special_ids=special)
        settings = PretrainConfig(objective=objective, discriminator_head=discriminator_head)
        generator = dataclasses.replace(settings.generator, width=0.5, kind=kind)
        settings = dataclasses.replace(settings, generator=generator)
        trained = build_objective(settings, config, tokens, seq_length=32, seed=3)
        # So that answers differ from token to token, as those of a trained model.
        initialise(trained, std=0.4, generator=torch_generator(1))
        move_from_start(trained)
        run = tmp_path_factory.mktemp("runs") / "run"
        write_networks(
            run / "final",
            trained.sizes(),
            trained.plain_state(),
            tokenizer,
            encoder=trained.encoder_name,
            facts={"config": {"objective": objective}, **(facts or {})},
        )
        return run

    return make


@pytest.fixture(scope="session")
def run(make_run):
    """A run of ELECTRA with learned positions: transformers can load both networks."""
    return make_run()


@pytest.fixture(scope="session")
def make_tuned(tmp_path_factory, tokenizer, tiny_config):
    """`make_tuned(family, **changes)`: a fine-tuned model with random weights, and its folder."""

    def make(family, **changes):
        encoder = Encoder(dataclasses.replace(tiny_config, **changes))
        model = TaskModel(encoder, {"task": family}).eval()
        initialise(model, std=0.4, generator=torch_generator(2))
        move_from_start(encoder)
        for name, weight in model.head("task").named_parameters():
            torch.nn.init.normal_(weight, std=0.4, generator=torch_generator(0, name))
        tuned = FineTuned(model=model, task="task", tokenizer=tokenizer, max_length=24)
        folder = tmp_path_factory.mktemp("tuned")
        save_model(tuned, folder / "final")
        return tuned, folder

    return make


@pytest.fixture(scope="session")
def tuned_once(make_tuned):
    """`tuned_once(family)`: the same, made once for all tests."""
    made = {}

    def make(family):
        key = repr(describe_family(family))
        if key not in made:
            made[key] = make_tuned(family)
        return made[key]

    return make


@pytest.fixture(scope="session")
def export_once(tmp_path_factory):
    """`export_once(source, part=..., precision=...)`: a folder for onnxruntime and its check.

    A graph takes seconds to trace, so that each is made once for all tests.
    """
    made = {}

    def export(source, *, part="discriminator", precision="fp32"):
        key = (source, part, precision)
        if key not in made:
            folder = tmp_path_factory.mktemp("onnx") / "model"
            folder.mkdir()
            check = export_onnx(source, folder, part=part, precision=precision, max_length=None)
            made[key] = folder, check
        return made[key]

    return export


@pytest.fixture(name="assert_alike")
def plain_data_comparison():
    """Compares answers of a model."""
    return assert_alike


def assert_alike(found, expected, *, step=0.0):
    """Equal but for the rounding that another batch or engine brings, and a step of what is told in steps."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key in found:
            # Told with four decimals, of which the last may turn.
            step = 1e-4 if key == "confidence" else 0.0
            assert_alike(found[key], expected[key], step=step)
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_alike(*pair)
    elif isinstance(found, float):
        # Probabilities and parts of unit vectors are at most 1; values of a regression may be of any size.
        assert abs(found - expected) <= step + 1e-5 * max(1.0, abs(expected))
    else:
        assert found == expected
