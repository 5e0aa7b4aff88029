"""What `--corpus` names -> documents, read as often as needed, and a sample for the vocabulary."""

import hashlib
import heapq
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from electra import files
from electra.demo import corpus
from electra.errors import InputError
from electra.progress import Progress
from electra.text.documents import read_documents
from electra.text.quarantine import Reading, ReadProblem, Tally
from electra.text.sources import Source, find_sources
from electra.text.tables import DETECTED, Dialect

STDIN, BUILTIN = "-", "builtin"
SAMPLE_CHARACTERS = 32 << 20
"""Text that the vocabulary is learned from, at most: more hardly changes it and takes memory."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The files to read, and how to read them."""

    sources: list[Source]
    skipped: dict[str, int]
    """Files of unknown formats in folders, and what is no file, by suffix."""
    unreadable: list[str]
    """Folders that could not be listed, to their end or at all, with the reason."""
    fingerprint: str
    """Changes when a file changes."""
    text_field: str
    dialect: Dialect

    def spooled(self, folder: Path, *, workers: int) -> "Corpus":
        """The same corpus with standard input and the built-in corpus stored as files, to be read twice."""
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, sources=[self._as_file(source, folder, workers) for source in self.sources])

    def _as_file(self, source: Source, folder: Path, workers: int) -> Source:
        if source.path == STDIN:
            # Read again at every start: shards that were finished are recognised by their contents.
            path = folder / "stdin.txt"
            files.write_file(path, lambda file: shutil.copyfileobj(sys.stdin.buffer, file))
        elif source.path == BUILTIN:
            path = folder / "builtin.jsonl"
            if not path.exists():
                files.write_file(path, lambda file: _write_builtin(file, self.text_field, workers))
        else:
            return source
        return replace(source, path=str(path), bytes=path.stat().st_size, modified=0)

    @property
    def _folder_bytes(self) -> int:
        """Mean size of the folders that could be listed: what is in the others, nobody can say."""
        folders = {source.path.rpartition("/")[0] for source in self.sources}
        return max(1, self.source_bytes // max(1, len(folders)))

    @property
    def source_bytes(self) -> int:
        """Size on disk, compressed or not: the unit of progress."""
        return sum(source.bytes for source in self.sources)

    def documents(self, tally: Tally, quarantine: Callable[[ReadProblem], None]) -> Iterator[str]:
        """All documents in order, counted in `tally`; problems go to `quarantine`."""
        self.report_unreadable(quarantine)
        for source in self.sources:
            yield from self.documents_of(source, tally, quarantine)

    def documents_of(
        self, source: Source, tally: Tally, quarantine: Callable[[ReadProblem], None]
    ) -> Iterator[str]:
        """Those of one source."""
        reading = Reading(source=source, tally=tally, quarantine=quarantine)
        return read_documents(reading, text_column=self.text_field, dialect=self.dialect)

    def report_unreadable(self, quarantine: Callable[[ReadProblem], None]) -> None:
        """A problem for every folder that could not be listed."""
        for failure in self.unreadable:
            folder, _, reason = failure.rpartition(": ")
            quarantine(
                ReadProblem(
                    file=folder,
                    reason=f"the folder could not be listed: {reason}; it counts as one of average size",
                    bytes=self._folder_bytes,
                )
            )


def open_corpus(
    arguments: Sequence[str],
    *,
    text_field: str = "text",
    dialect: Dialect = DETECTED,
    without: Sequence[str] = (),
) -> Corpus:
    """Find every file; standard input and the built-in corpus stay names until `spooled` stores them.

    What is in the folders of `without` is left out.
    """
    if not arguments:
        raise InputError("--corpus is empty: give files, folders, globs, '-' for standard input or 'builtin'")
    named = [argument for argument in arguments if argument not in (BUILTIN, STDIN)]
    found = find_sources(named, without=without)
    facts = hashlib.sha256()
    for source in found.sources:
        facts.update(_identity(source))
    sources = _with_sizes(found.sources)
    if STDIN in arguments:
        sources = [Source(path=STDIN, format="text"), *sources]
    if BUILTIN in arguments:
        sources = [Source(path=BUILTIN, format="jsonl"), *sources]
        facts.update(corpus.corpus_fingerprint().encode())
    return Corpus(
        sources=sources,
        skipped=dict(found.skipped),
        unreadable=found.unreadable,
        fingerprint=facts.hexdigest(),
        text_field=text_field,
        dialect=dialect,
    )


class VocabularySample:
    """The documents with the smallest hashes, up to `limit` characters: a random sample in any order."""

    def __init__(self, *, limit: int = SAMPLE_CHARACTERS) -> None:
        self._limit = limit
        self._kept: list[tuple[int, str]] = []
        self._known: set[int] = set()
        self._total = 0

    @property
    def largest_hash(self) -> int | None:
        """A document with a larger one is no part of it, whatever follows; None as long as all are."""
        # A heap keeps the largest hash in front, where it is the next to go.
        return -self._kept[0][0] if self._kept and self._total >= self._limit else None

    def add(self, document_hash: int, document: str) -> None:
        """Take a document into account."""
        largest = self.largest_hash
        if document_hash in self._known or (largest is not None and largest < document_hash):
            return
        heapq.heappush(self._kept, (-document_hash, document))
        self._known.add(document_hash)
        self._total += len(document)
        while self._total - len(self._kept[0][1]) >= self._limit:
            dropped_hash, dropped = heapq.heappop(self._kept)
            self._known.remove(-dropped_hash)
            self._total -= len(dropped)

    def documents(self) -> list[str]:
        """The sample, by hash."""
        return [document for _, document in sorted(self._kept, reverse=True)]


def vocabulary_sample(documents: Iterator[tuple[int, str]], *, limit: int = SAMPLE_CHARACTERS) -> list[str]:
    """The sample of documents that come with their hashes."""
    sample = VocabularySample(limit=limit)
    for document_hash, document in documents:
        sample.add(document_hash, document)
    return sample.documents()


def _identity(source: Source) -> bytes:
    """Bytes that change when the file changes."""
    return f"{source.path}\0{source.bytes}\0{source.modified}\n".encode(errors="surrogateescape")


def _with_sizes(sources: list[Source]) -> list[Source]:
    """The same, where a file that nobody can look at has the mean size of the others: so much is lost."""
    known = [source.bytes for source in sources if source.modified]
    mean = sum(known) // max(1, len(known))
    return [
        source if source.modified or source.format == "hf" else replace(source, bytes=mean)
        for source in sources
    ]


def _write_builtin(file: IO[bytes], text_field: str, workers: int) -> None:
    with Progress("Python's documentation", total=0, unit="passages") as progress:
        for number, passage in enumerate(corpus.passages(workers=workers), start=1):
            row = {text_field: passage.text, "package": passage.package, "origin": passage.origin}
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            progress.update(number)
