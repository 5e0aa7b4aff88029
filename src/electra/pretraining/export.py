"""A trained objective -> a folder for each of its encoders, for transformers where it can express them."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from electra.model import names
from electra.model.encoder import Encoder
from electra.model.names import Part
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.pretraining.objectives.protocol import Objective

_ARCHITECTURES = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}


def export_networks(objective: Objective, folder: Path) -> dict[str, str | None]:
    """Write folder/discriminator and folder/generator; part -> why it is in our own layout, or None."""
    obstacles: dict[str, str | None] = {}
    state = objective.plain_state()
    for part in ("discriminator", "generator"):
        encoder = getattr(objective, part, None)
        if encoder is None or not list(encoder.parameters()):
            continue
        obstacles[part] = _obstacle(encoder)
        target = folder / part
        target.mkdir(parents=True)
        if obstacles[part] is None:
            config, tensors = _as_transformers(encoder.config, state, part)
        else:
            config, tensors = _as_ours(encoder, state, part, obstacles[part])
        _write_json(target / "config.json", config)
        whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        safetensors.torch.save_file(whole, target / "model.safetensors", metadata={"format": "pt"})
    return obstacles


def _obstacle(encoder: object) -> str | None:
    if not isinstance(encoder, Encoder):
        return f"transformers has no {type(encoder).__name__}"
    return transformers_obstacle(encoder.config)


def _as_transformers(
    config: EncoderConfig, state: dict[str, Tensor], part: Part
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    values = names.to_transformers_config(config)
    if any(name.startswith(f"{part}_head.") for name in state):
        return {**values, "architectures": [_ARCHITECTURES[part]]}, names.to_transformers(state, part)
    # An objective that trains the encoder through another head, which transformers does not have.
    own = {
        name.removeprefix(f"{part}."): tensor for name, tensor in state.items() if name.startswith(f"{part}.")
    }
    return {**values, "architectures": ["ElectraModel"]}, names.encoder_to_transformers(own)


def _as_ours(
    encoder: Any, state: dict[str, Tensor], part: str, obstacle: str | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    sizes = vars(encoder.config) if isinstance(encoder, Encoder) else {}
    config = {**sizes, "model_type": "electra-own", "not_transformers_because": obstacle}
    own = {name: tensor for name, tensor in state.items() if name.startswith((f"{part}.", f"{part}_head."))}
    return config, own


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
