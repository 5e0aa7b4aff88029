from collections.abc import Callable

import pytest
import torch
from torch import nn

from electra.model.encoder import Encoder, initialise
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig

TINY = {"vocab_size": 100, "max_position_embeddings": 40}

Build = Callable[[EncoderConfig, EncoderConfig], nn.ModuleDict]


@pytest.fixture
def tiny() -> EncoderConfig:
    """The tiny preset with a vocabulary and a length that suit tests."""
    return EncoderConfig.preset("tiny", **TINY)


@pytest.fixture
def build() -> Build:
    """Discriminator and generator configs -> both encoders, sharing embeddings, with their heads."""

    def build_model(discriminator: EncoderConfig, generator: EncoderConfig) -> nn.ModuleDict:
        encoder = Encoder(discriminator)
        model = nn.ModuleDict(
            {
                "generator": Encoder(generator, embeddings=encoder.embeddings),
                "generator_head": GeneratorHead(generator),
                "discriminator": encoder,
                "discriminator_head": DiscriminatorHead(discriminator),
            }
        )
        if encoder.embeddings.word_embeddings.weight.device.type != "meta":
            initialise(model, std=discriminator.initializer_range, generator=torch.Generator().manual_seed(1))
        return model.eval()

    return build_model
