"""A run, a folder of a model, or "none" -> an encoder and its tokenizer, ready to be fine-tuned.

Read are runs of ours, fine-tuned models of ours, and folders of transformers that hold an ELECTRA or a model
of BERT's shape, with any head or none. Nothing is ever unpickled.

A fine-tuned model <-> a folder: in transformers layout with label names, wherever transformers can say it.

config.json         sizes and labels as transformers has them; the key `electra_task` is ours
model.safetensors   the encoder, and the head if transformers has one that computes the same
head.safetensors    else the head, by our names: transformers sees the encoder alone
tokenizer files, and a manifest, written last

What a person names as the model to begin with -> a model for every seed, all from the same weights.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.seeds import torch_generator
from electra.tasks.families.family import Family, TransformersHead
from electra.tasks.families.table import build_family, describe_family
from electra.tasks.model import TaskModel
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


TASK_KEY = "electra_task"
HEAD_WEIGHTS = "head.safetensors"
KIND = "fine-tuned model"


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A model that was trained for a task, and what is needed to use it."""

    model: TaskModel
    task: str
    tokenizer: Tokenizer
    max_length: int
    """Tokens of a row in training."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else was told of it: scores, seed, where it came from."""

    @property
    def family(self) -> Family[Any]:
        """The kind of its task, with the labels."""
        return self.model.families[self.task]


def save_model(tuned: FineTuned, folder: Path) -> None:
    """Write a folder that appears when it is whole; one of the same name is replaced."""
    encoder, head, family = tuned.model.encoder, tuned.model.head(tuned.task), tuned.family
    about = {"task": tuned.task, "max_length": tuned.max_length, **describe_family(family), **tuned.facts}
    foreign = None
    if transformers_obstacle(encoder.config) is not None:
        config, tensors = _as_ours(encoder)
    else:
        if family.transformers_obstacle(encoder.config) is None:
            foreign = family.to_transformers(head)
        config, tensors = _as_transformers(encoder, foreign)
    with files.appearing_whole(folder) as unfinished:
        files.write_json(unfinished / CONFIG, {**config, TASK_KEY: about})
        _write_tensors(unfinished / WEIGHTS, tensors)
        if foreign is None and head.state_dict():
            _write_tensors(unfinished / HEAD_WEIGHTS, head.state_dict())
        tuned.tokenizer.save(unfinished)
        if config["model_type"] != OWN_LAYOUT:
            family.write_beside(unfinished, max_length=tuned.max_length)
        files.write_manifest(unfinished, {"kind": KIND, "task": tuned.task, "family": family.name})


def load_model(path: str | Path) -> FineTuned:
    """The model in a folder that `save_model` wrote, on the CPU."""
    folder = model_folder(str(path))
    about = read_values(folder).get(TASK_KEY)
    if not isinstance(about, dict):
        raise InputError(
            f"{folder} is an encoder that was not fine-tuned: its {CONFIG} has no key {TASK_KEY!r}. "
            "Train it for a task first, with `electra finetune`"
        )
    _check_intact(folder)
    family = build_family(about, where=f"{folder / CONFIG}, {TASK_KEY}")
    encoder, tokenizer = load_encoder(str(folder))
    known = ("task", "max_length", "family", "settings")
    model = TaskModel(encoder, {about["task"]: family})
    head = model.head(about["task"])
    copy_state(_read_head(folder, family, head, encoder.config), head, where=str(folder))
    return FineTuned(
        model=model.eval(),
        task=about["task"],
        tokenizer=tokenizer,
        max_length=about["max_length"],
        facts={key: value for key, value in about.items() if key not in known},
    )


def copy_head(tuned: FineTuned, model: TaskModel, task: str) -> bool:
    """Start a task with the head of another one, if both are of one kind with the same labels; whether so."""
    family, head = model.families[task], model.head(task)
    state = tuned.model.head(tuned.task).state_dict()
    shapes = [{name: tensor.shape for name, tensor in one.items()} for one in (state, head.state_dict())]
    agree = (family.name, family.labels()) == (tuned.family.name, tuned.family.labels())
    if agree and shapes[0] == shapes[1]:
        copy_state(state, head, where=tuned.task)
        return True
    return False


def _as_transformers(
    encoder: Encoder, foreign: TransformersHead | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = names.to_transformers_config(encoder.config)
    plain = names.encoder_to_transformers(encoder.state_dict())
    if foreign is None:
        return {**config, "architectures": ["ElectraModel"]}, plain
    scope = names.ENCODER_SCOPE["discriminator"].transformers
    tensors = {**{f"{scope}{name}": tensor for name, tensor in plain.items()}, **foreign.tensors}
    return {**config, **foreign.config, "architectures": [foreign.architecture]}, tensors


def _as_ours(encoder: Encoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = {
        **dataclasses.asdict(encoder.config),
        "model_type": OWN_LAYOUT,
        "not_transformers_because": transformers_obstacle(encoder.config),
    }
    return config, {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}


def _read_head(
    folder: Path, family: Family[Any], head: nn.Module, config: EncoderConfig
) -> dict[str, Tensor]:
    """The weights of the head, from whichever file has them."""
    if (folder / HEAD_WEIGHTS).is_file():
        return read_tensor_file(folder / HEAD_WEIGHTS)
    if family.transformers_obstacle(config) is not None:
        return {}
    tensors = read_tensors(folder)
    missing = family.to_transformers(head).tensors.keys() - tensors.keys()
    if missing:
        raise InputError(f"{folder / WEIGHTS} lacks {min(missing)}: it holds no head for its task")
    state = family.from_transformers(tensors)
    copy_state(state, head, where=str(folder))
    # Trained further by transformers, its two layers need no longer be our one.
    for name, tensor in family.to_transformers(head).tensors.items():
        if not torch.equal(tensor, tensors[name]):
            raise InputError(
                f"{folder / WEIGHTS}: {name} is not as we write it, so the head is not ours any more. Use it "
                "with transformers, or start from its encoder with `electra finetune`"
            )
    return state


def _check_intact(folder: Path) -> None:
    """That the weights are those that were written."""
    if not (folder / files.MANIFEST).is_file():
        return
    manifest = files.read_manifest(folder, kind=KIND)
    for problem in files.damaged_files(folder, manifest):
        # What others add, such as a card, does not hurt.
        if not problem.endswith("not in the manifest"):
            raise InputError(f"{problem}: copy the folder again, or train again")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(whole, path, metadata={"format": "pt"})


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
        encoder, _ = load_encoder(self.path, like=self.like, seed=seed, dropout=self.dropout)
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
    encoder, tokenizer = load_encoder(path, like=like, dropout=dropout)
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
    if path == RANDOM or TASK_KEY not in read_values(model_folder(path)):
        return None
    return load_model(path)


def _hash(encoder: Encoder) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
