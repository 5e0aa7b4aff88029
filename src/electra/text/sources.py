"""Files, folders, globs and Hub names -> the list of sources to read.

A folder contributes its files of known formats, except hidden ones. A file that is named, or that a glob
matches, is read whatever its suffix. No file is read twice, not even through a symbolic link. What is no file
(a pipe, a socket, a device) is never opened: it could block for ever, and gives its content only once.
"""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from electra.errors import InputError, import_extra
from electra.show import did_you_mean
from electra.store import remote
from electra.store.cache import with_urls

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
    modified: int = 0
    """When it was last changed, in nanoseconds; 0 if unknown."""

    @property
    def name(self) -> str:
        """The path in a form that can be printed and stored, whatever bytes it consists of."""
        return f"hf:{self.path}" if self.format == "hf" else printable(self.path)


@dataclass(kw_only=True)
class Found:
    """What the corpus arguments refer to."""

    sources: list[Source] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of files of unknown formats in folders, and of what is no file, by suffix."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that could not be listed, to their end or at all, with the reason."""


def printable(path: str) -> str:
    """A path with its undecodable bytes and control characters written as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def find_sources(corpus: Sequence[str], *, without: Sequence[str] = ()) -> Found:
    """All sources in the order of the arguments, sorted by path within each.

    Nothing in the folders of `without` is one, such as what the command itself writes.
    """
    found = Found()
    search = _Search(found, without=without)
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
    # As Path.suffix, which takes most of the time in which a folder of small files is listed.
    stem, dot, last = bare.rpartition("/")[2].rpartition(".")
    return FORMATS.get((dot + last).lower()) if stem else None, compression


def _suffix(name: str) -> str:
    """The suffix to count a skipped file under; unusual ones count as none, to keep the table short."""
    match = _SUFFIX.search(name.lower())
    return (match and match.group()) or "(no suffix)"


class _Search:
    """Remembers what was found already: whole folders and single files, never all files of a folder."""

    def __init__(self, found: Found, *, without: Sequence[str]) -> None:
        self.found = found
        self.without = [
            place for folder in without for place in (os.path.realpath(folder), with_urls(folder))
        ]
        self.folders: set[str] = set()
        self.files: set[str] = set()
        self.left_out: dict[str, None] = {}
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
                + "".join(f"; {folder} is left out: the result goes there" for folder in self.left_out)
            )
        return sources

    def _find(self, argument: str) -> Iterator[Source]:
        if argument.startswith("hf:"):
            yield from self._dataset(argument.removeprefix("hf:"))
        elif remote.is_url(argument):
            yield from self._stored(argument)
        # A name is taken literally before it is taken as a pattern: "draft[1].txt" is a file.
        elif os.path.lexists(argument):
            if _look(argument).kind == "special":
                raise InputError(
                    f"{printable(argument)} is a pipe, a socket or a device, expected a file or a folder: "
                    "store the text in a file, or send it to standard input with --corpus -"
                )
            yield from self._named(argument)
        elif _MAGIC.search(argument):
            anchor = "/" if argument.startswith("/") else ""
            for path in self._expand(anchor, [part for part in argument.split("/") if part]):
                yield from self._named(path)
        else:
            raise InputError(f"{printable(argument)}: no such file or folder{_near_names(argument)}")

    def _dataset(self, name: str) -> Iterator[Source]:
        if not name:
            raise InputError("hf: needs the name of a dataset, as in hf:OWNER/NAME")
        if self._is_new(f"hf:{name}"):
            yield Source(path=name, format="hf", modified=_look(name).modified)

    def _stored(self, url: str) -> Iterator[Source]:
        """The objects of a store: one that is named is read whatever its suffix, as of files."""
        for found in remote.find(url):
            inside = found.url.removeprefix(url.rstrip("/")) if found.url.startswith(url) else ""
            name, asked = found.url.rpartition("/")[2], url.rpartition("/")[2]
            is_hidden = "/." in inside or (name.startswith(".") and not asked.startswith("."))
            if is_hidden or self._is_left_out(found.url):
                continue
            if inside and format_of(found.url)[0] is None:
                self.found.skipped[_suffix(found.url)] += 1
            elif self._is_new(found.url):
                look = _Look(kind="file", bytes=found.bytes, modified=found.modified)
                yield look.source(found.url)

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

    def _is_left_out(self, real: str) -> bool:
        for folder in self.without:
            if real == folder or real.startswith(f"{folder}/"):
                self.left_out[printable(folder)] = None
                return True
        return False

    def _named(self, path: str) -> Iterator[Source]:
        """A file or folder that was named, or that a pattern or a link leads to: any suffix will do."""
        real, look = os.path.realpath(path), _look(path)
        if self._is_left_out(real):
            return
        if look.kind == "folder":
            yield from self._folder(path)
        elif look.kind == "special":
            self.found.skipped[_suffix(path)] += 1
        elif self._is_new(real):
            yield look.source(path)

    def _folder(self, top: str) -> Iterator[Source]:
        """The files of known formats below a folder. A folder is entered once, as links may loop."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            real = os.path.realpath(folder)
            if self._is_left_out(real):
                continue
            if real in self.folders:
                self.repeats += 1
                continue
            self.folders.add(real)
            for name, is_link in self._entries(folder):
                if name.startswith("."):
                    continue
                path = f"{folder.rstrip('/')}/{name}"
                look = _look(path)
                if look.kind == "folder":
                    waiting.append(path)
                elif is_link and look.kind == "file" and format_of(name)[0] is not None:
                    yield from self._named(path)
                else:
                    yield from self._listed(path, look, f"{real}/{name}")

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        """What is in a folder, and whether it is a link; where listing fails, what came before counts."""
        names: list[tuple[str, bool]] = []
        try:
            with os.scandir(folder or ".") as entries:
                names.extend((entry.name, entry.is_symlink()) for entry in entries)
        except OSError as error:
            self._note_unreadable(folder, error.strerror or str(error))
        return names

    def _note_unreadable(self, path: str, reason: str) -> None:
        failure = f"{printable(path)}: {reason}"
        if failure not in self.found.unreadable:
            self.found.unreadable.append(failure)

    def _listed(self, path: str, look: "_Look", real: str) -> Iterator[Source]:
        """What a folder contains that is no folder. A link to nowhere is kept, for the reader to report."""
        if format_of(path)[0] is None and look.kind == "unknown":
            # Perhaps a folder: a link leads into a place that is closed.
            self._note_unreadable(path, look.reason)
        elif format_of(path)[0] is None or look.kind == "special":
            self.found.skipped[_suffix(path)] += 1
        elif real in self.files:
            self.repeats += 1
        else:
            yield look.source(path)

    def _expand(self, base: str, parts: list[str]) -> Iterator[str]:
        """The paths that match a pattern, except hidden ones. `**` does not follow links, which may loop."""
        if not parts or parts == ["**"]:
            yield base or "."
            return
        first, rest = parts[0], parts[1:]
        if first != "**" and not _MAGIC.search(first):
            if os.path.lexists(base + first):
                yield from self._expand(base + first + "/" * bool(rest), rest)
            return
        if first == "**":
            yield from self._expand(base, rest)
        if _look(base or ".").kind not in ("folder", "unknown"):
            return
        for name, is_link in self._entries(base):
            if name.startswith(".") and not first.startswith("."):
                continue
            if first == "**":
                if not is_link and _look(base + name).kind == "folder":
                    yield from self._expand(f"{base}{name}/", parts)
            elif fnmatchcase(name, first):
                yield from self._expand(f"{base}{name}{'/' * bool(rest)}", rest)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """What a path leads to."""

    kind: Literal["file", "folder", "special", "missing", "unknown"]
    """Special: neither file nor folder. Missing: a link to nowhere, or to itself. Unknown: access is denied,
    or the disk fails."""
    bytes: int = 0
    modified: int = 0
    reason: str = ""

    def source(self, path: str) -> Source:
        """The path as a source."""
        format_, compression = format_of(path)
        return Source(
            path=path,
            format=format_ or "text",
            compression=compression,
            bytes=self.bytes,
            modified=self.modified,
        )


def _look(path: str) -> _Look:
    try:
        found = Path(path).stat()
    except OSError as error:
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        return _Look(kind="missing" if is_missing else "unknown", reason=error.strerror or str(error))
    if stat.S_ISDIR(found.st_mode):
        return _Look(kind="folder", modified=found.st_mtime_ns)
    if not stat.S_ISREG(found.st_mode):
        return _Look(kind="special")
    return _Look(kind="file", bytes=found.st_size, modified=found.st_mtime_ns)


def _near_names(path: str) -> str:
    """A hint at similar names in the folder where the path should be."""
    parent = Path(path).parent
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in islice(entries, 10_000)]
    except OSError:
        return f"; {printable(str(parent))} is not a folder that can be listed"
    return did_you_mean(Path(path).name, names)
