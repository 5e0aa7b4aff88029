"""The normalizer of a tokenizer.json -> how much longer it may make a text, or an error if that is too much.

A tokenizer gives at most a few tokens for a character that it sees; but before, its normalizer may put any
number of characters in the place of one, and several of them in a row multiply. A stranger's file could so
turn a letter into more tokens than fit into memory. Ordinary ones replace quotes and blanks, or go by tables
of Unicode, where the longest sign of all (U+FDFA) stands for 18 letters.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from electra.errors import InputError

MOST_GROWTH = 64
"""Characters in the place of one: more than all that Unicode's tables and some marks come to."""
_LENGTH_BYTES = 4


def check_growth(path: Path, normalizer: dict[str, Any] | None) -> None:
    """Refuse a tokenizer that makes texts much longer."""
    growth = growth_of(normalizer or {})
    if growth > MOST_GROWTH:
        raise InputError(
            f"{path}: its normalizer may put {growth:,} characters in the place of one, expected "
            f"{MOST_GROWTH} at most: take another tokenizer"
        )


def growth_of(normalizer: dict[str, Any]) -> int:
    """Characters that at most stand in the place of one, beside what Unicode itself does."""
    match normalizer.get("type"):
        case "Sequence":
            growth = 1
            for part in normalizer["normalizers"]:
                growth *= growth_of(part)
            return growth
        case "Replace":
            new, old = len(normalizer["content"]), normalizer["pattern"].get("String")
            # An expression may match nothing, which is everywhere.
            return -(-new // len(old)) if old else 1 + new
        case "Prepend":
            return 1 + len(normalizer["prepend"])
        case "Precompiled":
            return longest_entry(normalizer["precompiled_charsmap"])
    return 1


def longest_entry(charsmap: str) -> int:
    """The longest text of a table of sentencepiece: the size of an index, the index, texts that end in 0."""
    try:
        content = base64.b64decode(charsmap)
    except binascii.Error:
        # `tokenizers`, which has read it before, knows how.
        return MOST_GROWTH + 1
    texts = content[_LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little") :]
    return max(map(len, texts.split(b"\0")), default=1)
