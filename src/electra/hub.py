"""Names on the Hugging Face Hub <-> folders on this disk, through the Hub's own client.

    fetch_model("org/name", revision="main", wanted=list, check=print)  # -> a folder of the client's cache
    push_folder(Path("DIR"), "org/name", private=True, replaced=[])     # -> its address

The token is the one that the client finds, in the environment (HF_TOKEN) or from `hf auth login`. It is no
option of any command, and no message contains it.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import InputError, import_extra

ANSWER_SECONDS = 20
"""How long to wait for the first answer: the client itself would try a hopeless request again and again."""
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?", re.ASCII)
_LOG_IN = "`hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A model of the Hub on this disk."""

    path: Path
    """Folder in the client's cache."""
    name: str
    commit: str
    """What the revision stood for when it was fetched."""


def is_name(text: str) -> bool:
    """Whether something could be the name of a model: NAME or OWNER/NAME."""
    parts = text.split("/")
    return len(parts) <= 2 and all(_NAME.fullmatch(part) and ".." not in part for part in parts)


def client() -> Any:
    """The client of the Hub that HF_ENDPOINT names."""
    hub = import_extra("huggingface_hub", extra="hf")
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="electra")


def fetch_model(
    name: str,
    *,
    revision: str | None,
    wanted: Callable[[Collection[str]], list[str]],
    check: Callable[[Path], object],
) -> Fetched:
    """Bring some files of a model into the client's cache, or find them there if the Hub gives no answer.

    `wanted` chooses among the names of all files, or says what is missing. When the first of them is there,
    `check` sees the folder: a model that cannot be read is refused before its weights are fetched.
    """
    api = client()
    way_out = f"name a folder instead: hf download {name} --local-dir DIR, where the Hub can be reached"
    with explained(f"there is no folder {name} here, and on the Hub", name, way_out):
        try:
            info = api.model_info(name, revision=revision, timeout=ANSWER_SECONDS)
        except Exception as error:
            if not _is_silence(error) or (kept := _in_cache(name, revision)) is None:
                raise
            return Fetched(path=kept, name=name, commit=kept.name)
        chosen = wanted([file.rfilename for file in info.siblings or ()])
        check(Path(api.snapshot_download(name, revision=revision, allow_patterns=chosen[:1])))
        path = Path(api.snapshot_download(name, revision=revision, allow_patterns=chosen))
    return Fetched(path=path, name=name, commit=path.name)


def _in_cache(name: str, revision: str | None) -> Path | None:
    """What was fetched before, by whichever program; whether it is whole, its reader says."""
    hub = import_extra("huggingface_hub", extra="hf")
    found = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def ask_for_dataset(name: str) -> None:
    """Ask for a dataset once. Without this, `datasets` repeats a hopeless request for half a minute."""
    hub = import_extra("huggingface_hub", extra="hf")
    if not hub.constants.HF_HUB_OFFLINE:
        client().dataset_info(name, timeout=ANSWER_SECONDS)


def require_account(name: str) -> None:
    """Refuse what could never be pushed, before anything else is done."""
    if not is_name(name) or "/" not in name:
        raise InputError(f"push is {name!r}, expected OWNER/NAME, such as your-name/your-model")
    hub = import_extra("huggingface_hub", extra="hf")
    if hub.constants.HF_HUB_OFFLINE:
        raise InputError("push needs the Hub, and HF_HUB_OFFLINE is set: unset it, or leave out --push")
    if hub.get_token() is None:
        raise InputError(f"push needs an account of the Hub: log in with {_LOG_IN}")


def push_folder(folder: Path, name: str, *, private: bool, replaced: list[str]) -> str:
    """Put all files of a folder into a repository, which is made if there is none -> its address.

    `replaced`: patterns of the files of which none may be left of an earlier model. One that is there
    already stays as visible as it is.
    """
    api, errors = client(), import_extra("huggingface_hub.errors", extra="hf")
    way_out = f"{folder} is whole: push it with `hf upload {name} {folder}` when that is mended"
    with explained("it could not be pushed: on the Hub", name, way_out):
        try:
            is_private = bool(api.model_info(name, timeout=ANSWER_SECONDS).private)
        except errors.RepositoryNotFoundError:
            api.create_repo(name, private=private or None, exist_ok=True)
            is_private = private
        if private and not is_private:
            raise InputError(
                f"{name} is there already, and everybody can read it: nothing was pushed. Choose another "
                f"name, make it private on the Hub, or leave out --private. {folder} is whole"
            )
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Model and card, by electra export",
            delete_patterns=replaced,
        )
    return f"{api.endpoint}/{name}"


@contextmanager
def explained(begin: str, name: str, way_out: str) -> Iterator[None]:
    """Turn whatever the client raises into one short error that says what to do, without any token."""
    try:
        yield
    except InputError:
        raise
    # The client passes on whatever its network library raises, which has no narrower parent.
    except Exception as error:
        raise InputError(f"{begin} {_reason(error, name)}; {way_out}") from None


def _is_silence(error: Exception) -> bool:
    """Whether the Hub gave no answer at all, or one that says nothing of the model."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status >= 500


def _reason(error: Exception, name: str) -> str:
    errors = import_extra("huggingface_hub.errors", extra="hf")
    hub = import_extra("huggingface_hub", extra="hf")
    endpoint = os.environ.get("HF_ENDPOINT") or hub.constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    # A private model is not found, either, unless one may see it.
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: ask for access at {endpoint}/{name}, and log in with {_LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{name} is not found; if it is private, log in with {_LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no such revision"
    if isinstance(error, errors.HFValidationError):
        return f"{name} is no possible name"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name} is not in the cache, and HF_HUB_OFFLINE is set"
    if status in (401, 403):
        return f"{name} is refused ({status}: {_said(error)}); log in with {_LOG_IN}"
    if status is not None:
        return f"{name} failed ({status}: {_said(error)})"
    # Those of the network library, whichever the client uses.
    if isinstance(error, ConnectionError) or re.search("Connect|Timeout|Network|Proxy", type(error).__name__):
        return f"nothing can be asked: {endpoint} cannot be reached ({_said(error)})"
    return f"{name} failed ({_said(error)})"


def _said(error: Exception) -> str:
    """The first line of a message, without the token, should it be in there."""
    hub = import_extra("huggingface_hub", extra="hf")
    said = getattr(error, "server_message", None) or str(error).strip() or type(error).__name__
    token = hub.get_token()
    return said.splitlines()[0][:200].replace(token or "\0", "[token]")
