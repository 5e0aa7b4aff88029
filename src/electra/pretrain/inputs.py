"""A batch of rows, and a vocabulary -> the tensors that objectives work on.

Shapes: B rows, L tokens with padding, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from electra.text.batches import Batch


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Rows as they were stored, on the device of the model."""

    input_ids_BL: Tensor
    token_type_ids_BL: Tensor
    lengths_B: Tensor
    """Tokens of each row, without padding."""
    attention_mask_BL: Tensor | None
    """1 for tokens and 0 for padding; None where nothing is padded, which is faster."""

    @classmethod
    def from_batch(cls, batch: Batch, *, device: torch.device | str = "cpu") -> Self:
        """The rows of a batch on a device."""
        lengths_B = torch.from_numpy(batch.lengths_B)
        width = batch.input_ids_BL.shape[1]
        padded = int(batch.lengths_B.min()) < width
        mask_BL = (torch.arange(width) < lengths_B[:, None]).long() if padded else None
        return cls(
            input_ids_BL=torch.from_numpy(batch.input_ids_BL).to(device, non_blocking=True),
            token_type_ids_BL=torch.from_numpy(batch.token_type_ids_BL).to(device, non_blocking=True),
            lengths_B=lengths_B.to(device, non_blocking=True),
            attention_mask_BL=None if mask_BL is None else mask_BL.to(device, non_blocking=True),
        )

    @property
    def token_mask(self) -> Tensor:
        """Where there is no padding."""
        if self.attention_mask_BL is None:
            return torch.ones_like(self.input_ids_BL, dtype=torch.bool)
        return self.attention_mask_BL.bool()

    @property
    def context(self) -> dict[str, Tensor | None]:
        """What an encoder takes beside token ids: the same for original, masked and corrupted rows."""
        return {"token_type_ids_BL": self.token_type_ids_BL, "attention_mask_BL": self.attention_mask_BL}


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
