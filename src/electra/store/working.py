"""A URL -> a folder on this disk to work in, whose contents go to the store meanwhile and at the end.

The store is what counts: work begins with what is there, and continues what this machine has not uploaded yet
only if nobody else has written in the meantime. What has a manifest (a dataset, a checkpoint, a model) goes
up file by file with the manifest last, and comes down the other way round, so that nobody ever finds half of
it whole.
"""

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from electra import files
from electra.errors import InputError
from electra.store import cache
from electra.store.cache import UNPUBLISHED, Entry
from electra.store.remote import StoredObject

EVERY_SECONDS = 30.0
"""How often what is new is uploaded while a command runs."""
_TRANSIENT = re.compile(
    r"(?:.*/)?(?:\..*|[^/]*\.tmp(?:-.*)?|[^/]*\.replaced/.*|[^/]*\.tmp-[^/]*/.*|checkpoint_now)"
)
_SET_ASIDE = "set_aside"


@contextmanager
def working_copy(url: str) -> Iterator[Path]:
    """A folder, or the place of a file, that stands for a URL; what is written there is uploaded.

    Of several processes of one command only the first fetches and uploads, as only the first reads and
    writes there: the others have the name of the folder, which on another machine stays empty.
    """
    entry = cache.hold("work", url)
    if not _writes():
        yield entry.content
        return
    copy = WorkingCopy(entry)
    with entry.writing():
        copy.begin()
        yield from _uploaded(copy)


def _uploaded(copy: "WorkingCopy") -> Iterator[Path]:
    """The folder, while a thread uploads what is new in it; at the end all of it."""
    entry, stop = copy.entry, threading.Event()
    thread = threading.Thread(target=copy.keep_publishing, args=(stop,), daemon=True)
    thread.start()
    failed: BaseException | None = None
    try:
        yield entry.content
    except BaseException as error:
        failed = error
        raise
    finally:
        stop.set()
        thread.join()
        try:
            copy.publish()
        except InputError as error:
            message = f"{error}. {entry.content} is whole and waits there for the same command"
            if failed is None:
                raise InputError(message) from None
            print(f"electra: warning: not uploaded: {message}", file=sys.stderr, flush=True)
        else:
            copy.end()


