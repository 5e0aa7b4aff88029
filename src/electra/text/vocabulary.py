"""A sample of text + TokenizerConfig -> a trained tokenizer, the same bytes whenever the words are the same.

The words are counted here and handed to the trainers in a fixed form: every character of the alphabet is
given in order, so nothing depends on the order of the texts, on hash seeds or on threads.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from electra.errors import InputError
from electra.text import unigram

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
LONGEST_WORD = 200  # As in the original; a longer word is [UNK]. transformers' BERT stops at 100.
SMALLEST_VOCABULARY = 256
ALPHABET_COVERAGE = 0.9999
# Share of letters that stripping would destroy from which "auto" keeps them: й alone is 1.2 % of Russian.
NOTICEABLE_SHARE = 0.005
# Scripts in which a mark makes another letter or vowel: Cyrillic to the Indic scripts and Thai, Vietnamese
# Latin, kana, the rest of the Indic scripts, Hangul.
MARKS_MATTER = (("\u0400", "\u1aaf"), ("\u1ea0", "\u1eff"), ("\u3040", "\u30ff"), ("\ua800", "\ud7a3"))


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How a new vocabulary is learned from the text."""

    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """How words are cut into pieces; wordpiece is the paper's and by far the fastest to apply."""
    vocab_size: int = 30522
    """Number of pieces, the five special tokens included; fewer are made if the text has not enough words."""
    case: Literal["lower", "keep"] = "lower"
    """Lower-case the text, or keep its case."""
    accents: Literal["auto", "strip", "keep"] = "auto"
    """Strip accents as the original, or keep; auto keeps them with the case, and where marks make letters."""
    cjk: Literal["split", "keep"] = "split"
    """Make every Chinese character a word of its own, or keep runs of them together."""

    def __post_init__(self) -> None:
        options = {
            "algorithm": ("wordpiece", "bpe", "unigram"),
            "case": ("lower", "keep"),
            "accents": ("auto", "strip", "keep"),
            "cjk": ("split", "keep"),
        }
        for name, allowed in options.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(allowed)}")
        if self.vocab_size < SMALLEST_VOCABULARY:
            raise InputError(f"vocab_size is {self.vocab_size}, expected at least {SMALLEST_VOCABULARY}")


class WordCutter(NamedTuple):
    """Text -> the words the model will see."""

    normalizer: Any
    pre_tokenizer: Any

    def words(self, text: str) -> list[str]:
        """Clean the text and cut it into words."""
        return [word for word, _ in self.pre_tokenizer.pre_tokenize_str(self.normalizer.normalize_str(text))]

    def can_continue(self, char: str) -> bool:
        """Whether the character can stand inside a word."""
        return len(self.words(f"a{char}")) == 1


def learn(texts: Iterable[str], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Count the words of the sample, choose the alphabet and train."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text.split())
    accents = resolve_accents(raw, config)
    cutter = WordCutter(
        make_normalizer(case=config.case, accents=accents, cjk=config.cjk),
        make_pre_tokenizer(config.algorithm),
    )
    words = count_words(raw, cutter)
    characters = choose_alphabet(words, cutter, config)
    allowed = set(characters)
    words = {word: count for word, count in words.items() if allowed.issuperset(word)}
    if not words:
        raise InputError("no tokenizer can be trained: the sample holds no words")
    return assemble(train_model(words, characters, cutter, config), cutter.normalizer, cutter.pre_tokenizer)


def resolve_accents(words: Counter[str], config: TokenizerConfig) -> Literal["strip", "keep"]:
    """What "auto" means for this text."""
    if config.accents != "auto":
        return config.accents
    if config.case == "keep":
        return "keep"
    characters = count_characters(words)
    letters = sum(count for char, count in characters.items() if unicodedata.category(char)[0] in "LM")
    destroyed = sum(count for char, count in characters.items() if stripping_destroys(char))
    return "keep" if destroyed > NOTICEABLE_SHARE * letters else "strip"


def stripping_destroys(char: str) -> bool:
    """Whether a letter or mark is lost, not only simplified, when marks are stripped."""
    if not any(first <= char <= last for first, last in MARKS_MATTER):
        return False
    return unicodedata.category(char) == "Mn" or unicodedata.normalize("NFD", char) != char


def make_normalizer(*, case: str, accents: str, cjk: str) -> Any:
    """The original's cleaning of text, with its choices spelled out."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=cjk == "split",
        strip_accents=accents == "strip",
        lowercase=case == "lower",
    )


def make_pre_tokenizer(algorithm: str) -> Any:
    """WordPiece: white space and punctuation end words. Else: white space does, and marks the next piece."""
    if algorithm == "wordpiece":
        return pre_tokenizers.BertPreTokenizer()
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


def assemble(model: Any, normalizer: Any, pre_tokenizer: Any) -> tokenizers.Tokenizer:
    """Put the parts together; the special tokens are the model's own entries."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    is_wordpiece = isinstance(model, models.WordPiece)
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION) if is_wordpiece else decoders.Metaspace()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def count_words(raw: Counter[str], cutter: WordCutter) -> dict[str, int]:
    """Count the words as the model will see them."""
    words: Counter[str] = Counter()
    for text, count in raw.items():
        for start in range(0, len(text), LONGEST_WORD):  # bounds the time for text without spaces
            for word in cutter.words(text[start : start + LONGEST_WORD]):
                words[word] += count
    # Merging such a word back together would make the special token a part of ordinary text.
    return {
        word: count for word, count in words.items() if not any(token in word for token in SPECIAL_TOKENS)
    }


