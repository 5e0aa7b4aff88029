"""A run, a fine-tuned model or a folder of transformers -> a folder that transformers loads by itself.

config.json, model.safetensors   an encoder with its head, or alone where transformers has no head like it
head.safetensors                 such a head, by our names
tokenizer files                  they give the same ids
modules.json, ...                of an encoder for vectors: for sentence-transformers
README.md                        a card made of facts
manifest.json                    those facts, and the checksum of every file; written last
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.ship import loading
from electra.ship.import_transformers import read_transformers
from electra.ship.importing import ARCHITECTURES, Role
from electra.ship.onnx_engine import is_onnx
from electra.ship.texts import SharedTokenizer
from electra.tasks import encoders, layout
from electra.tasks.encoders import CONFIG, WEIGHTS
from electra.tasks.sentence_transformers import add_sentence_transformer
from electra.text.tokenizer import Tokenizer
from electra.text.tokenizer_files import SETTINGS_FILE

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
        return encoders.read_config(self.folder)

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """What the run or the import that it is a part of says of itself; empty if it is part of none."""
        return loading.run_facts(self.folder)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What a fine-tuned model says of itself; empty if it was not fine-tuned."""
        found: dict[str, Any] = encoders.read_values(self.folder).get(layout.TASK_KEY) or {}
        return found

    @property
    def max_length(self) -> int:
        """Tokens to read at once: as many as in training, as far as that is known, or as the encoder can."""
        longest = self.config.max_position_embeddings
        trained = self.about.get("max_length") or self.run.get(loading.SEQ_LENGTH)
        # Tokenizers that know no limit tell a number of thirty digits.
        return min(trained or loading.length_of_tokenizer(self.folder) or longest, longest)


def find_source(path: str, *, part: Role | None = None) -> Source:
    """The model in a folder, or a part of it; by default the encoder that goes on, with what head it has."""
    folder = encoders.model_folder(path)
    if is_onnx(folder):
        raise InputError(f"{path} was exported to ONNX already: name the run or the folder it was made from")
    if about := encoders.read_values(folder).get(layout.TASK_KEY):
        if part not in (None, "encoder"):
            raise InputError(
                f"{path} was fine-tuned for {about['task']} and has no {part} any more: leave out --part, or "
                "take --part encoder for the encoder without its head"
            )
        return Source(path=path, folder=folder, part=part)
    facts = loading.run_facts(folder)
    found: dict[Role, Path] = {}
    for place in (folder, *loading.partner(folder, SharedTokenizer.read(folder))):
        if facts:
            encoders.check_weights(place.parent, facts, part=place.name)
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
    tensors = encoders.read_tensors(folder)
    part = loading.part_of(tensors)
    # What Electric's network gives is no probability of a replacement, as the class would promise.
    is_whole = loading.head_state(folder, tensors, part) and objective != "electric"
    return part if is_whole else "encoder"


def seal(folder: Path, source: Source, facts: Mapping[str, Any]) -> None:
    """Write the manifest, when all else is there."""
    values = encoders.read_values(folder)
    # Where things lie on this machine is told to nobody.
    if start := values.get(layout.TASK_KEY, {}).get("start"):
        values[layout.TASK_KEY]["start"] = Path(start).name
        files.write_json(folder / CONFIG, values)
    files.write_manifest(folder, {**facts, "kind": KIND if source.part else layout.KIND})


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
        layout.save_model(layout.load_model(source.folder), folder)
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
    architectures: list[str] = encoders.read_values(folder)["architectures"]
    return architectures[0]


def network_of(source: Source) -> tuple[dict[str, Tensor], Tokenizer]:
    """The weights by the names of transformers, checked to be all that its class has."""
    assert source.part is not None
    if source.part == "encoder":
        encoder, tokenizer = encoders.load_encoder(str(source.folder))
        return names.encoder_to_transformers(encoder.state_dict()), tokenizer
    imported = read_transformers([source.folder])
    return names.to_transformers(imported.state, source.part), imported.tokenizer


def set_tokenizer(folder: Path, source: Source) -> None:
    """Tell the tokenizer of transformers how much the model reads, and that a generator is shown its gaps."""
    settings = files.read_json(folder / SETTINGS_FILE)
    if source.part == "generator":
        # Else fill-mask, all that it is for, would find no "[MASK]" in any text.
        settings["split_special_tokens"] = False
    files.write_json(folder / SETTINGS_FILE, {**settings, loading.TOKENIZER_LENGTH: source.max_length})
