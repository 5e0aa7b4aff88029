"""A run, a folder of a model, or "none" -> an encoder and its tokenizer, ready to be fine-tuned.

Read are runs of ours, fine-tuned models of ours, and folders of transformers that hold an ELECTRA or a model
of BERT's shape, with any head or none. Nothing is ever unpickled.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import torch_generator
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import Tokenizer

RANDOM = "none"
"""In place of a model: an encoder that has learned nothing, to compare with."""

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GRAPH = "model.onnx"
OWN_LAYOUT = "electra-own"
"""The `model_type` of encoders that transformers cannot express."""
_OWN_SCOPES = ("encoder.", "discriminator.", "generator.")

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def load_encoder(
    path: str,
    *,
    like: str = "",
    size: str = "",
    tokenizer: str = "",
    seed: int = 0,
    dropout: float | None = None,
) -> tuple[Encoder, Tokenizer]:
    """The encoder of a model; "none": a random one in the shape of another, or of a size and a tokenizer."""
    if path != RANDOM:
        folder = model_folder(path)
        config = with_dropout(read_config(folder), dropout)
        words = load_tokenizer(folder, config)
        encoder = Encoder(config)
        copy_state(read_encoder_state(folder), encoder, where=str(folder))
        return encoder, words
    if like:
        folder = model_folder(like)
        config = read_config(folder)
        words = load_tokenizer(folder, config)
    elif size and tokenizer:
        # A folder of `electra prepare` has its tokenizer in a subfolder.
        inside = Path(tokenizer) / "tokenizer"
        words = tokenizers.load(inside if inside.is_dir() else tokenizer)
        config = EncoderConfig.preset(size, vocab_size=words.vocab_size)
    else:
        raise InputError(
            f"model {RANDOM!r} needs a shape and a vocabulary: give the model that it shall be like, or a "
            "size and a tokenizer"
        )
    encoder = Encoder(with_dropout(config, dropout))
    initialise(encoder, std=config.initializer_range, generator=torch_generator(seed, "encoder"))
    return encoder, words


def model_folder(path: str) -> Path:
    """The folder with the config and weights of the encoder that a person means."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {path}: expected a run of `electra pretrain`, or a folder with {CONFIG} and "
            f"{WEIGHTS}. A model on the Hugging Face hub must be downloaded first: hf download {path} "
            f"--local-dir DIR"
        )
    final = folder / "final"
    for place in (folder, final):
        if (place / CONFIG).is_file():
            return place
        if (place / files.MANIFEST).is_file():
            manifest = files.read_manifest(place, kind="model")
            check_weights(place, manifest, part=manifest["encoder"])
            return place / str(manifest["encoder"])
    if (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file():
        raise InputError(
            f"{folder} is an unfinished run: it has no {final}. Continue it with `electra pretrain --config "
            f"{folder / 'config.yaml'}`, which writes the model at its end; a smaller --train.steps (with "
            f"--resume.allow_changes train.steps) ends it sooner"
        )
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise InputError(f"{folder} holds no model: it has no {CONFIG}, only {found}")


def check_weights(sealed: Path, manifest: Mapping[str, Any], *, part: str) -> None:
    """That the weights are those that were written."""
    name = f"{part}/{WEIGHTS}"
    facts = manifest["files"].get(name, {})
    if not (sealed / name).is_file() or files.sha256(sealed / name) != facts.get("sha256"):
        raise InputError(f"{sealed / name} is damaged or missing: its checksum is not that of the manifest")


def read_config(folder: Path) -> EncoderConfig:
    """The sizes of the encoder in a folder."""
    values = read_values(folder)
    path = folder / CONFIG
    model_type = values.get("model_type")
    if model_type not in ("electra", "bert", OWN_LAYOUT):
        raise InputError(
            f"{path}: model_type is {model_type!r}, expected 'electra' or 'bert': no other encoder is "
            "known here"
        )
    needed = (*_SIZES, "embedding_size") if model_type != "bert" else _SIZES
    missing = [key for key in needed if key not in values]
    if missing:
        reason = values.get("not_transformers_because", "is it whole?")
        raise InputError(f"{path} lacks {', '.join(missing)}: {reason}")
    if model_type == OWN_LAYOUT:
        known = {field.name for field in dataclasses.fields(EncoderConfig)}
        return EncoderConfig(**{key: value for key, value in values.items() if key in known})
    try:
        return names.from_transformers_config(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_values(folder: Path) -> dict[str, Any]:
    """What config.json says."""
    values = files.read_json(folder / CONFIG)
    if not isinstance(values, dict):
        raise InputError(f"{folder / CONFIG} holds no JSON object")
    return values


def with_dropout(config: EncoderConfig, dropout: float | None) -> EncoderConfig:
    """The same with another dropout; None: with its own."""
    if dropout is None:
        return config
    return dataclasses.replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def load_tokenizer(folder: Path, config: EncoderConfig) -> Tokenizer:
    """The tokenizer beside a model, which must not have more tokens than the model."""
    tokenizer = tokenizers.load(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens, the model only "
            f"{config.vocab_size}: put the tokenizer there that the model was trained with"
        )
    return tokenizer


def read_encoder_state(folder: Path) -> dict[str, Tensor]:
    """The weights of the encoder in a folder, by our names, in float32; heads are left out."""
    tensors = read_tensors(folder)
    if read_values(folder).get("model_type") != OWN_LAYOUT:
        return names.encoder_from_transformers(tensors)
    scopes = [scope for scope in _OWN_SCOPES if any(name.startswith(scope) for name in tensors)]
    scope = scopes[0] if scopes else ""
    return {name.removeprefix(scope): tensor for name, tensor in tensors.items() if name.startswith(scope)}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights in a folder, which may be spread over several files."""
    if (folder / WEIGHTS).is_file():
        parts = [WEIGHTS]
    elif (folder / INDEX).is_file():
        weight_map = files.read_json(folder / INDEX)["weight_map"]
        parts = sorted(set(weight_map.values()))
    elif (folder / GRAPH).is_file():
        raise InputError(
            f"{folder} was exported to ONNX, and only its graph is there: name the folder it was made from. "
            'For texts: electra.load(DIR, engine="onnx"), or electra serve --engine onnx'
        )
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        way_out = (
            f"{pickled[0]} could run any program when it is read and is refused; convert it with "
            f"transformers, if you trust it: AutoModel.from_pretrained({str(folder)!r})"
            f".save_pretrained({str(folder)!r})"
            if pickled
            else "is the download whole?"
        )
        raise InputError(f"{folder} has no {WEIGHTS}: {way_out}")
    found: dict[str, Tensor] = {}
    for part in parts:
        found |= read_tensor_file(folder / part)
    return found


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in float32."""
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from error
    return {name: tensor.float() for name, tensor in tensors.items()}


@torch.no_grad()
def copy_state(state: Mapping[str, Tensor], module: nn.Module, *, where: str) -> None:
    """Give a module its weights, exactly those that it has."""
    target = module.state_dict()
    if different := sorted(target.keys() ^ state.keys()):
        name = different[0]
        verb = "lacks" if name in target else "has an unknown"
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        raise InputError(f"{where} {verb} weight {name}{more}")
    for name, tensor in target.items():
        if tensor.shape != state[name].shape:
            found, expected = list(state[name].shape), list(tensor.shape)
            raise InputError(f"{where}: {name} has shape {found}, by the config it should be {expected}")
        tensor.copy_(state[name])
