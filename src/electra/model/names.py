"""Tensors and configs of transformers and of the original TensorFlow code <-> ours, by one table of names.

Our names are those of the state dict of a pre-training model: `generator.`, `generator_head.`,
`discriminator.`, `discriminator_head.`; an encoder that belongs to neither is under `encoder.`. TensorFlow
keeps all of it in one checkpoint, transformers has a class for each encoder with its head.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import InputError
from electra.model.sizes import MODERN_KEYS, EncoderConfig, transformers_obstacle
from electra.schema import short

Format = Literal["ours", "transformers", "tensorflow"]
Role = Literal["discriminator", "generator", "encoder"]
"""What an encoder is for: one of the two of pre-training, with its head, or any other, without a head."""


class Names(NamedTuple):
    """What one thing is called in each format. `{n}` is the number of a layer."""

    ours: str
    transformers: str
    tensorflow: str


def name_table(text: str) -> list[tuple[Names, str]]:
    """The lines of a table: a module's three names, and its kind."""
    return [(Names(*words[:3]), words[3]) for words in map(str.split, text.strip().splitlines())]


# The tensors of a module, by its kind. A kernel of TensorFlow is (in, out), a weight elsewhere (out, in).
KINDS = {
    "table": [Names(".weight", ".weight", "")],
    "dense": [Names(".weight", ".weight", "/kernel"), Names(".bias", ".bias", "/bias")],
    "norm": [Names(".weight", ".weight", "/gamma"), Names(".bias", ".bias", "/beta")],
    "bias": [Names(".bias", ".bias", "")],
}

EMBEDDINGS = name_table("""
embeddings.word_embeddings        embeddings.word_embeddings        embeddings/word_embeddings        table
embeddings.position_embeddings    embeddings.position_embeddings    embeddings/position_embeddings    table
embeddings.token_type_embeddings  embeddings.token_type_embeddings  embeddings/token_type_embeddings  table
embeddings.norm                   embeddings.LayerNorm              embeddings/LayerNorm              norm
projection                        embeddings_project                embeddings_project                dense
""")

LAYER_SCOPE = Names("layers.{n}.", "encoder.layer.{n}.", "encoder/layer_{n}/")
LAYER = name_table("""
attention.query      attention.self.query        attention/self/query        dense
attention.key        attention.self.key          attention/self/key          dense
attention.value      attention.self.value        attention/self/value        dense
attention.output     attention.output.dense      attention/output/dense      dense
attention_norm       attention.output.LayerNorm  attention/output/LayerNorm  norm
feed_forward.inner   intermediate.dense          intermediate/dense          dense
feed_forward.output  output.dense                output/dense                dense
feed_forward_norm    output.LayerNorm            output/LayerNorm            norm
""")

ARCHITECTURES: dict[Role, str] = {
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
    "encoder": "ElectraModel",
}
"""The class of transformers that loads each of them."""
ENCODER_SCOPE: dict[Role, Names] = {
    "discriminator": Names("discriminator.", "electra.", "electra/"),
    "generator": Names("generator.", "electra.", "generator/"),
    "encoder": Names("encoder.", "", "electra/"),
}
HEADS: dict[Role, list[tuple[Names, str]]] = {
    "discriminator": name_table("""
discriminator_head.dense   discriminator_predictions.dense             discriminator_predictions/dense   dense
discriminator_head.output  discriminator_predictions.dense_prediction  discriminator_predictions/dense_1 dense
"""),
    "generator": name_table("""
generator_head.dense  generator_predictions.dense      generator_predictions/dense        dense
generator_head.norm   generator_predictions.LayerNorm  generator_predictions/LayerNorm    norm
generator_head        generator_lm_head                generator_predictions/output_bias  bias
"""),
    "encoder": [],
}

READABLE = ("electra", "bert")
"""The `model_type` of encoders of transformers that are read: those of BERT's layers."""
NO_SCOPE = Names("", "", "")

