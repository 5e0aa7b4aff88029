"""Folders of transformers (ELECTRA's discriminator, generator, or any model of BERT's shape) -> our names.

A run, a fine-tuned model or a folder of transformers -> a folder that transformers loads by itself.

config.json, model.safetensors   an encoder with its head, or alone where transformers has no head like it
head.safetensors                 such a head, by our names
tokenizer files                  they give the same ids
modules.json, ...                of an encoder for vectors: for sentence-transformers
README.md                        a card made of facts
manifest.json                    those facts, and the checksum of every file; written last
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.formats.imported import ARCHITECTURES, Imported, Role, check_shapes
from electra.model import names
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.predict import load
from electra.predict.onnx_engine import is_onnx
from electra.tasks import folders
from electra.tasks.families.similarity import add_sentence_transformer
from electra.tasks.folders import (
    CONFIG,
    INDEX,
    OWN_LAYOUT,
    WEIGHTS,
    load_tokenizer,
    read_config,
    read_tensors,
    read_values,
)
from electra.text.spans import SharedTokenizer
from electra.text.tokenizer import SETTINGS_FILE, Tokenizer

_HEADS: dict[Role, str] = {
    "discriminator": "discriminator_predictions.",
    "generator": "generator_predictions.",
}
_POSITION_IDS = ".position_ids"


def read_transformers(paths: Sequence[str | Path]) -> Imported:
    """One model, or a discriminator and its generator, whose vocabularies must be the same."""
    sizes: dict[Role, EncoderConfig] = {}
    state: dict[str, Tensor] = {}
    left_out: list[str] = []
    read: list[Tokenizer] = []
    folders = [Path(path) for path in paths]
    for folder in folders:
        role, config, part, unknown = _read_folder(folder)
        if role in sizes:
            raise InputError(
                f"{folder} is a second {role}: give one model, or a discriminator (ElectraForPreTraining) "
                "and a generator (ElectraForMaskedLM)"
            )
        check_shapes({role: config}, part, where=str(folder))
        sizes[role] = config
        state |= part
        left_out += unknown
        read.append(load_tokenizer(folder, config))
    if "encoder" in sizes and len(sizes) > 1:
        raise InputError(
            f"{' and '.join(map(str, folders))} do not belong together: one has no head of ELECTRA"
        )
    if len({tokenizer.content_hash for tokenizer in read}) > 1:
        raise InputError(
            f"{' and '.join(map(str, folders))} have different tokenizers: import them one by one"
        )
    return Imported(
        # The discriminator is what goes on, whichever was named first.
        sizes=dict(sorted(sizes.items())),
        state=state,
        tokenizer=read[0],
        source={
            "format": "transformers",
            "paths": [str(folder) for folder in folders],
            "sha256": [_checksum(folder) for folder in folders],
        },
        left_out=tuple(left_out),
    )


def _read_folder(folder: Path) -> tuple[Role, EncoderConfig, dict[str, Tensor], list[str]]:
    """What a model is, its sizes, its weights by our names, and the names of those it has too many."""
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} has no {CONFIG}: expected a folder of transformers. A model on the Hugging Face hub "
            f"must be downloaded first: hf download {folder} --local-dir DIR"
        )
    if read_values(folder).get("model_type") == OWN_LAYOUT:
        raise InputError(f"{folder} is a model of ours already: use it as it is")
    config = read_config(folder)
    tensors = read_tensors(folder)
    for role, head in _HEADS.items():
        if role != "encoder" and any(name.startswith(head) for name in tensors):
            return role, config, _read_part(folder, tensors, role), []
    try:
        encoder = names.encoder_from_transformers(tensors)
    except InputError as error:
        raise InputError(f"{folder / WEIGHTS}: {error}") from error
    bodies = [scope for scope in ("electra.", "bert.") if any(name.startswith(scope) for name in tensors)]
    unknown = [
        name
        for name in tensors
        if "pooler." in name or not (name.startswith(tuple(bodies or [""])) or name.endswith(_POSITION_IDS))
    ]
    return "encoder", config, {f"encoder.{name}": tensor for name, tensor in encoder.items()}, unknown


def _read_part(folder: Path, tensors: dict[str, Tensor], part: names.Part) -> dict[str, Tensor]:
    try:
        state = names.from_transformers(tensors, part)
    except InputError as error:
        raise InputError(f"{folder / WEIGHTS}: {error}") from error
    tied = tensors.get(names.TIED.transformers)
    table = state.get(names.TIED.ours)
    if tied is not None and table is not None and not torch.equal(tied, table):
        raise InputError(
            f"{folder / WEIGHTS}: {names.TIED.transformers} differs from the table of embeddings, with which "
            "a generator of ELECTRA shares it"
        )
    return state


def _checksum(folder: Path) -> str:
    """Of the weights, or of the file that says where they are spread over."""
    path = folder / WEIGHTS
    return files.sha256(path if path.is_file() else folder / INDEX)


KIND = "exported model"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is to be exported."""

    path: str
    """As a person named it."""
    folder: Path
    """That with the config, the weights and the tokenizer."""
    part: Role | None
    """A network of pre-training with its head, or an encoder alone; None: a fine-tuned model as it is."""

    @cached_property
    def config(self) -> EncoderConfig:
        """The sizes of the encoder."""
        return folders.read_config(self.folder)

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """What the run or the import that it is a part of says of itself; empty if it is part of none."""
        return load.run_facts(self.folder)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What a fine-tuned model says of itself; empty if it was not fine-tuned."""
        found: dict[str, Any] = folders.read_values(self.folder).get(folders.TASK_KEY) or {}
        return found

    @property
    def max_length(self) -> int:
        """Tokens to read at once: as many as in training, as far as that is known, or as the encoder can."""
        longest = self.config.max_position_embeddings
        trained = self.about.get("max_length") or self.run.get(load.SEQ_LENGTH)
        # Tokenizers that know no limit tell a number of thirty digits.
        return min(trained or load.length_of_tokenizer(self.folder) or longest, longest)


def find_source(path: str, *, part: Role | None = None) -> Source:
    """The model in a folder, or a part of it; by default the encoder that goes on, with what head it has."""
    folder = folders.model_folder(path)
    if is_onnx(folder):
        raise InputError(f"{path} was exported to ONNX already: name the run or the folder it was made from")
    if about := folders.read_values(folder).get(folders.TASK_KEY):
        if part not in (None, "encoder"):
            raise InputError(
                f"{path} was fine-tuned for {about['task']} and has no {part} any more: leave out --part, or "
                "take --part encoder for the encoder without its head"
            )
        return Source(path=path, folder=folder, part=part)
    facts = load.run_facts(folder)
    found: dict[Role, Path] = {}
    for place in (folder, *load.partner(folder, SharedTokenizer.read(folder))):
        if facts:
            folders.check_weights(place.parent, facts, part=place.name)
        found.setdefault(role_of(place, objective=facts.get("config", {}).get("objective")), place)
    if part == "encoder":
        return Source(path=path, folder=folder, part=part)
    part = part or next(iter(found))
    if part not in found:
        raise InputError(
            f"{path} has no {part} with a head, only: {', '.join(found)}. The encoder without a head is had "
            "with --part encoder"
        )
    return Source(path=path, folder=found[part], part=part)


def role_of(folder: Path, *, objective: str | None) -> Role:
    """Which of the two networks of pre-training is in a folder, or an encoder without their heads."""
    tensors = folders.read_tensors(folder)
    part = load.part_of(tensors)
    # What Electric's network gives is no probability of a replacement, as the class would promise.
    is_whole = load.head_state(folder, tensors, part) and objective != "electric"
    return part if is_whole else "encoder"


def seal(folder: Path, source: Source, facts: Mapping[str, Any]) -> None:
    """Write the manifest, when all else is there."""
    values = folders.read_values(folder)
    # Where things lie on this machine is told to nobody.
    if start := values.get(folders.TASK_KEY, {}).get("start"):
        values[folders.TASK_KEY]["start"] = Path(start).name
        files.write_json(folder / CONFIG, values)
    files.write_manifest(folder, {**facts, "kind": KIND if source.part else folders.KIND})


def check_expressible(source: Source) -> None:
    """Refuse an encoder that transformers has no class for."""
    obstacle = transformers_obstacle(source.config)
    if obstacle is not None:
        raise InputError(
            f"{source.path}: {obstacle}. It can be exported with --to onnx and used with electra.load; a "
            "model for transformers is pre-trained with --model.position_embedding_type absolute"
        )


def write_transformers(source: Source, folder: Path) -> str:
    """Fill a folder that is there; the name of the class that loads it."""
    check_expressible(source)
    if source.part is None:
        folders.save_model(folders.load_model(source.folder), folder)
        # More is to come into the folder before it is sealed.
        (folder / files.MANIFEST).unlink()
    else:
        tensors, tokenizer = network_of(source)
        architecture = ARCHITECTURES[source.part]
        values = {**names.to_transformers_config(source.config), "architectures": [architecture]}
        files.write_json(folder / CONFIG, values)
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        safetensors.torch.save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
        tokenizer.save(folder)
    if source.part == "encoder":
        add_sentence_transformer(folder, pooling="mean", max_length=source.max_length)
    architectures: list[str] = folders.read_values(folder)["architectures"]
    return architectures[0]


def network_of(source: Source) -> tuple[dict[str, Tensor], Tokenizer]:
    """The weights by the names of transformers, checked to be all that its class has."""
    assert source.part is not None
    if source.part == "encoder":
        encoder, tokenizer = folders.load_encoder(str(source.folder))
        return names.encoder_to_transformers(encoder.state_dict()), tokenizer
    imported = read_transformers([source.folder])
    return names.to_transformers(imported.state, source.part), imported.tokenizer


def set_tokenizer(folder: Path, source: Source) -> None:
    """Tell the tokenizer of transformers how much the model reads, and that a generator is shown its gaps."""
    settings = files.read_json(folder / SETTINGS_FILE)
    if source.part == "generator":
        # Else fill-mask, all that it is for, would find no "[MASK]" in any text.
        settings["split_special_tokens"] = False
    files.write_json(folder / SETTINGS_FILE, {**settings, load.TOKENIZER_LENGTH: source.max_length})