def count_characters(words: dict[str, int]) -> Counter[str]:
    """How often each character occurs."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            characters[char] += count
    return characters


def choose_alphabet(words: dict[str, int], cutter: WordCutter, config: TokenizerConfig) -> list[str]:
    """Printable ASCII and the frequent characters that cover nearly all text, in half of the vocabulary."""
    characters = count_characters(words)
    printable = map(chr, range(ord("!"), ord("~") + 1))
    required = {char for text in printable for word in cutter.words(text) for char in word}
    remaining = characters.total() - sum(characters[char] for char in required)
    uncovered = (1 - ALPHABET_COVERAGE) * characters.total()
    chosen = sorted(required)
    room = config.vocab_size // 2 - len(alphabet_entries(chosen, cutter, config))
    for char, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if char in required:
            continue
        room -= len(alphabet_entries([char], cutter, config))
        if remaining <= uncovered or room < 0:
            break
        chosen.append(char)
        remaining -= count
    return sorted(chosen)


def alphabet_entries(characters: list[str], cutter: WordCutter, config: TokenizerConfig) -> list[str]:
    """The entries that spell any word. WordPiece writes a character differently where it continues a word."""
    if config.algorithm != "wordpiece":
        return characters
    return characters + [f"{CONTINUATION}{char}" for char in characters if cutter.can_continue(char)]


def train_model(
    words: dict[str, int], characters: list[str], cutter: WordCutter, config: TokenizerConfig
) -> Any:
    """Words and alphabet -> the model of the chosen algorithm."""
    alphabet = alphabet_entries(characters, cutter, config)
    if config.algorithm == "wordpiece":
        trained = merge(words, alphabet, vocab_size=config.vocab_size, prefix=CONTINUATION)
        return models.WordPiece(trained["vocab"], unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    if config.algorithm == "bpe":
        trained = merge(words, alphabet, vocab_size=config.vocab_size, prefix="")
        merges = [tuple(pair) for pair in trained["merges"]]
        return models.BPE(trained["vocab"], merges, unk_token="[UNK]", fuse_unk=True)
    trained = merge(words, alphabet, vocab_size=3 * config.vocab_size, prefix="")
    candidates = [piece for piece in trained["vocab"] if piece not in SPECIAL_TOKENS]
    pieces = unigram.learn(words, candidates=candidates, size=config.vocab_size - len(SPECIAL_TOKENS))
    # A special token must never be the best way to read its own name in a text.
    never = [(token, 100 * min(score for _, score in pieces)) for token in SPECIAL_TOKENS]
    return models.Unigram([*never, *pieces], unk_id=SPECIAL_TOKENS.index("[UNK]"))


def merge(words: dict[str, int], alphabet: list[str], *, vocab_size: int, prefix: str) -> dict[str, Any]:
    """Byte-pair merges of the words, after the special tokens and the alphabet in the given order."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        # The trainer numbers characters in hash order as it meets them, and breaks ties by number;
        # "special" entries come first and in order.
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        show_progress=False,
        continuing_subword_prefix=prefix,
    )
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(repeated(words), trainer)
    trained: dict[str, Any] = json.loads(learner.to_str())["model"]
    return trained


def repeated(words: dict[str, int]) -> Iterator[str]:
    """Every word as often as it was counted, in lines of bounded length: the trainer takes no counts."""
    for word, count in words.items():
        for done in range(0, count, 1000):
            yield f"{word} " * min(1000, count - done)
