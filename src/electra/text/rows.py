"""The token lines of a document -> examples -> rows on disk -> rows in memory.

An example is a pair of segments that fits a row. Two builders share one protocol: `FullRows` keeps every
token and continues a line that does not fit in the next example; `AsGoogle` is the original's builder, which
cuts what does not fit. It draws random numbers in the original's order, so that a seed gives the original's
examples.

A row is `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` as token ids, without padding. A shard stores
rows end to end in three NumPy files, which are memory-mapped and never unpickled:

    train-00000.ids.npy       uint16 or uint32, all rows of the shard end to end
    train-00000.offsets.npy   uint32, where each row starts, and the total at the end
    train-00000.segments.npy  uint16, how many tokens of each row belong to the first segment (with its [SEP])
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from electra import seeds
from electra.errors import InputError
from electra.files import MANIFEST, Manifest, damaged_files, read_manifest, write_file
from electra.schema import Within, short

Ids = npt.NDArray[np.uint32]
Example = tuple[Ids, Ids]
"""The first and the second segment, without special tokens; the second may be empty."""

SINGLE_SEGMENT_PROB = 0.1
"""Some examples have only one segment, as the inputs of many classification tasks."""
RANDOM_LENGTH_PROB = 0.05
"""Some examples are shorter, so that the model sees short inputs, too."""
SHORTEST_TARGET = 5
SHORTEST_SPLIT_LINE = 32
"""A line of fewer tokens, such as a heading, is not cut in two to make a second segment."""


class Builder(Protocol):
    """Turns documents into examples; called in corpus order within one shard."""

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Examples of one document, given as the ids of its lines end to end and each line's length."""


class FullRows:
    """Examples that together hold every token of a document once, in order."""

    def __init__(self, seq_length: int, *, seed: int) -> None:
        self._seq_length = seq_length
        self._seed = seed

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Cut the document into rows as full as their target length allows."""
        # One generator per document, so that adding text elsewhere never changes this document's examples.
        rng = seeds.python_random(self._seed, "examples", document_hash)
        line_ends = np.cumsum(line_lengths).tolist()
        start = 0
        while start < len(ids):
            has_one_segment = rng.random() < SINGLE_SEGMENT_PROB
            target = self._seq_length
            if rng.random() < RANDOM_LENGTH_PROB:
                target = rng.randint(SHORTEST_TARGET, self._seq_length)
            # Room for [CLS] and a [SEP] behind each segment.
            stop = min(start + target - 3, len(ids))
            middle = stop if has_one_segment else _middle(line_ends, start, stop)
            if middle == stop:
                middle = stop = min(start + target - 2, len(ids))
            yield ids[start:middle], ids[middle:stop]
            start = stop


def _middle(line_ends: list[int], start: int, stop: int) -> int:
    """Where the second segment begins: at the line end nearest to the middle, else in the middle."""
    middle = (start + stop + 1) // 2
    after = bisect_left(line_ends, middle)
    # Only a line end in the middle half makes two segments of comparable length.
    quarter = (stop - start) // 4
    near = [end for end in line_ends[max(0, after - 1) : after + 1] if abs(end - middle) <= quarter]
    if near:
        return min(near, key=lambda end: abs(end - middle))
    return middle if stop - start >= SHORTEST_SPLIT_LINE else stop


class AsGoogle:
    """The original's example builder. As there, state carries over from document to document."""

    def __init__(self, seq_length: int, *, rng: random.Random) -> None:
        self._seq_length = seq_length
        self._target_length = seq_length
        self._rng = rng

    def examples(
        self, ids: Ids, line_lengths: npt.NDArray[np.int64], *, document_hash: int
    ) -> Iterator[Example]:
        """Collect lines until the target length is reached or the document ends."""
        lines: list[Ids] = []
        collected = 0
        for line in np.split(ids, np.cumsum(line_lengths)[:-1]):
            lines.append(line)
            collected += len(line)
            if collected >= self._target_length:
                yield self._example(lines)
                lines, collected = [], 0
        if collected:
            yield self._example(lines)

    def _example(self, lines: list[Ids]) -> Example:
        has_one_segment = self._rng.random() < SINGLE_SEGMENT_PROB
        first_target = 100_000 if has_one_segment else (self._target_length - 3) // 2
        first: list[Ids] = []
        second: list[Ids] = []
        first_length = 0
        for line in lines:
            # A line goes to the first segment if that is empty, if it stays short enough with the line, or
            # half of the time when this line takes it over its target.
            if (
                first_length == 0
                or first_length + len(line) < first_target
                or (not second and first_length < first_target and self._rng.random() < 0.5)
            ):
                first.append(line)
                first_length += len(line)
            else:
                second.append(line)
        first_ids = np.concatenate(first)[: self._seq_length - 2]
        room = max(0, self._seq_length - len(first_ids) - 3)
        second_ids = np.concatenate(second)[:room] if second else first_ids[:0]
        self._target_length = self._seq_length
        if self._rng.random() < RANDOM_LENGTH_PROB:
            self._target_length = self._rng.randint(SHORTEST_TARGET, self._seq_length)
        return first_ids, second_ids


