"""Text -> token ids and back; training, saving and loading of tokenizers.

    tokenizer = train(texts, TokenizerConfig())     or     load("folder, tokenizer.json or vocab.txt")
    encoded = tokenizer.encode(["a line", "another"])        # encoded.ids, encoded.lengths

Ids are those of the authors' tokenizer, with these exceptions: private-use characters are dropped; a capital
Σ at the end of a word becomes σ, not ς; U+2B820 to U+2B91F are not treated as Chinese; and some characters of
the latest Unicode versions differ.

A tokenizer.json is complete by itself. A vocab.txt is WordPiece; the tokenizer_config.json beside it says how
text is cleaned (do_lower_case, strip_accents, tokenize_chinese_chars). What it leaves open follows from the
entries: text is lower-cased, stripped of accents and split at Chinese characters, unless some entry could
then never occur ("Paris", "café", "日本").
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import models, normalizers, processors

from electra import files
from electra.errors import InputError
from electra.text import vocabulary
from electra.text.growth import check_growth
from electra.text.vocabulary import CONTINUATION, LONGEST_WORD, SPECIAL_TOKENS, TokenizerConfig

__all__ = ["SPECIAL_TOKENS", "Encoded", "Located", "Tokenizer", "TokenizerConfig", "load_tokenizer", "train"]

WORD_STARTS = {"Metaspace": "▁", "ByteLevel": "Ġ"}


class Encoded(NamedTuple):
    """The token ids of several texts end to end, and the number of ids of each."""

    ids: np.ndarray
    lengths: np.ndarray

    def split(self) -> list[np.ndarray]:
        """The ids of each text."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class Located(NamedTuple):
    """The token ids of a text, each with its first character and the one after its last."""

    ids: np.ndarray
    offsets_T2: np.ndarray


class WordMemory:
    """The ids, as bytes, of recently seen words."""

    # Frequent punctuation is separated from words before they are looked up: fewer words to remember.
    PUNCTUATION = ',.()"-:;、。'
    WORDS_PER_LINE = 100
    MAX_SIZE = 2**23  # in characters, a word counting 16 more: about 60 MB
    TRIAL = 2_000_000  # characters
    MAX_NEW_SHARE = 0.35

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.ids: dict[str, bytes] = {}
        self._backend = backend
        self._size = self._seen = self._new = 0

    def pays(self) -> bool:
        """Whether words recur often enough; in Japanese, text between punctuation is mostly new."""
        return self._seen < self.TRIAL or self._new < self.MAX_NEW_SHARE * self._seen

    def split(self, text: str) -> list[str]:
        """Cut a text into the words to look up."""
        self._seen += len(text)
        for mark in self.PUNCTUATION:
            text = text.replace(mark, f" {mark} ")
        return text.split(" ")

    def learn(self, words: set[str]) -> None:
        """Encode new words, many in one line because a call costs more than a word."""
        if self._size > self.MAX_SIZE:  # The frequent words will be back at once.
            self.ids.clear()
            self._size = 0
        new = list(words.difference(self.ids) - {","})
        characters = sum(map(len, new))
        self._new += characters
        self._size += characters + 16 * len(new)
        groups = [
            new[first : first + self.WORDS_PER_LINE] for first in range(0, len(new), self.WORDS_PER_LINE)
        ]
        lines = [",", *map(",".join, groups)]
        encoded = [line.ids for line in self._backend.encode_batch_fast(lines, add_special_tokens=False)]
        comma = encoded[0][0]
        self.ids[","] = np.uint32(comma).tobytes()
        for group, ids in zip(groups, encoded[1:], strict=True):
            self.ids.update(zip(group, split_at(comma, np.array(ids, np.uint32)), strict=True))


def split_at(separator: int, ids: np.ndarray) -> Iterator[bytes]:
    """The bytes between the separators. Only the commas between words have the id of the comma."""
    encoded = ids.tobytes()
    start = 0
    for stop in (np.flatnonzero(ids == separator) * ids.itemsize).tolist():
        yield encoded[start:stop]
        start = stop + ids.itemsize
    yield encoded[start:]


