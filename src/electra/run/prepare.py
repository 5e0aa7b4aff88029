"""`electra prepare`: a corpus -> a tokenizer, rows of tokens and a manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config, files
from electra.errors import InputError
from electra.show import clock, listed, megabytes, table
from electra.store.cache import with_urls
from electra.text import tokenizer as tokenizers
from electra.text.dataset import PrepareConfig, Prepared, make_dataset
from electra.text.quarantine import describe_problem
from electra.text.rows import KIND, Rows

_NUM_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class PrepareCommand(PrepareConfig):
    """Turn text into a folder with a tokenizer, rows of tokens and a manifest."""

    verify: str | None = None
    """Dataset to check instead: compares every file with its checksum in the manifest."""


def main(arguments: Sequence[str]) -> None:
    """Prepare or verify a dataset."""
    given = config.read(PrepareCommand, arguments, prog="electra prepare")
    with given.opened(reads=("tokenizer", "verify"), writes=("out",)) as given:
        settings = given.config()
        if settings.verify:
            verify(Path(settings.verify))
        else:
            print(with_urls(summary(make_dataset(settings))))


def verify(folder: Path) -> None:
    """Raise an InputError that names every file that differs from the manifest, or is not in it.

    Hidden files are only mentioned: file managers and network disks leave them everywhere.
    """
    manifest = files.read_manifest(folder, kind=KIND)
    strays = files.stray_files(folder, manifest)
    hidden = [path for path in strays if path.name.startswith(".")]
    damage = list(files.damaged_files(folder, manifest))
    damage += [f"{path}: not in the manifest" for path in strays if path not in hidden]
    if damage:
        raise InputError("\n  ".join([f"{folder} is damaged:", *damage]))
    print(f"{with_urls(str(folder))} is whole: {len(manifest['files'])} files match their checksums")
    if hidden:
        print(f"not in the manifest, and never read: {listed(hidden)}")


def summary(prepared: Prepared) -> str:
    """The figures that a person wants to see, and three of the rows."""
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
        "disk": f"{megabytes(disk)} in {prepared.path}",
        "time": _time(prepared),
    }
    if prepared.shards_of_nodes:
        shards = [f"{node} made {count:,} shards" for node, count in sorted(prepared.shards_of_nodes.items())]
        lines["nodes"] = listed(shards)
    rows = [*lines.items(), *(("unreadable", describe_problem(problem)) for problem in prepared.problems)]
    if not valid["rows"]:
        rows.append(("note", "no document is held out for evaluation: raise --valid_fraction"))
    return "\n".join([table(rows), "", *_examples(prepared)])


def _time(prepared: Prepared) -> str:
    if not prepared.rows_seconds:
        return "finished before; nothing to do"
    megabytes = prepared.manifest["counts"]["text_bytes"] / 1e6
    found = f", {prepared.shards_found} shards found finished" if prepared.shards_found else ""
    return (
        f"{clock(prepared.vocabulary_seconds)} vocabulary, {clock(prepared.rows_seconds)} rows "
        f"({megabytes / prepared.rows_seconds:.1f} MB/s{found})"
    )


def _examples(prepared: Prepared) -> list[str]:
    rows = Rows(prepared.path)
    tokenizer = prepared.tokenizer or tokenizers.load_tokenizer(prepared.path / "tokenizer")
    chosen = sorted({len(rows) * part // (_NUM_EXAMPLES + 1) for part in range(1, _NUM_EXAMPLES + 1)})
    lines = []
    for index in chosen:
        row = rows[index]
        text = tokenizer.decode(row.ids.tolist())
        shown = text if len(text) <= _EXAMPLE_CHARACTERS else f"{text[:_EXAMPLE_CHARACTERS]} ..."
        lines += [f"row {index:,} ({len(row.ids)} tokens): {shown}", ""]
    return lines[:-1]
