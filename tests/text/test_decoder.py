import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text.encoding import Decoder, NotTextError, decode_utf8

ENGLISH = b"Plain words in plain letters, line after line.\n"
JAPANESE = "去年の夏、私たちは古い森を歩いた。\n"


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
    st.lists(st.sampled_from([ENGLISH, JAPANESE.encode(), JAPANESE.encode("cp932"), b"\xe9", b"x"])),
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
    text, replaced_bytes, encoding = decoded(JAPANESE.encode() + b"\xe5\x8e\xff." + JAPANESE.encode())
    assert text == f"{JAPANESE}\ufffd\ufffd.{JAPANESE}"
    assert (replaced_bytes, encoding) == (3, "utf-8")


def test_nuls_are_removed_and_counted_and_marks_are_removed():
    assert decoded(b"\xef\xbb\xbfab\0c\xef\xbb\xbf\0\n") == ("abc\n", 2, "utf-8")
    assert decoded("a\0b\ufeff of it\n".encode("utf-16")) == ("ab of it\n", 1, "utf-16-le")
    assert decode_utf8(b"\xef\xbb\xbfa\0\xffb") == ("a\ufffdb", 2)


def test_a_long_english_beginning_does_not_decide(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    beginning = ENGLISH * 100
    for name in ("utf-8", "cp932", "euc_jp"):
        text, replaced_bytes, encoding = decoded(beginning + (JAPANESE * 50).encode(name))
        assert (text, replaced_bytes, encoding) == (beginning.decode() + JAPANESE * 50, 0, name)


def test_a_stray_byte_at_the_beginning_does_not_decide(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    text, replaced_bytes, encoding = decoded(b"caf\xe9 " + ENGLISH * 100 + (JAPANESE * 50).encode())
    assert text == "café " + ENGLISH.decode() * 100 + JAPANESE * 50
    assert (replaced_bytes, encoding) == (0, "utf-8")


def test_a_settled_encoding_stays(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    data = (JAPANESE * 50).encode("cp932") + ENGLISH * 100 + "ソ\n".encode("cp932")
    assert decoded(data)[0].endswith("ソ\n")


def test_binary_data_is_refused_also_if_the_encoding_is_given():
    for encoding in (None, "utf-8", "cp932"):
        assert "binary" in decoded(bytes(range(256)) * 20, encoding=encoding)[0]


def test_binary_data_after_text_is_replaced_and_counted(monkeypatch):
    monkeypatch.setattr("electra.text.encoding.SAMPLE_BYTES", 1000)
    text, replaced_bytes, _ = decoded(ENGLISH * 100 + bytes(range(256)) * 20)
    assert text.startswith(ENGLISH.decode() * 100)
    assert replaced_bytes > 20 * 128


def test_a_given_encoding_is_used_and_an_unknown_one_refused():
    assert decoded("é".encode("cp1252"), encoding="cp1251") == ("й", 0, "cp1251")
    with pytest.raises(InputError, match="'klingon'"):
        Decoder("klingon")
