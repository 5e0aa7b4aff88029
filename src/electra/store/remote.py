"""A URL -> the objects behind it: listed, read, written and removed, through fsspec.

Credentials, endpoints and regions are those that fsspec and the store's own library find (environment,
profile, ~/.config/fsspec): they are no option of any command, and no message contains them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from electra.errors import InputError, import_extra

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_MAGIC = re.compile(r"[*?[]")
_SECRETS = re.compile(r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values no message may contain."""
_EXTRA = "pip install 'electra[store]'"
_AGAIN = "run the same command again, which resumes"
_DOWNLOAD = "download it first, such as with curl, and give the file"


def is_url(text: str) -> bool:
    """Whether something is a URL and not a path: s3://BUCKET/NAME."""
    return _URL.match(text) is not None


def is_name(text: str) -> bool:
    """Whether a file can have this name. Stores take ., .., NUL and halves of characters, too."""
    try:
        return b"\0" not in text.encode() and not {".", ".."} & set(text.split("/"))
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """What a store says of an object."""

    url: str
    bytes: int
    version: str
    """Changes when the object does: its ETag, or when it was written; empty if the store says neither."""
    modified: int
    """When it was last changed, in nanoseconds; 0 if unknown."""


@dataclass(frozen=True)
class Remote:
    """An object or a folder of a store. Names are relative to it; an object's own name is empty."""

    url: str

    def __post_init__(self) -> None:
        found = _URL.fullmatch(self.url)
        assert found is not None, self.url
        host = found["rest"].partition("/")[0]
        # A secret may itself contain a slash.
        if "@" in host or "?" in found["rest"] or (":" in host and "@" in found["rest"]):
            # It would be stored in configs, logs and environment.json.
            raise InputError(
                f"{found['scheme']}://...: a URL may hold no credentials (@, ?): give them to the store's "
                "own library, such as by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
            )
        if not is_name(found["rest"]):
            raise InputError(
                f"{self.url!a}: no file can have this name: no part of it may be . or .., and it may hold "
                "no NUL and no half of a character"
            )
        if not found["rest"].strip("/"):
            raise InputError(f"{self.url}: a bucket is missing, as in {found['scheme']}://BUCKET/NAME")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return PurePosixPath(self.url).name

    def url_of(self, name: str) -> str:
        """The URL of one of its objects."""
        return f"{self.url}/{name}" if name else self.url

    @cached_property
    def _place(self) -> tuple[Any, str]:
        core = import_extra("fsspec.core", extra="store")
        with explained(self.url):
            # What others write must be seen at once.
            system, path = core.url_to_fs(self.url, use_listings_cache=False)
            return system, str(path).rstrip("/")

    def _path_of(self, name: str) -> str:
        return f"{self._place[1]}/{name}" if name else self._place[1]

    def objects(self) -> dict[str, StoredObject]:
        """All objects below the URL by their names; none if there is nothing."""
        system, path = self._place
        with explained(self.url):
            system.invalidate_cache()
            found = _with_sizes(system, system.find(path, detail=True))
        names = {place: place[len(path) :].lstrip("/") for place in found}
        return {
            names[place]: self._stored(names[place], info)
            for place, info in sorted(found.items())
            # Consoles of stores mark folders by empty objects.
            if not place.endswith("/")
        }

    def look(self, name: str) -> StoredObject:
        """One object as it is now."""
        system = self._place[0]
        with explained(self.url_of(name)):
            system.invalidate_cache()
            return self._stored(name, system.info(self._path_of(name)))

    def read(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        with explained(self.url_of(name)):
            found: bytes = self._place[0].cat_file(self._path_of(name), start=start, end=end)
        if len(found) > end - start:
            raise InputError(f"{self.url_of(name)}: its server gives no parts of a file: {_DOWNLOAD}")
        return found

    def write(self, path: Path, name: str) -> StoredObject:
        """Store a file as an object, in place of one that had its name."""
        with explained(self.url_of(name)):
            self._place[0].put_file(str(path), self._path_of(name))
        stored = self.look(name)
        if not stored.version:
            raise InputError(
                f"{stored.url}: its store says neither ETag nor time, so that nobody could tell whether "
                "another command has written there: choose another --out"
            )
        return stored

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with explained(self.url_of(name)):
            try:
                self._place[0].rm_file(self._path_of(name))
            except FileNotFoundError:
                return

    def _stored(self, name: str, info: dict[str, Any]) -> StoredObject:
        return _stored(self.url_of(name), info)


def find(url: str) -> list[StoredObject]:
    """The objects that a person means: one by its URL, all of a folder, or those that match a pattern."""
    if not _MAGIC.search(url):
        return list(Remote(url).objects().values())
    first = _MAGIC.search(url)
    assert first is not None
    # A pattern in the name of a bucket would mean all buckets.
    base = Remote(url[: first.start()].rpartition("/")[0])
    system, path = base._place
    with explained(url):
        system.invalidate_cache()
        found = system.glob(f"{path}/{url[len(base.url) + 1 :]}", detail=True)
        files = {place: info for place, info in found.items() if info["type"] == "file"}
        files = _with_sizes(system, files)
    return [_stored(base.url_of(place[len(path) + 1 :]), info) for place, info in sorted(files.items())]


def _with_sizes(system: Any, found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Objects with what the store says of each; where its lists say no size, as on the web, each is asked."""
    return {
        place: system.info(place) if info.get("size") is None and not place.endswith("/") else info
        for place, info in found.items()
    }


def _stored(url: str, info: dict[str, Any]) -> StoredObject:
    if info.get("size") is None:
        raise InputError(f"{url}: its server does not say how large it is: {_DOWNLOAD}")
    size = int(info["size"])
    # To the microsecond: some stores give a time as a number here and in words there.
    modified = round(_written(info) * 1e6) * 1000
    # The last three are those of the Hub, of Hadoop and of FTP.
    keys = ("ETag", "etag", "generation", "md5Hash", "blob_id", "modificationTime", "modify")
    tags = [info.get(key) for key in keys]
    tag = next((str(tag) for tag in tags if tag), str(modified) if modified else "")
    return StoredObject(url=url, bytes=size, version=f"{tag} {size}" if tag else "", modified=modified)


def _written(info: dict[str, Any]) -> float:
    """When an object was last changed, in seconds; 0 if the store does not say it, or nothing sensible."""
    keys = ("LastModified", "updated", "mtime", "created", "last_modified", "Last-Modified")
    written = next((info[key] for key in keys if info.get(key) is not None), 0.0)
    try:
        if isinstance(written, str):
            # How the web has it: Wed, 18 Nov 2026 19:01:54 GMT.
            is_web = "," in written
            written = parsedate_to_datetime(written) if is_web else datetime.fromisoformat(written)
        return written.timestamp() if isinstance(written, datetime) else float(written)
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn whatever a store's library raises into one short error with the way out, without any secret."""
    try:
        yield
    except InputError:
        raise
    # These libraries pass on what their own ones raise, which has no narrower parent.
    except Exception as error:
        raise InputError(f"{url}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    first = without_secrets((str(error).strip() or kind).splitlines()[0][:300])
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket or object ({first}): check the spelling, and AWS_ENDPOINT_URL if set"
    if isinstance(error, PermissionError):
        return f"access is denied ({first}): check the credentials and what they may do there"
    if "Credential" in kind or "Token" in kind:
        return (
            f"no usable credentials ({first}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE "
            "or, for gs://, GOOGLE_APPLICATION_CREDENTIALS"
        )
    if isinstance(error, ImportError):
        return f"{first}: {_EXTRA}"
    if isinstance(error, ConnectionError | TimeoutError) or re.search("Connect|Timeout", kind):
        return f"no answer ({first}): check the network, and AWS_ENDPOINT_URL if set, and {_AGAIN}"
    return f"{kind}: {first}; if it passes, {_AGAIN}"


def without_secrets(text: str) -> str:
    """A text without the values of environment variables that are secret."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRETS.search(name):
            text = text.replace(value, "***")
    return text