def _writes() -> bool:
    """Whether this is the process of a command that writes: the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


class WorkingCopy:
    """The content of an entry on its way to the store."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.remote = entry, entry.remote
        self._hashed: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._is_warned = False

    def begin(self) -> None:
        """Take over what the store has, unless what is here already continues it."""
        entry = self.entry
        entry.content.parent.mkdir(exist_ok=True)
        with entry.transferring():
            there = self.remote.objects()
            newest = cache.wanted(there, checkpoints=True)
            if not self._continues(there, newest):
                self._set_aside()
                entry.update(newest)
            # What is missing here when the command ends was removed by it, and goes from the store, too.
            entry.restore(newest)
            (entry.folder / UNPUBLISHED).touch()

    def _continues(self, there: Mapping[str, StoredObject], newest: Mapping[str, StoredObject]) -> bool:
        """Whether the store is as this machine has left it."""
        known = self.entry.records()
        if not known and not newest:
            return True
        # An upload that was interrupted may have arrived or not.
        certain = {name: record["version"] for name, record in known.items() if record["version"]}
        same = all(name in there and there[name].version == version for name, version in certain.items())
        return same and newest.keys() <= known.keys() and self.entry.content.exists()

    def _set_aside(self) -> None:
        """Move work away that somebody else has overtaken: it is of no use, but nobody's to delete."""
        entry = self.entry
        if (
            (entry.folder / UNPUBLISHED).exists()
            and entry.content.exists()
            and self._changed(entry.records())
        ):
            aside = entry.folder / _SET_ASIDE
            shutil.rmtree(aside, ignore_errors=True)
            entry.content.rename(aside)
            print(
                f"electra: warning: {self.remote.url} was changed elsewhere: it counts, and what this "
                f"machine had not uploaded is in {aside}",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        """All is in the store: what is here is a cache from now on, unless more than the content is here."""
        if not any(self.entry.content.parent.glob("*.partial")):
            (self.entry.folder / UNPUBLISHED).unlink(missing_ok=True)

    def keep_publishing(self, stop: threading.Event) -> None:
        """Upload what is new every now and then; a store that does not answer costs nothing but a warning."""
        while not stop.wait(EVERY_SECONDS):
            try:
                self.publish()
                self._is_warned = False
            except (InputError, OSError) as error:
                if not self._is_warned:
                    print(
                        f"electra: warning: not uploaded, which will be tried again: {error}",
                        file=sys.stderr,
                        flush=True,
                    )
                self._is_warned = True

    def publish(self) -> None:
        """Bring the store to the state of the folder: manifests last, and what is gone here after that."""
        entry = self.entry
        with entry.transferring():
            known = entry.records()
            changed = self._changed(known)
            gone = sorted(known.keys() - self._files().keys(), key=lambda name: not _is_seal(name))
            if not changed and not gone:
                return
            there = self.remote.objects()
            self._refuse_others(there, changed)
            seals = [name for name in changed if _is_seal(name)]
            for name in seals:
                if name in there:
                    # Its files are about to be others.
                    self._remove(name)
            vanished: set[str] = set()
            # Checkpoints, then logs, which so are as new as they; then what makes checkpoints whole.
            in_sealed = {name for name in changed if any(name.startswith(_folder(seal)) for seal in seals)}
            plain = sorted(changed.keys() - in_sealed)
            for name in [*sorted(in_sealed - set(seals)), *plain, *seals]:
                if any(name.startswith(folder) for folder in vanished):
                    continue
                if not self._upload(name, changed, is_sealed=name in in_sealed) and name in in_sealed:
                    vanished.add(_folder(name))
            for name in gone:
                self._remove(name)

    def _files(self) -> dict[str, Path]:
        """What belongs into the store, by its name there."""
        content = self.entry.content
        if content.is_file():
            return {"": content}
        paths = [path for path in sorted(content.rglob("*")) if path.is_file()]
        named = {path.relative_to(content).as_posix(): path for path in paths}
        return {
            name: path
            for name, path in named.items()
            if not _TRANSIENT.fullmatch(name) and not name.startswith(f"{files.CACHE}/")
        }

    def _changed(self, known: Mapping[str, Mapping[str, object]]) -> dict[str, Path]:
        """The files that the store does not have as they are."""
        found = {}
        for name, path in self._files().items():
            try:
                record = known.get(name)
                if not record or not record["version"] or record["sha256"] != self._sha256(path):
                    found[name] = path
            except FileNotFoundError:
                # A checkpoint that a newer one has just replaced.
                continue
        return found

    def _sha256(self, path: Path) -> str:
        """The checksum of a file, computed again only if the file has changed."""
        facts = path.stat()
        signature = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
        if path not in self._hashed or self._hashed[path][0] != signature:
            self._hashed[path] = (signature, files.sha256(path))
        return self._hashed[path][1]

    def _refuse_others(self, there: Mapping[str, StoredObject], changed: Mapping[str, Path]) -> None:
        """Stop before overwriting what somebody else has written since this command began."""
        known = self.entry.records()
        for name, stored in there.items():
            version = known[name]["version"] if name in known else None
            if (name in known and version and version != stored.version) or (
                name in changed and name not in known
            ):
                raise InputError(
                    f"{stored.url} was written by another command meanwhile: let only one at a time write to "
                    f"{self.remote.url}, or choose another --out"
                )

    def _upload(self, name: str, changed: Mapping[str, Path], *, is_sealed: bool) -> bool:
        """Store one file; False if it has been removed here meanwhile."""
        path, copy = changed[name], self.entry.folder / "upload"
        copy.unlink(missing_ok=True)
        try:
            if is_sealed:
                # It will not change, but may be removed while it is sent.
                os.link(path, copy)
            else:
                # A log may grow while it is sent: a copy has one size and one checksum.
                shutil.copyfile(path, copy)
            facts = {"bytes": copy.stat().st_size, "sha256": files.sha256(copy)}
        except FileNotFoundError:
            return False
        self.entry.record(name, **facts, version="")
        stored = self.remote.write(copy, name)
        if stored.bytes != facts["bytes"]:
            raise InputError(
                f"{stored.url} has {stored.bytes:,} of {facts['bytes']:,} bytes: run the same command again"
            )
        self.entry.record(name, **facts, version=stored.version)
        copy.unlink()
        return True

    def _remove(self, name: str) -> None:
        self.entry.record(name, bytes=0, sha256="", version="")
        self.remote.remove(name)
        self.entry.record(name, gone=True)


def _is_seal(name: str) -> bool:
    return name.rpartition("/")[2] == files.MANIFEST


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]
