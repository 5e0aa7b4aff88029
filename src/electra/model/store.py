"""A folder with a model <-> its config, weights and tokenizer: the one reader and writer of such folders.

    folder = open_model("RUN")           # or RUN/final, a fine-tuned, imported or exported model, or a folder
    encoder = folder.encoder()           # of transformers with an ELECTRA or a model of BERT's shape

config.json         sizes, as transformers has them; model_type is `electra-own` where it cannot express them
model.safetensors   the encoder and, where transformers has a class for it, the head; or shards and an index;
                    of others also pytorch_model.bin, or its shards
head.safetensors    else the head, by our names
tokenizer.json ...  the tokenizer
manifest.json       here or, in a run, beside the folders of its networks: the checksum of every file

A folder is opened once and handed on: what it holds is read when it is first asked for, and never twice.
Weights are compared with the manifest while they are read. Nothing is ever unpickled but files of others, and
those by torch's loader of weights, which can make tensors and plain containers and nothing else.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from electra import files
from electra.errors import InputError
from electra.model import modernbert, names
from electra.model.encoder import Encoder
from electra.model.heads import DETECTION_HEADS, DiscriminatorHead, GeneratorHead, detection_head_of
from electra.model.names import ARCHITECTURES, Role
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.model.spans import SpanGenerator
from electra.schema import Within, short
from electra.tensors import read_tensors, write_tensors
from electra.text.tokenizer import SETTINGS_FILE, TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer, read_tokenizer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = ".bin"
"""Suffix of weights that torch has pickled, as older models of transformers are."""
WEIGHT_FILES = (WEIGHTS, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Of which the first that is there is read."""
HEAD_WEIGHTS, GRAPH = "head.safetensors", "model.onnx"
JS_GRAPHS = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}
"""Where transformers.js looks for a graph, by its precision."""
FINAL = "final"
"""Folder of a run, or of a fine-tuning, that holds its model."""
KIND = "model"
"""What the manifest of a run's or an import's networks calls them."""
OWN_LAYOUT = "electra-own"
"""The `model_type` of encoders that transformers cannot express."""
TOKENS_READ = "tokens_read"
"""Key of manifests, and of what a fine-tuned model says of itself: tokens that its encoder has read in
pre-training. Without it nobody knows: models of other people, or written before there was this key."""
OWN_CODE = "electra_modern"
"""The same in an export that brings classes for transformers with it; weights are by our names."""
ONNX_KEY = "electra_onnx"
"""Key of config.json in folders that were exported for onnxruntime."""
TOKENIZER_LENGTH = "model_max_length"
"""Key of tokenizer_config.json: tokens to which transformers cuts a text if asked to."""
SHORTEST = 8
"""Tokens that a model must read at once: fewer leave no room for two texts and what separates them."""
RowLength = Annotated[int, Within(SHORTEST)]

