"""A trained model -> the first weights of another run, also of one with another vocabulary.

`electra pretrain --start PATH` takes a run, or a folder of networks: a run's `final`, what `electra import`
wrote, an ELECTRA or BERT of transformers. The new run counts its steps from 0; its networks begin with the
weights of those of the same name, and its model keys have the start's values unless they are given.

If the data was made with another tokenizer, tables over the vocabulary are carried over: a token that both
know keeps its row, a new one starts as the mean of the old tokens that its text was cut into before, and one
that the old vocabulary could not write as the mean of all rows. Biases over the vocabulary, and the deltas of
disentangled embeddings, go the same way.

V tokens of the old vocabulary, N of the new one, E numbers in a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra.config import read_yaml
from electra.errors import InputError
from electra.model.names import Role
from electra.model.sizes import Backbone, EncoderConfig
from electra.model.store import TOKENS_READ, ModelFolder, open_model
from electra.store.cache import with_urls
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import Tokenizer
from electra.text.vocabulary import CONTINUATION
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.engine import CONFIG, flatten
from electra.train.session import CHECKPOINTS

STARTED_FROM = "started_from"
"""Key of a run's facts: where its first weights come from; None if they were random."""
STRUCTURE = ("objective", "model", "generator", "discriminator_head")
"""Keys of a run that say which networks there are."""
MOST_LARGER = 64
"""Weights that a run may have for each one of its start, beside those of the vocabulary."""
_TABLE = ".embeddings.word_embeddings."
_WORD_START = "a"
_PER_TOKEN = ("generator_head.bias", "recovery_head.bias", "output_vectors.weight")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A trained model, read."""

    path: Path
    weights: Mapping[str, Tensor]
    """By the names of an objective's state dict, such as discriminator.layers.0…"""
    tokenizer: Tokenizer
    facts: Mapping[str, Any]
    """Where the weights come from, for the run's checkpoints."""

    def require_room(self, encoder: EncoderConfig) -> None:
        """Refuse an encoder far larger than these weights, before it is built: a stranger's config can ask
        for all memory. What is somewhat larger is named later, by the weight that does not fit."""
        layer = encoder.hidden_size * (4 * encoder.hidden_size + 2 * encoder.intermediate_size)
        asked = encoder.num_hidden_layers * layer + encoder.max_position_embeddings * encoder.embedding_size
        there = sum(tensor.numel() for tensor in self.weights.values())
        if asked > MOST_LARGER * there:
            raise InputError(
                f"--start {self.path} has {there:,} weights, and the keys of model ask for about {asked:,}: "
                "they do not belong together"
            )


def is_run(path: Path) -> bool:
    """Whether a start is a run with its checkpoints, and not only a folder of networks."""
    return (path / CHECKPOINTS).is_dir()


def run_keys(path: Path) -> dict[str, Any]:
    """The keys that built the networks of a run, dotted; unset ones are left out."""
    values = _read_run_config(path)
    keys = flatten({key: values[key] for key in STRUCTURE if key in values})
    # How its embeddings began is nothing that a run which takes its weights could repeat.
    return {key: value for key, value in keys if value is not None and key != "model.embedding_start"}


def read_networks(path: Path) -> dict[Role, ModelFolder]:
    """The networks in a folder: a discriminator, a generator, or both; a bare encoder is a discriminator."""
    folder = open_model(path)
    networks = [folder, partner] if (partner := folder.partner()) else [folder]
    for network in networks:
        # A run is built by their configs, which must be those of their weights.
        network.encoder_state()
    return {"discriminator" if part.role == "encoder" else part.role: part for part in networks}


def read_start(path: Path) -> Start:
    """The weights of a run's newest checkpoint, or of a folder of networks, and their tokenizer."""
    if not is_run(path):
        networks = read_networks(path)
        weights = {name: tensor for role, part in networks.items() for name, tensor in _named(role, part)}
        first = next(iter(networks.values()))
        facts = {"path": with_urls(str(path)), "step": first.run.get("step"), TOKENS_READ: first.tokens_read}
        return Start(path=path, weights=weights, tokenizer=first.tokenizer, facts=facts)
    values = _read_run_config(path)
    checkpoint = CheckpointStore(path / CHECKPOINTS, CheckpointConfig()).load_latest(lambda problem: None)
    if checkpoint is None:
        raise InputError(f"--start {path} has no checkpoint in {CHECKPOINTS}")
    weights = dict(checkpoint.tensors["model"])
    if values.get("generator", {}).get("sharing") == "embeddings":
        # A checkpoint holds what two networks share once, under the generator's name.
        for name in [name for name in weights if name.startswith("generator.embeddings.")]:
            weights.setdefault(name.replace("generator.", "discriminator.", 1), weights[name])
    facts = {
        "path": with_urls(str(path)),
        "step": checkpoint.step,
        "tokens": checkpoint.facts["tokens"],
        TOKENS_READ: all_tokens_read(checkpoint.facts["tokens"], checkpoint.facts.get(STARTED_FROM)),
    }
    words = _run_tokenizer(path, values, checkpoint.facts["tokenizer_sha256"])
    return Start(path=path, weights=weights, tokenizer=words, facts=facts)


