"""Bytes in pieces of any size -> text without NULs and byte order marks, and the number of bytes replaced.

The encoding need not be known: it is told from the first bytes that say something about it, so a long
English beginning or one stray byte in it does not decide how the rest is read.
"""

import codecs
import threading

from electra.text.encoding import STATEFUL, NotTextError, check_encoding, check_text, detect, num_non_ascii

SAMPLE_BYTES = 1 << 20
_WITH_MARK = {"utf-16": codecs.BOM_UTF16_BE, "utf-32": codecs.BOM_UTF32_BE}
_ENOUGH = 64
"""Non-ASCII bytes that an encoding is settled on for the rest of the file."""


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    _replaced.bytes += error.end - error.start
    return "\ufffd", error.end


# Codecs know their error handlers by name only, so what they replace is counted beside them.
_replaced = threading.local()
codecs.register_error("electra.count", _replace)


def decode_utf8(data: bytes) -> tuple[str, int]:
    """A text that is given whole, and how many of its bytes were replaced or removed."""
    _replaced.bytes = data.count(0)
    text = data.replace(b"\0", b"").decode("utf-8", "electra.count")
    return without_marks(text), _replaced.bytes


def without_marks(text: str) -> str:
    """A byte order mark is no text wherever it stands: files with one each get concatenated."""
    return text.replace("\ufeff", "") if "\ufeff" in text else text


class Decoder:
    """Decodes one file. The result does not depend on how it is cut into pieces."""

    def __init__(self, encoding: str | None) -> None:
        self.encoding = encoding and check_encoding(encoding)
        self.replaced_bytes = 0
        self._stream: codecs.IncrementalDecoder | None = None
        self._held = bytearray()
        self._has_nuls = False
        self._next_sample = self._given_encoding if encoding else self._first_sample

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text of the next bytes, as far as it is certain. NotTextError comes before any text."""
        texts = []
        # Searched in the bytes: in text with wide characters, where zeros abound, it would take long.
        self._has_nuls = self._has_nuls or b"\0" in data
        if self._stream is None:
            self._held += data
            data = b""
            # One byte more than a sample: only then it is known that the sample is not the whole file.
            while self._stream is None and self._held and (final or len(self._held) > SAMPLE_BYTES):
                texts.append(self._next_sample(bytes(self._held[:SAMPLE_BYTES])))
            if self._stream is not None:
                data = bytes(self._held)
                self._held.clear()
        if self._stream is not None:
            texts.append(self._decoded(self._stream, data, final=final))
        text = "".join(texts)
        if self._has_nuls:
            self.replaced_bytes += text.count("\0")
            text = text.replace("\0", "")
        return without_marks(text)

    def _given_encoding(self, sample: bytes) -> str:
        assert self.encoding is not None
        encoding = self.encoding
        if encoding in _WITH_MARK:
            # Python refuses them without a mark, which is what makes people name an encoding.
            encoding += "-be" if sample.startswith(_WITH_MARK[encoding]) else "-le"
        check_text(sample.decode(encoding, "replace").encode("utf-8", "replace"))
        self._stream = _incremental(encoding)
        return ""

    def _first_sample(self, sample: bytes) -> str:
        self.encoding = detect(sample)
        self._next_sample = self._later_sample
        return self._settled_or_alone(sample, self.encoding)

    def _later_sample(self, sample: bytes) -> str:
        try:
            encoding = detect(sample)
        except NotTextError:
            encoding = "utf-8"
        if not sample.isascii():
            self.encoding = encoding
        return self._settled_or_alone(sample, encoding)

    def _settled_or_alone(self, sample: bytes, encoding: str) -> str:
        """Settle the encoding, or decode the sample up to its last word end if it is poor evidence."""
        end = max(sample.rfind(b"\n"), sample.rfind(b" ")) + 1
        is_last = len(sample) == len(self._held)
        if is_last or not end or encoding in STATEFUL or num_non_ascii(sample) >= _ENOUGH:
            self._stream = _incremental(encoding)
            return ""
        del self._held[:end]
        return self._decoded(_incremental(encoding), sample[:end], final=True)

    def _decoded(self, stream: codecs.IncrementalDecoder, data: bytes, *, final: bool) -> str:
        _replaced.bytes = 0
        text = stream.decode(data, final)
        self.replaced_bytes += _replaced.bytes
        return text


def _incremental(encoding: str) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder(encoding)("electra.count")
