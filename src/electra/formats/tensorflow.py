"""An original TensorFlow checkpoint with its vocab.txt -> both encoders, their sizes, and Adam's moments.

A checkpoint has no config: sizes are read off the shapes of its variables.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.formats.imported import Imported
from electra.formats.tensor_bundle import INDEX_SUFFIX, TensorBundle, open_bundle
from electra.model import names
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.model.store import require_networks
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import VOCABULARY_FILE, Tokenizer

STEP = "global_step"
MOMENTS = {"exp_avg": "/adam_m", "exp_avg_sq": "/adam_v"}
"""Our name of each moment -> what the original appends to the name of the weight."""
HEAD_SIZE = 64
"""Width of an attention head in all of the authors' models."""
# Heads of tasks, and a variable that some checkpoints carry along, are no part of pre-training.
_LEFT_OUT = re.compile(r"task_specific/|temperature$")
_PARTS: tuple[Role, ...] = ("discriminator", "generator")
_QUERY = "layers.0.attention.query.weight"


def read_tensorflow(
    path: str | Path, *, vocabulary: str | Path | None = None, num_attention_heads: int | None = None
) -> Imported:
    """The model of a checkpoint; its vocabulary is in the same folder unless another is given."""
    bundle = open_bundle(path)
    kept = {name for name in bundle.variables if not _LEFT_OUT.search(name)}
    moments = {ours: {name for name in kept if name.endswith(end)} for ours, end in MOMENTS.items()}
    weights = kept - {STEP}.union(*moments.values())
    # Checked before the weights, which take long to read.
    tokenizer = _read_tokenizer(bundle, vocabulary)
    state = _read_state(bundle, weights)
    where = str(bundle.prefix)
    sizes = recognise(state, where=where, num_attention_heads=num_attention_heads)
    used = _of_roles(state, sizes)
    require_networks(sizes, used, where=where)
    _check_vocabulary(tokenizer, next(iter(sizes.values())), where=where)
    return Imported(
        sizes=sizes,
        state=used,
        tokenizer=tokenizer,
        source=_describe(bundle),
        left_out=tuple(sorted(bundle.variables.keys() - kept)),
        moments={
            ours: _of_roles(values, sizes) for ours, values in _read_moments(bundle, moments, weights).items()
        },
        step=_read_step(bundle),
    )


