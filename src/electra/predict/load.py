"""A run, a folder of transformers, a fine-tuned or exported model -> `Model`, with all that is found there.

Read are safetensors, JSON and graphs of ONNX from the disk: nothing is unpickled, downloaded, or run.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.names import Part
from electra.model.sizes import EncoderConfig
from electra.predict import onnx_engine
from electra.predict.model import Model
from electra.predict.onnx_engine import OnnxEncoder, OnnxFacts, is_onnx
from electra.predict.pretrained import Discriminator, Generator
from electra.predict.windows import Reader
from electra.tasks import folders
from electra.tasks.folders import CONFIG, OWN_LAYOUT
from electra.text.spans import SharedTokenizer
from electra.text.tokenizer import SETTINGS_FILE

Engine = Literal["torch", "onnx"]
"""What computes hidden states: torch, or onnxruntime from what `electra export --to onnx` made."""

HEADS: dict[Part, type[DiscriminatorHead] | type[GeneratorHead]] = {
    "discriminator": DiscriminatorHead,
    "generator": GeneratorHead,
}
SEQ_LENGTH = "seq_length"
"""Fact of a run's manifest: the tokens of a row in pre-training."""
SHORTEST = 8
TOKENIZER_LENGTH = "model_max_length"
"""Key of tokenizer_config.json: tokens to which transformers cuts a text, if it is asked to."""
WORD_TABLE = "electra.embeddings.word_embeddings.weight"


def load(
    path: str | Path, *, device: str = "cpu", engine: Engine = "torch", max_length: int | None = None
) -> Model:
    """The model in a folder: a run of `electra pretrain`, what it left in RUN/final, a folder of transformers
    with an ELECTRA or an encoder of BERT's shape, what `electra finetune` made, or, by the engine onnx, what
    `electra export --to onnx` made of one of them.

    `device`: cpu, cuda, cuda:1, mps, or auto for the fastest there is. `max_length`: tokens to read at once;
    by default as many as in training, as far as that is known, or as the encoder can.
    """
    if engine not in get_args(Engine):
        raise InputError(f"engine is {engine!r}, expected one of {', '.join(get_args(Engine))}")
    place = choose_device("cpu" if (device, engine) == ("auto", "onnx") else device)
    folder = folders.model_folder(str(path))
    check_engine(folder, engine, place)
    if folders.TASK_KEY in folders.read_values(folder):
        return load_tuned(str(path), folder, place, max_length=max_length)
    return load_pretrained(str(path), folder, place, max_length=max_length)


def check_engine(folder: Path, engine: Engine, device: torch.device) -> None:
    """Refuse a folder that was written for the other engine."""
    if engine == "torch" and is_onnx(folder):
        raise InputError(f'{folder} was exported to ONNX: load it with engine="onnx" (--engine onnx)')
    if engine == "onnx" and not is_onnx(folder):
        raise InputError(
            f"{folder} was not exported to ONNX: `electra export --model {folder} --to onnx --out DIR` makes "
            "a folder for this engine"
        )
    if engine == "onnx" and device.type != "cpu":
        raise InputError(f"device is {device}, but the engine onnx computes on the CPU only: use cpu or auto")


def choose_device(name: str) -> torch.device:
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


def load_tuned(path: str, folder: Path, device: torch.device, *, max_length: int | None) -> Model:
    """A model with the head of its task."""
    tuned = onnx_engine.load_tuned(folder) if is_onnx(folder) else folders.load_model(folder)
    tuned.model.to(device)
    encoder = tuned.model.encoder
    length = reading_length(encoder.config, max_length, known=tuned.max_length)
    tuned = dataclasses.replace(tuned, tokenizer=SharedTokenizer.read(folder), max_length=length)
    reader = Reader(encoder=encoder, tokenizer=tuned.tokenizer, max_length=length, device=device)
    return Model(path=path, reader=reader, vector_size=encoder.config.hidden_size, tuned=tuned)


class Network(NamedTuple):
    """An encoder with its head, which is None if the folder has none for its part."""

    reader: Reader
    config: EncoderConfig
    head: nn.Module | None
    word_embeddings_VE: Tensor | None
    """What a generator's head is tied to."""


def load_pretrained(path: str, folder: Path, device: torch.device, *, max_length: int | None) -> Model:
    """An encoder with its head of pre-training, and its partner, if it has one."""
    facts, tokenizer = run_facts(folder), SharedTokenizer.read(folder)
    networks = [
        load_onnx_network(place, tokenizer, device, max_length=max_length)
        if is_onnx(place)
        else load_network(place, tokenizer, device, max_length=max_length, facts=facts)
        for place in (folder, *partner(folder, tokenizer))
    ]
    heads: dict[str, Any] = {}
    for network in networks:
        match network.head:
            case DiscriminatorHead():
                heads["discriminator"] = Discriminator(reader=network.reader, head=network.head)
            case GeneratorHead():
                assert network.word_embeddings_VE is not None
                heads["generator"] = Generator(
                    reader=network.reader, head=network.head, word_embeddings_VE=network.word_embeddings_VE
                )
    own = networks[0]
    return Model(path=path, reader=own.reader, vector_size=own.config.hidden_size, **heads)


