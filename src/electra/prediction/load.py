"""A run, a folder of transformers, a fine-tuned or exported model -> `Model`, with every head found there.

Only weights, JSON and ONNX graphs are read, from the disk: nothing is downloaded or executed, and of what
torch has pickled, tensors are all that is read.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.model.store import SHORTEST, ModelFolder, open_model
from electra.prediction import onnx_engine
from electra.prediction.agreement import in_chosen_precision
from electra.prediction.model import Model
from electra.prediction.onnx_engine import OnnxEncoder, OnnxFacts
from electra.prediction.phrases import PhraseRule
from electra.prediction.pretrained import Discriminator, EnergyNetwork, Generator
from electra.prediction.windows import Reader
from electra.tasks.model import load_model, task_of
from electra.tasks.precision import FLOAT32, PrecisionName
from electra.text.spans import SharedTokenizer
from electra.text.tokenizer import Tokenizer

Engine = Literal["torch", "onnx"]
"""What computes hidden states: torch, or onnxruntime from what `electra export --to onnx` made."""

SEQ_LENGTH = "seq_length"
"""Key of a run's manifest: the tokens of a row in pre-training."""


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    engine: Engine = "torch",
    max_length: int | None = None,
    precision: PrecisionName = FLOAT32,
) -> Model:
    """The model in a folder: a run of `electra pretrain`, its RUN/final, a folder of transformers with an
    ELECTRA or an encoder of BERT's shape, what `electra finetune` made or, with the engine onnx, what
    `electra export --to onnx` made of one of them.

    `device`: cpu, cuda, cuda:1, mps, or auto for the fastest there is. `max_length`: tokens to read at once;
    by default as many as in training if that is known, else as many as the encoder can. `precision` of matrix
    products: fp32, bf16, on CUDA fp16, or auto for the fastest in which the model says the same as in fp32.
    Here the default is fp32, since exports are compared with what is loaded; commands and `electra.load` ask
    for auto.
    """
    for name, value, known in (
        ("engine", engine, get_args(Engine)),
        ("precision", precision, get_args(PrecisionName)),
    ):
        if value not in known:
            raise InputError(f"{name} is {value!r}, expected one of {', '.join(known)}")
    place = find_device("cpu" if (device, engine) == ("auto", "onnx") else device)
    folder = open_model(path, tokenizer=SharedTokenizer)
    check_engine(folder, engine, place, precision)
    build = load_pretrained if task_of(folder) is None else load_tuned
    model = build(str(path), folder, place, max_length=max_length)
    if folder.is_onnx:
        of_graph = OnnxFacts.of(folder).precision
        return dataclasses.replace(model, precision=of_graph, precision_reason="that of the graph")
    return in_chosen_precision(model, precision)


def check_engine(folder: ModelFolder, engine: Engine, device: torch.device, precision: PrecisionName) -> None:
    """Refuse a folder that was written for the other engine, and what an engine cannot do."""
    if engine == "torch" and folder.is_onnx:
        raise InputError(f'{folder.path} was exported to ONNX: load it with engine="onnx" (--engine onnx)')
    if engine == "onnx" and not folder.is_onnx:
        raise InputError(
            f"{folder.path} was not exported to ONNX: `electra export --model {folder.path} --to onnx --out "
            "DIR` makes a folder for this engine"
        )
    if engine == "onnx" and device.type != "cpu":
        raise InputError(f"device is {device}, but the engine onnx computes on the CPU only: use cpu or auto")
    if engine == "onnx" and precision in ("bf16", "fp16"):
        raise InputError(
            f"precision is {precision}, but a graph of ONNX has its own: leave it out, or make another graph "
            "with `electra export --to onnx` or `onnx-int8`"
        )


