"""A command line of `electra pretrain` -> its settings."""

from collections.abc import Sequence

from electra import config
from electra.pretraining.config import PretrainRunConfig
from electra.run.pretrain import settings_of


def read_settings(words: Sequence[str]) -> PretrainRunConfig:
    return settings_of(config.read(PretrainRunConfig, words, prog="electra pretrain"))
