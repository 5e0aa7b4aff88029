import gzip
import json
import os
import random
import subprocess
import sys
import unicodedata
from itertools import islice

import pytest

from electra.errors import InputError
from electra.text.tokenizer import SPECIAL_TOKENS, TokenizerConfig, train
from electra.text.vocabulary import WordCutter, count_characters, make_normalizer, make_pre_tokenizer

ENGLISH = "The history of the café begins in the seventeenth century, when coffee came to Europe."
KOREAN = "대한민국의 수도는 서울이며, 한국어를 공용어로 사용한다."
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
HINDI = "भारत की राजधानी नई दिल्ली है और यहाँ हिन्दी बोली जाती है।"
RUSSIAN = "Русский язык — восточнославянский язык, национальный язык русского народа, ёлка."
VIETNAMESE = "Tiếng Việt là ngôn ngữ của người Việt và là ngôn ngữ chính thức tại Việt Nam."
HEBREW = "ירושלים היא עיר הבירה של מדינת ישראל"

TRAIN_AND_PRINT = """
import hashlib, json, random, sys, tempfile
from pathlib import Path
from electra.text.tokenizer import TokenizerConfig, train
texts = json.loads(sys.stdin.read())
for language, documents in texts.items():
    random.Random(sys.argv[1]).shuffle(documents)
    for algorithm in ("wordpiece", "bpe", "unigram"):
        tokenizer = train(documents, TokenizerConfig(algorithm=algorithm, vocab_size=int(sys.argv[2])))
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(folder)
            content = (Path(folder) / "tokenizer.json").read_bytes()
        print(language, algorithm, tokenizer.vocab_size, hashlib.sha256(content).hexdigest())
"""


def invented(alphabet: str, *, seed: int) -> list[str]:
    """Documents of invented words with many equal counts, so that ties decide."""
    generator = random.Random(seed)
    syllables = ["".join(generator.choices(alphabet, k=2)) for _ in range(60)]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(1500)]
    return [" ".join(generator.choices(words, k=40)) for _ in range(100)]


def train_in_processes(texts: dict[str, list[str]], *, vocab_size: int) -> list[str]:
    """What is printed by processes that differ in hash seed, threads and order of the texts."""
    printed = []
    for run, threads in enumerate(("1", "2", "4")):
        surroundings = {
            **os.environ,
            "PYTHONHASHSEED": str(run),
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false" if run == 0 else "true",
        }
        command = [sys.executable, "-c", TRAIN_AND_PRINT, str(run), str(vocab_size)]
        result = subprocess.run(
            command, input=json.dumps(texts), env=surroundings, capture_output=True, text=True, check=True
        )
        printed.append(result.stdout)
    return printed


@pytest.mark.slow
def test_training_gives_the_same_bytes_in_every_process():
    texts = {
        "english": invented("abcdefghijklmnopqrstuvwxyz", seed=1),
        "korean": invented("가나다라마바사아자차카타파하고노도로모보", seed=2),
        "japanese": invented("あいうえおかきくけこがぎぐげご日本語学校", seed=3),
    }
    first, *others = train_in_processes(texts, vocab_size=700)
    assert len(first.splitlines()) == 9
    assert others == [first, first]


@pytest.mark.slow
def test_training_on_real_text_gives_the_same_bytes_in_every_process(shared):
    texts = {"japanese": [(shared / "data/text/aozora/101_ruby_857.txt").read_text("cp932", "replace")]}
    for corpus in ("enwiki", "kowiki"):
        with gzip.open(sorted((shared / "data/text" / corpus).iterdir())[0], "rt", encoding="utf-8") as file:
            texts[corpus] = [json.loads(line)["text"][:10_000] for line in islice(file, 12)]
    first, *others = train_in_processes(texts, vocab_size=2000)
    assert others == [first, first]


@pytest.mark.parametrize(
    ("text", "accents"),
    [
        (ENGLISH, "strip"),
        (HEBREW, "strip"),
        (KOREAN, "keep"),
        (JAPANESE, "keep"),
        (HINDI, "keep"),
        (RUSSIAN, "keep"),
        (VIETNAMESE, "keep"),
        (ENGLISH * 200 + KOREAN, "strip"),
        (ENGLISH * 10 + KOREAN, "keep"),
    ],
)
def test_accents_are_kept_where_marks_make_letters(text, accents):
    assert train([text], TokenizerConfig()).describe()["accents"] == accents
    assert train([text], TokenizerConfig(case="keep")).describe()["accents"] == "keep"


