"""A corpus -> MB/s of `electra prepare` beside `tokenizers` alone, with the same tokenizer, trained before.

ours        the whole command: start, read and decompress files, split, hash, drop duplicates, tokenize, build
            examples, write rows with checksums
tokenizers  `encode_batch` on all cores, of texts that are already in memory
vocabulary  ours, when it also has to learn the vocabulary
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import tokenizers

from electra import files
from electra.bench.turns import ELECTRA, Contest, Ran, Turn, chosen, run_command
from electra.errors import InputError
from electra.text.corpus import BUILTIN, STDIN, Corpus, open_corpus
from electra.text.quarantine import Tally
from electra.text.rows import KIND

CONTESTANTS = ("ours", "tokenizers", "vocabulary")
_TRAINED, _COPIES = "trained", "corpus.jsonl"
_BATCH_DOCUMENTS = 256


@dataclass(frozen=True, kw_only=True)
class PrepareBenchConfig:
    """Benchmark of `electra prepare`."""

    corpus: list[str] = field(default_factory=lambda: [BUILTIN])
    """The corpus, as for `electra prepare`. Default: the text that every Python installation has."""
    copies: int = 1
    """How many different copies of the corpus to prepare; memory must not grow with them."""
    repeats: int = 3
    """Turns per contestant."""

    def __post_init__(self) -> None:
        for key in ("copies", "repeats"):
            if getattr(self, key) < 1:
                raise InputError(f"prepare.{key} is {getattr(self, key)}, expected 1 or more")


def contest(settings: PrepareBenchConfig, folder: Path) -> Contest:
    """The contest; writes the tokenizer, and the corpus unless it is in files already, into the folder."""
    if settings.copies > 1 or {BUILTIN, STDIN} & set(settings.corpus):
        cores = len(os.sched_getaffinity(0))
        write_copies(
            opened(settings.corpus).spooled(folder / "spool", workers=cores), folder, settings.copies
        )
    run_prepare(settings, folder, folder / _TRAINED)
    megabytes = files.read_manifest(folder / _TRAINED, kind=KIND)["counts"]["text_bytes"] / 1e6
    return Contest(
        title=f"preparing {megabytes:.1f} MB of text",
        contestants=CONTESTANTS,
        ours=("ours", "vocabulary"),
        step="pass",
        unit="MB",
        units_per_step=megabytes,
        repeats=settings.repeats,
    )


def take_turn(settings: PrepareBenchConfig, name: str, folder: Path) -> Turn:
    """Prepare the corpus once."""
    tokenizer = folder / _TRAINED / "tokenizer"
    way = chosen(
        {
            "ours": partial(command_pass, settings, folder, f"--tokenizer={tokenizer}"),
            "tokenizers": partial(library_pass, settings, folder, tokenizer),
            "vocabulary": partial(command_pass, settings, folder),
        },
        name,
    )
    return way()


def command_pass(settings: PrepareBenchConfig, folder: Path, *options: str) -> Turn:
    """Time the whole command, from start to exit."""
    ran = run_prepare(settings, folder, folder / "data", *options)
    shutil.rmtree(folder / "data")
    return Turn([ran.seconds], ran.memory)


def library_pass(settings: PrepareBenchConfig, folder: Path, tokenizer: Path) -> Turn:
    """Time the library alone. Its memory is not compared: it holds all texts, which a program would not."""
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = list(documents(opened(paths(settings, folder))))
    rest = iter(texts)
    begun = time.perf_counter()
    while batch := list(islice(rest, _BATCH_DOCUMENTS)):
        library.encode_batch(batch, add_special_tokens=False)
    return Turn([time.perf_counter() - begun])


def run_prepare(settings: PrepareBenchConfig, folder: Path, out: Path, *options: str) -> Ran:
    """Run the command."""
    words = [*ELECTRA, "prepare", "--corpus", *paths(settings, folder), f"--out={out}", *options]
    return run_command(words, name="electra prepare")


def paths(settings: PrepareBenchConfig, folder: Path) -> list[str]:
    """The files of the corpus, or of its copies."""
    written = folder / _COPIES
    return [str(written)] if written.is_file() else settings.corpus


def opened(corpus: list[str]) -> Corpus:
    """A corpus as `electra prepare` opens it by default."""
    return open_corpus(corpus)


def documents(corpus: Corpus) -> Iterator[str]:
    """The documents that `electra prepare` reads."""
    return corpus.documents(Tally(), lambda problem: None)


def write_copies(corpus: Corpus, folder: Path, copies: int) -> None:
    """Write all documents to one file; copies differ in their first word, so that none is a duplicate."""
    with (folder / _COPIES).open("w", encoding="utf-8") as file:
        for number in range(copies):
            for document in documents(corpus):
                text = f"Copy{number} {document}" if number else document
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
