"""A corpus and where to put it -> a finished dataset, made, found made, or gone on with.

The folder is made as OUT.partial/data and gets its name in one step when it is whole, so that OUT is a
complete dataset or is not there. OUT.partial remembers its settings and the files it was begun on.
"""

import shutil
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.text import tokenizer as tokenizers
from electra.text.corpus import STDIN, open_corpus
from electra.text.dataset import Assembly, DatasetConfig
from electra.text.quarantine import QUARANTINE
from electra.text.rows import KIND
from electra.text.tally import Problem


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