# A generator's head shares the table of word embeddings, which transformers therefore names twice.
TIED = Names("generator.embeddings.word_embeddings.weight", "generator_lm_head.weight", "")
_WORD_TABLE = "embeddings.word_embeddings.weight"
BERT_HEAD_SCOPE = "cls.predictions."
# The head of a BERT that was trained as a masked language model has the parts of a generator's.
_BERT_HEAD = {
    "transform.dense.weight": "dense.weight",
    "transform.dense.bias": "dense.bias",
    "transform.LayerNorm.weight": "norm.weight",
    "transform.LayerNorm.bias": "norm.bias",
    "bias": "bias",
}
_BERT_TIED = {"decoder.weight": f"bert.{_WORD_TABLE}", "decoder.bias": f"{BERT_HEAD_SCOPE}bias"}
"""What it has twice, and where it is the first time."""
_BODIES = ("electra.", "bert.")
"""Where transformers keeps the encoder of a model with a head."""
_PARTS = ("embeddings.", "embeddings_project.", "encoder.")
"""What the names of an encoder's own tensors begin with."""
_BUFFERS = (".position_ids", ".token_type_ids")
"""Ends of the names of tensors that are no weights."""
_OLD_NORMS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
"""Ends of names in early conversions from TensorFlow, and what they are called since."""


def tensors(modules: list[tuple[Names, str]], scope: Names = NO_SCOPE) -> Iterator[Names]:
    """All tensors of some modules, under a scope."""
    for names, kind in modules:
        for suffix in KINDS[kind]:
            yield Names(*("".join(parts) for parts in zip(scope, names, suffix, strict=True)))


ENCODER = [*tensors(EMBEDDINGS), *tensors(LAYER, LAYER_SCOPE)]


def role_table(role: Role) -> list[Names]:
    """All tensors of an encoder with its head."""
    scope = ENCODER_SCOPE[role]
    encoder = [Names(*("".join(pair) for pair in zip(scope, names, strict=True))) for names in ENCODER]
    return [*encoder, *tensors(HEADS[role])]


MODEL = [*role_table("discriminator"), *role_table("generator")]


def layer_depth(name: str, *, num_layers: int) -> int:
    """The depth of a parameter of ours: 0 for embeddings, i + 1 for layer i, num_layers + 1 for a head."""
    if layer := re.search(r"(?:^|\.)layers\.(\d+)\.", name):
        return int(layer[1]) + 1
    return 0 if re.search(r"(?:^|\.)(embeddings|projection)\.", name) else num_layers + 1


def is_layer_matrix(name: str) -> bool:
    """Whether a parameter of ours is a matrix of a layer: of its attention or of its feed-forward part."""
    return re.search(r"(?:^|\.)layers\.\d+\.(attention|feed_forward)\..*weight$", name) is not None


def translate(name: str, names: list[Names], source: Format, target: Format) -> str:
    """One tensor's name in another format."""
    layer = re.search(r"(?<=layers\.)\d+|(?<=layer[._])\d+", name)
    pattern = name if layer is None else f"{name[: layer.start()]}{{n}}{name[layer.end() :]}"
    for row in names:
        if getattr(row, source) == pattern:
            found: str = getattr(row, target)
            return found if layer is None else found.replace("{n}", layer[0])
    raise InputError(f"{name!r} is not a tensor that an ELECTRA model has, by the names of {source}")


def name_shared_once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict with what both encoders share, embeddings or all, under the discriminator only."""
    found: dict[str, Tensor] = {}
    pair = any(name.startswith("discriminator.") for name in state)
    for name, tensor in state.items():
        twin = name.replace("generator.", "discriminator.", 1)
        # A list of parameters without duplicates has them under whichever encoder comes first.
        shared = name.startswith("generator.embeddings.") and pair and twin not in state
        same = twin in state and state[twin].data_ptr() == tensor.data_ptr()
        found[twin if shared or same else name] = tensor
    return found


def name_shared_twice(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with what is shared under both encoders, as `load_state_dict` expects it."""
    found = dict(state)
    own_layers = any(name.startswith("generator.layers.") for name in state)
    shared = "discriminator.embeddings." if own_layers else "discriminator."
    if any(name.startswith(("generator.", "generator_head.")) for name in state):
        for name, tensor in state.items():
            if name.startswith(shared):
                found.setdefault(name.replace("discriminator.", "generator.", 1), tensor)
    return found


