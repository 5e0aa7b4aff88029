import functools
import gzip
import json
import pickle
import random
from itertools import islice

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from electra.text.tokenizer import (
    SPECIAL_TOKENS,
    Tokenizer,
    TokenizerConfig,
    WordMemory,
    load_tokenizer,
    train,
)

SAMPLE = [
    "The quick brown fox jumps over the lazy dog, and the dog (a lazy one) sleeps; the fox does not.",
    "Naïve cafés in São Paulo: Übermut, coöperation, résumés. Ærøskøbing and Łódź are towns.",
    "日本語のテキストと漢字。学校がある、がっこう。한국어 텍스트와 영어 text. Русский язык и ёлка.",
    "Literal [MASK] and [CLS] and [SEP] are words here, [MASK] [MASK] [MASK][MASK] too.",
] * 20
CLEANINGS = (
    {},
    {"accents": "strip"},
    {"accents": "keep", "cjk": "keep"},
    {"case": "keep"},
    {"case": "keep", "accents": "strip", "cjk": "keep"},
)
# Where a cut at spaces could differ from the whole: marks after a space, controls, odd spaces, odd cases.
HARD = " ,.-'\"()[]:;#\t\n\r\x00\x0b\x1c\x1f\x85\xa0\u2028\u3000\u200b\u200d\ufeff\ufffd\ue000、。，"
HARD += "\u0301\u0308\u0323\u3099\u05b4\u093f\u037e\u0387ÅéßİıẞǄΣσςﬁ１Ａ漢字がカﾞ한글ㅎ丽😀\U0001f1e9aAzZ019"


@functools.cache
def made(algorithm: str, **options: str) -> Tokenizer:
    return train(SAMPLE, TokenizerConfig(algorithm=algorithm, vocab_size=600, **options))


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens(tokenizer.encode([text]).ids)


def assert_same(texts: list[str], tokenizer: Tokenizer) -> None:
    fast, plain = tokenizer.encode(texts), tokenizer.encode_plainly(texts)
    np.testing.assert_array_equal(fast.ids, plain.ids)
    np.testing.assert_array_equal(fast.lengths, plain.lengths)


@pytest.mark.parametrize(
    ("mode", "config"),
    [
        ("uncased", {"do_lower_case": True}),
        ("uncased_keep_accents", {"do_lower_case": True, "strip_accents": False}),
        ("cased_flag", {"do_lower_case": False}),
    ],
)
def test_ids_are_those_of_the_authors(shared, tmp_path, mode, config):
    vocabulary = shared / "oracles/vocab/bert-base-uncased.vocab.txt"
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    cases = json.loads((shared / "oracles/google-electra/tokenizer_oracle.json").read_text())[mode]
    assert len(cases) == 37
    texts = [case["text"] for case in cases]
    for encoded in (tokenizer.encode(texts), tokenizer.encode_plainly(texts)):
        assert [ids.tolist() for ids in encoded.split()] == [case["ids"] for case in cases]


def test_a_word_of_200_characters_is_read_and_a_longer_one_is_unknown():
    assert "[UNK]" not in tokens(made("wordpiece"), "a" * 200)
    assert tokens(made("wordpiece"), "a" * 201) == ["[UNK]"]


@pytest.mark.slow
@pytest.mark.parametrize("cleaning", CLEANINGS, ids=str)
@settings(deadline=None, max_examples=150)
@given(texts=st.lists(st.text() | st.text(alphabet=HARD, max_size=40), max_size=5))
def test_remembered_words_give_the_same_ids(cleaning, texts):
    assert_same(texts, made("wordpiece", **cleaning))


@pytest.mark.slow
def test_every_character_beside_space_and_punctuation_gives_the_same_ids():
    tokenizer = made("wordpiece", accents="strip", case="lower")
    codes = [*range(0x3100), *range(0x3100, 0xD800, 97), *range(0xE000, 0x20000, 29)]
    assert_same([f"a{chr(code)}b {chr(code)}x .{chr(code)} {chr(code)}" for code in codes], tokenizer)
    assert tokenizer._memory.pays()


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["enwiki", "kowiki", "aozora"])
@pytest.mark.parametrize("cleaning", CLEANINGS[:3], ids=str)
def test_remembered_words_give_the_same_ids_on_real_text(shared, corpus, cleaning):
    paths = sorted((shared / "data/text" / corpus).iterdir())
    if corpus == "aozora":
        documents = [path.read_text(encoding="cp932", errors="replace") for path in paths[:3]]
    else:
        with gzip.open(paths[0], "rt", encoding="utf-8") as file:
            documents = [json.loads(line)["text"] for line in islice(file, 60)]
    tokenizer = train(documents, TokenizerConfig(vocab_size=4000, **cleaning))
    for document in documents:
        assert_same(document.split("\n"), tokenizer)
    assert tokenizer._memory.pays()


def test_the_memory_stays_bounded_and_gives_up_where_words_do_not_come_again(monkeypatch):
    tokenizer = made("wordpiece", cjk="keep")
    monkeypatch.setattr(WordMemory, "MAX_SIZE", 2000)
    lines = [" ".join(str(number) for number in range(first, first + 50)) for first in range(0, 2000, 50)]
    for line in lines:
        assert_same([line], tokenizer)
        assert len(tokenizer._memory.ids) < 200
    assert tokenizer._memory.pays()
    monkeypatch.setattr(WordMemory, "TRIAL", 1000)
    assert not tokenizer._memory.pays()
    assert_same(lines, tokenizer)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("case", ["lower", "keep"])
