"""A URL -> a file or folder in the cache of this machine that holds the same bytes, checked by SHA-256.

    CACHE/read/ID/content/NAME   what lies at a URL whose last part is NAME
    CACHE/read/ID/files.jsonl    a line for each file that is whole: size, SHA-256, version of the object
    CACHE/read/ID/parts/         downloads that were interrupted; the next attempt continues them
    CACHE/work/ID/               the same for what is being written (see `working`)

ELECTRA_CACHE names the folder (default: ~/.cache/electra), ELECTRA_CACHE_SIZE its largest size (default:
100GB). What was used least recently goes first; what a process uses, or what is not uploaded yet, never goes.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from electra import files
from electra.errors import InputError
from electra.show import megabytes
from electra.store.remote import Remote, StoredObject, is_name, is_url

PLACE, SIZE = "ELECTRA_CACHE", "ELECTRA_CACHE_SIZE"
UNPUBLISHED = "unpublished"
"""File of an entry that has what its store does not have yet."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PIECE_BYTES = 16 << 20
_AT_ONCE = 8
_WRITER = "writer"
_WORTH_A_LINE = 100e6
"""Bytes from which a person is told what is being fetched."""
_CHECKPOINT = re.compile(r"(?P<run>(?:.*/)?)checkpoints/step-(?P<step>\d+)/(?P<file>.*)")
NEWEST = 2
"""Checkpoints of a run that are fetched: as many as a run needs to go on if one of them is damaged."""

Kind = Literal["read", "work"]
_held: dict[tuple[Kind, str], "Entry"] = {}
"""What this process uses until it ends."""


