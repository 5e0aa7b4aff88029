"""A modern encoder of ours with its head <-> the config and the tensors of transformers' ModernBERT.

Without normalised queries and keys, and with embeddings as wide as hidden states, both compute the same.

ModernBERT's heads for tasks end a dense layer, an activation and a norm later than ours, which are one linear
layer on hidden states. The dense layer is then the identity and so is the activation; the encoder's last norm
has weights of 1 and the head's norm those of the encoder, since the norm of what is normalised already is the
same again.

D numbers in a hidden state.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.attention import ROTARY_BASE
from electra.model.names import Role
from electra.model.sizes import LARGEST_SIZE, EncoderConfig
from electra.schema import Within, check, short

MODEL_TYPE = "modernbert"
ROLE_KEY = "electra_role"
"""Key of config.json: which network of pre-training it is. ModernBERT has one class for many things."""
ARCHITECTURES: dict[Role, str] = {
    "discriminator": "ModernBertForTokenClassification",
    "generator": "ModernBertForMaskedLM",
    "encoder": "ModernBertModel",
}
_SCOPE, _FULL, _SLIDING = "model.", "full_attention", "sliding_attention"
_SAME = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "initializer_range",
    "norm_eps": "layer_norm_eps",
    "local_attention": "local_attention_window",
    "embedding_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""Keys by their names there and here."""
_ONLY = {
    "hidden_activation": "gelu",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.tok_embeddings.weight",
    "embeddings.norm.weight": "embeddings.norm.weight",
    "norm.weight": "final_norm.weight",
}
_LAYER = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.output.weight": "attn.Wo.weight",
    "feed_forward_norm.weight": "mlp_norm.weight",
    "feed_forward.inner.weight": "mlp.Wi.weight",
    "feed_forward.output.weight": "mlp.Wo.weight",
}
_PARTS = ("query", "key", "value")
_HEADS: dict[Role, dict[str, str]] = {
    "generator": {
        "dense.weight": "head.dense.weight",
        "norm.weight": "head.norm.weight",
        "bias": "decoder.bias",
    },
    "discriminator": {
        "dense.weight": "head.dense.weight",
        "norm.weight": "head.norm.weight",
        "output.weight": "classifier.weight",
        "output.bias": "classifier.bias",
    },
    "encoder": {},
}


class _Rope(TypedDict, total=False):
    rope_theta: float | None


class _Values(TypedDict):
    hidden_size: int
    num_hidden_layers: Annotated[int, Within(1, LARGEST_SIZE)]
    layer_types: NotRequired[list[str] | None]
    rope_parameters: NotRequired[dict[str, _Rope]]
    electra_role: NotRequired[Role]


def obstacle(config: EncoderConfig) -> str | None:
    """Why ModernBERT cannot express this encoder, or None if it can."""
    if not config.is_modern:
        return f"ModernBERT has backbone='modern' only, this encoder has {config.backbone!r}"
    if config.query_key_norm != "none":
        return f"ModernBERT has query_key_norm='none' only, this encoder has {config.query_key_norm!r}"
    if config.embedding_size != config.hidden_size:
        return (
            f"ModernBERT has embeddings as wide as hidden states, this encoder has embedding_size "
            f"{config.embedding_size} and hidden_size {config.hidden_size}"
        )
    return None


