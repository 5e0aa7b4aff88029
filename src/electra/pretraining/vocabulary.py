"""Weights of one vocabulary + another vocabulary -> weights of the other one, and what was done.

A token that both have keeps its row. A new one starts as the mean of the old tokens that its text was cut
into before; if the old vocabulary could not write it, as the mean of all rows. The generator's output bias
goes the same way, and so does a delta between tables.

This room knows no tokenizer: tokens come as lists, and cutting into old tokens is a function of the caller's.

V tokens of the old vocabulary, N of the new one, E numbers in a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from electra.errors import InputError


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
            f"vocabulary of {self.old_size:,} -> {self.new_size:,} tokens: {len(self.kept):,} kept, "
            f"{len(self.composed):,} composed of old pieces, {len(self.unknown):,} new, {dropped:,} dropped"
        )


def map_vocabulary(
    old_tokens: Sequence[str],
    new_tokens: Sequence[str],
    *,
    encode: Callable[[str], Sequence[int]],
    unknown_id: int,
) -> VocabularyMap:
    """Compare two vocabularies, in the order of their ids; `encode` cuts a new token into old ids."""
    old_ids = {token: number for number, token in enumerate(old_tokens)}
    if len(old_ids) != len(old_tokens) or len(set(new_tokens)) != len(new_tokens):
        raise InputError("a vocabulary holds a token twice: each token is expected once")
    kept = {new: old_ids[token] for new, token in enumerate(new_tokens) if token in old_ids}
    if not kept:
        raise InputError(
            "the two vocabularies have no token in common: is the old one that of this checkpoint?"
        )
    composed = {}
    for new, token in enumerate(new_tokens):
        pieces = [] if new in kept else list(encode(token))
        if pieces and unknown_id not in pieces:
            composed[new] = pieces
    return VocabularyMap(old_size=len(old_tokens), new_size=len(new_tokens), kept=kept, composed=composed)


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
    return ".word_embeddings." in f".{name}" or name in ("generator_head.bias", "recovery_head.bias")
