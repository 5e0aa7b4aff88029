"""Folders of transformers (ELECTRA's discriminator, generator, or any model of BERT's shape) -> our names."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.sizes import EncoderConfig
from electra.ship.importing import Imported, Role, check_shapes
from electra.tasks import encoders
from electra.tasks.encoders import CONFIG, OWN_LAYOUT, WEIGHTS
from electra.text.tokenizer import Tokenizer

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
        read.append(encoders.load_tokenizer(folder, config))
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
    if encoders.read_values(folder).get("model_type") == OWN_LAYOUT:
        raise InputError(f"{folder} is a model of ours already: use it as it is")
    config = encoders.read_config(folder)
    tensors = encoders.read_tensors(folder)
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
    return files.sha256(path if path.is_file() else folder / encoders.INDEX)
