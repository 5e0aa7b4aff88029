import gzip
import json
import random
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text import encoding as encodings
from electra.text.encoding import Decoder, NotTextError, check_encoding, decode_utf8, detect_encoding

FRENCH = (
    "L'été dernier, nous avons traversé la forêt où les chênes étaient déjà dorés ; ça sentait la pluie.\n"
)
GERMAN = "Über den Dächern lag früh ein grauer Nebel, und die müden Straßenbahnfahrer hörten schöne Lieder.\n"
POLISH = "Wczoraj późno poszliśmy nad rzekę, gdzie dzieci bawiły się łódką, a ścieżka wiodła przez łąkę.\n"
CZECH = (
    "Včera večer jsme šli k řece, kde si děti hrály s loďkou; později bylo už velmi pozdě a tiše sněžilo.\n"
)
TURKISH = "Yaşlı çiftçi ağacın gölgesinde oturuyordu; çocuklar şarkı söylüyor, kuşlar uçuyordu.\n"
RUSSIAN = "Прошлым летом мы долго шли через старый лес, где пахло смолой, и дед рассказывал о войне.\n"
UKRAINIAN = "Минулого літа ми довго йшли через старий ліс, і його ніхто не бачив біля річки.\n"
GREEK = "Το περασμένο καλοκαίρι περπατήσαμε στο παλιό δάσος και κανείς δεν ήθελε να κοιμηθεί.\n"
HEBREW = "בקיץ שעבר הלכנו דרך יער עתיק שבו צמחו עצים גבוהים ואיש לא רצה לישון.\n"
ARABIC = "في الصيف الماضي مشينا عبر غابة قديمة فيها أشجار عالية كثيرة قرب النهر.\n"
THAI = "เมื่อฤดูร้อนปีที่แล้วเราเดินผ่านป่าเก่าแก่ที่มีต้นไม้สูงใหญ่มากมาย\n"
JAPANESE = "去年の夏、私たちは古い森を歩いた。夜になると祖父が火のそばで橋を作ったころの話をしてくれた。\n"
KOREAN = "지난 여름 우리는 오래된 숲을 지나 걸었다. 저녁에는 할아버지가 다리를 놓던 이야기를 들려주었다.\n"
CHINESE = "去年夏天，我们走过一片古老的森林。晚上，爷爷在火边讲他年轻时的故事，没有人想去睡觉。\n"
TRADITIONAL = "去年夏天，我們走過一片古老的森林。晚上，爺爺在火邊講他年輕時的故事，沒有人想去睡覺。\n"
ENGLISH = "Plain words in plain letters, line after line, as most files in the world begin.\n"


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        (FRENCH, ["latin-1", "cp1252", "mac_roman", "cp850"]),
        (GERMAN, ["latin-1", "cp1252"]),
        (POLISH, ["cp1250", "iso8859_2"]),
        (CZECH, ["cp1250", "iso8859_2"]),
        (TURKISH, ["cp1254"]),
        (RUSSIAN, ["cp1251", "koi8_r", "cp866", "iso8859_5"]),
        (UKRAINIAN, ["cp1251", "koi8_u"]),
        (GREEK, ["cp1253"]),
        (HEBREW, ["cp1255"]),
        (ARABIC, ["cp1256"]),
        (THAI, ["cp874"]),
        (JAPANESE, ["cp932", "shift_jis", "euc_jp", "iso2022_jp", "utf-16-le", "utf-16-be"]),
        (KOREAN, ["cp949", "euc_kr", "utf-16-le", "utf-16-be"]),
        (CHINESE, ["gb18030", "gbk", "gb2312"]),
        (TRADITIONAL, ["big5", "cp950", "big5hkscs"]),
        (ENGLISH, ["ascii", "utf-16-le", "utf-16-be"]),
    ],
)
def test_old_encodings_read_right(text, encodings):
    for name in encodings:
        for sample in (text, ENGLISH * 200 + text * 3, text * 30):
            data = sample.encode(name)
            # Another name is as good if it gives the same text.
            assert data.decode(detect_encoding(data)) == sample, (name, detect_encoding(data))


@pytest.mark.parametrize("text", [FRENCH, JAPANESE, KOREAN, RUSSIAN, ENGLISH])
@pytest.mark.parametrize("name", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_decides(text, name):
    data = text.encode(name)
    assert data.decode(detect_encoding(data)) == "\ufeff" + text
    swapped = ("\ufeff" + text).encode(name.removesuffix("-sig") + ("-be" if name != "utf-8-sig" else ""))
    assert swapped.decode(detect_encoding(swapped)) == "\ufeff" + text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=50))
