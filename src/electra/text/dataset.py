"""Corpus -> the parts of a dataset: tokenizer, shards of rows, counts, and the manifest that seals them.

DATA/manifest.json, tokenizer/, train-*.npy, valid-*.npy, token_counts.npy, quarantine.jsonl

A corpus and where to put it -> a finished dataset, made, found made, or gone on with.

The folder is made as OUT.partial/data and gets its name in one step when it is whole, so that OUT is a
complete dataset or is not there. OUT.partial remembers its settings and the files it was begun on.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from electra import files
from electra.errors import InputError
from electra.progress import Progress
from electra.text import tokenizer as tokenizers
from electra.text.corpus import STDIN, Corpus, open_corpus, vocabulary_sample
from electra.text.encoding import check_encoding
from electra.text.quarantine import QUARANTINE, Problem, Quarantine, Tally
from electra.text.rows import FORMAT_VERSION, KIND, LONGEST_ROW, count_tokens
from electra.text.shards import TRAIN, VALID, Dealer, ShardSettings, hash_document, write_shards
from electra.text.tokenizer import Tokenizer, TokenizerConfig

_MB = 1e6
_SHORTEST_ROW = 8


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Everything that determines the bytes of a dataset."""

    corpus: list[str] = field(default_factory=list)
    """Files, folders, globs, '-' (standard input), 'builtin' (Python's own documentation) or 'hf:NAME'."""
    seq_length: int = 128
    """Longest row in tokens, special tokens included."""
    tokenizer: str | None = None
    """Folder, tokenizer.json or vocab.txt to use instead of training one on the corpus."""
    vocab_size: int = 30522
    """Tokens in the vocabulary to train, special tokens included."""
    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Kind of vocabulary to train."""
    case: Literal["lower", "keep"] = "lower"
    """What to do with capital letters."""
    accents: Literal["auto", "strip", "keep"] = "auto"
    """What to do with accents; auto keeps them where the script needs them."""
    cjk: Literal["split", "keep"] = "split"
    """Whether every Chinese character is a word of its own."""
    valid_fraction: float = 0.01
    """Share of documents held out, chosen by their contents."""
    duplicates: Literal["drop", "keep"] = "drop"
    """What to do with documents that are equal to an earlier one."""
    examples: Literal["full_rows", "as_google"] = "full_rows"
    """full_rows keeps every token; as_google is the original's builder, which cuts long lines."""
    encoding: str | None = None
    """Encoding of plain text files; by default it is detected for each file."""
    text_field: str = "text"
    """Field of a JSON or parquet row that holds the document."""
    seed: int = 0
    """Seed of everything random in the rows."""

    def __post_init__(self) -> None:
        if not _SHORTEST_ROW <= self.seq_length <= LONGEST_ROW:
            raise InputError(f"seq_length is {self.seq_length}, expected {_SHORTEST_ROW} to {LONGEST_ROW}")
        if not 0 <= self.valid_fraction < 1:
            raise InputError(f"valid_fraction is {self.valid_fraction}, expected 0 or more and less than 1")
        if self.encoding is not None:
            check_encoding(self.encoding)
        changed = [key for key, default in asdict(TokenizerConfig()).items() if getattr(self, key) != default]
        if self.tokenizer and changed:
            raise InputError(
                f"{', '.join(changed)}: no effect on a given tokenizer; leave out one or the other"
            )

    @property
    def vocabulary(self) -> TokenizerConfig:
        """What to train when no tokenizer is given."""
        return TokenizerConfig(
            algorithm=self.algorithm,
            vocab_size=self.vocab_size,
            case=self.case,
            accents=self.accents,
            cjk=self.cjk,
        )