KIND = "dataset"
FORMAT_VERSION = 1
TOKEN_COUNTS = "token_counts.npy"
LONGEST_ROW = np.iinfo(np.uint16).max
_PARTS = ("ids", "offsets", "segments")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Token ids with special tokens, and how many of them belong to the first segment."""

    ids: npt.NDArray[np.unsignedinteger[Any]]
    first_segment: int


ShardArrays = dict[str, npt.NDArray[np.unsignedinteger[Any]]]


def shard_arrays(examples: Iterable[Example], *, cls_id: int, sep_id: int, vocab_size: int) -> ShardArrays:
    """Examples as the rows of one shard: the contents of its files."""
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
    return {
        "ids": ids.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
        "offsets": np.fromiter(accumulate(lengths), np.uint32, len(lengths)),
        "segments": np.array(segments, np.uint16),
    }


def joined_arrays(parts: Sequence[ShardArrays]) -> ShardArrays:
    """The rows of consecutive parts as those of one shard."""
    joined = {key: np.concatenate([part[key] for part in parts]) for key in ("ids", "segments")}
    starts = accumulate((len(part["ids"]) for part in parts), initial=0)
    offsets = [part["offsets"][1:] + np.uint32(start) for part, start in zip(parts, starts, strict=False)]
    return {**joined, "offsets": np.concatenate([np.zeros(1, np.uint32), *offsets])}


def write_arrays(folder: Path, name: str, arrays: ShardArrays) -> None:
    """Store the files of one shard."""
    for part in _PARTS:
        write_file(folder / f"{name}.{part}.npy", partial(np.save, arr=arrays[part], allow_pickle=False))


def write_shard(
    folder: Path, name: str, examples: Iterable[Example], *, cls_id: int, sep_id: int, vocab_size: int
) -> tuple[int, int]:
    """Store examples as the rows of one shard. Returns the numbers of rows and of tokens."""
    arrays = shard_arrays(examples, cls_id=cls_id, sep_id=sep_id, vocab_size=vocab_size)
    write_arrays(folder, name, arrays)
    return len(arrays["segments"]), len(arrays["ids"])


def count_tokens(folder: Path, names: Iterable[str], *, vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each token of the vocabulary occurs in these shards."""
    counts = np.zeros(vocab_size, np.int64)
    for name in names:
        ids = np.load(folder / f"{name}.ids.npy", mmap_mode="r", allow_pickle=False)
        counts += np.bincount(ids, minlength=vocab_size)
    return counts


class _Shard(TypedDict):
    name: str
    rows: Annotated[int, Within(0)]


class _Split(TypedDict):
    shards: list[_Shard]


class _TokenizerFacts(TypedDict):
    special_ids: dict[str, Annotated[int, Within(0)]]


class DatasetManifest(Manifest):
    """What is read of the manifest of a dataset."""

    format_version: int
    seq_length: Annotated[int, Within(1)]
    tokenizer: _TokenizerFacts
    splits: dict[str, _Split]


class Rows:
    """The rows of one split of a dataset, by number. Files are mapped when first used."""

    def __init__(self, folder: Path, split: str = "train") -> None:
        manifest = read_manifest(folder, kind=KIND, form=DatasetManifest)
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
        # Only of its files the manifest has checksums, and only they are known to lie in the folder.
        for name in (f"{shard}.{part}.npy" for shard in self._shards for part in _PARTS):
            if name not in manifest["files"]:
                raise InputError(
                    f"{folder / MANIFEST} has no checksum of {short(name)}, which is in its split {split!r}: "
                    "prepare the data again, or copy it again"
                )
        counts = [shard["rows"] for shard in manifest["splits"][split]["shards"]]
        self._starts = np.array([0, *accumulate(counts)], np.int64)
        self._unread = set(self._shards)
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

    def require_intact(self, names: Iterable[str]) -> None:
        """Refuse files that are not as they were when the data was prepared."""
        sealed = {name: facts for name in names if (facts := self.manifest["files"].get(name))}
        for damage in damaged_files(self.folder, {"files": sealed}):
            raise InputError(f"{damage}: prepare the data again, or copy it again")

    def _map_shard(self, shard: int) -> list[npt.NDArray[Any]]:
        names = [f"{self._shards[shard]}.{part}.npy" for part in _PARTS]
        # One wrong bit in a row would be trained on and never noticed. The pages are wanted anyway.
        if self._shards[shard] in self._unread:
            self.require_intact(names)
            self._unread.discard(self._shards[shard])
        return [np.load(self.folder / name, mmap_mode="r", allow_pickle=False) for name in names]