class Tokenizer:
    """A `tokenizers.Tokenizer` with our five special tokens, which are never recognised in text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_padding()
        backend.no_truncation()
        backend.add_special_tokens(list(SPECIAL_TOKENS))
        backend.encode_special_tokens = True  # "[MASK]" in a text is text
        ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            ids.__getitem__, SPECIAL_TOKENS
        )
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", self.cls_id), ("[SEP]", self.sep_id)],
        )
        self.vocab_size = len(ids)
        self._vocabulary = sorted(ids, key=ids.__getitem__)
        self._backend = backend
        self._parts: dict[str, Any] = json.loads(backend.to_str())
        self._memory = WordMemory(backend) if words_are_independent(self._parts) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._backend,)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Token ids without special tokens."""
        if self._memory is None or not self._memory.pays():
            return self.encode_plainly(texts)
        words = [self._memory.split(text) for text in texts]
        self._memory.learn(set().union(*words))
        encoded = [b"".join(map(self._memory.ids.__getitem__, of_text)) for of_text in words]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) // np.dtype(np.uint32).itemsize
        return Encoded(np.frombuffer(b"".join(encoded), np.uint32), lengths)

    def encode_plainly(self, texts: Sequence[str]) -> Encoded:
        """The same for any tokenizer, without the word memory."""
        lists = [text.ids for text in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        ids = np.fromiter((token for ids in lists for token in ids), np.uint32, int(lengths.sum()))
        # Some foreign models read the name of a special token as a word.
        ids[np.isin(ids, [self.pad_id, self.cls_id, self.sep_id, self.mask_id])] = self.unk_id
        return Encoded(ids, lengths)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Located]:
        """Token ids without special tokens, each with the characters it covers."""
        return [
            Located(np.array(text.ids, np.uint32), np.array(text.offsets, np.int64).reshape(-1, 2))
            for text in self._backend.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text, including special tokens."""
        text: str = self._backend.decode([int(token) for token in ids], skip_special_tokens=False)
        return text

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's entry for each id."""
        return [self._vocabulary[token] for token in ids]

    def continues_word(self) -> np.ndarray:
        """Per id, whether the token continues the word before it; never true for special tokens."""
        model, text = self._parts["model"], json.dumps(self._parts["pre_tokenizer"])
        if prefix := model.get("continuing_subword_prefix"):
            continues = [token.startswith(prefix) for token in self._vocabulary]
        elif start := next((mark for name, mark in WORD_STARTS.items() if f'"{name}"' in text), None):
            continues = [not token.startswith(start) for token in self._vocabulary]
        else:
            continues = [False] * self.vocab_size
        special = [token["id"] for token in self._parts["added_tokens"] if token["special"]]
        result = np.array(continues)
        result[special] = False
        return result

    def describe(self) -> dict[str, str | int]:
        """Its settings with "auto" resolved: algorithm, vocab_size, case, accents, cjk."""
        facts: dict[str, str | int] = {
            "algorithm": self._parts["model"]["type"].lower(),
            "vocab_size": self.vocab_size,
        }
        normalizer = self._parts["normalizer"] or {}
        if normalizer.get("type") != "BertNormalizer":
            return facts | dict.fromkeys(("case", "accents", "cjk"), "custom")
        strip = normalizer["strip_accents"]
        return facts | {
            "case": "lower" if normalizer["lowercase"] else "keep",
            "accents": "strip" if (normalizer["lowercase"] if strip is None else strip) else "keep",
            "cjk": "split" if normalizer["handle_chinese_chars"] else "keep",
        }

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything that determines the ids of a text."""
        deciding = {key: self._parts[key] for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
        return hashlib.sha256(files.to_json(deciding)).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt, for transformers too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        serialized = self._backend.to_str(pretty=True).encode()
        files.write_file(folder / TOKENIZER_FILE, lambda file: file.write(serialized))
        facts = self.describe()
        # transformers puts a normaliser of its own in place of ours unless exactly this class is named.
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            # As here "[MASK]" in a text is text, but for a call with split_special_tokens=False.
            "split_special_tokens": True,
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        }
        if facts["algorithm"] == "wordpiece" and facts["case"] != "custom":
            # Without tokenizer.json, these say how vocab.txt is meant.
            settings["do_lower_case"] = facts["case"] == "lower"
            settings["strip_accents"] = facts["accents"] == "strip"
            settings["tokenize_chinese_chars"] = facts["cjk"] == "split"
        files.write_json(folder / SETTINGS_FILE, settings)
        if facts["algorithm"] == "wordpiece":
            lines = "".join(f"{token}\n" for token in self._vocabulary).encode()
            files.write_file(folder / VOCABULARY_FILE, lambda file: file.write(lines))


def words_are_independent(parts: dict[str, Any]) -> bool:
    """Whether text can be cut at ASCII spaces and punctuation before encoding without changing any id.

    The BERT normaliser works on single characters and decomposes them, which never reaches across ASCII or
    the CJK comma and full stop; the BERT pre-tokenizer cuts there anyway; WordPiece sees one word at a time.
    Special tokens are not searched for in text; other added tokens would be, and may contain a space. The
    word memory separates words by commas, so that the vocabulary must contain the comma.
    """
    return (
        (parts["normalizer"] or {}).get("type") == "BertNormalizer"
        and (parts["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and parts["model"]["type"] == "WordPiece"
        and "," in parts["model"]["vocab"]
        and all(token["special"] for token in parts["added_tokens"])
    )


def train(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Learn a vocabulary from a sample that fits in memory; the order of the texts does not matter."""
    return Tokenizer(vocabulary.learn(texts, config))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from a folder, a tokenizer.json or a vocab.txt."""
    return Tokenizer(read_tokenizer(Path(path)))


def reopen(folder: Path) -> Tokenizer:
    """Read what `Tokenizer.save` has just written, without the checks that others' files need."""
    return Tokenizer(tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE)))


TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
OTHER_NAMES = {"<pad>": "[PAD]", "<unk>": "[UNK]", "<s>": "[CLS]", "</s>": "[SEP]", "<mask>": "[MASK]"}


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer from a file or from its folder."""
    if path.is_dir():
        found = [path / name for name in (TOKENIZER_FILE, VOCABULARY_FILE) if (path / name).is_file()]
        if not found:
            raise InputError(f"{path} holds no tokenizer: neither {TOKENIZER_FILE} nor {VOCABULARY_FILE}")
        path = found[0]
    if not path.is_file():
        raise InputError(
            f"{path} does not exist: expected a folder, a {TOKENIZER_FILE} or a {VOCABULARY_FILE}"
        )
    return read_tokenizer_json(path) if path.suffix == ".json" else read_vocabulary(path)


def read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """Read and check a file written by `tokenizers`, by transformers or by us."""
    content = files.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(
            f"{path} is not a tokenizer: it has no key 'model'. Expected the file of `tokenizers`"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what the library raises has no narrower type: a panic is no Exception
        raise InputError(f"{path} is not a tokenizer that `tokenizers` can read: {error}") from error
    entries = tokenizer.get_vocab(with_added_tokens=True)
    check_special_tokens(path, entries)
    check_ids(path, entries)
    for token in content.get("added_tokens") or []:
        number = entries[token["content"]]
        if token["id"] != number:  # The library renumbers such a token without a word.
            raise InputError(
                f"{path}, added_tokens: {token['content']!r} has id {token['id']}, expected {number}"
            )
    parts = json.loads(tokenizer.to_str())
    check_model(path, parts["model"], unk_id=entries["[UNK]"])
    check_growth(path, parts["normalizer"])
    return tokenizer


def check_special_tokens(path: Path, entries: Iterable[str]) -> None:
    """All five must exist under the original's names."""
    known = set(entries)
    missing = [token for token in SPECIAL_TOKENS if token not in known]
    if missing:
        renames = [f"{old} to {new}" for old, new in OTHER_NAMES.items() if old in known and new in missing]
        way_out = f"rename {', '.join(renames)} in the file" if renames else "add them to the file"
        raise InputError(
            f"{path} lacks the special tokens {' '.join(missing)}: {way_out}, or train a new tokenizer"
        )