def test_valid_utf8_is_utf8_whatever_the_characters(text):
    data = text.removeprefix("\ufeff").encode()
    assert detect_encoding(data) == "utf-8"


@pytest.mark.parametrize("text", [FRENCH, JAPANESE, KOREAN, RUSSIAN])
def test_utf8_stays_utf8_wherever_the_sample_ends(text):
    data = text.encode()
    assert {detect_encoding(data[:end]) for end in range(40, len(data))} == {"utf-8"}


@given(st.data(), st.sampled_from([FRENCH, JAPANESE, KOREAN, RUSSIAN, GERMAN]))
def test_one_bad_byte_never_makes_utf8_something_else(data, text):
    good = text.encode()
    at = data.draw(st.integers(0, len(good)))
    bad = bytes([data.draw(st.integers(0x80, 0xFF))])
    assert detect_encoding(good[:at] + bad + good[at:]) == "utf-8"


def test_a_stray_byte_beside_one_good_character_is_no_reason_to_leave_utf8():
    assert detect_encoding(ENGLISH.encode() + "é".encode() + b" and \xe9\n") == "utf-8"


@pytest.mark.parametrize("seed", range(3))
def test_binary_data_is_no_text(seed, tmp_path):
    rng = random.Random(seed)
    noise = rng.randbytes(5000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", noise[:600].hex() * 5)
    pixel = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89\0\0\0\rIDAT" + noise[:40]
    )
    for data in (
        noise,
        zlib.compress(noise),
        (tmp_path / "a.zip").read_bytes(),
        pixel,
        b"\x7fELF\2\1\1" + bytes(57),
    ):
        with pytest.raises(NotTextError, match="binary"):
            detect_encoding(data)


@pytest.mark.parametrize("path", ["/bin/sh", "/proc/self/exe"])
def test_a_program_is_no_text(path):
    with Path(path).open("rb") as file, pytest.raises(NotTextError, match="binary"):
        detect_encoding(file.read(1 << 20))


def test_a_stray_control_character_does_not_make_text_binary():
    assert detect_encoding(ENGLISH.encode() * 3 + b"\0\1" + ENGLISH.encode()) == "utf-8"
    assert detect_encoding(b"\x1b[1mbold\x1b[0m\x08\n\x0c") == "utf-8"


@given(st.binary(max_size=300))
def test_any_bytes_have_an_encoding_or_a_reason(data):
    with suppress(NotTextError):
        assert data.decode(detect_encoding(data), "replace") or not data


def test_charset_normalizer_sees_few_bytes_and_only_those_that_tell(monkeypatch):
    seen = []
    monkeypatch.setattr(encodings.charset_normalizer, "from_bytes", lambda data: seen.append(data) or [])
    unknown = bytes(range(0xC0, 0x100)) * 2 + b"\n"
    with pytest.raises(NotTextError, match="--encoding"):
        detect_encoding(ENGLISH.encode() * 1000 + unknown * 1000)
    assert len(seen) == 1
    assert len(seen[0]) <= 8192
    assert ENGLISH.encode() not in seen[0]


@pytest.mark.parametrize("name", ["utf8", "Shift_JIS", "EUC-KR", "latin-1", "cp932"])
def test_an_encoding_may_be_given_by_any_of_its_names(name):
    assert b"text".decode(check_encoding(name)) == "text"


@pytest.mark.parametrize(
    "name", ["shiftjis2", "", "hex", "rot13", "idna", "unicode_escape", "utf-7", "a\0b", "é"]
)
def test_what_files_are_not_written_in_is_refused(name):
    with pytest.raises(InputError, match="encoding"):
        check_encoding(name)


@pytest.mark.slow
def test_every_novel_of_aozora(shared):
    novels = sorted((shared / "data/text/aozora").glob("*.txt"))
    assert len(novels) == 60
    for novel in novels:
        data = novel.read_bytes()
        assert detect_encoding(data) == "cp932", novel
        assert detect_encoding(data[:1000]) == "cp932", novel


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cp949", "euc_kr"])
def test_korean_pieces_of_all_sizes(shared, name):
    with gzip.open(shared / "data/text/kowiki/kowiki-00.jsonl.gz") as file:
        text = "\n".join(json.loads(line)["text"] for line, _ in zip(file, range(1500), strict=False))
    # Python alone writes a rare syllable as eight bytes of single letters.
    usable = {c for c in set(text) if 0 < len(c.encode(name, "ignore")) <= 2}
    text = "".join(c for c in text if c in usable)
    rng = random.Random(name)
    for size, num_pieces in ((110, 200), (500, 100), (5000, 30), (100_000, 5), (550_000, 2)):
        for _ in range(num_pieces):
            start = rng.randrange(len(text) - size)
            data = text[start : start + size].encode(name)
            if not data.isascii():
                assert data.decode(detect_encoding(data)) == text[start : start + size]