@dataclass(frozen=True, kw_only=True)
class Written:
    """The shards of a corpus and what was met on the way."""

    receipts: list[dict[str, Any]]
    tally: Tally
    quarantine: Quarantine
    num_duplicates: int


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Makes the parts of one dataset in `data`; what is needed only meanwhile is kept in `work`."""

    config: DatasetConfig
    corpus: Corpus
    data: Path
    work: Path
    workers: int
    max_bad_fraction: float

    @property
    def receipts(self) -> Path:
        """Where finished shards are recorded."""
        return self.work / "receipts"

    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, the one that an interrupted run has trained, or a new one."""
        folder = self.data / "tokenizer"
        # Standard input may be another one this time.
        if self.config.tokenizer is None and folder.exists() and STDIN not in self.config.corpus:
            return tokenizers.load(folder)
        if self.config.tokenizer is None:
            tokenizer = tokenizers.train(self._sample(), self.config.vocabulary)
        else:
            tokenizer = tokenizers.load(self.config.tokenizer)
        # Complete or absent: an interruption must not leave half a tokenizer behind.
        complete = self.work / "tokenizer"
        for old in (folder, complete):
            shutil.rmtree(old, ignore_errors=True)
        tokenizer.save(complete)
        complete.rename(folder)
        return tokenizer

    def _sample(self) -> list[str]:
        """Read everything once for text to train on; problems show before the long work."""
        dealer = Dealer(valid_fraction=self.config.valid_fraction, duplicates="keep", folder=self.work)
        tally = Tally()
        with self._reading("vocabulary sample") as (quarantine, progress):

            def hashed() -> Iterator[tuple[int, str]]:
                for document in self.corpus.documents(tally, quarantine):
                    progress.update(tally.source_bytes / _MB)
                    document_hash = hash_document(document)
                    if not dealer.is_held_out(document_hash):
                        yield document_hash, document

            sample = vocabulary_sample(hashed())
        quarantine.check(tally, max_bad_fraction=self.max_bad_fraction)
        if not sample:
            raise InputError(f"the corpus has no text to train on: {tally.documents} documents were read")
        return sample

    def write_rows(self, tokenizer: Tokenizer) -> Written:
        """Turn every document into rows, in shards."""
        config = self.config
        settings = ShardSettings(
            folder=self.data,
            receipts=self.receipts,
            tokenizer=self.data / "tokenizer",
            tokenizer_hash=tokenizer.content_hash,
            seq_length=config.seq_length,
            examples=config.examples,
            seed=config.seed,
        )
        dealer = Dealer(valid_fraction=config.valid_fraction, duplicates=config.duplicates, folder=self.work)
        tally = Tally()
        with self._reading("rows") as (quarantine, progress):
            receipts = write_shards(
                dealer.blocks(self.corpus.documents(tally, quarantine), lambda: tally.source_bytes),
                settings,
                workers=self.workers,
                on_finished=lambda block: progress.update(block.source_bytes / _MB),
            )
        quarantine.check(tally, max_bad_fraction=self.max_bad_fraction)
        return Written(
            receipts=receipts, tally=tally, quarantine=quarantine, num_duplicates=dealer.num_duplicates
        )

    @contextmanager
    def _reading(self, label: str) -> Iterator[tuple[Quarantine, Progress]]:
        megabytes = self.corpus.source_bytes / _MB
        with (
            Quarantine(self.data / QUARANTINE) as quarantine,
            Progress(label, total=megabytes, unit="MB") as progress,
        ):
            yield quarantine, progress

    def seal(self, tokenizer: Tokenizer, written: Written, facts: dict[str, Any]) -> None:
        """Count, and write the manifest last."""
        splits = {split: _split_facts(written.receipts, split) for split in (TRAIN, VALID)}
        if not splits[TRAIN]["tokens"]:
            raise InputError(
                f"the corpus gave no tokens to train on: {written.tally.documents} documents were read"
            )
        self._remove_strays([receipt["name"] for receipt in written.receipts])
        train_shards = [shard["name"] for shard in splits[TRAIN]["shards"]]
        token_counts = count_tokens(self.data, train_shards, vocab_size=tokenizer.vocab_size)
        files.write_file(
            self.data / "token_counts.npy", partial(np.save, arr=token_counts, allow_pickle=False)
        )
        content = {
            **facts,
            "kind": KIND,
            "format_version": FORMAT_VERSION,
            "seed": self.config.seed,
            "seq_length": self.config.seq_length,
            "tokenizer": {
                "sha256": tokenizer.content_hash,
                **tokenizer.describe(),
                "special_ids": {
                    "[PAD]": tokenizer.pad_id,
                    "[UNK]": tokenizer.unk_id,
                    "[CLS]": tokenizer.cls_id,
                    "[SEP]": tokenizer.sep_id,
                    "[MASK]": tokenizer.mask_id,
                },
            },
            "splits": splits,
            "counts": {
                **asdict(written.tally),
                "files": len(self.corpus.sources),
                "skipped_files": self.corpus.skipped,
                "duplicate_documents": written.num_duplicates,
                "quarantined": written.quarantine.num_problems,
                "lost_bytes": written.quarantine.lost_bytes,
                "unknown_tokens": int(token_counts[tokenizer.unk_id]),
            },
        }
        files.write_manifest(self.data, content)

    def _remove_strays(self, names: list[str]) -> None:
        """Files of an interrupted write, and shards of standard input that was longer the first time."""
        for path in self.data.iterdir():
            shard = path.name.partition(".")[0]
            is_shard = shard.startswith((f"{TRAIN}-", f"{VALID}-"))
            if path.name.startswith(".") or (is_shard and shard not in names):
                path.unlink()