def all_tokens_read(tokens: int, started_from: Mapping[str, Any] | None, *, encoder: str = "") -> int | None:
    """Tokens of a run and of what it started from, which is unknown (None) if that is.

    `encoder`: the network in question; if the start did not have it, it has read the tokens of the run alone.
    """
    if not started_from or encoder in started_from["random"]:
        return tokens
    before: int | None = started_from.get(TOKENS_READ)
    return None if before is None else before + tokens


def shared_weights(weights: Mapping[str, Tensor]) -> Literal["all", "embeddings", "none"]:
    """What generator and discriminator have in common."""
    twins = {
        name: name.replace("generator.", "discriminator.", 1)
        for name in weights
        if name.startswith("generator.")
    }
    same = {
        name for name, twin in twins.items() if twin in weights and torch.equal(weights[name], weights[twin])
    }
    if same == twins.keys():
        return "all"
    return "embeddings" if {name for name in twins if ".embeddings." in name} <= same else "none"


def begin_from(start: Start, objective: nn.Module, words: Tokenizer) -> dict[str, Any]:
    """Give an objective the start's weights, for the vocabulary of its own data -> what was done.

    Networks that the start does not have keep their random weights, and are named.
    """
    weights, done = start.weights, dict(start.facts)
    num_rows = {len(tensor) for name, tensor in weights.items() if _TABLE in name}
    # Some models have more rows than their tokenizer has tokens.
    if words.content_hash != start.tokenizer.content_hash or num_rows - {words.vocab_size}:
        mapping = map_vocabulary(start.tokenizer, words, num_rows=max(num_rows, default=0))
        weights = change_vocabulary(weights, mapping)
        done["vocabulary"] = str(mapping)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in objective.state_dict().items():
        # A tensor of the objective's own, such as the stage of two_stage, belongs to the run it was saved in.
        if "." in name:
            parts.setdefault(name.partition(".")[0], {})[name] = tensor
    fresh = [part for part, own in parts.items() if not own.keys() & weights.keys()]
    if len(fresh) == len(parts):
        raise InputError(f"--start {start.path} has none of the networks of this run: {', '.join(parts)}")
    for part, own in parts.items():
        if part not in fresh:
            _require_same_shapes(own, weights, start.path, part)
    with torch.no_grad():
        for part, own in parts.items():
            if part not in fresh:
                for name, tensor in own.items():
                    tensor.copy_(weights[name])
    return {**done, "random": fresh}


def _backbone(weights: Mapping[str, Tensor], part: str) -> Backbone | None:
    """What an encoder is, by the names of its weights; None if the part is none."""
    if f"{part}.embeddings.word_embeddings.weight" not in weights:
        return None
    if f"{part}.embeddings.token_type_embeddings.weight" in weights:
        return "electra"
    return "modern" if any(name.startswith(f"{part}.layers.") for name in weights) else "bag"


def _require_same_shapes(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path, part: str
) -> None:
    here, there = _backbone(own, part), _backbone(weights, part)
    if here and there and here != there:
        raise InputError(
            f"--start {path}: its {part} has backbone {there}, this run has model.backbone {here}: leave the "
            "keys of model and generator to the start"
        )
    for name, tensor in own.items():
        if name not in weights:
            raise InputError(
                f"--start {path} lacks {name}: leave the keys of model and generator to the start"
            )
        if weights[name].shape != tensor.shape:
            raise InputError(
                f"--start {path}: {name} has shape {list(weights[name].shape)}, in this run "
                f"{list(tensor.shape)}: leave the keys of model and generator to the start"
            )


def _named(role: Role, part: ModelFolder) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"{role}.{name}", tensor) for name, tensor in part.encoder_state().items())
    yield from ((f"{role}_head.{name}", tensor) for name, tensor in part.head_state().items())


def _read_run_config(path: Path) -> dict[str, Any]:
    if not (path / CONFIG).is_file():
        raise InputError(f"--start {path} is no run: it has no {CONFIG}")
    values = read_yaml(path / CONFIG)
    if not isinstance(values, dict):
        raise InputError(f"{path / CONFIG} holds no keys")
    return values


