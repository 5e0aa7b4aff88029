"""A source -> its documents, counted, with a problem for everything that could not be read."""

import io
from collections.abc import Callable, Iterable, Iterator

from electra.text.compression import PIECE_BYTES, read_pieces
from electra.text.decoder import Decoder
from electra.text.documents import split_documents, utf8_size, whole_document
from electra.text.encoding import NotTextError, check_encoding
from electra.text.jsonlines import read_json_lines
from electra.text.sources import Source, require_extras
from electra.text.tables import open_dataset, read_parquet
from electra.text.tally import Problem, Reading, Tally

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