def load_network(
    folder: Path,
    tokenizer: SharedTokenizer,
    device: torch.device,
    *,
    max_length: int | None,
    facts: dict[str, Any],
) -> Network:
    """The network in a folder; `facts`: of the run that it is a part of."""
    if facts:
        folders.check_weights(folder.parent, facts, part=folder.name)
    encoder, _ = folders.load_encoder(str(folder))
    tensors = folders.read_tensors(folder)
    part = part_of(tensors)
    head = None
    # What Electric's network gives is no probability of a replacement without that of its noise.
    if (state := head_state(folder, tensors, part)) and facts.get("config", {}).get(
        "objective"
    ) != "electric":
        head = HEADS[part](encoder.config).to(device).eval()
        folders.copy_state(state, head, where=str(folder))
    known = facts.get(SEQ_LENGTH) or length_of_tokenizer(folder)
    length = reading_length(encoder.config, max_length, known=known)
    reader = Reader(encoder=encoder.to(device).eval(), tokenizer=tokenizer, max_length=length, device=device)
    return Network(reader, encoder.config, head, encoder.embeddings.word_embeddings.weight)


def load_onnx_network(
    folder: Path, tokenizer: SharedTokenizer, device: torch.device, *, max_length: int | None
) -> Network:
    """The same, where the encoder is a graph."""
    encoder = OnnxEncoder.read(folder)
    folders.load_tokenizer(folder, encoder.config)
    length = reading_length(encoder.config, max_length, known=OnnxFacts.read(folder).max_length)
    reader = Reader(encoder=encoder, tokenizer=tokenizer, max_length=length, device=device)
    return Network(reader, encoder.config, *onnx_engine.load_head(folder, encoder.config))


def run_facts(folder: Path) -> dict[str, Any]:
    """What the manifest of a finished run says, if the folder is a part of one."""
    if folder.name in HEADS and (folder.parent / files.MANIFEST).is_file():
        return files.read_manifest(folder.parent, kind="model")
    return {}


def part_of(tensors: Mapping[str, Tensor]) -> Part:
    """Which of the two networks some weights are; an encoder without a head counts as a discriminator."""
    is_generator = any(name.startswith(("generator_predictions.", "generator_head.")) for name in tensors)
    return "generator" if is_generator else "discriminator"


def partner(folder: Path, tokenizer: SharedTokenizer) -> list[Path]:
    """The other network of the same run, in the folder beside it, if there is one."""
    if folder.name not in HEADS:
        return []
    (place,) = (folder.parent / part for part in HEADS if part != folder.name)
    if not (place / CONFIG).is_file() or not is_encoder(place):
        return []
    # Networks of one run have one vocabulary; others only happen to lie side by side.
    is_of_same_run = SharedTokenizer.read(place).content_hash == tokenizer.content_hash
    return [place] if is_of_same_run and is_onnx(place) == is_onnx(folder) else []


def is_encoder(folder: Path) -> bool:
    """Whether it holds one encoder, which the two towers of Electric's noise are not."""
    values = folders.read_values(folder)
    return values.get("model_type") != OWN_LAYOUT or "hidden_size" in values


def head_state(folder: Path, tensors: Mapping[str, Tensor], part: Part) -> dict[str, Tensor]:
    """The weights of the head of pre-training, by our names; empty if there is none."""
    if folders.read_values(folder)["model_type"] != OWN_LAYOUT:
        tied, table = (tensors.get(name) for name in (names.TIED.transformers, WORD_TABLE))
        if tied is not None and table is not None and not torch.equal(tied, table):
            raise InputError(
                f"{folder}: {names.TIED.transformers} differs from the word embeddings, and in ELECTRA they "
                "are one table"
            )
        foreign = tuple(module.transformers for module, _ in names.HEADS[part])
        tensors = names.from_transformers(
            {name: tensor for name, tensor in tensors.items() if name.startswith(foreign)}, part
        )
    scope = f"{part}_head."
    return {name.removeprefix(scope): tensor for name, tensor in tensors.items() if name.startswith(scope)}


def length_of_tokenizer(folder: Path) -> int | None:
    """Tokens of a row as `electra export` notes them for transformers; None if they are unknown."""
    settings = folder / SETTINGS_FILE
    length: int | None = files.read_json(settings).get(TOKENIZER_LENGTH) if settings.is_file() else None
    return length


def reading_length(config: EncoderConfig, given: int | None, *, known: int | None = None) -> int:
    """Tokens to read at once."""
    longest = config.max_position_embeddings
    if given is not None and not SHORTEST <= given <= longest:
        raise InputError(
            f"max_length is {given}, expected {SHORTEST} to {longest}, which the encoder can read"
        )
    return min(given or known or longest, longest)
