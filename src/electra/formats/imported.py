"""Folders of transformers, or an original TensorFlow checkpoint -> a model by our names -> a folder of ours.

OUT/manifest.json    which network to fine-tune, where it came from, and the checksum of every file
OUT/discriminator/   config.json, model.safetensors, tokenizer: ElectraForPreTraining
OUT/generator/       the same: ElectraForMaskedLM
OUT/encoder/         in place of both where the source has neither head: ElectraModel

A model that transformers has fine-tuned for a task becomes one like those of `electra finetune`, with its
head: OUT/config.json and so on. Checkpoints are read in `formats.tensorflow`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.model.store import (
    CONFIG,
    ModelFolder,
    require_networks,
    write_networks,
)
from electra.tasks.model import FineTuned, load_model, save_model, task_of
from electra.text.tokenizer import Tokenizer

IMPORTED_FROM = "imported_from"
"""Key of manifests, and of what a fine-tuned model says of itself: format and folder of what was read."""


@dataclass(frozen=True, kw_only=True)
class ImportedTask:
    """A foreign model that was fine-tuned for a task."""

    tuned: FineTuned
    left_out: tuple[str, ...]
    """Tensors of the source that have no place here."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A foreign model, by our names."""

    sizes: Mapping[Role, EncoderConfig]
    """Of every encoder that there is; the first one is that to fine-tune."""
    state: Mapping[str, Tensor]
    """Weights by role and name, such as discriminator.layers.0…; what encoders share is under both."""
    tokenizer: Tokenizer
    source: Mapping[str, Any]
    """Format, path and checksum of what was read."""
    left_out: tuple[str, ...] = ()
    """Tensors of the source that have no place here."""
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Of the original's Adam: exp_avg and exp_avg_sq of every weight; empty if the source has none."""
    step: int = 0
    """Updates that led to the weights, if the source says."""


def write_imported(imported: Imported, folder: Path) -> None:
    """Write a folder that appears when it is whole."""
    files.refuse_full(folder)
    write_networks(
        folder,
        imported.sizes,
        imported.state,
        imported.tokenizer,
        encoder=next(iter(imported.sizes)),
        facts={"step": imported.step, IMPORTED_FROM: dict(imported.source)},
    )


def read_task(path: str | Path, *, prefix: str = "") -> ImportedTask | None:
    """A model that was fine-tuned for a task; None if it has no head that is read here."""
    folder = foreign_folder(path, prefix=prefix)
    if task_of(folder) is None:
        return None
    tuned = load_model(folder)
    # Where things lie on this machine is nobody else's business, and this goes along with every export.
    source = {"format": "transformers", "path": Path(path).resolve().name}
    sha256 = files.sha256(folder.weights_path)
    facts = {**tuned.facts, IMPORTED_FROM: {**source, "sha256": sha256}}
    head: tuple[str, ...] = ()
    if tuned.family.transformers_obstacle(folder.config) is None:
        head = tuple(tuned.family.to_transformers(tuned.model.head(tuned.task)).tensors)
    tuned = dataclasses.replace(tuned, facts=facts)
    return ImportedTask(tuned=tuned, left_out=tuple(unread(folder, head)))


def write_task(imported: ImportedTask, folder: Path) -> None:
    """Write a folder that appears when it is whole."""
    files.refuse_full(folder)
    save_model(imported.tuned, folder)


def read_transformers(paths: Sequence[str | Path], *, prefix: str = "") -> Imported:
    """One model, or a discriminator and its generator, which must have the same tokenizer."""
    found: dict[Role, ModelFolder] = {}
    state: dict[str, Tensor] = {}
    left_out: list[str] = []
    for folder in (foreign_folder(path, prefix=prefix) for path in paths):
        role, part, unknown = read_network(folder)
        if role in found:
            raise InputError(
                f"{folder.path} is a second {role}: give one model, or a discriminator "
                "(ElectraForPreTraining) and a generator (ElectraForMaskedLM)"
            )
        found[role] = folder
        state |= part
        left_out += unknown
    together = " and ".join(map(str, paths))
    if "encoder" in found and len(found) > 1:
        raise InputError(f"{together} do not belong together: one of them has no head of ELECTRA")
    if len({folder.tokenizer.content_hash for folder in found.values()}) > 1:
        raise InputError(f"{together} have different tokenizers: import them one by one")
    return Imported(
        # The discriminator is the one to fine-tune, whichever was named first.
        sizes={role: found[role].config for role in sorted(found)},
        state=state,
        tokenizer=next(iter(found.values())).tokenizer,
        source={
            "format": "transformers",
            "paths": [str(path) for path in paths],
            "sha256": [files.sha256(folder.weights_path) for folder in found.values()],
        },
        left_out=tuple(left_out),
    )


def foreign_folder(path: str | Path, *, prefix: str) -> ModelFolder:
    """A folder of transformers that can be read, or an error that says what can be."""
    folder = ModelFolder(Path(path), prefix=prefix)
    if not (folder.path / CONFIG).is_file():
        raise InputError(
            f"{folder.path} has no {CONFIG}: expected a folder of transformers. A model on the Hugging Face "
            f"hub must be downloaded first: hf download {folder.path} --local-dir DIR"
        )
    # Others' ModernBERTs have the model_type of those that we exported.
    if folder.config.is_modern or folder.is_own_layout or folder.is_onnx:
        raise InputError(f"{folder.path} is a model of ours already: use it as it is")
    return folder


def read_network(folder: ModelFolder) -> tuple[Role, dict[str, Tensor], list[str]]:
    """What a model is, its weights by our names, and the tensors that have no place here."""
    role = folder.role
    state = {f"{role}.{name}": tensor for name, tensor in folder.encoder_state().items()}
    state |= {f"{role}_head.{name}": tensor for name, tensor in folder.head_state().items()}
    require_networks({role: folder.config}, state, where=str(folder.path))
    head = (names.TIED.transformers, *(module.transformers for module, _ in names.HEADS[role]))
    return role, state, unread(folder, head)


def unread(folder: ModelFolder, head: tuple[str, ...]) -> list[str]:
    """The tensors that are neither the encoder's nor of a head, whose names begin with one of these."""
    scope = names.transformers_scope(folder.tensors)
    return [
        name
        for name in folder.tensors
        if not names.is_encoder_tensor(name, scope) and not name.startswith(head)
    ]
