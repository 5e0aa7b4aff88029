"""Examples -> rows on disk -> rows in memory.

A row is `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` as token ids, without padding. A shard holds
rows end to end in three NumPy files, which are mapped into memory and never unpickled:

    train-00000.ids.npy       uint16 or uint32, all rows of the shard end to end
    train-00000.offsets.npy   uint32, where each row starts, and the total at the end
    train-00000.segments.npy  uint16, how many tokens of each row belong to the first segment (with its [SEP])
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.errors import InputError
from electra.files import read_manifest, write_file
from electra.text.examples import Example

KIND = "dataset"
FORMAT_VERSION = 1
LONGEST_ROW = np.iinfo(np.uint16).max
_PARTS = ("ids", "offsets", "segments")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Token ids with special tokens, and how many of them belong to the first segment."""

    ids: npt.NDArray[np.unsignedinteger[Any]]
    first_segment: int


def write_shard(
    folder: Path, name: str, examples: Iterable[Example], *, cls_id: int, sep_id: int, vocab_size: int
) -> tuple[int, int]:
    """Store examples as the rows of one shard; returns the numbers of rows and of tokens."""
    cls, sep = np.array([cls_id], np.uint32), np.array([sep_id], np.uint32)
    pieces: list[npt.NDArray[np.uint32]] = []
    lengths, segments = [0], []
    for first, second in examples:
        pieces += [cls, first, sep]
        segments.append(len(first) + 2)
        lengths.append(len(first) + 2)
        if len(second):
            pieces += [second, sep]
            lengths[-1] += len(second) + 1
    ids = np.concatenate(pieces) if pieces else np.empty(0, np.uint32)
    arrays = {
        "ids": ids.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
        "offsets": np.fromiter(accumulate(lengths), np.uint32, len(lengths)),
        "segments": np.array(segments, np.uint16),
    }
    for part in _PARTS:
        write_file(folder / f"{name}.{part}.npy", partial(np.save, arr=arrays[part], allow_pickle=False))
    return len(segments), len(ids)


def count_tokens(folder: Path, names: Iterable[str], *, vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each token of the vocabulary occurs in these shards."""
    counts = np.zeros(vocab_size, np.int64)
    for name in names:
        ids = np.load(folder / f"{name}.ids.npy", mmap_mode="r", allow_pickle=False)
        counts += np.bincount(ids, minlength=vocab_size)
    return counts


class Rows:
    """The rows of one split of a dataset, by number; files are mapped when first used."""

    def __init__(self, folder: Path, split: str = "train") -> None:
        manifest = read_manifest(folder, kind=KIND)
        if manifest["format_version"] != FORMAT_VERSION:
            raise InputError(
                f"{folder} has dataset format {manifest['format_version']}, this program reads "
                f"{FORMAT_VERSION}: prepare it again"
            )
        if split not in manifest["splits"]:
            raise InputError(f"{folder} has no split {split!r}: it has {', '.join(manifest['splits'])}")
        self.folder = folder
        self.manifest = manifest
        self.seq_length: int = manifest["seq_length"]
        self.pad_id: int = manifest["tokenizer"]["special_ids"]["[PAD]"]
        self._shards: list[str] = [shard["name"] for shard in manifest["splits"][split]["shards"]]
        counts = [shard["rows"] for shard in manifest["splits"][split]["shards"]]
        self._starts = np.array([0, *accumulate(counts)], np.int64)
        # Bounded: a corpus of thousands of shards would exceed the system's limit of memory maps.
        self._shard = lru_cache(maxsize=1024)(self._map_shard)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        ids, offsets, segments = self._shard(shard)
        row = index - int(self._starts[shard])
        return Row(ids=ids[offsets[row] : offsets[row + 1]], first_segment=int(segments[row]))

    def _map_shard(self, shard: int) -> list[npt.NDArray[Any]]:
        paths = [self.folder / f"{self._shards[shard]}.{part}.npy" for part in _PARTS]
        return [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