ASCII = b"Plain words in plain letters, line after line.\n"
KANA = "去年の夏、私たちは古い森を歩いた。\n"


def decoded(data: bytes, *, encoding: str | None = None, size: int = 1 << 20) -> tuple[str, int, str | None]:
    """Text, replaced bytes and encoding, or the reason why there are none."""
    decode = Decoder(encoding)
    try:
        pieces = [decode.decode(data[at : at + size]) for at in range(0, len(data), size)]
        return "".join(pieces) + decode.decode(b"", final=True), decode.replaced_bytes, decode.encoding
    except NotTextError as error:
        return str(error), len(data), None


ENCODINGS = [
    None,
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-32",
    "cp932",
    "cp949",
    "gb18030",
    "big5hkscs",
    "euc_jp",
]


@given(st.binary(max_size=120), st.sampled_from(ENCODINGS), st.integers(1, 7))
def test_pieces_of_any_size_give_the_same(data, encoding, size):
    whole = decoded(data, encoding=encoding)
    assert decoded(data, encoding=encoding, size=size) == whole
    whole[0].encode("utf-8")  # no lone surrogates
    assert not {"\0", "\ufeff"} & set(whole[0])


@given(
    st.lists(st.sampled_from([ASCII, KANA.encode(), KANA.encode("cp932"), b"\xe9", b"x"])),
    st.integers(1, 7),
)
def test_pieces_of_any_size_give_the_same_in_many_samples(parts, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("electra.text.encoding.SAMPLE_BYTES", 64)
        data = b"".join(parts)
        assert decoded(data, size=size) == decoded(data)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\ufeff")))
def test_valid_utf8_comes_back(text):
    assert decoded(text.encode(), encoding="utf-8")[:2] == (text, 0)
    assert decoded(text.encode())[:2] == (text, 0)


def test_bad_bytes_are_replaced_and_counted():
    text, replaced_bytes, encoding = decoded(KANA.encode() + b"\xe5\x8e\xff." + KANA.encode())
    assert text == f"{KANA}\ufffd\ufffd.{KANA}"
    assert (replaced_bytes, encoding) == (3, "utf-8")


def test_nuls_are_removed_and_counted_and_marks_are_removed():
    assert decoded(b"\xef\xbb\xbfab\0c\xef\xbb\xbf\0\n") == ("abc\n", 2, "utf-8")
    assert decoded("a\0b\ufeff of it\n".encode("utf-16")) == ("ab of it\n", 1, "utf-16-le")
    assert decode_utf8(b"\xef\xbb\xbfa\0\xffb") == ("a\ufffdb", 2)


def test_a_long_english_beginning_does_not_decide(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    beginning = ASCII * 100
    for name in ("utf-8", "cp932", "euc_jp"):
        text, replaced_bytes, encoding = decoded(beginning + (KANA * 50).encode(name))
        assert (text, replaced_bytes, encoding) == (beginning.decode() + KANA * 50, 0, name)


def test_a_stray_byte_at_the_beginning_does_not_decide(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    text, replaced_bytes, encoding = decoded(b"caf\xe9 " + ASCII * 100 + (KANA * 50).encode())
    assert text == "café " + ASCII.decode() * 100 + KANA * 50
    assert (replaced_bytes, encoding) == (0, "utf-8")


def test_a_settled_encoding_stays(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    data = (KANA * 50).encode("cp932") + ASCII * 100 + "ソ\n".encode("cp932")
    assert decoded(data)[0].endswith("ソ\n")


def test_binary_data_is_refused_also_if_the_encoding_is_given():
    for encoding in (None, "utf-8", "cp932"):
        assert "binary" in decoded(bytes(range(256)) * 20, encoding=encoding)[0]


def test_binary_data_after_text_is_replaced_and_counted(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    text, replaced_bytes, _ = decoded(ASCII * 100 + bytes(range(256)) * 20)
    assert text.startswith(ASCII.decode() * 100)
    assert replaced_bytes > 20 * 128


def test_a_given_encoding_is_used_and_an_unknown_one_refused():
    assert decoded("é".encode("cp1252"), encoding="cp1251") == ("й", 0, "cp1251")
    with pytest.raises(InputError, match="'klingon'"):
        Decoder("klingon")
