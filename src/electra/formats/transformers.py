"""A run, a fine-tuned model or a folder of transformers -> a folder that transformers loads by itself.

config.json, model.safetensors   an encoder with its head, or alone where transformers has no head like it
head.safetensors                 such a head, by our names
tokenizer.json ...               a tokenizer that gives the same ids
modules.json ...                 of an encoder for vectors: for sentence-transformers
modeling_electra_modern.py       of a modern encoder that transformers has no class for (formats.modern)
README.md                        a card made of facts (formats.card)
manifest.json                    those facts, and the checksum of every file; written last
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.formats.modern import write_modern
from electra.model.names import ARCHITECTURES, Role
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.model.store import (
    CONFIG,
    TOKENIZER_LENGTH,
    TOKENS_READ,
    ModelFolder,
    head_obstacle,
    lay_out,
    open_model,
    write_model,
)
from electra.prediction.load import SEQ_LENGTH
from electra.tasks.families.similarity import add_sentence_transformer
from electra.tasks.model import KIND as FINE_TUNED
from electra.tasks.model import TASK_KEY, load_model, task_of, write_tuned
from electra.text.tokenizer import SETTINGS_FILE

KIND = "exported model"
"""What the manifest calls it, unless it is a fine-tuned model as a whole."""


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """What is to be exported."""

    path: str
    """As the user named it."""
    model: ModelFolder
    part: Role | None
    """A network of pre-training with its head, or an encoder alone; None: a fine-tuned model as it is."""

    @property
    def folder(self) -> Path:
        """The folder with config, weights and tokenizer."""
        return self.model.path

    @property
    def config(self) -> EncoderConfig:
        """The sizes of the encoder."""
        return self.model.config

    @property
    def run(self) -> Mapping[str, Any]:
        """The manifest of the run or import that it is part of; empty if it is part of none."""
        return self.model.run

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What a fine-tuned model says of itself; empty if it was not fine-tuned."""
        return task_of(self.model) or {}

    @property
    def tokens_read(self) -> int | None:
        """Tokens that the encoder has read in pre-training; None if nobody knows."""
        found: int | None = self.about.get(TOKENS_READ) if self.about else self.model.tokens_read
        return found

    @property
    def max_length(self) -> int:
        """Tokens to read at once: as many as in training, or if that is unknown, as the encoder can."""
        longest = self.config.max_position_embeddings
        trained = self.about.get("max_length") or self.run.get(SEQ_LENGTH)
        # Tokenizers of transformers that know no limit name a number of thirty digits.
        return min(trained or self.model.tokenizer_length or longest, longest)


def find_source(path: str, *, part: Role | None = None) -> ExportSource:
    """The model in a folder, or a part of it; by default the encoder to fine-tune, with the head it has."""
    model = open_model(path)
    if model.is_onnx:
        raise InputError(f"{path} was exported to ONNX already: name the run or the folder it was made from")
    if about := task_of(model):
        if part not in (None, "encoder"):
            raise InputError(
                f"{path} was fine-tuned for {about['task']} and has no {part} any more: leave out --part, or "
                "take --part encoder for the encoder without its head"
            )
        return ExportSource(path=path, model=model, part=part)
    part = part or model.role
    if part in ("encoder", model.role):
        return ExportSource(path=path, model=model, part=part)
    partner = model.partner()
    if partner is None or partner.role != part:
        others = [] if partner is None else [partner.role]
        raise InputError(
            f"{path} has no {part} with a head, only: {', '.join([model.role, *others])}. --part encoder "
            "exports the encoder without a head"
        )
    return ExportSource(path=path, model=partner, part=part)


def seal(folder: Path, source: ExportSource, facts: Mapping[str, Any]) -> None:
    """Write the manifest, when everything else is there."""
    values = ModelFolder(folder).values
    # Where things lie on this machine is nobody else's business.
    if start := values.get(TASK_KEY, {}).get("start"):
        values[TASK_KEY]["start"] = Path(start).name
        files.write_json(folder / CONFIG, values)
    kind = KIND if source.part else FINE_TUNED
    files.write_manifest(folder, {**facts, "kind": kind, TOKENS_READ: source.tokens_read})


def check_expressible(source: ExportSource) -> None:
    """Refuse an encoder that transformers has no class for."""
    obstacle = transformers_obstacle(source.config)
    head = head_obstacle(source.model.head_state()) if source.part == "discriminator" else None
    if head is not None:
        raise InputError(
            f"{source.path}: {head}. --part encoder exports the encoder without it, --to onnx all of it; a "
            "model for transformers is pre-trained with --discriminator_head plain, or with --model.backbone "
            "modern"
        )
    if obstacle is not None:
        raise InputError(
            f"{source.path}: {obstacle}. It can be exported with --to onnx and used with electra.load; a "
            "model for transformers is pre-trained with --model.position_embedding_type absolute, or with "
            "--model.backbone modern"
        )


def write_transformers(source: ExportSource, folder: Path) -> str:
    """Fill a folder that is there; the name of the class that loads it."""
    model, role = source.model, source.part
    if source.config.is_modern:
        return write_modern(model, role, folder, max_length=source.max_length)
    check_expressible(source)
    if role is None:
        write_tuned(load_model(model), folder)
        architecture: str = ModelFolder(folder).values["architectures"][0]
        return architecture
    state = {f"{role}.{name}": tensor for name, tensor in model.encoder().state_dict().items()}
    if role != "encoder" and (head := model.head()) is not None:
        state |= {f"{role}_head.{name}": tensor for name, tensor in head.state_dict().items()}
    write_model(folder, lay_out(model.config, state, role), model.tokenizer)
    if role == "encoder":
        add_sentence_transformer(folder, pooling="mean", max_length=source.max_length)
    return ARCHITECTURES[role]


def set_tokenizer(folder: Path, source: ExportSource, **more: str) -> None:
    """Tell the tokenizer of transformers how much the model reads, and that a generator is shown its gaps."""
    settings = files.read_json(folder / SETTINGS_FILE)
    if source.config.is_modern and not ModelFolder(folder).is_onnx:
        # It has no segments, and ModernBERT takes no token_type_ids. A graph has them as an input.
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    if source.part == "generator":
        # Else fill-mask, the one thing it is for, would find no "[MASK]" in any text.
        settings["split_special_tokens"] = False
    files.write_json(folder / SETTINGS_FILE, {**settings, TOKENIZER_LENGTH: source.max_length, **more})
