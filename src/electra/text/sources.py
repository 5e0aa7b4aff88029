"""Files, folders, globs and Hub names -> the list of sources to read.

A folder contributes its files of known formats, except hidden ones. A file that is named, or that a glob
matches, is read whatever its suffix. No file is read twice, not even through a symbolic link.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from electra.errors import InputError, import_extra
from electra.show import did_you_mean

Format = Literal["text", "csv", "tsv", "jsonl", "parquet", "hf"]
Compression = Literal["none", "gzip", "xz", "zstd"]

# Large public corpora (C4) name line-JSON ".json"; the reader refuses other JSON with a clear reason.
FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
_EXTRAS = {"parquet": ("pyarrow.parquet", "parquet"), "hf": ("datasets", "hf"), "zstd": ("zstandard", "zstd")}
_SUFFIX = re.compile(r"(\.[a-z][a-z0-9]{0,9})?(\.(gz|xz|zst))?\Z", re.ASCII)
_MAGIC = re.compile(r"[*?[]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file to read, or one dataset of the Hugging Face Hub."""

    path: str
    format: Format
    compression: Compression = "none"
    bytes: int = 0
    """Size on disk; 0 if unknown."""

    @property
    def name(self) -> str:
        """The path in a form that can be printed and stored, whatever bytes it consists of."""
        return f"hf:{self.path}" if self.format == "hf" else printable(self.path)


@dataclass(kw_only=True)
class Found:
    """What the corpus arguments refer to."""

    sources: list[Source] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of files of unknown formats in folders, by suffix."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that could not be listed, with the reason."""


def printable(path: str) -> str:
    """A path with its undecodable bytes and control characters written as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def find_sources(corpus: Sequence[str]) -> Found:
    """All sources in the order of the arguments, sorted by path within each."""
    found = Found()
    search = _Search(found)
    for argument in corpus:
        found.sources += search.sources(argument)
    require_extras(found.sources)
    return found


def require_extras(sources: Sequence[Source]) -> None:
    """Import what the sources need, so that a missing extra is reported at once and not at the last file."""
    kinds = {source.format for source in sources} | {source.compression for source in sources}
    for kind in sorted(kinds & _EXTRAS.keys()):
        module, extra = _EXTRAS[kind]
        import_extra(module, extra=extra)


def without_compression(name: str) -> str:
    """A file name without .gz, .xz or .zst at its end."""
    stem, dot, last = name.rpartition(".")
    return stem if (dot + last).lower() in COMPRESSIONS else name


def format_of(name: str) -> tuple[Format | None, Compression]:
    """The format that a file name promises, if it is a known one, and the compression."""
    bare = without_compression(name)
    compression = COMPRESSIONS.get(name[len(bare) :].lower(), "none")
    return FORMATS.get(Path(bare).suffix.lower()), compression


def _suffix(name: str) -> str:
    """The suffix to count a skipped file under; unusual ones count as none, to keep the table short."""
    match = _SUFFIX.search(name.lower())
    return (match and match.group()) or "(no suffix)"


class _Search:
    """Remembers what was found already: whole folders and single files, never all files of a folder."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.folders: set[str] = set()
        self.files: set[str] = set()
        self.repeats = 0

    def sources(self, argument: str) -> list[Source]:
        """The new sources of one argument; an error if it refers to nothing at all."""
        repeats, skipped = self.repeats, self.found.skipped.copy()
        sources = sorted(self._find(argument), key=lambda source: source.path)
        if not sources and self.repeats == repeats:
            others = ", ".join(f"{n} {suffix}" for suffix, n in (self.found.skipped - skipped).most_common(5))
            raise InputError(
                f"{printable(argument)}: no file to read here, expected {' '.join(FORMATS)} (also with "
                f"{' '.join(COMPRESSIONS)}){f'; other files: {others}' if others else ''}"
                + "".join(f"; {failure}" for failure in self.found.unreadable[:1])
            )
        return sources

    def _find(self, argument: str) -> Iterator[Source]:
        if argument.startswith("hf:"):
            yield from self._dataset(argument.removeprefix("hf:"))
        # A name is taken literally before it is taken as a pattern: "draft[1].txt" is a file.
        elif os.path.lexists(argument):
            yield from self._named(argument)
        elif _MAGIC.search(argument):
            anchor = "/" if argument.startswith("/") else ""
            for path in _expand(anchor, [part for part in argument.split("/") if part]):
                yield from self._named(path)
        else:
            raise InputError(f"{printable(argument)}: no such file or folder{_near_names(argument)}")

    def _dataset(self, name: str) -> Iterator[Source]:
        if not name:
            raise InputError("hf: needs the name of a dataset, as in hf:OWNER/NAME")
        if self._is_new(f"hf:{name}"):
            yield Source(path=name, format="hf")

    def _is_new(self, real: str) -> bool:
        folder, _, name = real.rpartition("/")
        listed = (
            (folder or "/") in self.folders and not name.startswith(".") and format_of(name)[0] is not None
        )
        if listed or real in self.files:
            self.repeats += 1
            return False
        self.files.add(real)
        return True

    def _named(self, path: str) -> Iterator[Source]:
        """A file or folder that was named, or that a pattern or a link leads to: any suffix will do."""
        if Path(path).is_dir():
            yield from self._folder(path)
        elif self._is_new(os.path.realpath(path)):
            format_, compression = format_of(path)
            yield Source(path=path, format=format_ or "text", compression=compression, bytes=_size(path))

    def _folder(self, top: str) -> Iterator[Source]:
        """The files of known formats below a folder. A folder is entered once, as links may loop."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            real = os.path.realpath(folder)
            if real in self.folders:
                self.repeats += 1
                continue
            self.folders.add(real)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir():
                            waiting.append(entry.path)
                        else:
                            yield from self._listed(entry, real)
            except OSError as error:
                self.found.unreadable.append(f"{printable(folder)}: {error.strerror}")

    def _listed(self, entry: os.DirEntry[str], folder: str) -> Iterator[Source]:
        format_, compression = format_of(entry.name)
        # A link to nowhere is kept, for the reader to report. A pipe or device in a folder would block it.
        if format_ is None or not (entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())):
            self.found.skipped[_suffix(entry.name)] += 1
        elif entry.is_symlink() and entry.is_file():
            yield from self._named(entry.path)
        elif f"{folder}/{entry.name}" in self.files:
            self.repeats += 1
        else:
            yield Source(path=entry.path, format=format_, compression=compression, bytes=_size(entry.path))


def _expand(base: str, parts: list[str]) -> Iterator[str]:
    """The paths that match a pattern, except hidden ones. `**` does not follow links, which may loop."""
    if not parts or parts == ["**"]:
        yield base or "."
        return
    first, rest = parts[0], parts[1:]
    if first != "**" and not _MAGIC.search(first):
        if os.path.lexists(base + first):
            yield from _expand(base + first + "/" * bool(rest), rest)
        return
    if first == "**":
        yield from _expand(base, rest)
    try:
        with os.scandir(base or ".") as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return
    for name, is_folder in names:
        if name.startswith(".") and not first.startswith("."):
            continue
        if first == "**":
            if is_folder:
                yield from _expand(f"{base}{name}/", parts)
        elif fnmatchcase(name, first):
            yield from _expand(f"{base}{name}{'/' * bool(rest)}", rest)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _near_names(path: str) -> str:
    """A hint at similar names in the folder where the path should be."""
    parent = Path(path).parent
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in islice(entries, 10_000)]
    except OSError:
        return f"; {printable(str(parent))} is not a folder that can be listed"
    return did_you_mean(Path(path).name, names)
