"""`electra prepare`: a corpus -> a tokenizer, rows of tokens and a manifest."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config, files
from electra.errors import InputError
from electra.show import clock, megabytes, table
from electra.text import tokenizer as tokenizers
from electra.text.dataset import DatasetConfig, Prepared, prepare
from electra.text.quarantine import describe
from electra.text.rows import KIND, Rows

_NUM_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(DatasetConfig):
    """From a corpus to a folder with a tokenizer, token rows and a manifest."""

    out: str | None = None
    """Folder to make. Interrupted, the same command goes on from what is finished."""
    workers: int = len(os.sched_getaffinity(0))
    """Processes to tokenize with; the result does not depend on it."""
    max_bad_fraction: float = 0.05
    """Share of the input's bytes that may be unreadable or replaced before it is an error."""
    verify: str | None = None
    """Folder to check instead: every file is compared with its checksum in the manifest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_bad_fraction <= 1:
            raise InputError(f"max_bad_fraction is {self.max_bad_fraction}, expected 0 to 1")
        if self.workers < 1:
            raise InputError(f"workers is {self.workers}, expected at least 1")


def main(arguments: Sequence[str]) -> None:
    """Prepare or verify a dataset."""
    settings = config.parse(PrepareConfig, arguments, prog="electra prepare")
    if settings.verify:
        return verify(Path(settings.verify))
    if not settings.corpus or not settings.out:
        raise InputError("give --corpus PATH [PATH ...] and --out DIR (see 'electra prepare --help')")
    prepared = prepare(
        settings,
        Path(settings.out),
        workers=settings.workers,
        max_bad_fraction=settings.max_bad_fraction,
    )
    print(summary(prepared))
    return None


def verify(folder: Path) -> None:
    """Name every file that differs from what the manifest says of it."""
    manifest = files.read_manifest(folder, kind=KIND)
    if damage := list(files.damaged_files(folder, manifest)):
        raise InputError("\n  ".join([f"{folder} is damaged:", *damage]))
    print(f"{folder} is whole: {len(manifest['files'])} files match their checksums")


def summary(prepared: Prepared) -> str:
    """What a person wants to know of a dataset, and three of its rows."""
    manifest, counts = prepared.manifest, prepared.manifest["counts"]
    train, valid = manifest["splits"]["train"], manifest["splits"]["valid"]
    disk = sum(file["bytes"] for file in manifest["files"].values())
    skipped = sum(counts["skipped_files"].values())
    lines = {
        "documents": f"{train['documents']:,} to train on, {valid['documents']:,} held out",
        "left out": f"{counts['duplicate_documents']:,} duplicates, {counts['quarantined']:,} unreadable "
        f"(quarantine.jsonl), {skipped:,} files of other kinds",
        "replaced": f"{counts['replaced_bytes']:,} bytes of {counts['text_bytes']:,}",
        "tokens": f"{train['tokens']:,} to train on, {valid['tokens']:,} held out, "
        f"{counts['unknown_tokens'] / train['tokens']:.3%} unknown",
        "rows": f"{train['rows']:,} to train on, {valid['rows']:,} held out, "
        f"{train['tokens'] / train['rows']:.1f} of {manifest['seq_length']} tokens on average",
        "vocabulary": "{vocab_size:,} tokens, {algorithm}, case {case}, accents {accents}, cjk {cjk}".format(
            **manifest["tokenizer"]
        ),
        "disk": f"{megabytes(disk)} in {prepared.folder}",
        "time": _time(prepared),
    }
    rows = [*lines.items(), *(("unreadable", describe(problem)) for problem in prepared.problems)]
    if not valid["rows"]:
        rows.append(("note", "no document is held out for evaluation: raise --valid_fraction"))
    return "\n".join([table(rows), "", *_examples(prepared.folder)])


def _time(prepared: Prepared) -> str:
    if not prepared.rows_seconds:
        return "made before; nothing to do"
    megabytes = prepared.manifest["counts"]["text_bytes"] / 1e6
    found = f", {prepared.shards_found} shards found finished" if prepared.shards_found else ""
    return (
        f"{clock(prepared.vocabulary_seconds)} vocabulary, {clock(prepared.rows_seconds)} rows "
        f"({megabytes / prepared.rows_seconds:.1f} MB/s{found})"
    )


def _examples(folder: Path) -> list[str]:
    rows = Rows(folder)
    tokenizer = tokenizers.load(folder / "tokenizer")
    chosen = sorted({len(rows) * part // (_NUM_EXAMPLES + 1) for part in range(1, _NUM_EXAMPLES + 1)})
    lines = []
    for index in chosen:
        row = rows[index]
        text = tokenizer.decode(row.ids.tolist())
        shown = text if len(text) <= _EXAMPLE_CHARACTERS else f"{text[:_EXAMPLE_CHARACTERS]} ..."
        lines += [f"row {index:,} ({len(row.ids)} tokens): {shown}", ""]
    return lines[:-1]
