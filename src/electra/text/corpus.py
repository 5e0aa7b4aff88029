"""What `--corpus` names -> documents, read as often as needed, and a vocabulary sample of them."""

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
from electra.errors import InputError
from electra.progress import Progress
from electra.text import builtin
from electra.text.reader import read_documents
from electra.text.sources import Source, find_sources
from electra.text.tally import Problem, Tally

STDIN, BUILTIN = "-", "builtin"
SAMPLE_CHARACTERS = 32 << 20
"""How much text the vocabulary is learned from at most: more hardly changes it and takes memory."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The files to read and how."""

    sources: list[Source]
    skipped: dict[str, int]
    """Files in folders that are of no known kind, by suffix."""
    unreadable: list[str]
    """Folders that could not be listed, with the reason."""
    encoding: str | None
    text_field: str
    fingerprint: str

    def spooled(self, folder: Path, *, workers: int) -> "Corpus":
        """The same corpus with standard input and the embedded corpus as files, which can be read twice."""
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, sources=[self._as_file(source, folder, workers) for source in self.sources])

    def _as_file(self, source: Source, folder: Path, workers: int) -> Source:
        if source.path == STDIN:
            # Read anew at every start: what was finished of it is recognised by its contents.
            path = folder / "stdin.txt"
            files.write_file(path, lambda file: shutil.copyfileobj(sys.stdin.buffer, file))
        elif source.path == BUILTIN:
            path = folder / "builtin.jsonl"
            if not path.exists():
                files.write_file(path, lambda file: _write_builtin(file, self.text_field, workers))
        else:
            return source
        return replace(source, path=str(path), bytes=path.stat().st_size)

    @property
    def source_bytes(self) -> int:
        """Size on disk, compressed where it is: what progress is measured in."""
        return sum(source.bytes for source in self.sources)

    def documents(self, tally: Tally, quarantine: Callable[[Problem], None]) -> Iterator[str]:
        """All documents in order, counted in `tally`; what cannot be read goes to `quarantine`."""
        for failure in self.unreadable:
            folder, _, reason = failure.rpartition(": ")
            quarantine(Problem(file=folder, reason=f"the folder could not be listed: {reason}"))
        for source in self.sources:
            yield from read_documents(
                source,
                encoding=self.encoding,
                text_field=self.text_field,
                tally=tally,
                quarantine=quarantine,
            )


def open_corpus(arguments: Sequence[str], *, encoding: str | None, text_field: str) -> Corpus:
    """Find every file; standard input and the embedded corpus stay names until `spooled` makes them files."""
    if not arguments:
        raise InputError(
            "--corpus names no text: give files, folders, globs, '-' for standard input or 'builtin'"
        )
    named = [argument for argument in arguments if argument not in (BUILTIN, STDIN)]
    found = find_sources(named)
    facts = hashlib.sha256()
    for source in found.sources:
        facts.update(_identity(source))
    sources = found.sources
    if STDIN in arguments:
        sources = [Source(path=STDIN, format="text"), *sources]
    if BUILTIN in arguments:
        sources = [Source(path=BUILTIN, format="jsonl"), *sources]
        facts.update(builtin.fingerprint().encode())
    return Corpus(
        sources=sources,
        skipped=dict(found.skipped),
        unreadable=found.unreadable,
        encoding=encoding,
        text_field=text_field,
        fingerprint=facts.hexdigest(),
    )


def vocabulary_sample(documents: Iterator[tuple[int, str]], *, limit: int = SAMPLE_CHARACTERS) -> list[str]:
    """The documents with the smallest hashes, up to `limit` characters: random, yet the same in any order."""
    kept: list[tuple[int, str]] = []
    known: set[int] = set()
    total = 0
    for document_hash, document in documents:
        # A heap keeps the largest hash in front, where it is the next to go.
        if document_hash in known or (total >= limit and -kept[0][0] < document_hash):
            continue
        heapq.heappush(kept, (-document_hash, document))
        known.add(document_hash)
        total += len(document)
        while total - len(kept[0][1]) >= limit:
            dropped_hash, dropped = heapq.heappop(kept)
            known.remove(-dropped_hash)
            total -= len(dropped)
    return [document for _, document in sorted(kept, reverse=True)]


def _identity(source: Source) -> bytes:
    """What changes when a file changes."""
    path = Path(source.path)
    modified = path.stat().st_mtime_ns if path.exists() else 0
    return f"{source.path}\0{source.bytes}\0{modified}\n".encode(errors="surrogateescape")


def _write_builtin(file: IO[bytes], text_field: str, workers: int) -> None:
    with Progress("Python's documentation", total=0, unit="passages") as progress:
        for number, passage in enumerate(builtin.passages(workers=workers), start=1):
            row = {text_field: passage.text, "package": passage.package, "origin": passage.origin}
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            progress.update(number)
