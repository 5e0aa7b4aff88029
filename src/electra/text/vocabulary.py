"""A sample of text -> a trained tokenizer, with the same bytes whenever the words are the same.

Words are counted here and handed to the trainers in a fixed form with the whole alphabet in order, so that
nothing depends on the order of the texts, on hash seeds or on threads. WordPiece and BPE vocabularies are
trained by `tokenizers`. Its unigram trainer sums in hash order, so that its scores, and its pieces at near
ties, change from run to run; ours is the same method in a fixed order.
"""

import functools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from electra.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
LONGEST_WORD = 200  # As in the original; a longer word is [UNK]. transformers' BERT stops at 100.
SMALLEST_VOCABULARY = 256
ALPHABET_COVERAGE = 0.9999
# "auto" keeps accents if stripping would destroy at least this share of letters; й alone is 1.2 % of Russian.
NOTICEABLE_SHARE = 0.005
# Scripts in which a mark makes another letter or vowel: Cyrillic to the Indic scripts and Thai, Vietnamese
# Latin, kana, the rest of the Indic scripts, Hangul.
MARKS_MATTER = (("\u0400", "\u1aaf"), ("\u1ea0", "\u1eff"), ("\u3040", "\u30ff"), ("\ua800", "\ud7a3"))


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How to train a new vocabulary."""

    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Type of vocabulary; wordpiece is the paper's and by far the fastest to apply."""
    vocab_size: int = 30522
    """Number of entries, including the five special tokens; fewer if the text has too few words."""
    case: Literal["lower", "keep"] = "lower"
    """Convert text to lower case, or keep its case."""
    accents: Literal["auto", "strip", "keep"] = "auto"
    """Strip accents, as the original does, or keep them; auto keeps them with the case, and in scripts where
    a mark makes another letter."""
    cjk: Literal["split", "keep"] = "split"
    """Treat every Chinese character as a word of its own, or keep runs of them together."""

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


_CutsAtPunctuation = pre_tokenizers.BertPreTokenizer
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")


class WordCutter(NamedTuple):
    """Text -> the words the model will see."""

    normalizer: Any
    pre_tokenizer: Any

    def words(self, text: str) -> list[str]:
        """Clean the text and cut it into words."""
        if text.isascii() and text.isprintable() and isinstance(self.pre_tokenizer, _CutsAtPunctuation):
            # The same words as below, in a tenth of the time.
            return _ASCII_WORDS.findall(text.lower() if self.normalizer.lowercase else text)
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
    """The original's cleaning of text, with every choice explicit."""
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
    """Put the parts together; the special tokens are entries of the model itself."""
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
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.repeat(np.fromiter(words.values(), np.int64), np.fromiter(map(len, words), np.int64))
    # Sums of float64, which are exact below 2**53.
    totals = np.bincount(codes, counts)
    return Counter({chr(code): int(totals[code]) for code in np.flatnonzero(totals).tolist()})


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
    pieces = learn_unigram(words, candidates=candidates, size=config.vocab_size - len(SPECIAL_TOKENS))
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


# --- the unigram trainer ---
#
# Expectation maximisation over all segmentations, then pruning of the pieces that are missed least
# (Kudo 2018). It works with plain probabilities: only products and sums, which every machine rounds alike.
# Words are cut short enough for that not to underflow.

LONGEST_PIECE = 12
LONGEST_PART = 24
MAX_CHARACTERS = 3_000_000  # of distinct words, the most frequent first: bounds the memory to about 200 MB
KEEP_SHARE = 0.75
EM_ROUNDS = 2


class Lattice(NamedTuple):
    """All segmentations of W words of one length L, whose E possible pieces are `edges` (start, end)."""

    edges: list[tuple[int, int]]
    pieces_EW: np.ndarray
    weights_W: np.ndarray


