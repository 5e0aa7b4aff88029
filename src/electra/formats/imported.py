"""A foreign model, read -> a folder with each of its encoders in transformers' layout, as a run's `final`.

OUT/manifest.json    which folder has the encoder, where it came from, and the checksum of every file
OUT/discriminator/   config.json, model.safetensors, tokenizer: ElectraForPreTraining
OUT/generator/       the same: ElectraForMaskedLM
OUT/encoder/         in place of both where the source has neither head: ElectraModel
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor, nn

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.tasks.folders import CONFIG, WEIGHTS
from electra.text.tokenizer import Tokenizer

Role = Literal["discriminator", "generator", "encoder"]
"""What an encoder is for: one of the two of pre-training with its head, or alone."""

ARCHITECTURES: dict[Role, str] = {
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
    "encoder": "ElectraModel",
}


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model by our names, as it was found."""

    sizes: Mapping[Role, EncoderConfig]
    """Of every encoder that there is; the first one goes on to fine-tuning."""
    state: Mapping[str, Tensor]
    """Weights by role and name, such as discriminator.layers.0…, with what encoders share under both."""
    tokenizer: Tokenizer
    source: Mapping[str, Any]
    """Format, path and checksum of what was read."""
    left_out: tuple[str, ...] = ()
    """Tensors of the source that have no place here."""
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Of the original's Adam: exp_avg and exp_avg_sq of every weight; empty if the source has none."""
    step: int = 0
    """Updates that led to the weights, if the source knows."""


def check_shapes(sizes: Mapping[Role, EncoderConfig], state: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse weights that are not exactly those of encoders of these sizes with their heads."""
    expected: dict[str, torch.Size] = {}
    with torch.device("meta"):
        for role, config in sizes.items():
            modules: dict[str, nn.Module] = {f"{role}.": Encoder(config)}
            if role != "encoder":
                modules[f"{role}_head."] = (DiscriminatorHead if role == "discriminator" else GeneratorHead)(
                    config
                )
            for scope, module in modules.items():
                expected |= {f"{scope}{name}": tensor.shape for name, tensor in module.state_dict().items()}
    if different := sorted(expected.keys() ^ state.keys()):
        verb = "lacks" if different[0] in expected else "has an unknown"
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        raise InputError(f"{where} {verb} weight {different[0]}{more}: is it a whole ELECTRA or BERT model?")
    for name, shape in expected.items():
        if state[name].shape != shape:
            raise InputError(
                f"{where}: {name} has shape {list(state[name].shape)}, by the other sizes it should be "
                f"{list(shape)}"
            )


def write_imported(imported: Imported, folder: Path) -> None:
    """Write a folder that appears when it is whole."""
    refuse_full(folder)
    with files.appearing_whole(folder) as unfinished:
        for role, config in imported.sizes.items():
            target = unfinished / role
            target.mkdir()
            values = {**names.to_transformers_config(config), "architectures": [ARCHITECTURES[role]]}
            files.write_json(target / CONFIG, values)
            whole = {
                name: tensor.contiguous().clone() for name, tensor in _foreign(imported.state, role).items()
            }
            safetensors.torch.save_file(whole, target / WEIGHTS, metadata={"format": "pt"})
            imported.tokenizer.save(target)
        facts = {
            "kind": "model",
            "step": imported.step,
            "encoder": next(iter(imported.sizes)),
            "obstacles": dict.fromkeys(imported.sizes),
            "imported_from": dict(imported.source),
        }
        files.write_manifest(unfinished, facts)


def refuse_full(folder: Path) -> None:
    """Nothing that is there already is written over."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty: choose another folder, or remove it first")


def _foreign(state: Mapping[str, Tensor], role: Role) -> dict[str, Tensor]:
    if role != "encoder":
        return names.to_transformers(state, role)
    return names.encoder_to_transformers(
        {name.removeprefix("encoder."): tensor for name, tensor in state.items()}
    )