def check_ids(path: Path, entries: dict[str, int]) -> None:
    """Every id from 0 up belongs to exactly one entry."""
    owner: dict[int, str] = {}
    for token, number in entries.items():
        if number in owner:
            raise InputError(f"{path}: id {number} belongs to both {owner[number]!r} and {token!r}")
        owner[number] = token
    gap = next((number for number in range(len(owner)) if number not in owner), None)
    if gap is not None:
        raise InputError(
            f"{path}: no entry has id {gap}, but the ids go up to {max(owner)}; "
            "number the entries without a gap, and list none twice"
        )


def check_model(path: Path, model: dict[str, Any], *, unk_id: int) -> None:
    """The model must be deterministic and use our token for unknown words."""
    if model.get("dropout"):
        raise InputError(
            f"{path}: model.dropout is {model['dropout']}, which makes ids random; set it to null"
        )
    if model["type"] == "Unigram":
        if model["unk_id"] != unk_id:
            raise InputError(f"{path}: model.unk_id is {model['unk_id']}, expected {unk_id}, the id of [UNK]")
    elif model["unk_token"] != "[UNK]" and not (model["type"] == "BPE" and model["unk_token"] is None):
        raise InputError(f"{path}: model.unk_token is {model['unk_token']!r}, expected '[UNK]'")
    elif model["unk_token"] and "[UNK]" not in model["vocab"]:
        # Then the first unknown word would be an error, and not a token.
        raise InputError(f"{path}: model.vocab lacks '[UNK]', which stands for unknown words: add it there")


def read_vocabulary(path: Path) -> tokenizers.Tokenizer:
    """Read a WordPiece vocabulary with one entry per line, whose ids are the line numbers from 0."""
    entries = read_entries(path)
    check_special_tokens(path, entries)
    settings = read_cleaning_settings(path.with_name(SETTINGS_FILE))
    plain = [
        entry.removeprefix(CONTINUATION) for entry in entries if not (entry[0] == "[" and entry[-1] == "]")
    ]
    lower = settings.get("do_lower_case", survive(plain, lowercase=True))
    # As in the original: nothing is stripped where case is kept, unless told so.
    strip = settings.get("strip_accents", lower and survive(plain, strip_accents=True))
    split = settings.get("tokenize_chinese_chars", survive(plain, handle_chinese_chars=True))
    model = models.WordPiece(entries, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    normalizer = vocabulary.make_normalizer(
        case="lower" if lower else "keep",
        accents="strip" if strip else "keep",
        cjk="split" if split else "keep",
    )
    return vocabulary.assemble(model, normalizer, vocabulary.make_pre_tokenizer("wordpiece"))


def read_entries(path: Path) -> dict[str, int]:
    """The lines of a vocab.txt; a byte-order mark and Windows line ends are tolerated."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from error
    entries: dict[str, int] = {}
    # Not splitlines(): a vocabulary may hold U+2028 and its kin as entries.
    for number, line_text in enumerate(text.removesuffix("\n").split("\n")):
        entry = line_text.removesuffix("\r")
        if not entry:
            raise InputError(f"{path}, line {number + 1}: empty, expected one entry per line; remove it")
        if entry in entries:
            raise InputError(f"{path}, line {number + 1}: {entry!r} is already in line {entries[entry] + 1}")
        entries[entry] = number
    return entries


def read_cleaning_settings(path: Path) -> dict[str, bool]:
    """What a tokenizer_config.json says about cleaning text; null and missing keys say nothing."""
    content = files.read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    keys = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    settings = {key: content[key] for key in keys if content.get(key) is not None}
    for key, value in settings.items():
        if not isinstance(value, bool):
            raise InputError(f"{path}: {key} is {value!r}, expected true, false or null")
    return settings


def survive(entries: list[str], **cleaning: bool) -> bool:
    """Whether all entries can still occur in text cleaned in this way."""
    off = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    clean = normalizers.BertNormalizer(**{**off, **cleaning}).normalize_str
    return all(clean(entry).strip() == entry.strip() for entry in entries)
