"""Documents -> blocks without duplicates -> shards of rows, written in parallel.

The reading process hashes the documents, drops duplicates and deals them into blocks; workers turn the parts
of a block into rows, which make a shard. Blocks depend only on the documents, so the shards are the same for
any number of workers. A shard is finished when its receipt is written; a finished shard survives a kill and
is not made again as long as its block is the same.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from electra import files, processes, seeds
from electra.text import tokenizer as tokenizers
from electra.text.rows import (
    AsGoogle,
    Builder,
    Example,
    FullRows,
    ShardArrays,
    joined_arrays,
    shard_arrays,
    write_arrays,
)

Hashes = npt.NDArray[np.uint64]

_LARGEST_RUN_IN_MEMORY = 1 << 21


def hash_document(document: str) -> int:
    """64 bits of a document's contents, which identify duplicates and select what is held out."""
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little")


class SeenHashes:
    """A growing set of 64-bit hashes in bounded memory, queried and extended in batches.

    Sorted runs of hashes are merged as they grow (a log-structured set): eight bytes per document, and long
    runs live in memory-mapped files. Among ten million documents, two different ones share a hash with a
    probability of three in a million.
    """

    def __init__(self, folder: Path, *, largest_run_in_memory: int = _LARGEST_RUN_IN_MEMORY) -> None:
        self._folder = folder
        self._largest_run_in_memory = largest_run_in_memory
        self._runs: list[Hashes] = []
        self._num_files = 0

    def first_time(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """True where a hash is neither known nor earlier in this batch. Adds the batch."""
        distinct, first_places = np.unique(hashes, return_index=True)
        known = np.zeros(len(distinct), np.bool_)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, distinct), len(run) - 1)
            known |= run[places] == distinct
        fresh = np.zeros(len(hashes), np.bool_)
        fresh[first_places[~known]] = True
        if not known.all():
            self._add(distinct[~known])
        return fresh

    def _add(self, run: Hashes) -> None:
        # Merging only runs of comparable size moves each hash a logarithmic number of times. A run in a file
        # is not merged again, as that would need its size in memory.
        while self._runs and len(self._runs[-1]) <= min(2 * len(run), self._largest_run_in_memory):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(self._in_file(run) if len(run) > self._largest_run_in_memory else run)

    def _in_file(self, run: Hashes) -> Hashes:
        path = self._folder / f"seen-{self._num_files}.npy"
        self._num_files += 1
        files.write_file(path, partial(np.save, arr=run, allow_pickle=False))
        mapped: Hashes = np.load(path, mmap_mode="r")
        # The mapping keeps the data; without a name, the file disappears with the process however that ends.
        path.unlink()
        return mapped


Item = TypeVar("Item")

TRAIN, VALID = "train", "valid"
BLOCK_CHARACTERS = 4 << 20
"""Text per shard: large enough to keep the number of files low."""
_PART_CHARACTERS = 1 << 19
"""Text that a worker gets at a time: small enough to give every core some of a small corpus, too."""
_ENCODE_CHARACTERS = 1 << 18
"""Text tokenized in one call, which bounds the memory of a worker."""
_LINE_CHARACTERS = 1 << 13
"""Longer lines are split at white space, because tokenizers need more than proportional time for them."""
_HASH_RANGE = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Block:
    """The documents of one shard with their hashes, and how many bytes had been read after them."""

    name: str
    documents: list[str]
    hashes: list[int]
    source_bytes: int


Hashed = tuple[list[str], list[int]]
"""Some documents, and the hash of each."""


