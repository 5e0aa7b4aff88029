"""A corpus -> a dataset: tokenizer, shards of token rows, counts, and the manifest that seals them.

    DATA/manifest.json, tokenizer/, train-*.npy, valid-*.npy, token_counts.npy, quarantine.jsonl

The folder is built as OUT.partial/data and gets its name in one step when it is complete, so that OUT is a
whole dataset or does not exist. OUT.partial records the settings and files it was started with: the same
command resumes after an interruption.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from electra import files
from electra.cluster import check_address, connected
from electra.config import to_dict
from electra.errors import InputError
from electra.progress import Progress
from electra.show import megabytes
from electra.text import tokenizer as tokenizers
from electra.text.corpus import STDIN, Corpus, VocabularySample, open_corpus
from electra.text.on_nodes import PACKAGES, Nodes
from electra.text.quarantine import QUARANTINE, Quarantine, ReadProblem, Tally
from electra.text.rows import FORMAT_VERSION, KIND, LONGEST_ROW, TOKEN_COUNTS, count_tokens
from electra.text.shards import (
    TRAIN,
    VALID,
    Dealer,
    Hashed,
    ShardSettings,
    Workers,
    hashed_groups,
    write_shards,
)
from electra.text.tables import Dialect, Quoting
from electra.text.tokenizer import Tokenizer, TokenizerConfig

_MB = 1e6
_SHORTEST_ROW = 8


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Turn text into a folder with a tokenizer, rows of tokens and a manifest."""

    corpus: list[str] = field(default_factory=list)
    """Text to read: files, folders, globs, the same in an object store (s3://BUCKET/NAME), '-' (standard
    input), 'builtin' (Python's documentation) or 'hf:NAME' (a Hugging Face dataset). Plain text, CSV, TSV,
    JSON lines or parquet, also .gz, .xz or .zst."""
    out: str = ""
    """Folder to create, here or in an object store. If preparation is interrupted, run the same command again
    to resume."""
    seq_length: int = 128
    """Maximum row length in tokens, including special tokens."""
    tokenizer: str | None = None
    """Existing tokenizer (folder, tokenizer.json or vocab.txt). Default: train one on the corpus."""
    vocab_size: int = TokenizerConfig.vocab_size
    """Size of the vocabulary to train, including special tokens."""
    algorithm: Literal["wordpiece", "bpe", "unigram"] = TokenizerConfig.algorithm
    """Type of vocabulary to train."""
    case: Literal["lower", "keep"] = TokenizerConfig.case
    """Convert text to lower case, or keep capital letters."""
    accents: Literal["auto", "strip", "keep"] = TokenizerConfig.accents
    """Strip accents or keep them; auto keeps them where the script needs them."""
    cjk: Literal["split", "keep"] = TokenizerConfig.cjk
    """Treat every Chinese character as a word of its own (split), or not (keep)."""
    valid_fraction: float = 0.01
    """Fraction of documents to hold out for evaluation, selected by a hash of their text."""
    duplicates: Literal["drop", "keep"] = "drop"
    """Drop or keep documents that are identical to an earlier one."""
    examples: Literal["full_rows", "as_google"] = "full_rows"
    """How to fill rows: full_rows keeps every token; as_google cuts long lines, as the original does."""
    encoding: str | None = None
    """Encoding of the text files. Default: detected for each file."""
    text_field: str = "text"
    """Column or field that contains the text of a CSV, TSV, JSON or parquet row."""
    delimiter: str | None = None
    """Character between the values of CSV and TSV files, or 'tab'. Default: taken from each file's header."""
    quoting: Quoting | None = None
    """Whether double quotes enclose values (double) or are part of them (none). Default: double, but none
    between tabs."""
    seed: int = 0
    """Seed for all randomness."""
    workers: int = len(os.sched_getaffinity(0))
    """Number of processes that tokenize, unless --cluster is given. Does not affect the result."""
    cluster: str | None = None
    """Ray cluster that reads and tokenizes: ray://HOST:PORT, auto (the one this machine is a node of) or
    local (this machine's cores). Does not affect the result. Default: none."""
    max_bad_fraction: float = 0.05
    """Fraction of the input bytes that may be unreadable or replaced; beyond it, preparation fails."""

    def __post_init__(self) -> None:
        if not _SHORTEST_ROW <= self.seq_length <= LONGEST_ROW:
            raise InputError(f"seq_length is {self.seq_length}, expected {_SHORTEST_ROW} to {LONGEST_ROW}")
        if not 0 <= self.valid_fraction < 1:
            raise InputError(f"valid_fraction is {self.valid_fraction}, expected 0 or more and less than 1")
        if not 0 <= self.max_bad_fraction <= 1:
            raise InputError(f"max_bad_fraction is {self.max_bad_fraction}, expected 0 to 1")
        if self.workers < 1:
            raise InputError(f"workers is {self.workers}, expected at least 1")
        if self.cluster is not None:
            check_address(self.cluster)
        _ = self.dialect  # checks its keys
        changed = [key for key, default in asdict(TokenizerConfig()).items() if getattr(self, key) != default]
        if self.tokenizer and changed:
            raise InputError(f"{', '.join(changed)}: no effect with --tokenizer; leave out one or the other")

    @property
    def vocabulary(self) -> TokenizerConfig:
        """The tokenizer to train if none is given."""
        return TokenizerConfig(
            algorithm=self.algorithm,
            vocab_size=self.vocab_size,
            case=self.case,
            accents=self.accents,
            cjk=self.cjk,
        )

    @property
    def dialect(self) -> Dialect:
        """How the files of the corpus are read."""
        return Dialect(encoding=self.encoding, delimiter=self.delimiter, quoting=self.quoting)

    @property
    def settings(self) -> dict[str, Any]:
        """The values that determine the bytes of the dataset."""
        return {key: value for key, value in to_dict(self).items() if key in _SETTINGS}