def place() -> Path:
    """The folder of the cache."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra"
    return Path(os.environ.get(PLACE) or default)


def largest_size() -> int:
    """How many bytes the cache may hold."""
    text = os.environ.get(SIZE) or "100GB"
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InputError(f"{SIZE} is {text!r}, expected a size such as 100GB or 500MB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def fetch(url: str, *, checkpoints: bool = False) -> Path:
    """What lies at a URL, as a file or a folder that stays for as long as this process lives.

    Of a run, the newest checkpoints are fetched if they are asked for, or if it has no model yet.
    """
    entry = hold("read", url)
    with entry.transferring():
        found = wanted(entry.remote.objects(), checkpoints=checkpoints)
        if not found:
            raise InputError(f"{url}: there is nothing in the store by this name: check the spelling")
        entry.update(found)
    return entry.content


@contextmanager
def open_file(path: str, *, size: int = 0, modified: int = 0, buffering: int = -1) -> Iterator[IO[bytes]]:
    """A file on this disk or in a store, to be read; of the latter the cache may forget it afterwards.

    `size` and `modified` are what was found when the file was listed: an object that is another by now is
    refused.
    """
    if not is_url(path):
        with Path(path).open("rb", buffering=buffering) as file:
            yield file
        return
    with Entry.of("read", path).in_use() as entry:
        with entry.transferring():
            found = entry.remote.look("")
            if modified and (found.bytes, found.modified) != (size, modified):
                raise InputError(
                    f"{path} has changed since the command began ({size:,} bytes then, {found.bytes:,} now): "
                    "run the same command again when nobody writes to it"
                )
            entry.update({"": found})
        with entry.content.open("rb", buffering=buffering) as file:
            yield file


def with_urls(text: str) -> str:
    """A text for people and records, with URLs in place of folders of the cache that hold the same."""
    for entry in _held.values():
        if str(entry.content) in text:
            # What `prepare` has not finished lies beside the folder, and is not in the store.
            end = r"(?!\.partial)"
            text = re.sub(re.escape(str(entry.content)) + end, entry.remote.url, text)
    return text


def hold(kind: Kind, url: str) -> "Entry":
    """The place of a URL in the cache, in use until this process ends."""
    url = Remote(url).url
    if (kind, url) not in _held or not _held[kind, url].folder.is_dir():
        entry = Entry.of(kind, url)
        entry.start_use()
        _held[kind, url] = entry
    return _held[kind, url]


def wanted(objects: Mapping[str, StoredObject], *, checkpoints: bool) -> dict[str, StoredObject]:
    """Objects without the checkpoints that nobody needs: all but the newest whole ones of each run."""
    steps: dict[str, set[int]] = defaultdict(set)
    found = {name: _CHECKPOINT.fullmatch(name) for name in objects}
    for match in filter(None, found.values()):
        if match["file"] == files.MANIFEST:
            steps[match["run"]].add(int(match["step"]))
    newest = {
        run: sorted(some)[-NEWEST:]
        for run, some in steps.items()
        if checkpoints or not any(name.startswith(f"{run}final/") for name in objects)
    }
    return {
        name: stored
        for name, stored in objects.items()
        if (place := found[name]) is None or int(place["step"]) in newest.get(place["run"], ())
    }


class Entry:
    """A URL's place in the cache."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.remote = folder, Remote(url)
        self.content = folder / "content" / self.remote.name
        self._use: IO[str] | None = None

    @classmethod
    def of(cls, kind: Kind, url: str) -> "Entry":
        """The entry of a URL, which need not exist yet."""
        # Before it is encoded: it refuses what no file can be called.
        Remote(url)
        entry_id = hashlib.sha256(url.encode()).hexdigest()[:16]
        return cls(place() / kind / entry_id, url)

    def start_use(self) -> None:
        """Keep the entry from being removed, until `end_use` or the end of the process."""
        try:
            place().mkdir(parents=True, exist_ok=True)
            # Whoever removes entries holds the same lock.
            with _locked(place() / "lock"):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._use = (self.folder / "lock").open("a")
                fcntl.flock(self._use, fcntl.LOCK_SH)
                os.utime(self.folder / "lock")
        except OSError as error:
            raise InputError(
                f"{error.filename or place()}: {error.strerror}; set {PLACE} to a folder that can be written"
            ) from error

    def end_use(self) -> None:
        """Let the entry be removed when room is needed."""
        if self._use is not None:
            self._use.close()
            self._use = None

    @contextmanager
    def in_use(self) -> Iterator["Entry"]:
        """Use the entry for a while."""
        self.start_use()
        try:
            yield self
        finally:
            self.end_use()

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """One process at a time compares this entry with the store; others wait."""
        with _locked(self.folder / "transfer"):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the one process of this machine that writes to the URL."""
        busy = f"another command on this machine writes to {self.remote.url}: wait for it"
        with files.locked(self.folder / _WRITER, busy=busy):
            yield

    def records(self) -> dict[str, dict[str, Any]]:
        """What is known of each file: bytes, SHA-256, and the version of its object ("" if in doubt)."""
        path = self.folder / "files.jsonl"
        found: dict[str, dict[str, Any]] = {}
        for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else []:
            try:
                record = json.loads(line)
                found[record["name"]] = record
            except (ValueError, TypeError, KeyError):
                # Torn by a power cut: its file is in doubt, and fetched again.
                continue
        return {name: record for name, record in found.items() if not record.get("gone")}

    def record(self, name: str, **facts: Any) -> None:
        """Note what became of a file; of several lines for a file the last one counts."""
        with (self.folder / "files.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, **facts}) + "\n")

    def path_of(self, name: str) -> Path:
        """Where a file of the entry is."""
        path = self.content / name if name else self.content
        if not is_name(name) or not path.absolute().is_relative_to(self.content.absolute()):
            # As Python writes it: it may be such that it cannot be shown.
            url = ascii(self.remote.url_of(name))
            raise InputError(f"{url}: an object with this name cannot be a file: rename it in the store")
        return path

    def is_here(self, stored: StoredObject, name: str, record: Mapping[str, Any] | None) -> bool:
        """Whether a file is whole and the same as its object."""
        path = self.path_of(name)
        if not record or record["version"] != stored.version or not path.is_file():
            return False
        if not stored.version:
            # Nobody can tell whether it is another by now.
            return False
        return bool(path.stat().st_size == record["bytes"] and files.sha256(path) == record["sha256"])

    def update(self, objects: Mapping[str, StoredObject]) -> None:
        """Make the content that of the objects: fetch what is missing or another, remove what is no more."""
        known = self.records()
        missing = {
            name: stored
            for name, stored in objects.items()
            if not self.is_here(stored, name, known.get(name))
        }
        self._remove_others(objects, known)
        self._fetch_all(missing)
        self._check_seals(objects)

    def restore(self, objects: Mapping[str, StoredObject]) -> None:
        """Fetch files that are gone here and not in the store, such as by whoever tidies up disks."""
        known = {name for name, record in self.records().items() if record["version"]}
        lost = [name for name in known & objects.keys() if not self.path_of(name).exists()]
        self._fetch_all({name: objects[name] for name in lost})

    def _fetch_all(self, missing: Mapping[str, StoredObject]) -> None:
        if not missing:
            return
        parts = self.folder / "parts"
        parts.mkdir(exist_ok=True)
        total = sum(stored.bytes for stored in missing.values())
        make_room(total - _size(parts), for_url=self.remote.url)
        if total > _WORTH_A_LINE:
            print(f"fetching {megabytes(total)} of {self.remote.url}", file=sys.stderr, flush=True)
        stop = threading.Event()
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            for done in [pool.submit(self._fetch, name, stored, stop) for name, stored in missing.items()]:
                done.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        shutil.rmtree(parts, ignore_errors=True)

    def _remove_others(self, objects: Mapping[str, StoredObject], known: Mapping[str, Any]) -> None:
        is_file = "" in objects
        if self.content.exists() and self.content.is_dir() == is_file:
            shutil.rmtree(self.content) if self.content.is_dir() else self.content.unlink()
        if not is_file and self.content.is_dir():
            for path in [path for path in self.content.rglob("*") if path.is_file()]:
                if path.relative_to(self.content).as_posix() not in objects:
                    path.unlink()
        for name in known.keys() - objects.keys():
            self.record(name, gone=True)

    def _fetch(self, name: str, stored: StoredObject, stop: threading.Event) -> None:
        path = self.path_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Its name says of what it is a part: another version begins anew.
        part_id = hashlib.sha256(f"{name}\0{stored.version}".encode()).hexdigest()[:32]
        part = self.folder / "parts" / part_id
        if not stored.version:
            part.unlink(missing_ok=True)
        with part.open("ab") as file:
            while (size := file.tell()) < stored.bytes:
                piece = self.remote.read(name, size, min(size + _PIECE_BYTES, stored.bytes))
                if not piece:
                    break
                file.write(piece)
                if stop.is_set():
                    return
            file.flush()
            os.fsync(file.fileno())
        now = self.remote.look(name)
        if (now.version, now.bytes) != (stored.version, stored.bytes) or part.stat().st_size != stored.bytes:
            part.unlink()
            raise InputError(
                f"{stored.url} has changed while it was read: run the same command again when nobody writes "
                "to it"
            )
        if stored.modified:
            os.utime(part, ns=(stored.modified, stored.modified))
        checksum = files.sha256(part)
        part.replace(path)
        self.record(name, bytes=stored.bytes, sha256=checksum, version=stored.version)

    def _check_seals(self, objects: Mapping[str, StoredObject]) -> None:
        """Compare sealed folders with their manifests; checkpoints are left to the run, which has others."""
        known = self.records()
        for seal in [name for name in objects if name.rpartition("/")[2] == files.MANIFEST]:
            folder = seal.removesuffix(files.MANIFEST)
            if _CHECKPOINT.match(seal) or not (sealed := _sealed_files(self.path_of(seal))):
                continue
            for name, sha256 in sealed.items():
                found = known.get(folder + name)
                if found is None or found["sha256"] != sha256:
                    where = self.remote.url_of(folder + name)
                    raise InputError(
                        f"{where} is {'missing' if found is None else 'not what its manifest says'}: it was "
                        "damaged, or is being written; if waiting does not help, upload the folder again"
                    )


def _sealed_files(manifest: Path) -> dict[str, str]:
    """The checksums of a manifest of ours, by the names of its files; none if it is another's."""
    try:
        content = json.loads(manifest.read_bytes())
        return {name: facts["sha256"] for name, facts in content["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def make_room(num_bytes: int, *, for_url: str) -> None:
    """Remove what was used least recently until so many bytes fit, or say that they cannot."""
    limit = largest_size()
    with _locked(place() / "lock"):
        # What is not uploaded yet is no cache: it is somebody's work.
        entries = [
            lock.parent for lock in place().glob("*/*/lock") if not (lock.parent / UNPUBLISHED).exists()
        ]
        sizes = {entry: _size(entry) for entry in entries}
        total = sum(sizes.values())
        for entry in sorted(entries, key=lambda entry: (entry / "lock").stat().st_mtime_ns):
            if total + num_bytes <= limit:
                break
            with (entry / "lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(entry, ignore_errors=True)
                total -= sizes[entry]
    free = shutil.disk_usage(place()).free
    if total + num_bytes > limit or num_bytes > free:
        raise InputError(
            f"{for_url} needs {megabytes(num_bytes)} in {place()}, which may hold {megabytes(limit)}, of "
            f"which {megabytes(total)} are in use, on a disk with {megabytes(free)} free: raise {SIZE}, or "
            f"set {PLACE} to another disk"
        )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for a lock on a file, and hold it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