def hashed_groups(documents: Iterable[str], *, characters: int = _ENCODE_CHARACTERS) -> Iterator[Hashed]:
    """Consecutive documents with their hashes, about so much text at a time."""
    for group in _groups(documents, len, characters):
        yield group, [hash_document(document) for document in group]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What becomes of a block: the contents of its files, and the receipt that is written last."""

    arrays: ShardArrays
    receipt: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """What a worker needs to know. Together with a block, it determines every byte of a shard."""

    folder: Path
    receipts: Path
    tokenizer: Path
    tokenizer_hash: str
    seq_length: int
    examples: Literal["full_rows", "as_google"]
    seed: int


WriteAll = Callable[[Iterable[Block], ShardSettings, Callable[[Block], None]], None]


class Dealer:
    """Deals documents into splits and blocks; drops and counts duplicates."""

    def __init__(self, *, valid_fraction: float, duplicates: Literal["drop", "keep"], folder: Path) -> None:
        self._valid_below = int(valid_fraction * _HASH_RANGE)
        self._seen = SeenHashes(folder) if duplicates == "drop" else None
        self.num_duplicates = 0

    def is_held_out(self, hashed: int) -> bool:
        """Decided by the document alone, so that adding text never moves a document to the other split."""
        return hashed < self._valid_below

    def blocks(self, groups: Iterable[Hashed], source_bytes: Callable[[], int]) -> Iterator[Block]:
        """Blocks in an order that depends only on the documents."""
        open_blocks: dict[str, tuple[list[str], list[int]]] = {TRAIN: ([], []), VALID: ([], [])}
        sizes = {TRAIN: 0, VALID: 0}
        numbers = {TRAIN: 0, VALID: 0}

        def close(split: str) -> Block:
            texts, hashes = open_blocks[split]
            open_blocks[split], sizes[split] = ([], []), 0
            numbers[split] += 1
            name = f"{split}-{numbers[split] - 1:05d}"
            return Block(name=name, documents=texts, hashes=hashes, source_bytes=source_bytes())

        for document, hashed in self._distinct(groups):
            split = VALID if self.is_held_out(hashed) else TRAIN
            open_blocks[split][0].append(document)
            open_blocks[split][1].append(hashed)
            sizes[split] += len(document)
            if sizes[split] >= BLOCK_CHARACTERS:
                yield close(split)
        for split in (TRAIN, VALID):
            if open_blocks[split][0]:
                yield close(split)

    def _distinct(self, groups: Iterable[Hashed]) -> Iterator[tuple[str, int]]:
        for group, hashes in groups:
            fresh = [True] * len(group)
            if self._seen:
                fresh = self._seen.first_time(np.array(hashes, np.uint64)).tolist()
            self.num_duplicates += fresh.count(False)
            for document, hashed, is_fresh in zip(group, hashes, fresh, strict=True):
                if is_fresh:
                    yield document, hashed


class ShardWriter:
    """Turns blocks into shards; one in each worker."""

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self._tokenizer = tokenizers.reopen(settings.tokenizer)

    def write(self, block: Block) -> None:
        """Write the shard of a block."""
        store_shard(self.make(block), self._settings)

    def make(self, block: Block) -> Shard:
        """The shard of a block."""
        return _shard(block, self.arrays(block), self._settings)

    def arrays(self, block: Block) -> ShardArrays:
        """The rows of a block, or of a part of it."""
        return shard_arrays(
            self._examples(block),
            cls_id=self._tokenizer.cls_id,
            sep_id=self._tokenizer.sep_id,
            vocab_size=self._tokenizer.vocab_size,
        )

    def _examples(self, block: Block) -> Iterator[Example]:
        builder = self._builder(block.name)
        documents = zip(block.documents, block.hashes, strict=True)
        for group in _groups(documents, lambda pair: len(pair[0]), _ENCODE_CHARACTERS):
            lines_of = [list(self._lines(document)) for document, _ in group]
            ids, lengths = self._tokenizer.encode([line for lines in lines_of for line in lines])
            first_line = first_id = 0
            for lines, (_, hashed) in zip(lines_of, group, strict=True):
                line_lengths = lengths[first_line : first_line + len(lines)]
                num_ids = int(line_lengths.sum())
                yield from builder.examples(
                    ids[first_id : first_id + num_ids], line_lengths, document_hash=hashed
                )
                first_line += len(lines)
                first_id += num_ids

    def _builder(self, block_name: str) -> Builder:
        settings = self._settings
        if settings.examples == "as_google":
            # The original has one stream of random numbers for each job; here a job is a shard.
            return AsGoogle(
                settings.seq_length, rng=seeds.python_random(settings.seed, "examples", block_name)
            )
        return FullRows(settings.seq_length, seed=settings.seed)

    def _lines(self, document: str) -> Iterator[str]:
        for line in document.split("\n"):
            if self._settings.examples == "as_google" or len(line) <= _LINE_CHARACTERS:
                if line and not line.isspace():
                    yield line.strip()
            else:
                yield from _pieces(line)


def _shard(block: Block, arrays: ShardArrays, settings: ShardSettings) -> Shard:
    receipt = {
        "name": block.name,
        "block": shard_fingerprint(block, settings),
        "documents": len(block.documents),
        "rows": len(arrays["segments"]),
        "tokens": len(arrays["ids"]),
    }
    return Shard(arrays=arrays, receipt=receipt)


def store_shard(shard: Shard, settings: ShardSettings) -> None:
    """Write the files of a shard, and its receipt last."""
    name = shard.receipt["name"]
    write_arrays(settings.folder, name, shard.arrays)
    files.write_json(settings.receipts / f"{name}.json", shard.receipt)


def _pieces(line: str) -> Iterator[str]:
    """A long line in parts, cut at white space if there is any."""
    start = 0
    while start < len(line):
        stop = start + _LINE_CHARACTERS
        if stop < len(line):
            space = line.rfind(" ", start + 1, stop)
            stop = space if space > start else stop
        if piece := line[start:stop].strip():
            yield piece
        start = stop


def write_shards(
    blocks: Iterable[Block],
    settings: ShardSettings,
    *,
    on_finished: Callable[[Block], None],
    write_all: WriteAll | None = None,
) -> list[dict[str, Any]]:
    """Write the shard of every block that has none yet. Returns all receipts in the order of their names.

    This process does it, unless `write_all` has others do it, such as that of `Workers`.
    """
    names = []

    def unfinished() -> Iterator[Block]:
        for block in blocks:
            names.append(block.name)
            if _is_finished(block, settings):
                on_finished(block)
            else:
                yield block

    if write_all is not None:
        write_all(unfinished(), settings, on_finished)
    else:
        writer = ShardWriter(settings)
        for block in unfinished():
            writer.write(block)
            on_finished(block)
    return [files.read_json(settings.receipts / f"{name}.json") for name in sorted(names)]


class Workers:
    """Processes that turn parts of blocks into rows. They start when this is made, while others read."""

    def __init__(self, count: int) -> None:
        self._pool = processes.Workers(count, _without_threads)
        # One block waits for each one in work: workers never idle, and memory stays bounded.
        self._most_blocks = 2 * count
        for _ in range(count):
            # A pool starts a process for each task that finds none idle.
            self._pool.submit(int)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def write_all(
        self, blocks: Iterable[Block], settings: ShardSettings, on_finished: Callable[[Block], None]
    ) -> None:
        """Have the rows made, and write the shards in the order of their blocks."""
        waiting: deque[tuple[Block, list[Future[ShardArrays]]]] = deque()

        def store(*, at_most: int) -> None:
            while waiting and (len(waiting) > at_most or all(part.done() for part in waiting[0][1])):
                block, parts = waiting.popleft()
                arrays = joined_arrays([part.result() for part in parts])
                store_shard(_shard(block, arrays, settings), settings)
                on_finished(block)

        try:
            for block in blocks:
                parts = [
                    self._pool.submit(_rows_in_worker, part, settings) for part in _parts(block, settings)
                ]
                waiting.append((block, parts))
                store(at_most=self._most_blocks)
            store(at_most=0)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process died, perhaps for lack of memory: run the same command again to resume "
                "from the finished shards, if necessary with fewer --workers"
            ) from error


def _parts(block: Block, settings: ShardSettings) -> Sequence[Block]:
    """The block in parts that can be made into rows by themselves."""
    if settings.examples == "as_google":
        # Its examples depend on the documents before them.
        return [block]
    documents = zip(block.documents, block.hashes, strict=True)
    groups = _groups(documents, lambda pair: len(pair[0]), _PART_CHARACTERS)
    return [
        replace(block, documents=[text for text, _ in group], hashes=[hashed for _, hashed in group])
        for group in groups
    ]


def shard_fingerprint(block: Block, settings: ShardSettings) -> str:
    """Everything that determines a shard's bytes."""
    facts = (settings.tokenizer_hash, settings.seq_length, settings.examples, settings.seed, block.hashes)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _is_finished(block: Block, settings: ShardSettings) -> bool:
    path = settings.receipts / f"{block.name}.json"
    return path.exists() and bool(files.read_json(path)["block"] == shard_fingerprint(block, settings))


def _groups(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Consecutive items in lists whose sizes add up to `limit` or a little more."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


# --- in a worker process ---


def _without_threads() -> None:
    # One process per core is enough; more threads would only wait for each other.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


_writer = lru_cache(maxsize=1)(ShardWriter)


def _rows_in_worker(part: Block, settings: ShardSettings) -> ShardArrays:
    return _writer(settings).arrays(part)
