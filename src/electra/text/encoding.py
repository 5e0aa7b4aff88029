"""The bytes of a file -> its text, in the encoding that the bytes themselves tell.

`read_text` is how every text file is opened: decompressed, its encoding detected, decoded piece by piece.
`detect_encoding` prefers UTF-8 wherever the bytes allow it, even with some bad bytes among them. Older
encodings are told apart by the characters that are frequent in what people write in them, and failing that by
charset-normalizer. `Decoder` decides on the first bytes that are evidence, so neither a long English
beginning nor one stray byte in it determines how the rest is read.
"""

import codecs
import io
import re
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import charset_normalizer

from electra.errors import InputError
from electra.text.compression import PIECE_BYTES, read_pieces
from electra.text.quarantine import Reading

Piece = TypeVar("Piece", str, bytes)

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    # Before UTF-16, whose little-endian mark begins UTF-32's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
STATEFUL = frozenset({"utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "iso2022_jp_ext"})
"""Encodings that `detect_encoding` may return and that cannot be decoded starting in the middle."""
_NOT_FOR_FILES = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"})
_ASCII = bytes(range(128))
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\v\f\r\b\x1a\x1b"})
_NON_ASCII = re.compile(rb"[\x80-\xff]")
_ISO_2022 = re.compile(rb"\x1b\$[@B](?:[!-~]{2})+\x1b\(")
_LONG_RUNS = re.compile(rb"[\x80-\xff]{3,}")
_TELLING_BYTES = 8192
_FEW = 64

_KANA = "".join(map(chr, range(0x3041, 0x30FF))) + "、。「」"
_HANGUL = (
    "이다에의는로하을가고지서한은기사으를대리시스년인도자어아수일라그있전나부되정과해었제들주국적했장성여상구동와위월게원트공보만"
    "경였마유며조선드중세학소비신화미우개명계문오연르후면것교관모진치용된회터발역"
)
_SIMPLIFIED = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成"
    "者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从，。、“”"
)
_TRADITIONAL = (
    "的一是不了人我在有他這為之大來以個中上們到說國和地也子時道出而要於就下得可你年生自會那後能對著事其裡所去行過家十用發天如然作方成"
    "者多日都三小軍二無同麼經法當起與好看學進種將還分此心前面又定見只主沒公從，。、「」"
)
_CYRILLIC = "оаеинтсрвлкміу"
_WESTERN = "àâäáãåæçèéêëìíîïñòóôöõøœùúûüÿß" + "«»‘’“”„–—…•°·§€£¿¡ªº\xa0"

# Encoding, its frequent characters, and their usual share of the non-ASCII characters. Ties go to the first.
_WIDE = (
    ("cp932", _KANA, 0.6),
    ("euc_jp", _KANA, 0.6),
    ("cp949", _HANGUL, 0.6),
    ("gb18030", _SIMPLIFIED, 0.4),
    ("big5hkscs", _TRADITIONAL, 0.4),
)
# Latin script has such letters one by one between ASCII ones; other scripts have whole words of them.
_WORDS = (
    ("cp1251", _CYRILLIC, 0.75),
    ("koi8_r", _CYRILLIC, 0.75),
    ("koi8_u", _CYRILLIC, 0.75),
    ("cp866", _CYRILLIC, 0.75),
    ("iso8859_5", _CYRILLIC, 0.75),
    ("cp1253", "αοιετνσηρπκυίς", 0.75),
    ("cp1255", "יוהלאמרתשבנ", 0.75),
    ("cp1256", "اليمونترةبعد", 0.75),
    ("cp874", "านรกเงมอยท่วด้ลสั", 0.7),
)
_LETTERS = (
    # Before Western, whose õ and û would pass for ő and ű; the other letters are the same bytes in both.
    ("cp1250", "áéíóöőúüű", 1.0),
    ("cp1252", _WESTERN + "ÀÁÄÅÇÈÉÊÑÓÖØÜ", 1.0),
    ("cp1250", "ąćęłńóśźż", 1.0),
    ("iso8859_2", "ąćęłńóśźż", 1.0),
    ("cp1250", "áčďéěíňóřšťúůýžľôä", 1.0),
    ("iso8859_2", "áčďéěíňóřšťúůýžľôä", 1.0),
    ("cp1250", "ăâîşţ", 1.0),
    ("cp1254", "çğıöşüÇĞİÖŞÜâî’", 1.0),
    ("mac_roman", _WESTERN, 1.0),
    ("cp850", _WESTERN, 1.0),
)
_CONFIDENT = 0.55


class NotTextError(ValueError):
    """The bytes are not text, or their encoding was not recognised."""


def check_encoding(name: str) -> str:
    """Python's name for an encoding; an InputError if Python has none or files are not written in it."""
    try:
        b"text".decode(name, "replace")
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        known = None
    if known is None or known in _NOT_FOR_FILES:
        raise InputError(
            f"encoding is {name!r}, expected one that Python knows, such as utf-8, cp932 or cp1252"
        )
    return known


def num_non_ascii(data: bytes) -> int:
    """Number of non-ASCII bytes: the evidence for a guess."""
    return 0 if data.isascii() else len(data.translate(None, _ASCII))


def detect_encoding(sample: bytes) -> str:
    """The encoding of the text that begins with `sample`; what is cut off at its end does not matter."""
    for bom, marked in _BOMS:
        if sample.startswith(bom):
            return marked
    if b"\0" in sample and (encoding := _evident_utf16(sample)):
        return encoding
    check_text(sample)
    if sample.isascii() and _ISO_2022.search(sample):
        return "iso2022_jp_ext"
    if not (non_ascii := num_non_ascii(sample)):
        return "utf-8"
    # Decoded and encoded again, only what is valid is left: twice as much of that is no coincidence.
    valid = num_non_ascii(sample.decode("utf-8", "ignore").encode())
    if valid >= 2 * (non_ascii - valid):
        return "utf-8"
    telling = _telling_part(sample)
    if encoding := _evident_utf16(sample) or _frequent_characters(telling) or _charset_normalizer(telling):
        return encoding
    if non_ascii < _FEW and non_ascii * 10 < len(sample):
        return "utf-8"
    raise NotTextError("its encoding was not recognised: give --encoding (for a task: --own.encoding)")


def check_text(sample: bytes) -> None:
    """Refuse what has the control characters of binary data. Few are tolerated: old text has a stray one."""
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > max(3, len(sample) / 25):
        raise NotTextError("it is binary data, not text")


def _evident_utf16(sample: bytes) -> str | None:
    """UTF-16 without a mark: only one byte order has spaces and other frequent characters."""
    blanks: dict[str, int] = {}
    for encoding in ("utf-16-le", "utf-16-be"):
        text = sample.decode(encoding, "replace")
        blanks[encoding] = sum(map(text.count, " \n、。のにはをた"))
    encoding, other = sorted(blanks, key=lambda name: -blanks[name])
    text = sample.decode(encoding, "ignore")
    if (
        blanks[encoding] <= max(20 * blanks[other], len(text) / 32)
        or len(text.encode(encoding)) < len(sample) - 3
    ):
        return None
    try:
        check_text(text.encode())
    except NotTextError:
        return None
    return encoding


def _telling_part(sample: bytes) -> bytes:
    """The lines that are not ASCII, from shortly before their first such byte on, up to a bound."""
    parts: list[bytes] = []
    size = position = 0
    while size < _TELLING_BYTES and (found := _NON_ASCII.search(sample, position)):
        first = found.start()
        start = max(position, first - 40, sample.rfind(b"\n", position, first) + 1)
        position = min(sample.find(b"\n", first) + 1 or len(sample), first + _TELLING_BYTES)
        parts.append(sample[start:position])
        size += position - start
    return b"".join(parts)[:_TELLING_BYTES]


def _frequent_characters(telling: bytes) -> str | None:
    """The encoding in which most characters are the frequent ones of a language written in it."""
    runs = sum(map(len, _LONG_RUNS.findall(telling)))
    candidates = _WIDE + (_WORDS if 3 * runs > num_non_ascii(telling) else _LETTERS)
    best, best_score = None, _CONFIDENT
    for encoding, frequent, usual_share in candidates:
        text = telling.decode(encoding, "replace")
        total = len(text) - len(text.encode("ascii", "ignore"))
        score = sum(map(text.count, frequent)) / (total * usual_share)
        if score > best_score and text.count("\ufffd") * 20 <= total:
            best, best_score = encoding, score
    return best


def _charset_normalizer(telling: bytes) -> str | None:
    for match in charset_normalizer.from_bytes(telling):
        if _ASCII.decode(match.encoding, "replace") == _ASCII.decode():
            return match.encoding
    return None


SAMPLE_BYTES = 1 << 20
_WITH_MARK = {"utf-16": codecs.BOM_UTF16_BE, "utf-32": codecs.BOM_UTF32_BE}
_ENOUGH = 64
"""Non-ASCII bytes after which the encoding is settled for the rest of the file."""
_BAD = "\udcff"
"""Marks an undecodable byte in exact text: half a surrogate pair, which no valid file can contain."""


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    _replaced.bytes += error.end - error.start
    return "\ufffd", error.end


def _mark(error: UnicodeError) -> tuple[str, int]:
    return _BAD, _replace(error)[1]


# Codecs know their error handlers only by name, so replacements are counted outside of them.
_replaced = threading.local()
codecs.register_error("electra.replace", _replace)
codecs.register_error("electra.mark", _mark)


def decode_utf8(data: bytes) -> tuple[str, int]:
    """Text stored as UTF-8, and the number of bytes that were replaced or removed."""
    _replaced.bytes = data.count(0)
    text = data.replace(b"\0", b"").decode("utf-8", "electra.replace")
    return without_marks(text), _replaced.bytes


def without_marks(text: str) -> str:
    """The text without byte order marks, which also occur inside a file: people concatenate files."""
    return text.replace("\ufeff", "") if "\ufeff" in text else text


class Decoder:
    """Decodes one file. The result does not depend on how it is cut into pieces.

    Bad bytes become U+FFFD, and NULs and byte order marks are dropped. With `exact`, text comes as it stands,
    without its leading byte order mark, and every bad byte is marked for `read_text` to report.
    """

    def __init__(self, encoding: str | None, *, exact: bool = False) -> None:
        self.encoding = encoding and check_encoding(encoding)
        self.replaced_bytes = 0
        self._exact = exact
        self._at_start = True
        self._stream: codecs.IncrementalDecoder | None = None
        self._held = bytearray()
        self._has_nuls = False
        self._next_sample = self._given_encoding if encoding else self._first_sample

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text of the next bytes, as far as it is certain. NotTextError comes before any text."""
        texts = []
        # Searched in the bytes: searching text with wide characters, full of zero bytes, takes long.
        self._has_nuls = self._has_nuls or b"\0" in data
        if self._stream is None:
            self._held += data
            data = b""
            # One byte more than a sample: only then is it known that the sample is not the whole file.
            while self._stream is None and self._held and (final or len(self._held) > SAMPLE_BYTES):
                texts.append(self._next_sample(bytes(self._held[:SAMPLE_BYTES])))
            if self._stream is not None:
                data = bytes(self._held)
                self._held.clear()
        if self._stream is not None:
            texts.append(self._decoded(self._stream, data, final=final))
        text = "".join(texts)
        return self._without_first_mark(text) if self._exact else self._cleaned(text)

    def _without_first_mark(self, text: str) -> str:
        if text and self._at_start:
            self._at_start = False
            return text.removeprefix("\ufeff")
        return text

    def _cleaned(self, text: str) -> str:
        if self._has_nuls:
            self.replaced_bytes += text.count("\0")
            text = text.replace("\0", "")
        return without_marks(text)

    def _given_encoding(self, sample: bytes) -> str:
        assert self.encoding is not None
        encoding = self.encoding
        if encoding in _WITH_MARK:
            # Python refuses them without a mark, which is why people name an encoding.
            encoding += "-be" if sample.startswith(_WITH_MARK[encoding]) else "-le"
        check_text(sample.decode(encoding, "replace").encode("utf-8", "replace"))
        self._stream = self._incremental(encoding)
        return ""

    def _first_sample(self, sample: bytes) -> str:
        self.encoding = detect_encoding(sample)
        self._next_sample = self._later_sample
        return self._settled_or_alone(sample, self.encoding)

    def _later_sample(self, sample: bytes) -> str:
        try:
            encoding = detect_encoding(sample)
        except NotTextError:
            encoding = "utf-8"
        if not sample.isascii():
            self.encoding = encoding
        return self._settled_or_alone(sample, encoding)

    def _settled_or_alone(self, sample: bytes, encoding: str) -> str:
        """Settle the encoding, or if the evidence is poor decode only the sample, up to its last word end."""
        end = max(sample.rfind(b"\n"), sample.rfind(b" ")) + 1
        is_last = len(sample) == len(self._held)
        if is_last or not end or encoding in STATEFUL or num_non_ascii(sample) >= _ENOUGH:
            self._stream = self._incremental(encoding)
            return ""
        del self._held[:end]
        return self._decoded(self._incremental(encoding), sample[:end], final=True)

    def _incremental(self, encoding: str) -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder(encoding)("electra.mark" if self._exact else "electra.replace")

    def _decoded(self, stream: codecs.IncrementalDecoder, data: bytes, *, final: bool) -> str:
        _replaced.bytes = 0
        text = stream.decode(data, final)
        self.replaced_bytes += _replaced.bytes
        return text


def read_text(
    reading: Reading, *, encoding: str | None = None, piece_bytes: int = PIECE_BYTES
) -> Iterator[str]:
    """The text of a file in pieces, with its line ends; only a problem if the file is not text."""
    decoder = Decoder(encoding, exact=reading.exact)
    line = 1
    try:
        for piece, final in _with_end(read_pieces(reading, piece_bytes=piece_bytes), end=b""):
            text = decoder.decode(piece, final=final)
            if reading.exact:
                if (bad := text.find(_BAD)) >= 0:
                    reason = f"a byte that is not {decoder.encoding}: correct it, or name the file's encoding"
                    reading.problem(reason, line=line + text.count("\n", 0, bad))
                line += text.count("\n")
            yield text
    except NotTextError as error:
        reading.problem(str(error), lost=reading.source.bytes)
        return
    finally:
        reading.tally.replaced_bytes += decoder.replaced_bytes
    encodings = reading.tally.encodings
    if decoder.encoding is not None:
        encodings[decoder.encoding] = encodings.get(decoder.encoding, 0) + 1


def with_unix_line_ends(pieces: Iterable[str]) -> Iterator[str]:
    """The same text with "\\n" line ends, whatever the pieces."""
    line_ends = io.IncrementalNewlineDecoder(decoder=None, translate=True)
    has_returns = False
    for piece, final in _with_end(pieces, end=""):
        has_returns = has_returns or "\r" in piece
        yield line_ends.decode(piece, final) if has_returns else piece


def _with_end(pieces: Iterable[Piece], end: Piece) -> Iterator[tuple[Piece, bool]]:
    for piece in pieces:
        yield piece, False
    yield end, True
