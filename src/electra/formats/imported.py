"""Folders of transformers, or an original TensorFlow checkpoint -> a model by our names -> a folder of ours.

OUT/manifest.json    which network to fine-tune, where it came from, and the checksum of every file
OUT/discriminator/   config.json, model.safetensors, tokenizer: ElectraForPreTraining
OUT/generator/       the same: ElectraForMaskedLM
OUT/encoder/         in place of both where the source has neither head: ElectraModel

A model that transformers has fine-tuned for a task becomes one like those of `electra finetune`, with its
head: OUT/config.json and so on. Checkpoints are read in `formats.tensorflow`.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from electra import files, hub
from electra.errors import InputError
from electra.hub import Fetched
from electra.model import names
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.model.store import (
    CONFIG,
    HEAD_WEIGHTS,
    WEIGHT_FILES,
    ModelFolder,
    require_networks,
    write_networks,
)
from electra.tasks.model import FineTuned, load_model, save_model, task_of
from electra.text.tokenizer import SETTINGS_FILE, TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer

Part = Literal["all", "encoder"]
"""Whether a model is read with its head, or its encoder alone."""
_INDEX = ".index.json"
"""End of the name of a file that lists those with the weights."""
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


def fetch(name: str, *, revision: str = "", prefix: str = "") -> Fetched:
    """A model of the Hub, as far as it is read here, in the cache of the Hub's client."""
    return hub.fetch_model(
        name,
        revision=revision or None,
        wanted=files_of_a_model,
        check=lambda path: foreign_folder(path, prefix=prefix),
    )


def files_of_a_model(there: Collection[str]) -> list[str]:
    """The files of a repository that are read here, of all kinds of weights the first; as patterns."""
    weights = next((name for name in WEIGHT_FILES if name in there), None)
    if CONFIG not in there or weights is None:
        expected = f"{CONFIG} and one of {', '.join(WEIGHT_FILES)}"
        raise InputError(f"the Hub has no files of it that can be read: expected {expected}")
    whole = Path(weights.removesuffix(_INDEX))
    shards = [f"{whole.stem}-*{whole.suffix}"] if weights.endswith(_INDEX) else []
    others = (files.MANIFEST, HEAD_WEIGHTS, TOKENIZER_FILE, SETTINGS_FILE, VOCABULARY_FILE)
    return [CONFIG, weights, *shards, *(name for name in others if name in there)]


def origin_of(fetched: Sequence[Fetched]) -> dict[str, Any]:
    """What is kept of where models of the Hub came from."""
    return {"paths": [one.name for one in fetched], "revisions": [one.commit for one in fetched]}


def read_task(
    path: str | Path, *, prefix: str = "", origin: Mapping[str, Any] | None = None
) -> ImportedTask | None:
    """A model that was fine-tuned for a task; None if it has no head that is read here.

    `origin`: what to keep of where it came from, if it did not lie in this folder.
    """
    folder = foreign_folder(path, prefix=prefix)
    if task_of(folder) is None:
        return None
    tuned = load_model(folder)
    # Where things lie on this machine is nobody else's business, and this goes along with every export.
    source = {"format": "transformers", **(origin or {"path": Path(path).resolve().name})}
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


def read_transformers(
    paths: Sequence[str | Path],
    *,
    prefix: str = "",
    part: Part = "all",
    origin: Mapping[str, Any] | None = None,
) -> Imported:
    """One model, or a discriminator and its generator, which must have the same tokenizer."""
    found: dict[Role, ModelFolder] = {}
    state: dict[str, Tensor] = {}
    left_out: list[str] = []
    for folder in (foreign_folder(path, prefix=prefix) for path in paths):
        role, weights, unknown = read_network(folder, part)
        if role in found:
            raise InputError(
                f"{folder.path} is a second {role}: give one model, or a discriminator "
                "(ElectraForPreTraining) and a generator (ElectraForMaskedLM)"
            )
        found[role] = folder
        state |= weights
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
            **(origin or {"paths": [str(path) for path in paths]}),
            "sha256": [files.sha256(folder.weights_path) for folder in found.values()],
        },
        left_out=tuple(left_out),
    )


def foreign_folder(path: str | Path, *, prefix: str) -> ModelFolder:
    """A folder of transformers that can be read, or an error that says what can be."""
    folder = ModelFolder(Path(path), prefix=prefix)
    if not (folder.path / CONFIG).is_file():
        raise InputError(
            f"{folder.path} has no {CONFIG}: expected a folder of transformers, or a name of the "
            "Hugging Face Hub"
        )
    # Others' ModernBERTs have the model_type of those that we exported.
    if folder.config.is_modern or folder.is_own_layout or folder.is_onnx:
        raise InputError(
            f"{folder.path} is a model of ours already: use it as it is. From the Hub: hf download NAME "
            "--local-dir DIR"
        )
    return folder


def read_network(folder: ModelFolder, part: Part) -> tuple[Role, dict[str, Tensor], list[str]]:
    """What a model is, its weights by our names, and the tensors that have no place here."""
    role: Role = folder.role if part == "all" else "encoder"
    state = {f"{role}.{name}": tensor for name, tensor in folder.encoder_state().items()}
    head: tuple[str, ...] = ()
    if role != "encoder":
        state |= {f"{role}_head.{name}": tensor for name, tensor in folder.head_state().items()}
        modules = (module.transformers for module, _ in names.HEADS[role])
        head = (names.TIED.transformers, names.BERT_HEAD_SCOPE, *modules)
    require_networks({role: folder.config}, state, where=str(folder.path))
    return role, state, unread(folder, head)


def unread(folder: ModelFolder, head: tuple[str, ...]) -> list[str]:
    """The tensors that are neither the encoder's nor of a head, whose names begin with one of these."""
    scope = names.transformers_scope(folder.tensors)
    return [
        name
        for name in folder.tensors
        if not names.is_encoder_tensor(name, scope) and not name.startswith(head)
    ]