def test_what_is_kept_or_stripped_shows_in_the_pieces():
    def read(text: str, **options: str) -> str:
        tokenizer = train([text] * 3, TokenizerConfig(**options))
        return "".join(tokenizer.tokens(tokenizer.encode([text]).ids)).replace("##", "")

    assert read("Café") == "cafe"
    assert read("Café", accents="keep") == "café"
    assert read("Café", case="keep") == "Café"
    assert read("Café", case="keep", accents="strip") == "Cafe"
    assert read("한국") == "한국"
    # As in the original: stripping decomposes, and Hangul falls apart into its jamo.
    assert read("한국", accents="strip") == unicodedata.normalize("NFD", "한국")


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_come_first_and_ascii_is_always_known(algorithm):
    tokenizer = train([KOREAN], TokenizerConfig(algorithm=algorithm, case="keep", vocab_size=300))
    assert tuple(tokenizer.tokens(range(5))) == SPECIAL_TOKENS
    printable = "".join(map(chr, range(33, 127)))
    ids = tokenizer.encode([printable, " ".join(printable), f"x{printable}"]).ids
    assert tokenizer.unk_id not in ids
    assert tokenizer.unk_id in tokenizer.encode(["ش"]).ids


def test_the_vocabulary_has_the_size_asked_for_or_less_if_the_text_is_small():
    texts = invented("abcdefghij", seed=4)
    for algorithm in ("wordpiece", "bpe", "unigram"):
        assert train(texts, TokenizerConfig(algorithm=algorithm, vocab_size=400)).vocab_size == 400
        assert (
            100 < train(texts[:1], TokenizerConfig(algorithm=algorithm, vocab_size=20_000)).vocab_size < 1000
        )


def test_rare_characters_leave_room_for_pieces():
    rare = [chr(0x4E00 + number) for number in range(3000)]
    tokenizer = train([ENGLISH] * 500 + rare, TokenizerConfig(vocab_size=300))
    assert tokenizer.tokens(tokenizer.encode(["history"]).ids) == ["history"]
    # A Chinese character is a word by itself, so it needs no second form inside a word.
    japanese = train([JAPANESE] * 5, TokenizerConfig())
    entries = japanese.tokens(range(japanese.vocab_size))
    assert "猫" in entries
    assert "##猫" not in entries
    assert "##は" in entries


def test_a_long_line_without_spaces_is_no_trouble():
    tokenizer = train(
        ["吾輩は猫である" * 30_000, "x" * 300_000], TokenizerConfig(algorithm="unigram", cjk="keep")
    )
    assert "[UNK]" not in tokenizer.tokens(tokenizer.encode(["吾輩は猫であるxxx"]).ids)


@pytest.mark.parametrize("texts", [[], [""], [" \n\t"], ["[MASK]"]])
def test_a_sample_without_words_is_refused(texts):
    with pytest.raises(InputError, match="words"):
        train(texts, TokenizerConfig(algorithm="bpe", case="keep"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"vocab_size": 255}, "vocab_size.*255.*256"),
        ({"algorithm": "words"}, "algorithm.*'words'.*wordpiece, bpe, unigram"),
        ({"case": "upper"}, "case.*'upper'"),
        ({"accents": "drop"}, "accents.*'drop'"),
        ({"cjk": "join"}, "cjk.*'join'"),
    ],
)
def test_bad_options_are_refused(option, message):
    with pytest.raises(InputError, match=message):
        TokenizerConfig(**option)


@pytest.mark.parametrize("case", ["lower", "keep"])
@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_words_are_those_of_the_library(algorithm, case):
    rng = random.Random(0)
    normalizer = make_normalizer(case=case, accents="strip", cjk="split")
    cutter = WordCutter(normalizer, make_pre_tokenizer(algorithm))
    texts = [f"a{chr(code)}B" for code in range(0x250)]
    texts += ["".join(chr(rng.randrange(32, 127)) for _ in range(9)) for _ in range(500)]
    for text in texts:
        cut = cutter.pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
        assert cutter.words(text) == [word for word, _ in cut]


def test_characters_are_counted_as_often_as_their_words():
    assert count_characters({"aba": 2, "aé": 3, "\U0001f600": 1}) == {"a": 7, "b": 2, "é": 3, "\U0001f600": 1}
    assert count_characters({}) == {}
