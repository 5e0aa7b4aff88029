"""Token ids of one text or two -> the sequence that the encoder reads; and its answers, checked."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.tasks.family import Example
from electra.text.tokenizer import Tokenizer


def kept_tokens(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of a pair cut to fit: the longer one loses, of equal ones the second, as in the original."""
    kept_first = min(first, max(room - second, room - room // 2))
    return kept_first, min(second, room - kept_first)


def sequence(
    first: NDArray[np.uint32], second: NDArray[np.uint32], tokenizer: Tokenizer, *, max_length: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Ids and types of [CLS] first [SEP] second [SEP], or of [CLS] first [SEP] if there is no second."""
    cls, sep = (np.array([token], np.uint32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    if len(second) == 0:
        ids = np.concatenate([cls, first[: max_length - 2], sep])
        return ids, np.zeros(len(ids), np.uint8)
    kept_first, kept_second = kept_tokens(len(first), len(second), max_length - 3)
    ids = np.concatenate([cls, first[:kept_first], sep, second[:kept_second], sep])
    types = np.zeros(len(ids), np.uint8)
    types[kept_first + 2 :] = 1
    return ids, types


def check_finite(examples: Sequence[Example], outputs: Sequence[NDArray[np.float32]]) -> None:
    """Refuse a damaged model: the highest of several NaN would be an invented prediction."""
    for example, output in zip(examples, outputs, strict=True):
        if not np.isfinite(output).all():
            raise InputError(
                f"{example.where}: the model's answer is {output.tolist()}. Its weights are damaged, or its "
                "training diverged: train again with a lower learning rate"
            )
