"""Texts -> a vector for each.

B rows, L positions, D numbers in a hidden state.
"""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import InputError
from electra.ship.reading import Reader
from electra.ship.texts import Ids
from electra.tasks.similarity import Pooling

SMALLEST_LENGTH = 1e-12


@torch.no_grad()
def embed(texts_ids: Sequence[Ids], reader: Reader, *, pooling: Pooling, size: int) -> NDArray[np.float32]:
    """Vectors of length 1, whose product is their cosine; zeros for a text without tokens.

    Of a text that takes several windows it is the mean of theirs, by the tokens that each judges; with max
    pooling, the largest of each number.
    """
    if pooling not in get_args(Pooling):
        raise InputError(f"pooling is {pooling!r}, expected one of {', '.join(get_args(Pooling))}")
    found = np.zeros((len(texts_ids), size), np.float32)
    if pooling == "max":
        found[[number for number, ids_T in enumerate(texts_ids) if len(ids_T)]] = -math.inf
    for rows, hidden_BLD, attention_mask_BL in reader.read(texts_ids):
        pooled_BD = pool(hidden_BLD.float(), attention_mask_BL, pooling).cpu().numpy()
        for row, pooled_D in zip(rows, pooled_BD, strict=True):
            if pooling == "max":
                found[row.number] = np.maximum(found[row.number], pooled_D)
            else:
                found[row.number] += pooled_D * row.window.num_judged
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    vectors: NDArray[np.float32] = found / np.maximum(lengths, SMALLEST_LENGTH)
    return vectors


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor, pooling: Pooling) -> Tensor:
    """One vector (B, D) for each row; special tokens count, padding does not, as in sentence-transformers."""
    padding_BL1 = (attention_mask_BL == 0)[..., None]
    match pooling:
        case "mean":
            total_BD = hidden_BLD.masked_fill(padding_BL1, 0.0).sum(dim=1)
            return total_BD / attention_mask_BL.sum(dim=1, keepdim=True)
        case "cls":
            return hidden_BLD[:, 0]
        case "max":
            return hidden_BLD.masked_fill(padding_BL1, -math.inf).amax(dim=1)