def recognise(
    state: Mapping[str, Any], *, where: str, num_attention_heads: int | None = None
) -> dict[Role, EncoderConfig]:
    """The sizes of every encoder in a state dict of ours, which needs to have no more than shapes."""
    parts = [part for part in _PARTS if any(name.startswith(f"{part}_head.") for name in state)]
    if not parts:
        # A model that was trained for a task: only its encoder is of use.
        return {"encoder": _encoder_sizes(state, "discriminator.", where, num_attention_heads)}
    found: dict[Role, EncoderConfig] = {}
    for part in parts:
        heads = num_attention_heads
        if found:
            # As in the original: heads of both encoders are of one size, so a narrow one has fewer.
            width = _size(state, f"{part}.{_QUERY}", 0, where)
            heads = max(1, width // found[parts[0]].head_size)
        found[part] = _encoder_sizes(state, f"{part}.", where, heads)
    return found


def _of_roles(state: Mapping[str, Tensor], sizes: Mapping[Role, EncoderConfig]) -> dict[str, Tensor]:
    """What belongs to the encoders that were recognised."""
    if "encoder" in sizes:
        scope = "discriminator."
        return {f"encoder.{name[len(scope) :]}": state[name] for name in state if name.startswith(scope)}
    scopes = tuple(f"{role}{end}" for role in sizes for end in (".", "_head."))
    return {name: tensor for name, tensor in state.items() if name.startswith(scopes)}


def _encoder_sizes(
    state: Mapping[str, Any], scope: str, where: str, num_attention_heads: int | None
) -> EncoderConfig:
    words, inner = "embeddings.word_embeddings.weight", "layers.0.feed_forward.inner.weight"
    hidden_size = _size(state, f"{scope}{_QUERY}", 0, where)
    layers = {match[1] for match in re.finditer(rf"^{scope}layers\.(\d+)\.", "\n".join(state), re.MULTILINE)}
    try:
        return EncoderConfig(
            vocab_size=_size(state, f"{scope}{words}", 0, where),
            embedding_size=_size(state, f"{scope}{words}", 1, where),
            hidden_size=hidden_size,
            num_hidden_layers=len(layers),
            num_attention_heads=num_attention_heads or max(1, hidden_size // HEAD_SIZE),
            intermediate_size=_size(state, f"{scope}{inner}", 0, where),
            max_position_embeddings=_size(state, f"{scope}embeddings.position_embeddings.weight", 0, where),
            type_vocab_size=_size(state, f"{scope}embeddings.token_type_embeddings.weight", 0, where),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}; say how many with --num_attention_heads") from error


def _size(state: Mapping[str, Any], name: str, axis: int, where: str) -> int:
    if name not in state or len(state[name].shape) <= axis:
        raise InputError(f"{where} has no {name}: is it an ELECTRA checkpoint?")
    return int(state[name].shape[axis])


def _read_state(bundle: TensorBundle, variables: Iterable[str], *, suffix: str = "") -> dict[str, Tensor]:
    """Variables by our names, without what is appended to their own."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for name in sorted(variables):
        array = bundle.read(name)
        if array.dtype.kind != "f":
            raise InputError(f"{bundle.prefix}: {name} holds {array.dtype}, expected floating-point numbers")
        arrays[name.removesuffix(suffix)] = array.astype(np.float32, copy=False)
    try:
        return names.from_tensorflow(arrays)
    except InputError as error:
        raise InputError(f"{bundle.prefix}: {error}") from error


def _read_moments(
    bundle: TensorBundle, moments: Mapping[str, set[str]], weights: set[str]
) -> dict[str, dict[str, Tensor]]:
    """Both moments of every weight, or none."""
    if not any(moments.values()):
        return {}
    for ours, end in MOMENTS.items():
        if different := sorted(weights ^ {name.removesuffix(end) for name in moments[ours]}):
            raise InputError(
                f"{bundle.prefix} has optimizer slots, but {different[0]} and {different[0]}{end} are not "
                f"both there (as for {len(different) - 1} more): is the checkpoint whole?"
            )
        for name in moments[ours]:
            weight = bundle.variables[name.removesuffix(end)]
            if bundle.variables[name].shape != weight.shape:
                raise InputError(f"{bundle.prefix}: {name} has another shape than its weight")
    return {ours: _read_state(bundle, moments[ours], suffix=end) for ours, end in MOMENTS.items()}


def _read_step(bundle: TensorBundle) -> int:
    if STEP not in bundle.variables:
        return 0
    step = bundle.read(STEP)
    if step.size != 1 or step.dtype.kind not in "iu" or step.item() < 0:
        raise InputError(f"{bundle.prefix}: {STEP} is {step.dtype} {list(step.shape)}, expected a step")
    return int(step.item())


def _read_tokenizer(bundle: TensorBundle, vocabulary: str | Path | None) -> Tokenizer:
    path = Path(vocabulary) if vocabulary else bundle.prefix.with_name(VOCABULARY_FILE)
    if not path.exists():
        raise InputError(
            f"there is no {path}: a checkpoint does not hold its vocabulary; give --vocab FILE, the "
            f"{VOCABULARY_FILE} that the model was trained with"
        )
    return tokenizers.load_tokenizer(path)


def _check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, *, where: str) -> None:
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"the vocabulary has {tokenizer.vocab_size:,} entries, the table of {where} "
            f"{config.vocab_size:,} rows: give the {VOCABULARY_FILE} that the model was trained with. If "
            "its table was made larger than the vocabulary, append lines such as [unused1] until both agree"
        )


def _describe(bundle: TensorBundle) -> dict[str, str]:
    index = bundle.prefix.with_name(bundle.prefix.name + INDEX_SUFFIX)
    # The index holds the checksum of every variable, so its own covers everything.
    return {"format": "tensorflow", "path": str(bundle.prefix), "index_sha256": files.sha256(index)}