NetworkHead = DiscriminatorHead | GeneratorHead
HEADS: dict[Role, Callable[[EncoderConfig], NetworkHead]] = {
    "discriminator": DiscriminatorHead,
    "generator": GeneratorHead,
}
_CAN_BE_READ = (
    "What can be: models of transformers whose model_type is 'electra' or 'bert', with learned absolute "
    "positions, and whatever electra wrote"
)
_RELATIVE = "its attention looks at relative positions"
_TWO_SEPARATORS = "it separates the texts of a pair in another way, and counts positions from another number"
_UNREADABLE = {
    **dict.fromkeys(("deberta", "deberta-v2", "t5", "mpnet"), _RELATIVE),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _TWO_SEPARATORS),
    "albert": "its layers share their weights",
    "distilbert": "it has no segments",
    "gpt2": "it looks at the words before only",
}
"""Why models of a well-known model_type cannot be read."""
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_SHOWN_BY = {
    "hidden_size": ("layers.0.attention.query.weight", 0),
    "vocab_size": ("embeddings.word_embeddings.weight", 0),
    "embedding_size": ("embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("layers.0.feed_forward.output.weight", 1),
}
"""Size of an encoder -> the weight that has it, and on which axis."""


class ConfigFile(TypedDict, total=False):
    """What is read of config.json, beside sizes and the task."""

    model_type: str | None
    architectures: list[str] | None
    not_transformers_because: str | None
    electra_onnx: dict[str, Any]


class TokenizerSettings(TypedDict, total=False):
    """What is read of tokenizer_config.json, beside how text is cleaned."""

    model_max_length: RowLength | None


class ShardIndex(TypedDict):
    """What is read of the index of weights in several files."""

    weight_map: dict[str, str]


class SpanSettings(TypedDict, total=False):
    """How the generator of `replaced_span` has learned to write."""

    max_tokens: Annotated[int, Within(1, 4096)]
    length: Literal["original", "own"]


class MaskingSettings(TypedDict, total=False):
    """What was masked as one."""

    max_span_words: Annotated[int, Within(1, 4096)]


class RunSettings(TypedDict, total=False):
    """What is read of the config of a run."""

    objective: str
    replaced_span: SpanSettings
    masking: MaskingSettings


class NetworksManifest(files.Manifest):
    """What is read of the manifest of a run or an import."""

    encoder: Role
    config: NotRequired[RunSettings]
    step: NotRequired[Annotated[int, Within(0)] | None]
    seq_length: NotRequired[RowLength | None]
    tokens_read: NotRequired[Annotated[int, Within(0)] | None]


class OtherManifest(files.Manifest):
    """What is read of any other manifest beside a model."""

    tokens_read: NotRequired[Annotated[int, Within(0)] | None]


Built = TypeVar("Built", bound=nn.Module)


def open_model(path: str | Path, *, tokenizer: type[Tokenizer] = Tokenizer) -> "ModelFolder":
    """The folder with the encoder that a person means by a run, by its `final` or by a folder itself."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {path}: expected a run of `electra pretrain`, or a folder with {CONFIG} and "
            f"{WEIGHTS}. A model on the Hugging Face Hub is fetched with `electra import --from transformers "
            f"{path} --out DIR`"
        )
    final = folder / FINAL
    for place in (folder, final):
        if (place / CONFIG).is_file():
            return ModelFolder(place, tokenizer_type=tokenizer)
        if (place / files.MANIFEST).is_file():
            manifest = files.read_manifest(place, kind=KIND, form=NetworksManifest)
            return ModelFolder(place / manifest["encoder"], tokenizer_type=tokenizer)
    if (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file():
        raise InputError(
            f"{folder} is an unfinished run: it has no {final}. Resume it with `electra pretrain --config "
            f"{folder / 'config.yaml'}`, which writes the model at its end; a smaller --train.steps (with "
            f"--resume.allow_changes train.steps) ends it sooner"
        )
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise InputError(f"{folder} holds no model: it has no {CONFIG}, only {found}")


@dataclass(frozen=True)
class ModelFolder:
    """One model on the disk. Each of its files is read when it is first needed."""

    path: Path
    tokenizer_type: type[Tokenizer] = Tokenizer
    """What to read the tokenizer as."""
    prefix: str = ""
    """What the names of the encoder's weights begin with, where there are several encoders."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """The content of config.json, or of the one config of an ELECTRA or BERT that is nested in it."""
        self.check_files(CONFIG)
        values: dict[str, Any] = files.read_json(self.path / CONFIG, ConfigFile)
        if values.get("model_type") in (*names.READABLE, OWN_LAYOUT, OWN_CODE, modernbert.MODEL_TYPE):
            return values
        try:
            return names.inner_config(values, prefix=self.prefix)
        except InputError as error:
            raise InputError(f"{self.path / CONFIG}: {error}") from error

    @cached_property
    def config(self) -> EncoderConfig:
        """The sizes of the encoder."""
        path, values = self.path / CONFIG, self.values
        model_type = values.get("model_type")
        if model_type == modernbert.MODEL_TYPE:
            try:
                return modernbert.from_config(values)
            except InputError as error:
                raise InputError(
                    f"{path}: {error}. Of ModernBERTs (model_type {modernbert.MODEL_TYPE!r}) those are read "
                    f"that we exported. {_CAN_BE_READ}"
                ) from error
        if model_type not in (*names.READABLE, OWN_LAYOUT, OWN_CODE):
            why = _UNREADABLE.get(model_type) if isinstance(model_type, str) else None
            because = f": {why}" if why else ""
            raise InputError(
                f"{path}: model_type is {short(model_type)}, which cannot be read{because}. {_CAN_BE_READ}"
            )
        needed = (*_SIZES, "embedding_size") if model_type != "bert" else _SIZES
        if missing := [key for key in needed if key not in values]:
            reason = values.get("not_transformers_because", "is it whole?")
            raise InputError(f"{path} lacks {', '.join(missing)}: {reason}")
        known = {field.name for field in dataclasses.fields(EncoderConfig)}
        try:
            if model_type in (OWN_LAYOUT, OWN_CODE):
                return EncoderConfig(**{key: value for key, value in values.items() if key in known})
            return names.from_transformers_config(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, whose ids the encoder must know."""
        self.check_files(TOKENIZER_FILE, VOCABULARY_FILE)
        return self.require_vocabulary(self.tokenizer_type(read_tokenizer(self.path)))

    def require_vocabulary(self, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokenizer, unless it has more tokens than the encoder."""
        if tokenizer.vocab_size > self.config.vocab_size:
            raise InputError(
                f"the tokenizer in {self.path} has {tokenizer.vocab_size} tokens, the model only "
                f"{self.config.vocab_size}: put the tokenizer there that the model was trained with"
            )
        return tokenizer

    @property
    def tokenizer_length(self) -> int | None:
        """Tokens of a row, as `electra export` notes them for transformers; None if it did not."""
        path = self.path / SETTINGS_FILE
        settings: TokenizerSettings = files.read_json(path, TokenizerSettings) if path.is_file() else {}
        return settings.get("model_max_length")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All weights by the names they have here, in float32, from one file or from shards."""
        shards = self._shards(self.weights_path)
        found = {name: tensor for shard in shards for name, tensor in self._read(shard).items()}
        if self.values.get("model_type") in (OWN_LAYOUT, OWN_CODE):
            return found
        if self.values.get("model_type") != modernbert.MODEL_TYPE:
            try:
                return names.unwrapped(found, prefix=self.prefix)
            except InputError as error:
                raise InputError(f"{self.weights_path}: {error}") from error
        # This also checks the values that are handed on.
        assert self.config.is_modern
        try:
            return modernbert.from_tensors(found, self.values)
        except KeyError as error:
            raise InputError(f"{self.weights_path} lacks weight {error}: is it whole?") from error
        except InputError as error:
            raise InputError(f"{self.weights_path}: {error}") from error

    @property
    def weights_path(self) -> Path:
        """The file of all weights, or the index of those that hold them."""
        found = next((name for name in WEIGHT_FILES if (self.path / name).is_file()), None)
        if found is None:
            raise InputError(f"{self.path} has no {WEIGHTS}: {self._explain_no_weights()}")
        return self.path / found

    def _shards(self, path: Path) -> list[str]:
        """The names of the files that hold the weights."""
        if path.suffix != ".json":
            return [path.name]
        index: ShardIndex = files.read_json(path, ShardIndex)
        shards = sorted(set(index["weight_map"].values()))
        if not shards:
            raise InputError(f"{path} lists no files in 'weight_map': is the download whole?")
        for shard in shards:
            if Path(shard).name != shard or not files.is_inside(self.path, shard):
                raise InputError(f"{path} names {short(shard)}, expected a file beside it")
            if not (self.path / shard).is_file():
                raise InputError(
                    f"{self.path} lacks {shard}, which {path.name} names: is the download whole?"
                )
        return shards

    @cached_property
    def head_tensors(self) -> dict[str, Tensor]:
        """The head that has a file of its own, by our names; empty if there is none."""
        return self._read(HEAD_WEIGHTS) if (self.path / HEAD_WEIGHTS).is_file() else {}

    @property
    def is_own_layout(self) -> bool:
        """Whether weights are by our names, since transformers' ELECTRA cannot express the encoder."""
        return self.values.get("model_type") in (OWN_LAYOUT, OWN_CODE, modernbert.MODEL_TYPE)

    @property
    def is_onnx(self) -> bool:
        """Whether it was exported for onnxruntime."""
        return ONNX_KEY in self.values

    @property
    def graph_path(self) -> Path:
        """The graph of such a folder: beside its config, or where transformers.js looks for it."""
        places = [self.path / name for name in (GRAPH, *JS_GRAPHS.values())]
        return next((place for place in places if place.is_file()), places[0])

    @property
    def is_encoder(self) -> bool:
        """Whether it holds one encoder, unlike the two towers of Electric's generator."""
        return not self.is_own_layout or "hidden_size" in self.values

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """The manifest of the run or import that this network is part of; empty if it is part of none."""
        path = self.path.parent / files.MANIFEST
        if not path.is_file() or _kind(path) != KIND:
            return {}
        manifest = files.read_manifest(path.parent, kind=KIND, form=NetworksManifest)
        return manifest if f"{self.path.name}/{CONFIG}" in manifest["files"] else {}

    @property
    def tokens_read(self) -> int | None:
        """Tokens that its encoder has read in pre-training, as a manifest says; None if none does."""
        found: int | None = {**self.run, **self._manifest}.get(TOKENS_READ)
        return found

    @cached_property
    def role(self) -> Role:
        """Which network of pre-training it is, if its head is there; else an encoder."""
        # The logits of Electric's network are no probabilities of a replacement without those of its noise.
        return "encoder" if self.run.get("config", {}).get("objective") == "electric" else self._head_role

    @cached_property
    def _head_role(self) -> Role:
        if names.bert_head(self.tensors):
            return "generator"
        heads: dict[str, Role] = {
            prefix: role for role in HEADS for prefix in (f"{role}_head.", f"{role}_predictions.")
        }
        found = {
            role for prefix, role in heads.items() if any(name.startswith(prefix) for name in self.tensors)
        }
        return min(found, default="encoder")

    def encoder_state(self) -> dict[str, Tensor]:
        """The weights of the encoder, by our names, which have the sizes that the config says."""
        if self.is_own_layout:
            scopes = (f"{role}." for role in ARCHITECTURES)
            scope = next((one for one in scopes if any(name.startswith(one) for name in self.tensors)), "")
            state = _below(scope, self.tensors)
        else:
            tensors = self.tensors
            try:
                state = names.encoder_from_transformers(tensors)
            except InputError as error:
                raise InputError(f"{self.weights_path}: {error}") from error
        require_sizes(self.config, state, where=str(self.path / CONFIG))
        return state

    def head_state(self) -> dict[str, Tensor]:
        """The weights of the head of pre-training, by our names; empty for an encoder alone."""
        return {} if self.role == "encoder" else self._head_state(self.role)

    def _head_state(self, role: Role) -> dict[str, Tensor]:
        if self.is_own_layout:
            return _below(f"{role}_head.", self.tensors)
        if bert := names.bert_head(self.tensors):
            return bert
        tied = self.tensors.get(names.TIED.transformers)
        table = self.tensors.get("electra.embeddings.word_embeddings.weight")
        if tied is not None and table is not None and not torch.equal(tied, table):
            raise InputError(
                f"{self.weights_path}: {names.TIED.transformers} differs from the word embeddings; in "
                "ELECTRA they are one table"
            )
        modules = tuple(module.transformers for module, _ in names.HEADS[role])
        foreign = {name: tensor for name, tensor in self.tensors.items() if name.startswith(modules)}
        return _below(f"{role}_head.", names.from_transformers(foreign, role))

    def encoder(self, *, dropout: float | None = None) -> Encoder:
        """The encoder with its weights, and with another dropout than its own if one is given."""
        config, state = with_dropout(self.config, dropout), self.encoder_state()
        return filled(lambda: Encoder(config), state, where=str(self.path))

    def span_generator(self) -> SpanGenerator:
        """The same, as what writes spans."""
        return filled(lambda: SpanGenerator(self.config), self.encoder_state(), where=str(self.path))

    def head(self) -> NetworkHead | None:
        """The head of pre-training, if there is one."""
        if self.role == "encoder":
            return None
        return network_head(self.role, self.config, self.head_state(), where=str(self.path))

    def energy_head(self) -> DiscriminatorHead | None:
        """The head of Electric's discriminator, whose logit is the energy of a token; None for all others."""
        if self.role == self._head_role or self._head_role != "discriminator":
            return None
        state = self._head_state("discriminator")
        head = network_head("discriminator", self.config, state, where=str(self.path))
        assert isinstance(head, DiscriminatorHead)
        return head

    def partner(self) -> "ModelFolder | None":
        """The other network of the same run, in the folder beside this one; None if there is none."""
        if self.path.name not in HEADS:
            return None
        (place,) = (self.path.parent / role for role in HEADS if role != self.path.name)
        if not (place / CONFIG).is_file():
            return None
        other = ModelFolder(place, tokenizer_type=self.tokenizer_type)
        is_like = other.is_encoder and other.is_onnx == self.is_onnx
        # Networks of one run have one vocabulary; others only happen to lie side by side.
        return other if is_like and self._has_tokenizer_of(other) else None

    def check_files(self, *wanted: str) -> None:
        """Refuse files that are not as the manifest beside them says; without one, nothing can be said."""
        for name in wanted:
            sha256 = self._seal.get(name)
            if sha256 is not None and not self._is_intact(name, sha256):
                raise InputError(
                    f"{self.path / name} is damaged or missing: its SHA-256 is not {sha256}. Copy the file "
                    f"again or, if it was changed on purpose, delete {self.path / files.MANIFEST}"
                )

    def _read(self, name: str) -> dict[str, Tensor]:
        of_run = self.run.get("files", {}).get(f"{self.path.name}/{name}", {})
        sha256 = self._seal.get(name) or of_run.get("sha256")
        if name.endswith(PICKLED):
            self.check_files(name)
            found = read_pickled(self.path / name)
        else:
            found = read_tensors(self.path / name, sha256=sha256)
        return {key: tensor.float() for key, tensor in found.items()}

    @cached_property
    def _manifest(self) -> Mapping[str, Any]:
        """The manifest in this folder, of whatever kind; empty if there is none."""
        path = self.path / files.MANIFEST
        if not path.is_file():
            return {}
        return files.read_manifest(self.path, kind=_kind(path), form=OtherManifest)

    @cached_property
    def _seal(self) -> dict[str, str]:
        """File -> checksum, by the manifest beside it."""
        return {name: facts["sha256"] for name, facts in self._manifest.get("files", {}).items()}

    def _is_intact(self, name: str, sha256: str) -> bool:
        return (self.path / name).is_file() and files.sha256(self.path / name) == sha256

    def _has_tokenizer_of(self, other: "ModelFolder") -> bool:
        paths = [folder.path / TOKENIZER_FILE for folder in (self, other)]
        # Parsing a vocabulary takes longer than comparing it.
        if all(path.is_file() for path in paths) and len({path.read_bytes() for path in paths}) == 1:
            return True
        return self.tokenizer.content_hash == other.tokenizer.content_hash

    def _explain_no_weights(self) -> str:
        if self.graph_path.is_file():
            return (
                "it was exported to ONNX, and only its graph is there. Name the folder it was made from; "
                'for texts: electra.load(DIR, engine="onnx"), or electra serve --engine onnx'
            )
        suffixes = (PICKLED, ".pt", ".h5", ".msgpack")
        if other := sorted(path.name for path in self.path.iterdir() if path.suffix in suffixes):
            return f"of {other[0]} nothing is read, expected one of {', '.join(WEIGHT_FILES)}"
        return "is the download whole?"


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors in a file of torch.save, by torch's loader of weights: what asks for more is refused.

    Trainers keep the weights beside other things, under a key of their own.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    # Those of pickle, zip and torch have no narrower parent in common.
    except Exception as error:
        if asked := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(
                f"{path} asks for {asked[1]} when it is read, which could run any program: it is refused. A "
                f"file of weights has tensors only; ask whoever made it for {WEIGHTS}"
            ) from error
        raise InputError(f"{path} is not a readable file of weights: is the download whole?") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    found = content.items() if isinstance(content, dict) else ()
    tensors = {str(name): tensor for name, tensor in found if isinstance(tensor, Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no weights by name: expected what torch.save makes of a state dict")
    return tensors


def _kind(manifest: Path) -> str:
    return str(files.read_json(manifest, dict[str, Any]).get("kind", ""))


def _below(scope: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(scope): tensor for name, tensor in tensors.items() if name.startswith(scope)}


def with_dropout(config: EncoderConfig, dropout: float | None) -> EncoderConfig:
    """The same sizes with another dropout; None keeps their own."""
    if dropout is None:
        return config
    return dataclasses.replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


ROOM = 2
_MORE_ROOM = 2**16
"""How many numbers a module may have for each one that its weights have, and in addition: of one that is
somewhat larger than they are, the names that are missing say more."""


class _Filling(TorchFunctionMode):
    """Builds modules for given weights: none are drawn first, and there is room for about as many numbers.

    A config is a few bytes that can ask for any amount of memory. Nothing is drawn, since that takes time; on
    the meta device, which takes no memory, it would import a compiler, in a second.
    """

    def __init__(self, room: int, where: str) -> None:
        super().__init__()
        self.room, self.where = room, where

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do everything but initialise."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func in (torch.empty, torch.zeros, torch.ones):
            shape = args[0] if args and isinstance(args[0], tuple | list) else args
            self.room -= math.prod(shape)
            if self.room < 0:
                raise InputError(
                    f"{self.where}: by its config there is a weight of shape {list(shape)}, and with it far "
                    "more numbers than the weights have that are there: they do not belong together"
                )
        return func(*args, **kwargs)


def room_for(*states: Mapping[str, Tensor], where: str) -> AbstractContextManager[Any]:
    """Build modules without drawing weights; an error if they are far larger than those that are there."""
    numbers = sum(tensor.numel() for state in states for tensor in state.values())
    return _Filling(ROOM * numbers + _MORE_ROOM, where)


def filled(build: Callable[[], Built], state: Mapping[str, Tensor], *, where: str) -> Built:
    """A new module with given weights, without drawing random ones first."""
    with room_for(state, where=where):
        module = build()
    copy_state(state, module, where=where)
    return module


def require_sizes(config: EncoderConfig, state: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse an encoder that is not of its weights' sizes, and say which key of its config differs."""
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    found = {
        key: shapes[name][axis] for key, (name, axis) in _SHOWN_BY.items() if len(shapes.get(name, ())) > axis
    }
    layers = {match[1] for name in state if (match := re.match(r"layers\.(\d+)\.", name))}
    if layers:
        found["num_hidden_layers"] = len(layers)
    for key, size in found.items():
        if getattr(config, key) != size:
            raise InputError(
                f"{where}: {key} is {getattr(config, key)}, expected {size}, which the weights have"
            )


def network_head(
    role: Role, config: EncoderConfig, state: Mapping[str, Tensor], *, where: str
) -> NetworkHead:
    """The head of pre-training that these weights are of."""
    build = HEADS[role]
    if role == "discriminator":
        build = DETECTION_HEADS[detection_head_of(state)]
    return filled(lambda: build(config), state, where=where)


@torch.no_grad()
def copy_state(state: Mapping[str, Tensor], module: nn.Module, *, where: str) -> None:
    """Give a module its weights, exactly those that it has."""
    target = module.state_dict()
    require_same_shapes(state, target, where=where)
    for name, tensor in target.items():
        tensor.copy_(state[name])


def require_same_shapes(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse weights with a name too few or too many, or of another shape than expected."""
    if different := sorted(expected.keys() ^ state.keys()):
        verb = "lacks" if different[0] in expected else "has an unknown"
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        raise InputError(f"{where} {verb} weight {different[0]}{more}: is it a whole ELECTRA or BERT model?")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise InputError(
                f"{where}: {name} has shape {list(state[name].shape)}, by the config it should be "
                f"{list(tensor.shape)}"
            )


def require_networks(sizes: Mapping[Role, EncoderConfig], state: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse weights that are not exactly those of encoders of these sizes with their heads."""
    expected: dict[str, Tensor] = {}
    with torch.device("meta"), room_for(state, where=where):
        for role, config in sizes.items():
            modules: dict[str, nn.Module] = {f"{role}.": Encoder(config)}
            if role in HEADS:
                modules[f"{role}_head."] = HEADS[role](config)
            for scope, module in modules.items():
                expected |= {f"{scope}{name}": tensor for name, tensor in module.state_dict().items()}
    require_same_shapes(state, expected, where=where)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is written into the folder of a model, by the names of its layout."""

    values: dict[str, Any]
    """For config.json."""
    tensors: dict[str, Tensor]
    """For model.safetensors."""
    head: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """For head.safetensors: what transformers has no class for, by our names."""


def head_obstacle(names_of_weights: Iterable[str]) -> str | None:
    """Why transformers has no class for a head with weights of these names; None if it has one.

    Modern encoders are exported with classes of their own, which have them all.
    """
    if detection_head_of(names_of_weights) == "plain":
        return None
    return "its detection head looks at [CLS], which no ELECTRA of transformers does"


def lay_out(config: EncoderConfig | None, state: Mapping[str, Tensor], role: Role) -> Contents:
    """One network of a state dict of ours, for transformers if it can express it, else by our names.

    Without a config it is no single encoder; without the head of its role it is an encoder alone.
    """
    obstacle = "it is not a single encoder" if config is None else transformers_obstacle(config)
    obstacle = obstacle or head_obstacle(name for name in state if name.startswith(f"{role}_head."))
    if config is None or obstacle is not None:
        sizes = {} if config is None else dataclasses.asdict(config)
        own = {name: one for name, one in state.items() if name.startswith((f"{role}.", f"{role}_head."))}
        return Contents(
            values={**sizes, "model_type": OWN_LAYOUT, "not_transformers_because": obstacle}, tensors=own
        )
    values = names.to_transformers_config(config)
    if role in HEADS and not any(name.startswith(f"{role}_head.") for name in state):
        state, role = {f"encoder.{name}": one for name, one in _below(f"{role}.", state).items()}, "encoder"
    return Contents(
        values={**values, "architectures": [ARCHITECTURES[role]]}, tensors=names.to_transformers(state, role)
    )


def write_model(folder: Path, contents: Contents, tokenizer: Tokenizer) -> None:
    """Fill a folder, which is made if need be, with all files of a model but the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / CONFIG, contents.values)
    if contents.tensors:
        write_tensors(folder / WEIGHTS, contents.tensors)
    if contents.head:
        write_tensors(folder / HEAD_WEIGHTS, contents.head)
    tokenizer.save(folder)


def write_networks(
    folder: Path,
    sizes: Mapping[Role, EncoderConfig | None],
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    *,
    encoder: Role,
    facts: Mapping[str, Any],
) -> None:
    """A folder for each network, as a run's `final` has them, and a manifest; it appears when it is whole.

    `encoder` is the one to fine-tune; `facts` are kept in the manifest.
    """
    with files.appearing_whole(folder) as unfinished:
        obstacles = {}
        for role, config in sizes.items():
            contents = lay_out(config, state, role)
            write_model(unfinished / role, contents, tokenizer)
            obstacles[role] = contents.values.get("not_transformers_because")
        files.write_manifest(unfinished, {"kind": KIND, "encoder": encoder, "obstacles": obstacles, **facts})
