"""Corpus -> the parts of a dataset: tokenizer, shards of rows, counts, and the manifest that seals them.

DATA/manifest.json, tokenizer/, train-*.npy, valid-*.npy, token_counts.npy, quarantine.jsonl
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from electra import files
from electra.errors import InputError
from electra.progress import Progress
from electra.text import tokenizer as tokenizers
from electra.text.corpus import STDIN, Corpus, vocabulary_sample
from electra.text.duplicates import hash_document
from electra.text.encoding import check_encoding
from electra.text.quarantine import QUARANTINE, Quarantine
from electra.text.rows import FORMAT_VERSION, KIND, LONGEST_ROW, count_tokens
from electra.text.shards import TRAIN, VALID, Dealer, ShardSettings, write_shards
from electra.text.tally import Tally
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