def find_device(name: str) -> torch.device:
    """The named device, such as cpu or cuda:1, or the fastest there is."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    found = re.fullmatch(r"(\w+)(?::(\d+))?", name)
    if not found or int(found[2] or 0) >= counts.get(found[1], 0):
        there = ", ".join(kind for kind, count in counts.items() if count)
        raise InputError(f"device is {name!r}, which torch does not have here: use auto or one of {there}")
    return torch.device(name)


def load_tuned(path: str, folder: ModelFolder, device: torch.device, *, max_length: int | None) -> Model:
    """A model with the head of its task."""
    tuned = onnx_engine.load_tuned_graph(folder) if folder.is_onnx else load_model(folder)
    tuned.model.to(device)
    encoder = tuned.model.encoder
    length = reading_length(encoder.config, max_length, known=tuned.max_length)
    tuned = dataclasses.replace(tuned, max_length=length)
    reader = Reader(encoder=encoder, tokenizer=tuned.tokenizer, max_length=length, device=device)
    return Model(path=path, reader=reader, vector_size=encoder.config.hidden_size, tuned=tuned)


class LoadedNetwork(NamedTuple):
    """An encoder with its head of pre-training; None if the folder has no head."""

    reader: Reader
    config: EncoderConfig
    head: nn.Module | None
    word_embeddings_VE: Tensor | None
    """The table that a generator's head shares."""
    phrases: PhraseRule | None = None
    """How a generator rewrites phrases, if it does."""


def load_pretrained(path: str, folder: ModelFolder, device: torch.device, *, max_length: int | None) -> Model:
    """An encoder with its head of pre-training and, if it has one, its partner."""
    tokenizer, partner = folder.tokenizer, folder.partner()
    networks = [
        load_network(place, place.require_vocabulary(tokenizer), device, max_length=max_length)
        for place in ([folder] if partner is None else [folder, partner])
    ]
    heads: dict[str, Any] = {}
    for network in networks:
        match network.head:
            case DiscriminatorHead():
                heads["discriminator"] = Discriminator(reader=network.reader, head=network.head)
            case GeneratorHead():
                assert network.word_embeddings_VE is not None
                heads["generator"] = Generator(
                    reader=network.reader,
                    head=network.head,
                    word_embeddings_VE=network.word_embeddings_VE,
                    phrases=network.phrases,
                )
    own = networks[0]
    if not folder.is_onnx and (energy_head := folder.energy_head()):
        heads["energy"] = EnergyNetwork(reader=own.reader, head=energy_head.to(device).eval())
    return Model(path=path, reader=own.reader, vector_size=own.config.hidden_size, **heads)


def load_network(
    folder: ModelFolder, tokenizer: Tokenizer, device: torch.device, *, max_length: int | None
) -> LoadedNetwork:
    """The network in a folder, ready to read texts."""
    rule: PhraseRule | None = None
    if folder.is_onnx:
        encoder: nn.Module = OnnxEncoder.read(folder)
        head, table_VE = onnx_engine.load_head(folder)
        known: int | None = OnnxFacts.of(folder).max_length
    else:
        rule = phrase_rule(folder)
        # First of all: it compares the sizes of the config with the weights.
        encoder = (folder.span_generator() if rule else folder.encoder()).to(device).eval()
        head = folder.head()
        head = head and head.to(device).eval()
        table_VE = encoder.embeddings.word_embeddings.weight
        known = folder.run.get(SEQ_LENGTH) or folder.tokenizer_length
    length = reading_length(folder.config, max_length, known=known)
    reader = Reader(encoder=encoder, tokenizer=tokenizer, max_length=length, device=device)
    return LoadedNetwork(reader, folder.config, head, table_VE, rule)


def phrase_rule(folder: ModelFolder) -> PhraseRule | None:
    """How a generator rewrites phrases, if the run that it is part of has taught it to."""
    settings = folder.run.get("config", {})
    if settings.get("objective") != "replaced_span" or folder.role != "generator":
        return None
    spans = settings.get("replaced_span", {})
    return PhraseRule(
        max_tokens=spans.get("max_tokens", 8),
        max_words=settings.get("masking", {}).get("max_span_words", 3),
        # Runs from before there was a choice do not say.
        length=spans.get("length", "original"),
    )


def reading_length(config: EncoderConfig, given: int | None, *, known: int | None = None) -> int:
    """Tokens to read at once."""
    longest = config.max_position_embeddings
    if longest < SHORTEST:
        raise InputError(
            f"max_position_embeddings is {longest}, expected {SHORTEST} or more: the encoder can read no text"
        )
    if given is not None and not SHORTEST <= given <= longest:
        raise InputError(
            f"max_length is {given}, expected {SHORTEST} to {longest}, which the encoder can read"
        )
    # Tokenizers of transformers that know no limit name a number of thirty digits.
    return min(given or known or longest, longest)
