"""Content -> files and sealed folders on disk -> the same content, or an error that names the damaged file.

An artefact is a folder whose manifest is written last, with the checksum of every file; a folder without a
valid manifest is not one. Files are written under a temporary name, synced and renamed, so that a reader sees
a whole file or none, even after a power cut.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, TypedDict

from electra.errors import InputError
from electra.schema import Within, check, short


def _mode_of_new_files() -> int:
    # There is no way to ask for the mask but to set it; at import no other thread makes files.
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


_NEW_FILE = _mode_of_new_files()
MANIFEST = "manifest.json"
CACHE = "cache"
"""Folder in an artefact with what was derived from it: it can be made again, and is no part of its seal."""


def sha256(path: Path) -> str:
    """Checksum of a file, readable with `sha256sum` too."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path) -> bytes:
    """The contents of a file; an OSError for a pipe or a device, which might never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    return path.read_bytes()


_NO_FILE = "it is a folder, a pipe or a device, expected a file"


def fsync(path: Path) -> None:
    """Force a file's contents, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Create or replace `path` in one step: `write` fills a temporary file, which is synced and renamed.

    An OSError says which file it is about.
    """
    # The process id keeps two writers of the same file (an orphan and its successor) out of each other's way.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Readable too: past a file for writing only, NumPy writes itself and gives errors without a number.
        with temporary.open("w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    fsync(path.parent)


_UNFINISHED = re.compile(r"\..+\.(\d+)\.tmp")


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed `write_file` has left below a folder, whose lock the caller holds."""
    for path in folder.rglob(".*.tmp"):
        found = _UNFINISHED.fullmatch(path.name)
        # Commands that only add to a folder, such as a report, write without its lock.
        if found and path.is_file() and not _is_another(int(found[1])):
            path.unlink(missing_ok=True)


def _is_another(process: int) -> bool:
    """Whether another process than this one runs by that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != os.getpid()


def is_disk_full(error: OSError) -> bool:
    """Whether there was no room for what was to be written, on the disk or in somebody's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def to_json(value: object) -> bytes:
    """The one JSON form we write: sorted keys, two-space indent, UTF-8, final newline."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON in one step."""
    write_file(path, lambda file: file.write(to_json(value)))


def read_json(path: Path, form: Any = Any) -> Any:
    """Read JSON, or say which file is not, or which of its values is not of a form (see `schema`)."""
    try:
        text = read_bytes(path)
        content = json.loads(text)
        if _SURROGATE.search(text):
            # Two of them are a character. One is none, and would stop us where it is written or shown.
            json.dumps(content, ensure_ascii=False).encode()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable JSON: {error}") from error
    except RecursionError:
        raise InputError(f"{path} is not readable JSON: {_TOO_DEEP}") from None
    if _is_deep(content):
        raise InputError(f"{path} is not readable JSON: {_TOO_DEEP}")
    check(content, form, where=str(path))
    return content


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DEEPEST = 64
_TOO_DEEP = f"lists and objects lie in each other more than {_DEEPEST} deep"


def _is_deep(content: Any) -> bool:
    """Whether whoever goes down into some data would have to go far: Python gives up in the thousands."""
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(_DEEPEST + 1):
        lists = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for inside in lists for one in inside if isinstance(one, dict | list)]
        if not level:
            return False
    return True


class SealedFile(TypedDict):
    """What a manifest says of a file."""

    bytes: Annotated[int, Within(0)]
    sha256: str


class Manifest(TypedDict):
    """What all manifests have."""

    kind: str
    files: dict[str, SealedFile]


def is_plain_name(name: str) -> bool:
    """Whether it names something below a folder, and in the only way; it may be a link."""
    plain = PurePosixPath(name)
    is_one = str(plain) == name and plain.parts and not plain.is_absolute() and ".." not in plain.parts
    return bool(is_one) and "\0" not in name and all(len(os.fsencode(part)) < 256 for part in plain.parts)


def is_inside(folder: Path, name: str) -> bool:
    """Whether what a file in a folder names lies there, or would: not above it, and not behind a link."""
    try:
        place, real = (folder / name).resolve(), folder.resolve()
    except (ValueError, RuntimeError, OSError):
        # A name that no file can have, or a link to itself.
        return False
    if place.is_symlink():
        # To itself, since Python 3.13.
        return False
    # The cache of the Hugging Face hub: SNAPSHOTS/REVISION is a folder of links to files in BLOBS.
    revision = next((some for some in (real, *real.parents) if some.parent.name == "snapshots"), None)
    blobs = None if revision is None else revision.parent.parent / "blobs"
    return place.is_relative_to(real) or place.parent == blobs


