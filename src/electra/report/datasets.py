"""A prepared dataset -> how much it holds, how well its vocabulary fits, and what is wrong with it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra import files
from electra.errors import InputError
from electra.report.findings import Finding, command, free_name
from electra.report.runs import number
from electra.show import percent, short

KIND, TOKEN_COUNTS, TOKENIZER = "dataset", "token_counts.npy", "tokenizer"
MASK_PROB = 0.15
"""The paper's share of masked tokens."""
FEW_TOKENS = 1e6
"""The least with which an encoder of docs/log.md has left the unigram plateau: that of the recipe `minutes`
(2026-11-17)."""
MANY_UNKNOWN = 0.01
"""WordPiece has 0.03 % on the Wikipedia that it was trained on: thirty times as many come from text of
another script, language or spelling than the vocabulary's."""
OF_VOCABULARY = ("vocab_size", "algorithm", "case", "accents", "cjk")
"""Settings of `electra prepare` that are refused beside --tokenizer."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What a dataset says of itself."""

    folder: Path
    manifest: dict[str, Any]
    rows: int
    tokens: int
    valid_rows: int
    vocab_size: int
    counts: "np.ndarray[Any, Any] | None"
    """How often each token of the vocabulary occurs; None if that cannot be read."""

    @property
    def sha256(self) -> str:
        """What a run calls the dataset by."""
        return files.sha256(self.folder / files.MANIFEST)

    @property
    def tokenizer_files(self) -> dict[str, str]:
        """File of the tokenizer -> its checksum."""
        prefix = f"{TOKENIZER}/"
        sealed = self.manifest["files"].items()
        return {
            name.removeprefix(prefix): facts["sha256"] for name, facts in sealed if name.startswith(prefix)
        }

    def special_id(self, token: str) -> int | None:
        """The id of a special token."""
        known = (self.manifest.get("tokenizer") or {}).get("special_ids") or {}
        found = known.get(token)
        return found if isinstance(found, int) and 0 <= found < self.vocab_size else None

    @property
    def ordinary_counts(self) -> "np.ndarray[Any, Any] | None":
        """The counts of the tokens that can be masked, 0 for the others."""
        if self.counts is None:
            return None
        counts = self.counts.copy()
        never = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
        counts[[known for token in never if (known := self.special_id(token)) is not None]] = 0
        return counts

    @property
    def unigram_entropy(self) -> float | None:
        """In nats: the loss of who knows how frequent each token is, and nothing else."""
        counts = self.ordinary_counts
        if counts is None or not counts.sum():
            return None
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())


def read_data(folder: Path) -> DataFacts:
    """Read the manifest and the counts, not the rows."""
    manifest = files.read_manifest(folder, kind=KIND)

    def count(split: str, key: str) -> int:
        return int(number(((manifest.get("splits") or {}).get(split) or {}).get(key)) or 0)

    vocab_size = int(number((manifest.get("tokenizer") or {}).get("vocab_size")) or 0)
    return DataFacts(
        folder=folder,
        manifest=manifest,
        rows=count("train", "rows"),
        tokens=count("train", "tokens"),
        valid_rows=count("valid", "rows"),
        vocab_size=vocab_size,
        counts=_counts(folder, vocab_size),
    )


def _counts(folder: Path, vocab_size: int) -> "np.ndarray[Any, Any] | None":
    try:
        counts = np.load(folder / TOKEN_COUNTS, allow_pickle=False)
    except (OSError, ValueError):
        return None
    fits = isinstance(counts, np.ndarray) and counts.shape == (vocab_size,) and counts.dtype.kind in "iu"
    return counts.astype(np.int64) if fits else None


def examine_data(folder: Path) -> list[Finding]:
    """All that is to be said of a dataset, with the checksum of every file."""
    unfinished = folder.with_name(f"{folder.name.removesuffix('.partial')}.partial")
    if not (folder / files.MANIFEST).is_file() and unfinished.is_dir():
        says = (
            f"{unfinished} is a dataset that was not finished: type the command that began it again, and it "
            "resumes"
        )
        settings = _begun_with(unfinished)
        out = unfinished.with_name(unfinished.name.removesuffix(".partial"))
        cure = prepare_command(settings, out=str(out)) if settings else ""
        return [Finding(key="unfinished", severity="wrong", says=says, cure=cure)]
    try:
        data = read_data(folder)
    except InputError as error:
        says = f"{error}: copy the folder again, or prepare the data again"
        return [Finding(key="damaged", severity="wrong", says=says)]
    return [*_damage(data), *judge_data(data)]


def _begun_with(unfinished: Path) -> dict[str, Any]:
    try:
        settings = files.read_json(unfinished / "work" / "plan.json", dict[str, Any]).get("config")
    except InputError:
        return {}
    return settings if isinstance(settings, dict) else {}


def prepare_command(settings: dict[str, Any], *, out: str, **changes: Any) -> str:
    """The command that makes a dataset with these settings again, but for some changes."""
    settings = {**settings, **changes}
    left_out = OF_VOCABULARY if settings.get("tokenizer") else ()
    given = {
        key: value
        for key, value in settings.items()
        if value is not None and key != "corpus" and key not in left_out
    }
    return command("prepare", {"corpus": settings.get("corpus") or ["CORPUS"], "out": out, **given})