def _run_tokenizer(path: Path, values: Mapping[str, Any], wanted: str) -> Tokenizer:
    """The tokenizer of a run: from its final encoders, or from its data if it is not finished."""
    places = [*sorted((path / "final").glob("*/tokenizer.json")), Path(values["data"]) / "tokenizer"]
    for place in places:
        if place.exists():
            words = tokenizers.load_tokenizer(place)
            if words.content_hash == wanted:
                return words
    raise InputError(
        f"--start {path} is unfinished, and its data {values['data']} is gone or was made again: its "
        "tokenizer is needed"
    )


@dataclass(frozen=True, kw_only=True)
class VocabularyMap:
    """Where each new token comes from. A new id that is in neither table comes from nowhere."""

    old_size: int
    new_size: int
    kept: Mapping[int, int]
    """New id -> the id that the same token had."""
    composed: Mapping[int, Sequence[int]]
    """New id -> the old ids of its pieces."""

    def __post_init__(self) -> None:
        pieces = [old for ids in self.composed.values() for old in ids]
        for new in (*self.kept, *self.composed):
            assert 0 <= new < self.new_size, f"new id {new} of {self.new_size}"
        for old in (*self.kept.values(), *pieces):
            assert 0 <= old < self.old_size, f"old id {old} of {self.old_size}"
        assert all(self.composed.values()), "a composed token has pieces"
        assert not self.kept.keys() & self.composed.keys(), "a token is kept or composed"

    @property
    def unknown(self) -> list[int]:
        """New ids that come from nowhere."""
        return [new for new in range(self.new_size) if new not in self.kept and new not in self.composed]

    def __str__(self) -> str:
        dropped = self.old_size - len(set(self.kept.values()))
        return (
            f"{self.old_size:,} -> {self.new_size:,} tokens: {len(self.kept):,} kept, "
            f"{len(self.composed):,} composed of old pieces, {len(self.unknown):,} new, {dropped:,} dropped"
        )


def map_vocabulary(old: Tokenizer, new: Tokenizer, *, num_rows: int = 0) -> VocabularyMap:
    """Find out where each token of the new tokenizer comes from; old tables may have rows without a token."""
    old_tokens, new_tokens = (words.tokens(range(words.vocab_size)) for words in (old, new))
    old_ids = {token: number for number, token in enumerate(old_tokens)}
    kept = {number: old_ids[token] for number, token in enumerate(new_tokens) if token in old_ids}
    continues = new.continues_word()
    composed = {}
    for number in range(new.vocab_size):
        if number not in kept and (pieces := old_pieces(new, number, old, continues=continues[number])):
            composed[number] = pieces
    old_size = max(old.vocab_size, num_rows)
    return VocabularyMap(old_size=old_size, new_size=new.vocab_size, kept=kept, composed=composed)


def old_pieces(new: Tokenizer, number: int, old: Tokenizer, *, continues: bool) -> list[int]:
    """The old tokens that a new token's text is cut into; none if the old vocabulary cannot write it."""
    text = new.decode([number]).strip()
    if not continues:
        pieces = old.encode([text]).ids.tolist()
    else:
        # The piece of a word is cut as such: after a letter, whose own piece is left out again.
        text = text.removeprefix(CONTINUATION)
        (located,) = old.encode_with_offsets([f"{_WORD_START}{text}"])
        starts_L = located.offsets_T2[:, 0]
        whole = len(starts_L) > 1 and starts_L[1] == len(_WORD_START)
        pieces = located.ids[1:].tolist() if whole else old.encode([text]).ids.tolist()
    return [] if old.unk_id in pieces else [int(piece) for piece in pieces]


def carry_over(rows_VE: Tensor, mapping: VocabularyMap) -> Tensor:
    """One row per new token: (N, E) from a table (V, E), or (N) from a bias (V)."""
    assert len(rows_VE) == mapping.old_size, f"{len(rows_VE)} rows for {mapping.old_size} tokens"
    new_rows_NE = rows_VE.mean(0, keepdim=True).repeat(mapping.new_size, *[1] * (rows_VE.dim() - 1))
    new_rows_NE[list(mapping.kept)] = rows_VE[list(mapping.kept.values())]
    for new, pieces in mapping.composed.items():
        new_rows_NE[new] = rows_VE[list(pieces)].mean(0)
    return new_rows_NE


def change_vocabulary(state: Mapping[str, Tensor], mapping: VocabularyMap) -> dict[str, Tensor]:
    """An objective's state dict for the new vocabulary; tensors that were one stay one."""
    changed: dict[int, Tensor] = {}
    result = {}
    for name, tensor in state.items():
        if not _is_per_token(name):
            result[name] = tensor
            continue
        if tensor.data_ptr() not in changed:
            changed[tensor.data_ptr()] = carry_over(tensor, mapping)
        result[name] = changed[tensor.data_ptr()]
    return result


def _is_per_token(name: str) -> bool:
    """Whether a tensor has a row for each token: a word table, its delta, a bias over the vocabulary."""
    return ".word_embeddings." in f".{name}" or name in _PER_TOKEN