def test_the_name_of_a_special_token_in_a_text_is_text(algorithm, case):
    tokenizer = made(algorithm, case=case)
    ids = tokenizer.encode(["[CLS] a [MASK]b[SEP] [PAD]", "[MASK]", "[UNK]"]).ids
    assert ids.min() >= len(SPECIAL_TOKENS)


def test_a_foreign_model_that_knows_the_name_as_a_word_reads_unknown(tmp_path):
    entries = {token: number for number, token in enumerate([*SPECIAL_TOKENS, "a"])}
    backend = tokenizers.Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert tokens(load_tokenizer(tmp_path), "a [MASK] a b") == ["a", "[UNK]", "a", "[UNK]"]


def test_encoded_texts_can_be_told_apart():
    encoded = made("wordpiece").encode(["the fox", "", "the"])
    assert encoded.ids.dtype == np.uint32
    assert encoded.lengths.tolist() == [2, 0, 1]
    assert [ids.tolist() for ids in encoded.split()] == [
        encoded.ids[:2].tolist(),
        [],
        encoded.ids[2:].tolist(),
    ]
    assert made("wordpiece").encode([]).split() == []
    assert made("bpe").encode([]).ids.size == 0


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_decoding_joins_pieces_and_shows_special_tokens(algorithm):
    tokenizer = made(algorithm)
    text = "the lazy dog jumpsy foxdog"
    ids = tokenizer.encode([text]).ids
    assert len(ids) > 5
    assert tokenizer.decode(ids) == text
    shown = tokenizer.decode([tokenizer.cls_id, *ids[:1], tokenizer.mask_id])
    assert shown.replace(" ", "") == "[CLS]the[MASK]"


@pytest.mark.parametrize(("algorithm", "mark"), [("wordpiece", "##"), ("bpe", "▁"), ("unigram", "▁")])
def test_pieces_that_continue_a_word_are_known(algorithm, mark):
    tokenizer = made(algorithm)
    continues = tokenizer.continues_word()
    assert continues.shape == (tokenizer.vocab_size,)
    assert not continues[: len(SPECIAL_TOKENS)].any()
    for token, flag in zip(tokenizer.tokens(range(5, tokenizer.vocab_size)), continues[5:], strict=True):
        assert flag == (token.startswith(mark) == (algorithm == "wordpiece"))
    flags = continues[tokenizer.encode(["foxdog foxdog"]).ids]
    assert (~flags).sum() == 2


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_saving_and_loading_keeps_everything(tmp_path, algorithm):
    tokenizer = made(algorithm)
    tokenizer.save(tmp_path / "first")
    again = load_tokenizer(tmp_path / "first")
    again.save(tmp_path / "second")
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == ["tokenizer.json", "tokenizer_config.json"] + ["vocab.txt"] * (algorithm == "wordpiece")
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    copies = [again, load_tokenizer(tmp_path / "first/tokenizer.json"), pickle.loads(pickle.dumps(tokenizer))]
    for copy in copies:
        assert copy.content_hash == tokenizer.content_hash
        assert copy.describe() == tokenizer.describe()
        assert copy.encode(SAMPLE).ids.tolist() == tokenizer.encode(SAMPLE).ids.tolist()


@pytest.mark.parametrize("cleaning", CLEANINGS, ids=str)
def test_a_vocabulary_with_its_config_is_the_same_tokenizer(tmp_path, cleaning):
    tokenizer = made("wordpiece", **cleaning)
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path).content_hash == tokenizer.content_hash


def test_the_hash_tells_tokenizers_apart():
    hashes = {made("wordpiece", **cleaning).content_hash for cleaning in CLEANINGS[1:]}
    assert len(hashes | {made("bpe").content_hash}) == 5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("with_model_config", [False, True])
def test_transformers_reads_the_same_ids(tmp_path, algorithm, with_model_config):
    transformers = pytest.importorskip("transformers")
    generator = random.Random(0)
    alphabet = HARD.replace("[", "") + "".join(SAMPLE[:3])
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(60))) for _ in range(300)] + SAMPLE[:3]
    for number, cleaning in enumerate(CLEANINGS):
        tokenizer = made(algorithm, **cleaning)
        folder = tmp_path / str(number)
        tokenizer.save(folder)
        if with_model_config:
            (folder / "config.json").write_text(
                '{"model_type": "electra", "architectures": ["ElectraModel"]}'
            )
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        expected = [ids.tolist() for ids in tokenizer.encode(texts).split()]
        assert theirs(texts, add_special_tokens=False)["input_ids"] == expected
        pair = theirs("the fox", "a dog")
        first, second = (ids.tolist() for ids in tokenizer.encode(["the fox", "a dog"]).split())
        assert pair["input_ids"] == [2, *first, 3, *second, 3]
        assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert pair["attention_mask"] == [1] * len(pair["input_ids"])
        assert (theirs.pad_token_id, theirs.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
        assert len(theirs) == tokenizer.vocab_size


def test_offsets_lead_back_to_the_text():
    tokenizer = train(["Grüße aus Köln und München", "weiß"] * 20, TokenizerConfig(vocab_size=300))
    text = "  Köln, weiß "
    [located] = tokenizer.encode_with_offsets([text])
    assert located.ids.tolist() == tokenizer.encode([text]).ids.tolist()
    words = [text[first:last] for first, last in located.offsets_T2.tolist()]
    assert "".join(words) == "Köln,weiß"
    assert tokenizer.encode_with_offsets([""])[0].offsets_T2.shape == (0, 2)