def again(data: DataFacts, **changes: Any) -> str:
    """The command that makes another dataset of the same text."""
    settings = data.manifest.get("config")
    known = settings if isinstance(settings, dict) else {}
    return prepare_command(known, out=free_name(data.folder), **changes)


def _damage(data: DataFacts) -> Iterator[Finding]:
    damage = list(files.damaged_files(data.folder, data.manifest))
    if damage:
        says = f"{_several(damage)}. Copy the file from where it is whole, or prepare the data again"
        yield Finding(key="damaged", severity="wrong", says=says, cure=again(data))
    else:
        says = f"all {len(data.manifest['files']):,} files are as they were when the data was prepared"
        yield Finding(key="damaged", severity="fine", says=says)


def _several(lines: Sequence[str]) -> str:
    return lines[0] + (f", and {len(lines) - 1} more files are damaged" if len(lines) > 1 else "")


def judge_data(data: DataFacts) -> list[Finding]:
    """What the facts of a dataset mean for a pre-training with it."""
    return [*_size(data), *_held_out(data), *_unknown(data), *_vocabulary(data), *_lost(data)]


def _size(data: DataFacts) -> Iterator[Finding]:
    says = f"{short(data.tokens)} tokens in {data.rows:,} rows to train on"
    if data.tokens < FEW_TOKENS:
        says += (
            f": below {short(FEW_TOKENS)} no encoder has learned more than which tokens are frequent. Add "
            f"text, "
            "or begin with a model that has read more: electra pretrain --start MODEL"
        )
        yield Finding(key="little_text", severity="watch", says=says, cure=again(data, corpus=["MORE_TEXT"]))
    else:
        yield Finding(key="little_text", severity="fine", says=says)


def _held_out(data: DataFacts) -> Iterator[Finding]:
    if not data.valid_rows:
        says = "no row is held out: a run cannot tell whether it learns or learns by heart"
        cure = again(data, valid_fraction=0.01)
        yield Finding(key="nothing_held_out", severity="watch", says=says, cure=cure)
    else:
        says = f"{data.valid_rows:,} rows are held out"
        yield Finding(key="nothing_held_out", severity="fine", says=says)


def _unknown(data: DataFacts) -> Iterator[Finding]:
    unknown, counts = data.special_id("[UNK]"), data.ordinary_counts
    if counts is None or unknown is None or not counts.sum():
        return
    share = float(counts[unknown] / counts.sum())
    says = f"{100 * share:.2g} % of the tokens are unknown to the vocabulary ([UNK])"
    cure = again(data, tokenizer=None)
    # Then it is the best guess at any mask: who says [UNK] everywhere is right most often.
    if counts[unknown] == counts.max():
        says += ", more than any token it knows: the text is in another script or language"
        yield Finding(key="unknown_tokens", severity="wrong", says=says, cure=cure)
    elif share > MANY_UNKNOWN:
        says += (
            f"; healthy is below {percent(MANY_UNKNOWN)}. Train the vocabulary on this text: leave out "
            f"--tokenizer"
        )
        yield Finding(key="unknown_tokens", severity="watch", says=says, cure=cure)
    else:
        yield Finding(key="unknown_tokens", severity="fine", says=says)


def _vocabulary(data: DataFacts) -> Iterator[Finding]:
    counts = data.ordinary_counts
    if counts is None or not len(counts):
        return
    middle = float(np.median(counts))
    # Where half of the vocabulary is the target of a mask less than once in an epoch, half of the embeddings
    # and output weights stay as they began.
    needed = math.ceil(1 / MASK_PROB)
    says = f"a vocabulary of {data.vocab_size:,} tokens, of which half occur {middle:,.0f} times or less"
    if middle < needed:
        says += (
            f"; healthy is {needed} or more, so that each is masked once in an epoch. The vocabulary is too "
            "large for so little text"
        )
        smaller = _supported_size(counts, needed)
        cure = again(data, vocab_size=smaller, tokenizer=None)
        yield Finding(key="large_vocabulary", severity="watch", says=says, cure=cure)
    else:
        yield Finding(key="large_vocabulary", severity="fine", says=says)


def _supported_size(counts: "np.ndarray[Any, Any]", needed: int) -> int:
    """A size of which most tokens occur often enough, rounded to hundreds."""
    frequent = int((counts >= needed).sum())
    return max(300, round(frequent, -2))


def _lost(data: DataFacts) -> Iterator[Finding]:
    known = data.manifest.get("counts")
    counts: dict[str, Any] = known if isinstance(known, dict) else {}
    problems = int(number(counts.get("quarantined")) or 0)
    if problems:
        says = (
            f"{problems:,} places of the corpus could not be read "
            f"({short(number(counts.get('lost_bytes')))} bytes): they are listed in "
            f"{data.folder / 'quarantine.jsonl'}"
        )
        yield Finding(key="unreadable_text", severity="note", says=says)