def read_folder(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by their place in it, for a machine that does not see it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write_folder(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write such files, in their order."""
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, partial(_put, data=data))


def _put(file: IO[bytes], *, data: bytes) -> None:
    file.write(data)


def require_folder(folder: Path, *, key: str) -> None:
    """Refuse a place where no folder is and none can be made, before the work whose result goes there."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise InputError(f"{key} {folder}: {nearest} is not a folder, choose another {key}")
    if nearest != folder and not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{key} {folder} cannot be made: {nearest} may not be written, choose another {key}")


def refuse_full(folder: Path) -> None:
    """Refuse to write over what is there already."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty: choose another folder, or remove it first")


@contextmanager
def appearing_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when that is done, in place of one that had it."""
    unfinished = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


Keep = Literal["in_cache", "in_memory"]
"""Where something that is derived from a dataset is kept."""


def derived_folder(data: Path, facts: dict[str, Any]) -> Path:
    """Where what is derived from a dataset is kept: the facts say of what, and how."""
    return data / CACHE / f"{facts['kind']}-{hashlib.sha256(to_json(facts)).hexdigest()[:16]}"


def keep_derived(folder: Path, facts: dict[str, Any], fill: Callable[[Path], None]) -> None:
    """Write a sealed folder, in place of a damaged one, or say that it cannot be written.

    Several commands may write the same at a time.
    """
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        write_manifest(unfinished, facts)
        if not is_whole(folder, kind=facts["kind"]):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                unfinished.rename(folder)
            except OSError:
                # Another one was faster.
                if not is_whole(folder, kind=facts["kind"]):
                    raise
    except OSError as error:
        print(
            f"electra: warning: {folder} cannot be written ({error.strerror}): each run makes it anew",
            file=sys.stderr,
        )
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def is_whole(folder: Path, *, kind: str) -> bool:
    """Whether a folder is a sealed one of a kind, with all files as they were."""
    try:
        manifest = read_manifest(folder, kind=kind)
    except InputError:
        return False
    return not any(damaged_files(folder, manifest))


def sealed(path: Path) -> SealedFile:
    """What the manifest of its folder is to say of a file."""
    # safetensors lets only the owner read, and a server may run as somebody else: as for any new file.
    path.chmod(_NEW_FILE)
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def write_manifest(
    folder: Path, facts: dict[str, Any], *, known: Mapping[str, SealedFile] | None = None
) -> None:
    """Seal a folder: `facts`, and size and checksum of every file in it, the manifest's own included.

    `known`: what other processes say of files that they wrote.
    """
    known = known or {}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST]
    names = {str(path.relative_to(folder)): path for path in paths}
    if lost := next((name for name in known if name not in names), None):
        raise FileNotFoundError(
            errno.ENOENT, "another process wrote it elsewhere: do all machines see one folder?", lost
        )
    content = {**facts, "files": {name: known.get(name) or sealed(path) for name, path in names.items()}}
    write_json(
        folder / MANIFEST, {**content, "manifest_sha256": hashlib.sha256(to_json(content)).hexdigest()}
    )


def read_manifest(folder: Path, *, kind: str, form: Any = Manifest) -> dict[str, Any]:
    """The facts of a sealed folder; its own checksum, its `kind` and its form are checked, its files are not.

    A checksum tells damage, not intent: whoever changes a manifest can seal it again. So it can only name
    files of its folder, which may be links: what they lead to has the checksum, or is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} is not a finished {kind}: it has no {MANIFEST}")
    content: dict[str, Any] = read_json(path, dict[str, Any])
    checksum = content.pop("manifest_sha256", None)
    try:
        whole = {**content, "manifest_sha256": hashlib.sha256(to_json(content)).hexdigest()}
    except ValueError as error:
        # Numbers such as NaN, which Python reads and we never write.
        raise InputError(f"{path} is damaged: {error}") from error
    # Comparing the bytes, not the values, also finds damage that JSON does not see, such as a changed blank.
    if checksum != whole["manifest_sha256"] or path.read_bytes() != to_json(whole):
        raise InputError(f"{path} is damaged: its checksum does not match its content")
    if content.get("kind") != kind:
        raise InputError(f"{folder} holds a {short(content.get('kind'))}, expected a {kind}")
    check(content, form, where=str(path))
    for name in content["files"]:
        # By many names such as ././a, one file would be read many times.
        if not is_plain_name(name):
            raise InputError(f"{path} names {short(name)}, expected a file in {folder}")
    return content


def damaged_files(
    folder: Path, manifest: Mapping[str, Any], *, unhashed: Collection[str] = ()
) -> Iterator[str]:
    """One line for every file that is missing, or of other size or contents than when it was sealed.

    Of the `unhashed` only the size is compared: who reads them compares the checksum on the way. What the
    manifest does not name is no damage, since nobody reads it: file managers and network disks leave files
    everywhere (.DS_Store, .nfs0001). `stray_files` lists it.
    """
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            yield f"{path}: missing"
        elif path.stat().st_size != facts["bytes"]:
            yield f"{path}: {path.stat().st_size} bytes, expected {facts['bytes']}"
        elif name not in unhashed and sha256(path) != facts["sha256"]:
            yield f"{path}: contents changed (SHA-256 differs)"


def stray_files(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Files that came into a sealed folder later, but for what was derived from it (`CACHE`)."""
    known = {*manifest["files"], MANIFEST}
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [folder / name for name in names if str(name) not in known and name.parts[0] != CACHE]


@contextmanager
def locked(path: Path, *, busy: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on a file, which the system frees when the process ends however it ends.

    `seconds`: how long to wait for whoever holds it.
    """
    if path.exists() and not path.is_file():
        # A pipe would be waited for until somebody reads from it.
        raise InputError(f"{path} cannot be a lock: {_NO_FILE}; remove it")
    until = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise InputError(busy) from error
            time.sleep(0.2)
        yield
