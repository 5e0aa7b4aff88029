"""What a person names as the model to begin with -> a model for every seed, all from the same weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.sizes import EncoderConfig
from electra.tasks import encoders
from electra.tasks.encoders import RANDOM
from electra.tasks.family import Family
from electra.tasks.layout import TASK_KEY, FineTuned, copy_head, load_model
from electra.tasks.model import TaskModel
from electra.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model to begin with."""

    path: str
    """A run, a folder, or "none" for one that has learned nothing."""
    like: str
    """What a model that has learned nothing is shaped like."""
    dropout: float | None
    config: EncoderConfig
    tokenizer: Tokenizer
    sha256: str
    """Of all its weights; of what they are drawn from, if they are random."""
    tuned: FineTuned | None
    """The whole model, if it was fine-tuned before."""

    def model(self, families: Mapping[str, Family[Any]], *, seed: int) -> TaskModel:
        """The encoder with new heads; a head that was trained for the same labels before is kept."""
        encoder, _ = encoders.load_encoder(self.path, like=self.like, seed=seed, dropout=self.dropout)
        model = TaskModel(encoder, families, seed=seed)
        for task in families if self.tuned else ():
            assert self.tuned is not None
            copy_head(self.tuned, model, task)
        return model

    def description(self) -> str:
        """For a person."""
        if self.path == RANDOM:
            return f"random, in the shape of {self.like}"
        return self.path if self.tuned is None else f"{self.path}, fine-tuned for {self.tuned.task} before"


def find_start(path: str, *, like: str, dropout: float | None) -> Start:
    """Read and check the model once, before anything else is done with it."""
    if path == RANDOM and not like:
        raise InputError("--model none needs --like RUN|DIR: the model whose shape and tokenizer it has")
    if path != RANDOM and like:
        raise InputError(f"--like is for --model none only, and --model is {path}: leave one of them out")
    encoder, tokenizer = encoders.load_encoder(path, like=like, dropout=dropout)
    return Start(
        path=path,
        like=like,
        dropout=dropout,
        config=encoder.config,
        tokenizer=tokenizer,
        sha256=hashlib.sha256(RANDOM.encode()).hexdigest() if path == RANDOM else _hash(encoder),
        tuned=_tuned(path),
    )


def _tuned(path: str) -> FineTuned | None:
    if path == RANDOM or TASK_KEY not in encoders.read_values(encoders.model_folder(path)):
        return None
    return load_model(path)


def _hash(encoder: Encoder) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