def to_tensorflow(state: Mapping[str, Tensor], names: list[Names] = MODEL) -> dict[str, NDArray[np.float32]]:
    """Our state dict as the variables of an original checkpoint."""
    variables = {}
    for ours, tensor in name_shared_once(state).items():
        name = translate(ours, names, "ours", "tensorflow")
        array = tensor.detach().float().cpu().numpy()
        variables[name] = (array.T if name.endswith("kernel") else array).copy(order="C")
    return variables


def from_tensorflow(
    variables: Mapping[str, NDArray[np.float32]], names: list[Names] = MODEL
) -> dict[str, Tensor]:
    """The variables of an original checkpoint, without its optimizer, as our state dict."""
    state = {}
    for name, array in variables.items():
        if name == "global_step" or name.endswith(("/adam_m", "/adam_v")):
            continue
        layout = (array.T if name.endswith("kernel") else array).copy(order="C")
        state[translate(name, names, "tensorflow", "ours")] = torch.from_numpy(layout)
    return name_shared_twice(state)


def to_transformers(state: Mapping[str, Tensor], role: Role) -> dict[str, Tensor]:
    """One encoder of our state dict, with its head, as the state dict of its class in `ARCHITECTURES`."""
    names = role_table(role)
    found = {
        translate(ours, names, "ours", "transformers"): tensor
        for ours, tensor in state.items()
        if ours.startswith((f"{role}.", f"{role}_head."))
    }
    if role == "generator":
        found[TIED.transformers] = state[TIED.ours]
    return found


def from_transformers(state: Mapping[str, Tensor], role: Role) -> dict[str, Tensor]:
    """The state dict of a class in `ARCHITECTURES` as one encoder of ours with its head."""
    names = role_table(role)
    return {
        translate(name, names, "transformers", "ours"): tensor
        for name, tensor in state.items()
        if name != TIED.transformers and not name.endswith(_BUFFERS)
    }


def encoder_to_transformers(state: Mapping[str, Tensor], *, scope: str = "") -> dict[str, Tensor]:
    """The state dict of our Encoder as that of ElectraModel, or as its part of a model with a head."""
    return {
        f"{scope}{translate(ours, ENCODER, 'ours', 'transformers')}": tensor for ours, tensor in state.items()
    }


def encoder_from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder in a state dict of transformers (ELECTRA or BERT, any head or none) as our Encoder's."""
    scope = transformers_scope(state)
    return {
        translate(name.removeprefix(scope), ENCODER, "transformers", "ours"): tensor
        for name, tensor in state.items()
        if is_encoder_tensor(name, scope) and not name.endswith(_BUFFERS)
    }


def is_encoder_tensor(name: str, scope: str) -> bool:
    """Whether a tensor of transformers belongs to the encoder below a scope; a pooler is a head."""
    if not scope:
        return name.startswith(_PARTS)
    return name.startswith(scope) and not name.startswith(f"{scope}pooler.")


