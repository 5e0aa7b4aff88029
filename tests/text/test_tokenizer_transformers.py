"""Our tokenizers, saved, give transformers the same ids."""

import functools
import random

import pytest

from electra.text.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerConfig, train

transformers = pytest.importorskip("transformers")

SAMPLE = [
    "The quick brown fox jumps over the lazy dog, and the dog (a lazy one) sleeps; the fox does not.",
    "Naïve cafés in São Paulo: Übermut, coöperation, résumés. Ærøskøbing and Łódź are towns.",
    "日本語のテキストと漢字。学校がある、がっこう。한국어 텍스트와 영어 text. Русский язык и ёлка. नमस्ते",
    "Literal [MASK] and [CLS] and [SEP] are words here, [MASK] [MASK] [MASK][MASK] too. ## [ ] ##ing",
] * 20
KINDS = {
    "uncased": {"accents": "strip"},
    "cased": {"case": "keep"},
    "accents kept": {"accents": "keep"},
    "cased, accents stripped": {"case": "keep", "accents": "strip"},
    "Chinese split": {"cjk": "split", "accents": "keep"},
    "Chinese kept": {"cjk": "keep", "accents": "keep"},
}
RANGES = {
    "ASCII": (0x20, 0x7F),
    "controls": (0x00, 0x20),
    "more controls": (0x7F, 0xA1),
    "Latin": (0xA1, 0x250),
    "combining marks": (0x300, 0x370),
    "Greek": (0x370, 0x400),
    "Cyrillic": (0x400, 0x500),
    "Hebrew": (0x591, 0x5F5),
    "Arabic": (0x600, 0x700),
    "Devanagari": (0x900, 0x980),
    "Thai": (0xE01, 0xE5C),
    "punctuation and odd spaces": (0x2000, 0x2070),
    "Japanese": (0x3000, 0x3100),
    "Chinese": (0x4E00, 0x9FFF),
    "Korean": (0xAC00, 0xD7A4),
    "private use": (0xE000, 0xE010),
    "wide and half-width": (0xFF00, 0xFFF0),
    "emoji": (0x1F300, 0x1FA00),
    "flags": (0x1F1E6, 0x1F200),
    "rare Chinese": (0x20000, 0x2A6D0),
}
LOOK_ALIKES = (
    *SPECIAL_TOKENS,
    *(token.lower() for token in SPECIAL_TOKENS),
    *("[ MASK ]", "[MASK", "SEP]", "[[CLS]]", "##ing", "##", "👩\u200d🚀", "e\u0301", "が", "\ufeff", "\x00"),
)


@functools.cache
def made(algorithm: str, **options: str) -> Tokenizer:
    return train(SAMPLE, TokenizerConfig(algorithm=algorithm, vocab_size=600, **options))


def fuzzed(count: int, *, seed: int) -> list[str]:
    """Texts of words that they know, of characters of any script, and of what looks like a special token."""
    generator = random.Random(seed)
    words = " ".join(SAMPLE[:4]).split()

    def piece() -> str:
        match generator.randrange(4):
            case 0:
                return generator.choice(LOOK_ALIKES)
            case 1:
                return generator.choice(words)
        first, stop = generator.choice(list(RANGES.values()))
        return "".join(chr(generator.randrange(first, stop)) for _ in range(generator.randrange(1, 6)))

    return [
        "".join(piece() + generator.choice(("", " ")) for _ in range(generator.randrange(12)))
        for _ in range(count)
    ]


def saved(tokenizer, folder):
    """As it lies beside a model, where transformers chooses a class by the model's."""
    tokenizer.save(folder)
    (folder / "config.json").write_text('{"model_type": "electra", "architectures": ["ElectraModel"]}')
    return transformers.AutoTokenizer.from_pretrained(folder)


def assert_same_ids(tokenizer, theirs, texts):
    expected = [ids.tolist() for ids in tokenizer.encode(texts).split()]
    found = theirs(texts, add_special_tokens=False)["input_ids"]
    different = [text for text, ours, other in zip(texts, expected, found, strict=True) if ours != other]
    assert not different, f"{len(different)} of {len(texts)}, such as {different[0]!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed_texts_get_the_same_ids(tmp_path, kind):
    tokenizer = made("wordpiece", **KINDS[kind])
    texts = [*fuzzed(1200, seed=1), *LOOK_ALIKES, *SAMPLE[:4]]
    assert sum("[SEP]" in text or "[MASK]" in text for text in texts) > 100
    assert_same_ids(tokenizer, saved(tokenizer, tmp_path), texts)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_so_do_those_of_other_kinds(tmp_path, algorithm):
    tokenizer = made(algorithm)
    assert_same_ids(tokenizer, saved(tokenizer, tmp_path), fuzzed(400, seed=2))


def test_the_name_of_a_special_token_is_text_unless_one_asks(tmp_path):
    tokenizer = made("wordpiece")
    theirs = saved(tokenizer, tmp_path)
    text = "the [MASK] dog [SEP]"
    special = {tokenizer.mask_id, tokenizer.sep_id}
    assert not special & set(theirs(text, add_special_tokens=False)["input_ids"])
    asked = theirs(text, add_special_tokens=False, split_special_tokens=False)["input_ids"]
    assert special <= set(asked)
    # To have asked once changes nothing.
    assert not special & set(theirs(text, add_special_tokens=False)["input_ids"])


def test_pairs_are_put_together_as_here(tmp_path):
    tokenizer = made("wordpiece")
    theirs = saved(tokenizer, tmp_path)
    first, second = (ids.tolist() for ids in tokenizer.encode(["the fox", "a dog"]).split())
    pair = theirs("the fox", "a dog")
    ends = tokenizer.cls_id, tokenizer.sep_id
    assert pair["input_ids"] == [ends[0], *first, ends[1], *second, ends[1]]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
    assert len(theirs) == tokenizer.vocab_size