def _split_facts(receipts: list[dict[str, Any]], split: str) -> dict[str, Any]:
    shards = [receipt for receipt in receipts if receipt["name"].startswith(f"{split}-")]
    sums = {key: sum(shard[key] for shard in shards) for key in ("documents", "rows", "tokens")}
    names = [{key: shard[key] for key in ("name", "rows", "tokens")} for shard in shards]
    return {**sums, "shards": names}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A dataset, and what making it took: the only facts that differ from run to run."""

    folder: Path
    manifest: dict[str, Any]
    vocabulary_seconds: float = 0.0
    rows_seconds: float = 0.0
    shards_found: int = 0
    problems: tuple[Problem, ...] = ()


def prepare(config: DatasetConfig, out: Path, *, workers: int, max_bad_fraction: float) -> Prepared:
    """Make the dataset `out`, or go on making it, or find it made."""
    corpus = open_corpus(config.corpus, encoding=config.encoding, text_field=config.text_field)
    plan = {"config": _settings(config), "corpus": corpus.fingerprint}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return Prepared(folder=out, manifest=_made_before(out, plan))
    if config.tokenizer:
        # An unusable one is refused before anything is written.
        tokenizers.load(config.tokenizer)
    unfinished = out.with_name(f"{out.name}.partial")
    unfinished.mkdir(parents=True, exist_ok=True)
    with files.locked(unfinished / "lock", busy=f"another process is already preparing {out}"):
        data, work = _begin(unfinished, plan)
        try:
            assembly = Assembly(
                config=config,
                corpus=corpus.spooled(work / "spool", workers=workers),
                data=data,
                work=work,
                workers=workers,
                max_bad_fraction=max_bad_fraction,
            )
            prepared = _run(assembly, out, plan)
        except InputError:
            if not _num_receipts(work) and not _has_quarantine(data):
                shutil.rmtree(unfinished)
            raise
        except KeyboardInterrupt as interruption:
            raise KeyboardInterrupt(
                f"{_num_receipts(work)} finished shards are kept in {unfinished}; "
                "run the same command again to go on"
            ) from interruption
        data.rename(out)
        files.fsync(out.parent)
        shutil.rmtree(unfinished)
    return prepared


def _run(assembly: Assembly, out: Path, plan: dict[str, Any]) -> Prepared:
    shards_found = _num_receipts(assembly.work)
    begun = time.monotonic()
    tokenizer = assembly.tokenizer()
    trained = time.monotonic()
    written = assembly.write_rows(tokenizer)
    assembly.seal(tokenizer, written, plan)
    return Prepared(
        folder=out,
        manifest=files.read_manifest(assembly.data, kind=KIND),
        vocabulary_seconds=trained - begun,
        rows_seconds=time.monotonic() - trained,
        shards_found=shards_found,
        problems=tuple(written.quarantine.first),
    )


def _settings(config: DatasetConfig) -> dict[str, Any]:
    """The values that determine the dataset; a command's config has more, such as where to put it."""
    return {key.name: getattr(config, key.name) for key in fields(DatasetConfig)}


def _num_receipts(work: Path) -> int:
    return len(list((work / "receipts").glob("*.json")))


def _has_quarantine(data: Path) -> bool:
    path = data / QUARANTINE
    return path.exists() and path.stat().st_size > 0


def _begin(unfinished: Path, plan: dict[str, Any]) -> tuple[Path, Path]:
    """Go on with what was begun with the same settings on the same files, or begin."""
    data, work = unfinished / "data", unfinished / "work"
    plan_file = work / "plan.json"
    if plan_file.exists() and (difference := _difference(files.read_json(plan_file), plan)):
        if _num_receipts(work):
            raise InputError(
                f"{unfinished} was begun before, {difference}: choose another --out or delete it"
            )
        # Nothing of value was made yet, such as when the first try met a mistake in the corpus.
        for folder in (data, work):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in (data, work / "receipts"):
        folder.mkdir(parents=True, exist_ok=True)
    files.write_json(plan_file, plan)
    return data, work


def _made_before(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The manifest of `out` if it was made with the same settings from the same files."""
    if not out.is_dir() or not (out / files.MANIFEST).exists():
        raise InputError(f"{out} exists and is not a dataset: choose another --out")
    manifest = files.read_manifest(out, kind=KIND)
    if STDIN in plan["config"]["corpus"]:
        raise InputError(
            f"{out} exists already, and standard input cannot be compared with it: choose another --out"
        )
    if difference := _difference(manifest, plan):
        raise InputError(f"{out} was made before, {difference}: choose another --out or delete it")
    return manifest


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    before, now = old["config"], new["config"]
    if changed := [key for key in now if before.get(key) != now[key]]:
        return "with " + ", ".join(f"{key} {before.get(key)!r}, now {now[key]!r}" for key in changed)
    return "" if old["corpus"] == new["corpus"] else "and the files of the corpus have changed since"


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(DatasetConfig):
    """A corpus, how to turn it into rows of tokens, and where to put them."""

    out: str | None = None
    """Folder to create. Run the same command again to resume after an interruption."""
    workers: int = len(os.sched_getaffinity(0))
    """Number of processes; the result does not depend on it."""
    max_bad_fraction: float = 0.05
    """Largest share of the input's bytes that may be unreadable or replaced; more is an error."""
    verify: str | None = None
    """Folder to check instead: compares every file with its checksum in the manifest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_bad_fraction <= 1:
            raise InputError(f"max_bad_fraction is {self.max_bad_fraction}, expected 0 to 1")
        if self.workers < 1:
            raise InputError(f"workers is {self.workers}, expected at least 1")


def prepare_folder(config: PrepareConfig) -> Prepared:
    """Make the dataset that a config describes, or find it made."""
    if not config.corpus or not config.out:
        raise InputError("give --corpus PATH [PATH ...] and --out DIR (see 'electra prepare --help')")
    return prepare(config, Path(config.out), workers=config.workers, max_bad_fraction=config.max_bad_fraction)