def unwrapped(state: Mapping[str, Tensor], *, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a model that is part of another one, by the names that it has by itself.

    Whoever keeps a model as `self.model` or `self.backbone` saves its weights under that name. `prefix`: what
    the names of the encoder begin with, if there are several.
    """
    state = {_with_new_norm(name): tensor for name, tensor in state.items()}
    # In order: that of a file is not the same every time.
    found_in = sorted(name for name in state if f".{name}".endswith(f".{_WORD_TABLE}"))
    places = [name.removesuffix(_WORD_TABLE) for name in found_in]
    chosen = [place for place in places if place.startswith(prefix)]
    if prefix and not chosen:
        found = ", ".join(repr(place) for place in places) or "nothing"
        raise InputError(f"no encoder's names begin with {prefix!r}, only with {found}: change --prefix")
    if len(chosen) > 1:
        found = ", ".join(repr(place) for place in chosen)
        raise InputError(
            f"there are {len(chosen)} encoders, whose names begin with {found}: choose one with `electra "
            "import --prefix`"
        )
    if not chosen:
        return state
    (place,) = chosen
    body = next((body for body in _BODIES if f".{place}".endswith(f".{body}")), "")
    outer = place.removesuffix(body)
    found_twice = [name for name in state if outer and name.startswith(outer) and name[len(outer) :] in state]
    if found_twice:
        raise InputError(f"both {found_twice[0]} and {found_twice[0][len(outer) :]} are there: which is it?")
    return {name.removeprefix(outer): tensor for name, tensor in state.items()}


def _with_new_norm(name: str) -> str:
    end = next((end for end in _OLD_NORMS if name.endswith(end)), "")
    return f"{name.removesuffix(end)}{_OLD_NORMS.get(end, end)}"


def bert_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head of a BERT's masked language model as a generator's, by our names; empty if there is none such.

    Both are the same layers, as long as the output shares the table of word embeddings.
    """
    found = {
        ours: state[name]
        for theirs, ours in _BERT_HEAD.items()
        if (name := BERT_HEAD_SCOPE + theirs) in state
    }
    is_tied = all(
        torch.equal(state[BERT_HEAD_SCOPE + name], state[twin])
        for name, twin in _BERT_TIED.items()
        if BERT_HEAD_SCOPE + name in state and twin in state
    )
    return found if is_tied and len(found) == len(_BERT_HEAD) else {}


def inner_config(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """The config of an ELECTRA or BERT that is nested in another one, over what that says; else as it is.

    `prefix`: what the names of the encoder begin with, if there are several.
    """
    found = dict(_nested(values))
    if not found:
        return dict(values)
    chosen = [keys for keys in found if prefix.startswith(f"{keys.rpartition('.')[2]}.")] or list(found)
    if len(chosen) > 1:
        raise InputError(
            f"there are several configs in it: {', '.join(chosen)}. Choose one with `electra import "
            f"--prefix`, such as --prefix {chosen[0].rpartition('.')[2]}."
        )
    inner = {key: value for key, value in found[chosen[0]].items() if value is not None}
    outer = {key: value for key, value in values.items() if key != chosen[0].partition(".")[0]}
    return {**outer, **inner}


def _nested(values: Mapping[str, Any], keys: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every ELECTRA or BERT below, by the keys that lead to it."""
    for key, value in values.items():
        if isinstance(value, dict):
            place = f"{keys}{key}"
            if value.get("model_type") in READABLE:
                yield place, value
            else:
                yield from _nested(value, f"{place}.")


def transformers_scope(state: Iterable[str]) -> str:
    """What the names of the encoder begin with: nothing, if the model is an encoder alone."""
    state = list(state)
    return next((scope for scope in _BODIES if any(name.startswith(scope) for name in state)), "")


def to_transformers_config(config: EncoderConfig) -> dict[str, Any]:
    """The values of an ElectraConfig; an error says why there is none."""
    obstacle = transformers_obstacle(config)
    if obstacle is not None:
        raise InputError(obstacle)
    values = dataclasses.asdict(config)
    for key in ("position_embedding_type", *MODERN_KEYS):
        del values[key]
    return {**values, "model_type": "electra", "hidden_act": "gelu"}


def from_transformers_config(values: Mapping[str, Any]) -> EncoderConfig:
    """The config.json of an ELECTRA or BERT model as ours; an error names what we do not support."""
    for key, only in (("hidden_act", "gelu"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
        if values.get(key, only) != only:
            raise InputError(f"{key} is {short(values[key])}, only {only!r} can be imported")
    known = {field.name for field in dataclasses.fields(EncoderConfig)} - {*MODERN_KEYS}
    # BERT has no embedding size of its own.
    sizes = {"embedding_size": values["hidden_size"], **values}
    return EncoderConfig(**{key: value for key, value in sizes.items() if key in known})
