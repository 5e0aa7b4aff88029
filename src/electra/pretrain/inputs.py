"""A batch of rows, and a vocabulary -> the tensors that objectives work on.

Shapes: B rows, L tokens with padding, N tokens without, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from electra.text.batches import Batch


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Rows as they were stored: made on the host, then moved to the device of the model.

    What has to be looked for in the data is found on the host, since a GPU would have to stop for it.
    """

    input_ids_BL: Tensor
    token_type_ids_BL: Tensor
    lengths_B: Tensor
    """Tokens of each row, without padding."""
    attention_mask_BL: Tensor | None
    """1 for tokens and 0 for padding; None where nothing is padded, which is faster."""
    text_N: Tensor
    """The positions of tokens in `input_ids_BL.flatten()`, row by row."""

    @classmethod
    def of(cls, input_ids_BL: Tensor, token_type_ids_BL: Tensor, lengths_B: Tensor) -> Self:
        """Rows on the host, of which the first `lengths_B` positions are no padding."""
        is_token_BL = torch.arange(input_ids_BL.shape[1]) < lengths_B[:, None]
        return cls(
            input_ids_BL=input_ids_BL,
            token_type_ids_BL=token_type_ids_BL,
            lengths_B=lengths_B,
            attention_mask_BL=None if is_token_BL.all() else is_token_BL.long(),
            text_N=is_token_BL.flatten().nonzero().squeeze(1),
        )

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """The rows of a batch, on the host."""
        return cls.of(
            torch.from_numpy(batch.input_ids_BL),
            torch.from_numpy(batch.token_type_ids_BL),
            torch.from_numpy(batch.lengths_B),
        )

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return type(self)(**copied(vars(self), device))

    @property
    def token_mask(self) -> Tensor:
        """Where there is no padding."""
        if self.attention_mask_BL is None:
            return torch.ones_like(self.input_ids_BL, dtype=torch.bool)
        return self.attention_mask_BL.bool()

    @property
    def context(self) -> dict[str, Tensor | None]:
        """What an encoder takes beside token ids: the same for original, masked and corrupted rows."""
        return {
            "token_type_ids_BL": self.token_type_ids_BL,
            "attention_mask_BL": self.attention_mask_BL,
            "text_T": self.text_N,
        }


def copied(tensors: Mapping[str, Tensor | None], device: torch.device | str) -> dict[str, Any]:
    """Tensors of the host on a device."""
    return {name: None if tensor is None else _copied(tensor, device) for name, tensor in tensors.items()}


def _copied(tensor: Tensor, device: torch.device | str) -> Tensor:
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    # From memory that stays in its place a copy is made while host and GPU go on.
    return tensor.pin_memory().to(device, non_blocking=True)


def pick(values_BLX: Tensor, positions_N: Tensor) -> Tensor:
    """The values at positions of the flattened rows: (N, X).

    By number, not by a mask: how many a mask has only a look at the data tells.
    """
    return values_BLX.flatten(0, 1).index_select(0, positions_N)


@dataclass(frozen=True, kw_only=True)
class TokenFacts:
    """What objectives must know about a vocabulary."""

    vocab_size: int
    mask_id: int
    special_ids: Sequence[int]
    """[CLS] [SEP] [MASK] [PAD]: never masked, never scored."""
    continues_word_V: Tensor | None = None
    """Which tokens continue a word, like ##s; None where the vocabulary does not tell."""
    counts_V: Tensor | None = None
    """How often each token occurs in the corpus, for the unigram generator."""

    @property
    def special_mask(self) -> Tensor:
        """The special ids as a mask over the vocabulary."""
        mask_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask_V[list(self.special_ids)] = True
        return mask_V
