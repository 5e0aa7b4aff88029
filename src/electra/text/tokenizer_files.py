"""A folder, tokenizer.json or vocab.txt -> a checked `tokenizers.Tokenizer`.

A tokenizer.json says everything itself. A vocab.txt is WordPiece; how its text is cleaned stands in the
tokenizer_config.json beside it (do_lower_case, strip_accents, tokenize_chinese_chars). What is not said
there follows from the entries: the text is lower-cased, stripped of accents and its Chinese characters are
split, unless some entry could then never be found ("Paris", "café", "日本").
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from electra import files
from electra.errors import InputError
from electra.text import vocabulary
from electra.text.vocabulary import CONTINUATION, LONGEST_WORD, SPECIAL_TOKENS

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
OTHER_NAMES = {"<pad>": "[PAD]", "<unk>": "[UNK]", "<s>": "[CLS]", "</s>": "[SEP]", "<mask>": "[MASK]"}


def read(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer from a file or from the folder that holds it."""
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
    except Exception as error:  # what the library raises has no narrower type
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
    check_model(path, json.loads(tokenizer.to_str())["model"], unk_id=entries["[UNK]"])
    return tokenizer


def check_special_tokens(path: Path, entries: Iterable[str]) -> None:
    """All five must be there under the names of the original."""
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
    """The model always cuts a text in the same way, and has our word for what it does not know."""
    if model.get("dropout"):
        raise InputError(
            f"{path}: model.dropout is {model['dropout']}, which makes ids random; set it to null"
        )
    if model["type"] == "Unigram":
        if model["unk_id"] != unk_id:
            raise InputError(f"{path}: model.unk_id is {model['unk_id']}, expected {unk_id}, the id of [UNK]")
    elif model["unk_token"] != "[UNK]" and not (model["type"] == "BPE" and model["unk_token"] is None):
        raise InputError(f"{path}: model.unk_token is {model['unk_token']!r}, expected '[UNK]'")


def read_vocabulary(path: Path) -> tokenizers.Tokenizer:
    """Read a WordPiece vocabulary, one entry a line, whose ids are the line numbers from 0."""
    entries = read_entries(path)
    check_special_tokens(path, entries)
    settings = read_settings(path.with_name(SETTINGS_FILE))
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
            raise InputError(f"{path}, line {number + 1}: empty, expected one entry a line; remove it")
        if entry in entries:
            raise InputError(
                f"{path}, line {number + 1}: {entry!r} stands already in line {entries[entry] + 1}"
            )
        entries[entry] = number
    return entries


def read_settings(path: Path) -> dict[str, bool]:
    """What a tokenizer_config.json says about cleaning text; null and absent keys say nothing."""
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
    """Whether all entries can still be found in text that is cleaned so."""
    off = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    clean = normalizers.BertNormalizer(**{**off, **cleaning}).normalize_str
    return all(clean(entry).strip() == entry.strip() for entry in entries)