def to_config(config: EncoderConfig, *, pad_token_id: int) -> dict[str, Any]:
    """The values of a ModernBertConfig, without an architecture."""
    assert obstacle(config) is None
    rope = {"rope_type": "default", "rope_theta": ROTARY_BASE}
    reaches = (config.attention_reach(number) for number in range(config.num_hidden_layers))
    return {
        **{theirs: getattr(config, ours) for theirs, ours in _SAME.items()},
        **_ONLY,
        "mlp_dropout": 0.0,
        "model_type": MODEL_TYPE,
        "layer_types": [_FULL if reach is None else _SLIDING for reach in reaches],
        "rope_parameters": {_FULL: rope, _SLIDING: dict(rope)},
        "pad_token_id": pad_token_id,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def from_config(values: Mapping[str, Any]) -> EncoderConfig:
    """The config.json of a ModernBERT as ours; an error names what we do not have."""
    check(values, _Values, where="")
    for key, only in _ONLY.items():
        if values.get(key, only) != only:
            raise InputError(f"{key} is {short(values[key])}, expected {only!r}")
    bases = {values.get("rope_parameters", {}).get(kind, {}).get("rope_theta") for kind in (_FULL, _SLIDING)}
    if bases != {ROTARY_BASE}:
        raise InputError(f"rope_theta is {bases}, expected {ROTARY_BASE} in all layers")
    kinds = values.get("layer_types") or [_FULL]
    every = next((number for number, kind in enumerate(kinds) if number and kind == _FULL), len(kinds))
    if kinds != [_SLIDING if number % every else _FULL for number in range(len(kinds))]:
        raise InputError(
            f"layer_types is {short(kinds)}, expected {_FULL} in every so many layers from the first on"
        )
    return EncoderConfig(
        **{ours: values[theirs] for theirs, ours in _SAME.items() if theirs in values},
        embedding_size=values["hidden_size"],
        backbone="modern",
        position_embedding_type="rotary",
        global_attention_every=every,
    )


def to_tensors(encoder: Mapping[str, Tensor], head: Mapping[str, Tensor], role: Role) -> dict[str, Tensor]:
    """Our state dicts of an encoder and of its head as that of its class in `ARCHITECTURES`."""
    scope = "" if role == "encoder" else _SCOPE
    found = {f"{scope}{theirs}": encoder[ours] for ours, theirs in _EMBEDDINGS.items()}
    number = 0
    while f"layers.{number}.attention.output.weight" in encoder:
        layer = f"layers.{number}."
        for ours, theirs in _LAYER.items():
            # The first layer has no norm before its attention.
            if layer + ours in encoder:
                found[f"{scope}{layer}{theirs}"] = encoder[layer + ours]
        parts = [encoder[f"{layer}attention.{part}.weight"] for part in _PARTS]
        found[f"{scope}{layer}attn.Wqkv.weight"] = torch.cat(parts)
        number += 1
    found |= {theirs: head[ours] for ours, theirs in _HEADS[role].items()}
    if role == "generator":
        found["decoder.weight"] = encoder["embeddings.word_embeddings.weight"]
    return found


def with_linear_head(encoder: Mapping[str, Tensor], weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """The state dict of a class with a head for tasks that computes a linear layer on hidden states."""
    found = to_tensors(encoder, {}, "encoder")
    norm_D = encoder["norm.weight"]
    return {
        **{f"{_SCOPE}{name}": tensor for name, tensor in found.items()},
        f"{_SCOPE}final_norm.weight": torch.ones_like(norm_D),
        "head.dense.weight": torch.eye(len(norm_D)),
        "head.norm.weight": norm_D,
        "classifier.weight": weight,
        "classifier.bias": bias,
    }


LINEAR_HEAD = {"classifier_activation": "linear"}
"""What config.json says of such a head."""


def from_tensors(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the functions above made, by our names: `encoder.` and the head of the role, if it has one."""
    scope = _SCOPE if any(name.startswith(_SCOPE) for name in tensors) else ""
    role: Role = values.get(ROLE_KEY, "encoder")
    own = {f"encoder.{ours}": tensors[f"{scope}{theirs}"] for ours, theirs in _EMBEDDINGS.items()}
    if values.get("classifier_activation") == LINEAR_HEAD["classifier_activation"]:
        norms = [own["encoder.norm.weight"], tensors["head.norm.weight"]]
        if norms[0].shape != norms[1].shape:
            raise InputError(f"norms have the shapes {[list(norm.shape) for norm in norms]}, expected one")
        own["encoder.norm.weight"] = norms[0] * norms[1]
    for number in range(values["num_hidden_layers"]):
        layer = f"layers.{number}."
        for ours, theirs in _LAYER.items():
            if f"{scope}{layer}{theirs}" in tensors:
                own[f"encoder.{layer}{ours}"] = tensors[f"{scope}{layer}{theirs}"]
        joined = tensors[f"{scope}{layer}attn.Wqkv.weight"]
        if joined.dim() != 2 or len(joined) % 3:
            raise InputError(f"attn.Wqkv.weight has the shape {list(joined.shape)}, expected three in one")
        for part, weight in zip(_PARTS, joined.chunk(3), strict=True):
            own[f"encoder.{layer}attention.{part}.weight"] = weight.contiguous()
    return own | {f"{role}_head.{ours}": tensors[theirs] for ours, theirs in _HEADS[role].items()}
