"""Documents -> blocks without duplicates -> shards of rows, written in parallel.

The reading process hashes the documents, drops duplicates and deals them into blocks; a worker turns a block
into a shard. Blocks depend only on the documents, so the shards are the same for any number of workers. A
shard is finished when its receipt is written; a finished shard survives a kill and is not made again as long
as its block is the same.
"""

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for_sentinel
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from electra import files, seeds
from electra.text import tokenizer as tokenizers
from electra.text.rows import AsGoogle, Builder, Example, FullRows, write_shard

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
"""Text per shard: small enough to divide the work evenly, large enough to keep the number of files low."""
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


class Dealer:
    """Deals documents into splits and blocks; drops and counts duplicates."""

    def __init__(self, *, valid_fraction: float, duplicates: Literal["drop", "keep"], folder: Path) -> None:
        self._valid_below = int(valid_fraction * _HASH_RANGE)
        self._seen = SeenHashes(folder) if duplicates == "drop" else None
        self.num_duplicates = 0

    def is_held_out(self, hashed: int) -> bool:
        """Decided by the document alone, so that adding text never moves a document to the other split."""
        return hashed < self._valid_below

    def blocks(self, documents: Iterable[str], source_bytes: Callable[[], int]) -> Iterator[Block]:
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

        for document, hashed in self._distinct(documents):
            split = VALID if self.is_held_out(hashed) else TRAIN
            open_blocks[split][0].append(document)
            open_blocks[split][1].append(hashed)
            sizes[split] += len(document)
            if sizes[split] >= BLOCK_CHARACTERS:
                yield close(split)
        for split in (TRAIN, VALID):
            if open_blocks[split][0]:
                yield close(split)

    def _distinct(self, documents: Iterable[str]) -> Iterator[tuple[str, int]]:
        for group in _groups(documents, len, _ENCODE_CHARACTERS):
            hashes = [hash_document(document) for document in group]
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
        self._tokenizer = tokenizers.load_tokenizer(settings.tokenizer)

    def write(self, block: Block) -> None:
        """Write the shard of a block, and its receipt last."""
        settings = self._settings
        num_rows, num_tokens = write_shard(
            settings.folder,
            block.name,
            self._examples(block),
            cls_id=self._tokenizer.cls_id,
            sep_id=self._tokenizer.sep_id,
            vocab_size=self._tokenizer.vocab_size,
        )
        receipt = {
            "name": block.name,
            "block": shard_fingerprint(block, settings),
            "documents": len(block.documents),
            "rows": num_rows,
            "tokens": num_tokens,
        }
        files.write_json(settings.receipts / f"{block.name}.json", receipt)

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
    blocks: Iterable[Block], settings: ShardSettings, *, workers: int, on_finished: Callable[[Block], None]
) -> list[dict[str, Any]]:
    """Write the shard of every block that has none yet. Returns all receipts in the order of their names.

    A single worker is this process.
    """
    names = []

    def unfinished() -> Iterator[Block]:
        for block in blocks:
            names.append(block.name)
            if _is_finished(block, settings):
                on_finished(block)
            else:
                yield block

    if workers == 1:
        writer = ShardWriter(settings)
        for block in unfinished():
            writer.write(block)
            on_finished(block)
    else:
        _write_in_parallel(unfinished(), settings, workers, on_finished)
    return [files.read_json(settings.receipts / f"{name}.json") for name in sorted(names)]


def _write_in_parallel(
    blocks: Iterable[Block], settings: ShardSettings, workers: int, on_finished: Callable[[Block], None]
) -> None:
    # A forked child of a process with threads may hang; a spawned one starts clean.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(settings,))
    pending: dict[Future[None], Block] = {}

    def collect(at_most: int) -> None:
        while len(pending) > at_most:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                future.result()
                on_finished(pending.pop(future))

    try:
        for block in blocks:
            # One block waits for each one in work: workers never idle, and memory stays bounded.
            collect(at_most=2 * workers - 1)
            pending[pool.submit(_write_in_worker, block)] = block
        collect(at_most=0)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process died, perhaps for lack of memory: run the same command again to resume from "
            "the finished shards, if necessary with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


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

_writer: ShardWriter


def _start_worker(settings: ShardSettings) -> None:
    # Ctrl-C reaches the whole process group: the parent decides what happens, a worker finishes its shard.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # One process per core is enough; more threads would only wait for each other.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    global _writer
    _writer = ShardWriter(settings)


def _exit_with_parent() -> None:
    """Without this, a worker would wait for blocks forever after the parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_sentinel([parent.sentinel])
    os._exit(1)


def _write_in_worker(block: Block) -> None:
    _writer.write(block)