_SETTINGS = {field.name for field in fields(PrepareConfig)} - {
    "out",
    "workers",
    "cluster",
    "max_bad_fraction",
}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A finished dataset, and what it took to make it."""

    path: Path
    documents: int
    """Documents to train on; those held out are counted in the manifest."""
    rows: int
    """Rows to train on."""
    tokens: int
    """Tokens to train on."""
    manifest: dict[str, Any] = field(repr=False)
    vocabulary_seconds: float = 0.0
    rows_seconds: float = 0.0
    """0 if the dataset was there already."""
    shards_found: int = 0
    """Shards that an interrupted run had finished."""
    problems: tuple[ReadProblem, ...] = ()
    """The first few problems; all are in quarantine.jsonl."""
    shards_of_nodes: dict[str, int] = field(default_factory=dict)
    """Shards made by each node of a cluster."""
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    """None if the dataset was there already."""


def make_dataset(config: PrepareConfig) -> Prepared:
    """Make the dataset `config.out`, resume making it, or find it finished."""
    if not config.corpus or not config.out:
        raise InputError("give --corpus PATH [PATH ...] and --out DIR (see 'electra prepare --help')")
    out = Path(config.out)
    unfinished = _unfinished(out)
    for folder in (out, unfinished):
        files.require_folder(folder, key="--out")
    is_full = out.exists() and any(out.iterdir())
    if is_full and not (out / files.MANIFEST).exists():
        raise InputError(f"{out} exists and is not a dataset: choose another --out")
    # Where the result goes may be in a folder of the corpus, but is no part of it.
    corpus = open_corpus(
        config.corpus,
        text_field=config.text_field,
        dialect=config.dialect,
        without=[str(out), str(unfinished)],
    )
    plan = {"config": config.settings, "corpus": corpus.fingerprint}
    if is_full:
        prepared = _prepared(out, _finished_before(out, plan))
        _remove_rest(unfinished)
        return prepared
    # A single worker is this process.
    with Workers(config.workers) if config.workers > 1 and not config.cluster else nullcontext() as workers:
        return _make_new(config, corpus, plan, workers)


def _make_new(
    config: PrepareConfig, corpus: Corpus, plan: dict[str, Any], workers: Workers | None
) -> Prepared:
    out = Path(config.out)
    unfinished = _unfinished(out)
    # An unusable one is refused before anything is written.
    given = tokenizers.load_tokenizer(config.tokenizer) if config.tokenizer else None
    unfinished.mkdir(parents=True, exist_ok=True)
    with files.locked(unfinished / "lock", busy=f"another process is already preparing {out}"):
        data, work = _begin(unfinished, plan)
        assembly = _Assembly(config=config, corpus=corpus, data=data, work=work, given=given, workers=workers)
        try:
            with _nodes(config.cluster) as nodes:
                prepared = _make(replace(assembly, nodes=nodes), plan)
        except InputError:
            if not _num_receipts(work) and not _has_quarantine(data):
                shutil.rmtree(unfinished)
            raise
        except OSError as error:
            if not files.is_disk_full(error):
                raise
            raise InputError(
                f"{error.filename or unfinished}: disk full ({error.strerror}). {out} needs about "
                f"{megabytes(assembly.bytes_needed())}, {megabytes(assembly.bytes_written())} are written, "
                f"{megabytes(shutil.disk_usage(unfinished).free)} are free: make room and run the same "
                f"command again, which resumes from {_num_receipts(work)} finished shards"
            ) from error
        except KeyboardInterrupt as interruption:
            raise KeyboardInterrupt(
                f"{_num_receipts(work)} finished shards are kept in {unfinished}; run the same command again "
                "to resume"
            ) from interruption
        data.rename(out)
        files.fsync(out.parent)
        shutil.rmtree(unfinished)
    return prepared


def _unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


@contextmanager
def _nodes(address: str | None) -> Iterator[Nodes | None]:
    if address is None:
        yield None
        return
    with connected(address, packages=PACKAGES, with_streams=True) as cluster:
        yield Nodes(cluster)


def _make(assembly: "_Assembly", plan: dict[str, Any]) -> Prepared:
    config, work = assembly.config, assembly.work
    shards_found = _num_receipts(work)
    assembly = replace(assembly, corpus=assembly.corpus.spooled(work / "spool", workers=config.workers))
    begun = time.monotonic()
    tokenizer = assembly.tokenizer()
    trained = time.monotonic()
    written = assembly.write_rows(tokenizer)
    assembly.seal(tokenizer, written, plan)
    return _prepared(
        Path(config.out),
        files.read_manifest(assembly.data, kind=KIND),
        vocabulary_seconds=trained - begun,
        rows_seconds=time.monotonic() - trained,
        shards_found=shards_found,
        problems=tuple(written.quarantine.first),
        shards_of_nodes=dict(assembly.nodes.shards) if assembly.nodes else {},
        tokenizer=tokenizer,
    )


def _prepared(path: Path, manifest: dict[str, Any], **facts: Any) -> Prepared:
    train = {key: manifest["splits"][TRAIN][key] for key in ("documents", "rows", "tokens")}
    return Prepared(path=path, manifest=manifest, **train, **facts)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """The shards of a corpus, and what was found on the way."""

    receipts: list[dict[str, Any]]
    tally: Tally
    quarantine: Quarantine
    num_duplicates: int


@dataclass(frozen=True, kw_only=True)
class _Assembly:
    """Makes the parts of one dataset in `data`; what is needed only meanwhile is kept in `work`."""

    config: PrepareConfig
    corpus: Corpus
    data: Path
    work: Path
    tally: Tally = field(default_factory=Tally)
    """Counts what has become rows."""
    given: Tokenizer | None = None
    """The one that `config.tokenizer` names."""
    workers: Workers | None = None
    """Those that tokenize in place of this process."""
    nodes: Nodes | None = None
    """Those that read and tokenize in place of this machine."""

    def bytes_written(self) -> int:
        """Size of what is done."""
        return sum(path.stat().st_size for path in self.data.rglob("*") if path.is_file())

    def bytes_needed(self) -> int:
        """Size of the dataset, judged by the part that is done; before there is one, by that of the text."""
        whole = self.corpus.source_bytes
        # A token takes two bytes, and has four characters on average.
        least = whole // 2
        done = self.tally.source_bytes / whole if whole else 0.0
        return max(least, int(self.bytes_written() / done)) if done else least

    def tokenizer(self) -> Tokenizer:
        """The given tokenizer, the one that an interrupted run trained, or a new one."""
        folder = self.data / "tokenizer"
        # Standard input may be another one this time.
        if self.given is None and folder.exists() and STDIN not in self.config.corpus:
            return tokenizers.load_tokenizer(folder)
        tokenizer = self.given or tokenizers.train(self._sample(), self.config.vocabulary)
        # Complete or absent: an interruption must not leave half a tokenizer behind.
        complete = self.work / "tokenizer"
        for old in (folder, complete):
            shutil.rmtree(old, ignore_errors=True)
        tokenizer.save(complete)
        complete.rename(folder)
        return tokenizer

    def _sample(self) -> list[str]:
        """Read everything once for text to train on; problems are reported before the long work."""
        dealer = Dealer(valid_fraction=self.config.valid_fraction, duplicates="keep", folder=self.work)
        tally = Tally()
        sample = VocabularySample()
        with self._reading("vocabulary sample") as (quarantine, progress):
            for documents, hashes in self._groups(tally, quarantine, lambda: sample.largest_hash):
                for document, document_hash in zip(documents, hashes, strict=True):
                    if not dealer.is_held_out(document_hash):
                        sample.add(document_hash, document)
                progress.update(tally.source_bytes / _MB)
        quarantine.check(tally, max_bad_fraction=self.config.max_bad_fraction)
        if not (texts := sample.documents()):
            raise InputError(f"the corpus has no text to train on: {tally.documents} documents were read")
        return texts

    def _groups(
        self, tally: Tally, quarantine: Quarantine, largest_hash: Callable[[], int | None] = lambda: None
    ) -> Iterator[Hashed]:
        """The documents of the corpus with their hashes; those with larger ones may be left out."""
        if self.nodes is not None:
            return self.nodes.groups(self.corpus, tally, quarantine, largest_hash)
        return hashed_groups(self.corpus.documents(tally, quarantine))

    def write_rows(self, tokenizer: Tokenizer) -> _Written:
        """Turn every document into rows, in shards."""
        config = self.config
        settings = ShardSettings(
            folder=self.data,
            receipts=self.work / "receipts",
            tokenizer=self.data / "tokenizer",
            tokenizer_hash=tokenizer.content_hash,
            seq_length=config.seq_length,
            examples=config.examples,
            seed=config.seed,
        )
        dealer = Dealer(valid_fraction=config.valid_fraction, duplicates=config.duplicates, folder=self.work)
        tally = self.tally
        nodes, others = self.nodes, self.nodes or self.workers
        with self._reading("rows") as (quarantine, progress):
            receipts = write_shards(
                dealer.blocks(self._groups(tally, quarantine), lambda: tally.source_bytes),
                settings,
                on_finished=lambda block: progress.update(
                    block.source_bytes / _MB, nodes.note if nodes else ""
                ),
                write_all=others.write_all if others else None,
            )
        quarantine.check(tally, max_bad_fraction=self.config.max_bad_fraction)
        return _Written(
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

    def seal(self, tokenizer: Tokenizer, written: _Written, facts: dict[str, Any]) -> None:
        """Count, and write the manifest last."""
        splits = {split: _split_facts(written.receipts, split) for split in (TRAIN, VALID)}
        if not splits[TRAIN]["tokens"]:
            raise InputError(
                f"the corpus gave no tokens to train on: {written.tally.documents} documents were read"
            )
        self._remove_strays([receipt["name"] for receipt in written.receipts])
        train_shards = [shard["name"] for shard in splits[TRAIN]["shards"]]
        token_counts = count_tokens(self.data, train_shards, vocab_size=tokenizer.vocab_size)
        files.write_file(self.data / TOKEN_COUNTS, partial(np.save, arr=token_counts, allow_pickle=False))
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
        """Remove files of an interrupted write, and shards of a standard input that was longer then."""
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


def _num_receipts(work: Path) -> int:
    return len(list((work / "receipts").glob("*.json")))


def _has_quarantine(data: Path) -> bool:
    path = data / QUARANTINE
    return path.exists() and path.stat().st_size > 0


def _begin(unfinished: Path, plan: dict[str, Any]) -> tuple[Path, Path]:
    """Resume what was begun with the same settings and files, or begin."""
    data, work = unfinished / "data", unfinished / "work"
    if not data.exists():
        # It was moved to its place before the process was killed: the receipts are of shards that are gone.
        shutil.rmtree(work, ignore_errors=True)
    plan_file = work / "plan.json"
    if plan_file.exists() and (difference := _difference(files.read_json(plan_file), plan)):
        if _num_receipts(work):
            raise InputError(
                f"{unfinished} was begun before, {difference}: choose another --out or delete it"
            )
        # Nothing of value was made yet, such as when the first attempt failed on a mistake in the corpus.
        for folder in (data, work):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in (data, work / "receipts"):
        folder.mkdir(parents=True, exist_ok=True)
    files.write_json(plan_file, plan)
    return data, work


def _remove_rest(unfinished: Path) -> None:
    """Remove what a process has left that was killed after it had moved its data to their place."""
    if unfinished.is_dir() and not (unfinished / "data").exists():
        # Whoever holds the lock is about to do the same.
        with suppress(InputError), files.locked(unfinished / "lock", busy="in use"):
            shutil.rmtree(unfinished)


def _finished_before(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The manifest of `out` if it was made with the same settings from the same files."""
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
