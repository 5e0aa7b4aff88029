"""A source -> its documents, counted, with a problem for everything that could not be read.

What `--corpus` names -> documents, read as often as needed, and a vocabulary sample of them.
"""

import hashlib
import heapq
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from electra import files
from electra.demo import corpus
from electra.errors import InputError
from electra.progress import Progress
from electra.text.compression import PIECE_BYTES, read_pieces
from electra.text.encoding import Decoder, NotTextError, check_encoding
from electra.text.quarantine import Problem, Reading, Tally
from electra.text.readers import read_json_lines, split_documents, utf8_size, whole_document
from electra.text.sources import Source, find_sources, require_extras
from electra.text.tables import open_dataset, read_parquet

__all__ = ["Problem", "Tally", "read_documents"]


def read_documents(
    source: Source,
    *,
    encoding: str | None,
    text_field: str,
    tally: Tally,
    quarantine: Callable[[Problem], None],
    _piece_bytes: int = PIECE_BYTES,
) -> Iterator[str]:
    """Documents of plain text between blank lines, or one for every row; see the module `documents`.

    Only what the user can mend at once is an InputError: a missing extra, an unknown encoding or dataset.
    """
    require_extras([source])
    if encoding is not None:
        check_encoding(encoding)
    reading = Reading(source=source, tally=tally, quarantine=quarantine)
    if source.format == "hf":
        documents = _rows(open_dataset(text_field, reading), tally)
    elif source.format == "parquet":
        documents = _rows(read_parquet(text_field, reading), tally)
    else:
        pieces = _decoded(read_pieces(reading, piece_bytes=_piece_bytes), encoding, reading)
        if source.format == "text":
            documents = split_documents(pieces, tally)
        else:
            documents = _rows(read_json_lines(pieces, text_field, reading), tally)
    return _counted(documents, reading)


def _counted(documents: Iterable[str], reading: Reading) -> Iterator[str]:
    tally = reading.tally
    end = tally.source_bytes + reading.source.bytes
    for document in documents:
        tally.documents += 1
        tally.text_bytes += utf8_size(document)
        yield document
    # Also what was not read to its end is done.
    tally.source_bytes = max(tally.source_bytes, end)


def _rows(texts: Iterable[str], tally: Tally) -> Iterator[str]:
    for text in texts:
        yield from whole_document(text, tally)


def _decoded(pieces: Iterable[bytes], encoding: str | None, reading: Reading) -> Iterator[str]:
    """Text with "\\n" line ends; nothing but a problem if the file is no text."""
    decoder = Decoder(encoding)
    line_ends = io.IncrementalNewlineDecoder(decoder=None, translate=True)
    has_returns, replaced = False, 0
    try:
        for piece, final in _with_end(pieces):
            text = decoder.decode(piece, final=final)
            reading.tally.replaced_bytes += decoder.replaced_bytes - replaced
            replaced = decoder.replaced_bytes
            has_returns = has_returns or "\r" in text
            yield line_ends.decode(text, final) if has_returns else text
    except NotTextError as error:
        reading.problem(str(error), lost=reading.source.bytes)
        return
    encodings = reading.tally.encodings
    if decoder.encoding is not None:
        encodings[decoder.encoding] = encodings.get(decoder.encoding, 0) + 1


def _with_end(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for piece in pieces:
        yield piece, False
    yield b"", True


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
        facts.update(corpus.fingerprint().encode())
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
        for number, passage in enumerate(corpus.passages(workers=workers), start=1):
            row = {text_field: passage.text, "package": passage.package, "origin": passage.origin}
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            progress.update(number)