def learn_unigram(words: dict[str, int], *, candidates: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Keep the `size` best candidates with their log probabilities, best first; characters always stay."""
    pieces = sorted(candidates)
    single = np.array([len(piece) == 1 for piece in pieces])
    assert single.sum() <= size, "the alphabet must fit into the vocabulary"
    numbers = {piece: number for number, piece in enumerate(pieces)}
    of_words = lattices(bounded(words).items(), numbers)
    of_pieces = lattices(((piece, number) for number, piece in enumerate(pieces) if len(piece) > 1), numbers)
    kept = np.ones(len(pieces), dtype=bool)
    counts_V = total(occurrences(lattice, len(pieces)) for lattice in of_words)
    while True:
        for _ in range(EM_ROUNDS):
            probability_V = to_probabilities(counts_V, kept)
            counts_V = total(expected_counts(lattice, probability_V) for lattice in of_words)
        if kept.sum() <= size:
            break
        loss_V = counts_V * cost_of_removal(of_pieces, probability_V)
        loss_V[single] = np.inf
        loss_V[~kept] = -np.inf
        best = np.argsort(-loss_V, kind="stable")[: max(size, int(KEEP_SHARE * kept.sum()))]
        kept = np.zeros(len(pieces), dtype=bool)
        kept[best] = True
    scores_V = np.log(to_probabilities(counts_V, kept), where=kept, out=np.full(len(pieces), -np.inf))
    scored = [(pieces[number], round(float(scores_V[number]), 6)) for number in np.flatnonzero(kept)]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def total(counts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum in the given order."""
    return functools.reduce(np.add, counts)


def bounded(words: dict[str, int]) -> dict[str, int]:
    """The most frequent words, long ones in parts, up to the limit of characters."""
    parts: dict[str, int] = {}
    for word, count in words.items():
        for start in range(0, len(word), LONGEST_PART):
            part = word[start : start + LONGEST_PART]
            parts[part] = parts.get(part, 0) + count
    chosen, characters = {}, 0
    for word, count in sorted(parts.items(), key=lambda item: (-item[1], item[0])):
        chosen[word] = count
        characters += len(word)
        if characters > MAX_CHARACTERS:
            break
    return chosen


def lattices(words: Iterable[tuple[str, int]], numbers: dict[str, int]) -> list[Lattice]:
    """Look up every part of every word once; parts that are no candidates get the number after the last."""
    by_length: dict[int, list[tuple[str, int]]] = {}
    for word, weight in words:
        by_length.setdefault(len(word), []).append((word, weight))
    result = []
    for length, group in sorted(by_length.items()):
        edges = [
            (start, end) for end in range(1, length + 1) for start in range(max(0, end - LONGEST_PIECE), end)
        ]
        found = (numbers.get(word[start:end], len(numbers)) for start, end in edges for word, _ in group)
        pieces = np.fromiter(found, np.int32, len(edges) * len(group)).reshape(len(edges), len(group))
        result.append(Lattice(edges, pieces, np.array([weight for _, weight in group], dtype=np.float64)))
    return result


def occurrences(lattice: Lattice, num_pieces: int) -> np.ndarray:
    """How often each piece occurs in the words, overlaps included: the starting point."""
    weights = np.broadcast_to(lattice.weights_W, lattice.pieces_EW.shape)
    return np.bincount(lattice.pieces_EW.ravel(), weights.ravel(), num_pieces + 1)[:-1]


def to_probabilities(counts_V: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Counts -> probabilities of the kept pieces. None is zero, so that every word has a path."""
    weights_V: np.ndarray = np.where(kept, np.maximum(counts_V, 0.1), 0.0)
    probability_V: np.ndarray = weights_V / weights_V.sum()
    return probability_V


def expected_counts(lattice: Lattice, probability_V: np.ndarray) -> np.ndarray:
    """How often each piece is used, averaged over all segmentations of the words by their probability."""
    probability_EW = np.append(probability_V, 0.0)[lattice.pieces_EW]
    length = lattice.edges[-1][1]
    forward = np.zeros((length + 1, len(lattice.weights_W)))
    backward = np.zeros_like(forward)
    forward[0] = backward[length] = 1
    for edge, (start, end) in enumerate(lattice.edges):
        forward[end] += forward[start] * probability_EW[edge]
    for edge, (start, end) in reversed(list(enumerate(lattice.edges))):
        # Edges are ordered by their end, so `backward[end]` is complete when it is read.
        backward[start] += backward[end] * probability_EW[edge]
    weights_W = lattice.weights_W / forward[length]
    for edge, (start, end) in enumerate(lattice.edges):
        probability_EW[edge] *= forward[start] * backward[end] * weights_W
    return np.bincount(lattice.pieces_EW.ravel(), probability_EW.ravel(), len(probability_V) + 1)[:-1]


def cost_of_removal(of_pieces: list[Lattice], probability_V: np.ndarray) -> np.ndarray:
    """Per piece: log of its probability over that of the best way to spell it with the others."""
    cost_V = np.zeros_like(probability_V)
    padded_V = np.append(probability_V, 0.0)
    for lattice in of_pieces:
        length = lattice.edges[-1][1]
        best = np.zeros((length + 1, len(lattice.weights_W)))
        best[0] = 1
        for edge, (start, end) in enumerate(lattice.edges):
            if end - start < length:
                best[end] = np.maximum(best[end], best[start] * padded_V[lattice.pieces_EW[edge]])
        numbers = lattice.weights_W.astype(int)
        whole = np.maximum(probability_V[numbers], np.finfo(float).tiny)
        cost_V[numbers] = np.log(whole / best[length])
    return cost_V
