import json

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from electra.errors import InputError
from electra.text.tokenizer import SPECIAL_TOKENS, load_tokenizer

SPECIAL = list(SPECIAL_TOKENS)


def vocabulary(folder, entries, *, end="\n", start="", **settings):
    (folder / "vocab.txt").write_bytes((start + "".join(f"{entry}{end}" for entry in entries)).encode())
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "vocab.txt"


def tokenizer_json(folder, **changes):
    """A small tokenizer.json, some of whose keys ("model.vocab") are replaced."""
    entries = {token: number for number, token in enumerate([*SPECIAL, "a", "b", "##b", ","])}
    backend = tokenizers.Tokenizer(models.WordPiece(entries, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    content = json.loads(backend.to_str())
    for key, value in changes.items():
        *parents, last = key.split("__")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def added(content, number, *, special=False):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": special, **flags}


@pytest.mark.parametrize(
    ("entries", "settings", "facts"),
    [
        (["a", "cafe", "日"], {}, ("lower", "strip", "split")),
        (["a", "Paris"], {}, ("keep", "keep", "split")),
        (["a", "##X"], {}, ("keep", "keep", "split")),
        (["a", "[unused_A]"], {}, ("lower", "strip", "split")),
        (["a", "café"], {}, ("lower", "keep", "split")),
        (["a", "한국"], {}, ("lower", "keep", "split")),
        (["a", "日本"], {}, ("lower", "strip", "keep")),
        (["a", "Paris"], {"do_lower_case": True}, ("lower", "strip", "split")),
        (["a", "café"], {"strip_accents": True, "do_lower_case": None}, ("lower", "strip", "split")),
        (["a"], {"do_lower_case": False}, ("keep", "keep", "split")),
        (["a"], {"do_lower_case": False, "strip_accents": True}, ("keep", "strip", "split")),
        (["a"], {"tokenize_chinese_chars": False}, ("lower", "strip", "keep")),
    ],
)
def test_how_a_vocabulary_is_meant_is_told_or_follows_from_its_entries(tmp_path, entries, settings, facts):
    described = load_tokenizer(vocabulary(tmp_path, [*SPECIAL, *entries], **settings)).describe()
    assert (described["case"], described["accents"], described["cjk"]) == facts


def test_published_vocabularies_are_recognised(shared):
    english = load_tokenizer(shared / "oracles/vocab/bert-base-uncased.vocab.txt")
    assert english.describe() == {
        "algorithm": "wordpiece", "vocab_size": 30522, "case": "lower", "accents": "strip", "cjk": "split"
    }  # fmt: skip
    assert (english.pad_id, english.unk_id, english.cls_id, english.sep_id, english.mask_id) == (
        0,
        100,
        101,
        102,
        103,
    )
    korean = load_tokenizer(shared / "oracles/vocab/koelectra-v3.vocab.txt").describe()
    assert (korean["vocab_size"], korean["case"], korean["accents"]) == (35000, "keep", "keep")


def test_marks_and_line_ends_of_windows_are_tolerated(tmp_path):
    plain = load_tokenizer(vocabulary(tmp_path, [*SPECIAL, "a", "\u2028b"]))
    windows = load_tokenizer(vocabulary(tmp_path, [*SPECIAL, "a", "\u2028b"], start="\ufeff", end="\r\n"))
    assert windows.content_hash == plain.content_hash
    assert plain.vocab_size == 7
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a"]))
    assert load_tokenizer(tmp_path).vocab_size == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join([*SPECIAL, "a", "b", "a"]).encode(), "8.*'a'.*6"),
        ("\n".join([*SPECIAL, "", "a"]).encode(), "line 6"),
        (b"\n".join([b"[PAD]", b"[UNK]", b"caf\xe9"]), "line 3.*UTF-8"),
        (b"[PAD]\n[UNK]\na\n[SEP]\n", r"\[CLS\] \[MASK\]"),
        (b"<pad>\n<s>\n[UNK]\n[SEP]\n[MASK]\n", r"<pad>.*\[PAD\], <s>.*\[CLS\]"),
        (b"", "line 1"),
    ],
)
def test_a_bad_vocabulary_is_refused_with_file_and_line(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "vocab.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [('{"do_lower_case": "yes"}', "do_lower_case.*'yes'"), ("[]", "JSON"), ("{", "JSON")],
)
def test_bad_settings_are_refused(tmp_path, settings, message):
    vocabulary(tmp_path, SPECIAL)
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "'model'"),
        ({"model__type": "Letters"}, "`tokenizers`"),
        (
            {"model__vocab": {"<pad>": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "<mask>": 4}},
            r"<mask>.*\[MASK\]",
        ),
        ({"model__vocab": {**dict(zip(SPECIAL, range(5), strict=True)), "a": 7}}, r"id 5\b.*\b7\b"),
        ({"model__vocab": {**dict(zip(SPECIAL, range(5), strict=True)), "a": 4}}, r"id 4\b.*'a'"),
        ({"model__unk_token": "a"}, r"model\.unk_token.*'a'.*'\[UNK\]'"),
        ({"added_tokens": [added("[new]", 30)]}, r"added_tokens.*'\[new\]'.*30.*\b9\b"),
    ],
)
def test_a_bad_tokenizer_json_is_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load_tokenizer(tokenizer_json(tmp_path, **changes))


def test_models_that_are_random_or_lack_the_unknown_token_are_refused(tmp_path):
    entries = {token: number for number, token in enumerate([*SPECIAL, "a"])}
    tokenizers.Tokenizer(models.BPE(entries, [], dropout=0.1)).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"model\.dropout.*0\.1"):
        load_tokenizer(tmp_path)
    pieces = [(token, -1.0) for token in entries]
    tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"model\.unk_id.*0.*1"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b'{"model": {"type": "Wo', b"[1, 2]", b"", b"\xff\xfe{}", b'{"a": 1}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_place_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer\.json.*vocab\.txt"):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match=r"nothing\.txt"):
        load_tokenizer(tmp_path / "nothing.txt")


def test_padding_and_truncation_of_the_file_are_left_out(tmp_path):
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    plain = load_tokenizer(tokenizer_json(tmp_path))
    cut = load_tokenizer(tokenizer_json(tmp_path, truncation=truncation))
    assert cut.encode(["a b a b"]).lengths.tolist() == [4]
    assert cut.content_hash == plain.content_hash


def test_added_tokens_count_and_are_found_in_text(tmp_path):
    tokenizer = load_tokenizer(
        tokenizer_json(tmp_path, added_tokens=[added("new york", 9), added("[E1]", 10, special=True)])
    )
    assert tokenizer.vocab_size == 11
    ids = tokenizer.encode(["a new york b", "[E1]"]).ids.tolist()
    assert tokenizer.tokens(ids)[:3] == ["a", "new york", "b"]
    assert 10 not in ids
    assert not tokenizer.continues_word()[9:].any()
