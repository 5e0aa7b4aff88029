"""As much of the Hugging Face Hub as its client asks for, on loopback: repositories with files, in memory.

Written after the client's source: info and tree of a repository, files with ETag and commit (large ones
behind a redirect), making a repository, and a commit of small files in NDJSON and large ones by LFS.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".onnx", ".parquet")
"""What is stored by LFS."""
TOKEN = "hf_secretSecretSecretSecretSecretSecr"


@dataclass
class Repository:
    """Its commits, and who may see it."""

    private: bool = False
    gated: bool = False
    commits: list[dict[str, bytes]] = field(default_factory=list)

    def sha(self, number: int = -1) -> str:
        number = number % len(self.commits) if self.commits else 0
        return hashlib.sha1(f"{id(self)} {number}".encode()).hexdigest()

    def find(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a branch or a hash stands for."""
        if revision == "main":
            return self.sha(), self.commits[-1] if self.commits else {}
        for number, files in enumerate(self.commits):
            if self.sha(number) == revision:
                return revision, files
        return None


@dataclass
class Hub:
    """What there is, and what was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    """By kind and name, such as models/org/name."""
    uploaded: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request."""
    tokens: set[str] = field(default_factory=set)
    """What was sent as authorisation."""
    failing: tuple[str, int, str] | None = None
    """Requests whose path begins so get this status and message."""
    address: str = ""

    @property
    def storage(self) -> str:
        """Large files lie on another host, which gets no token."""
        return self.address.replace("127.0.0.1", "localhost")

    def put(self, folder: Path, name: str, *, kind: str = "models", **keys: Any) -> Repository:
        """A repository with the files of a folder."""
        found = self.repositories.setdefault(f"{kind}/{name}", Repository(**keys))
        files = {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        found.commits.append(files)
        return found

    def fetched(self) -> set[str]:
        """The files that were asked for; of a large one, only its place is asked for here."""
        found = (re.fullmatch(r".*/resolve/[^/]+/(.+)", path) for _, path in self.asked)
        return {match[1] for match in found if match}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(path: str, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
    if path.endswith(LARGE):
        sha256 = hashlib.sha256(content).hexdigest()
        found["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
    return found


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        address = urlsplit(self.path)
        path, body = unquote(address.path), self.body()
        self.query = parse_qs(address.query)
        self.hub.asked.append((self.command, path))
        if self.headers["Authorization"]:
            self.hub.tokens.add(self.headers["Authorization"].removeprefix("Bearer "))
        if self.hub.failing and path.startswith(self.hub.failing[0]):
            _, status, message = self.hub.failing
            self.send(status, {"error": message}, {"X-Error-Message": message})
            return
        for pattern, route in ROUTES.items():
            if match := re.fullmatch(pattern, path):
                route(self, body, *match.groups())
                return
        self.send(404, {"error": "no such route"})

    def body(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, status: int, content: Any = None, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def visible(self, kind: str, name: str) -> Repository | None:
        """A repository that whoever asks may see; else the answer that the Hub gives."""
        found = self.hub.repositories.get(f"{kind}/{name}")
        knows = self.headers["Authorization"] == f"Bearer {TOKEN}"
        if found is None or (found.private and not knows):
            status = 404 if knows else 401
            self.send(status, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        if found.gated and not knows:
            self.send(401, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
            return None
        return found

    def commit_of(self, kind: str, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        found = self.visible(kind, name)
        if found is None:
            return None
        commit = found.find(revision)
        if commit is None:
            self.send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        return commit

    def info(self, body: bytes, kind: str, name: str, revision: str | None = None) -> None:
        commit = self.commit_of(kind, name, revision or "main")
        if commit is not None:
            sha, files = commit
            private = self.hub.repositories[f"{kind}/{name}"].private
            siblings = [{"rfilename": file} for file in files]
            facts = {"id": name, "modelId": name, "sha": sha, "private": private, "siblings": siblings}
            self.send(200, {**facts, "tags": [], "downloads": 0, "gated": False, "disabled": False})

    def tree(self, body: bytes, kind: str, name: str, revision: str, below: str | None = None) -> None:
        commit = self.commit_of(kind, name, revision)
        if commit is not None:
            start = f"{below}/" if below else ""
            files = {path: data for path, data in commit[1].items() if path.startswith(start)}
            found = [entry(path, data) for path, data in files.items()]
            if self.query.get("recursive", ["False"])[0] not in ("True", "true", "1"):
                found = [one for one in found if "/" not in one["path"][len(start) :]]
                below_it = {
                    path[len(start) :].partition("/")[0] for path in files if "/" in path[len(start) :]
                }
                for folder in sorted(below_it):
                    found.append(
                        {"type": "directory", "path": f"{start}{folder}", "oid": "0" * 40, "size": 0}
                    )
            if not found and below:
                self.send(404, {"error": "not there"}, {"X-Error-Code": "EntryNotFound"})
            else:
                self.send(200, found)

    def paths_info(self, body: bytes, kind: str, name: str, revision: str) -> None:
        commit = self.commit_of(kind, name, revision)
        if commit is not None:
            try:
                paths = json.loads(body)["paths"]
            except ValueError:
                paths = parse_qs(body.decode())["paths"]
            self.send(200, [entry(path, commit[1][path]) for path in paths if path in commit[1]])

    def resolve(self, body: bytes, kind: str | None, name: str, revision: str, file: str) -> None:
        commit = self.commit_of(kind or "models", name, revision)
        if commit is None:
            return
        sha, files = commit
        if file not in files:
            missing = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha}
            self.send(404, {"error": "Entry not found"}, missing)
            return
        content = files[file]
        if file.endswith(LARGE):
            oid = hashlib.sha256(content).hexdigest()
            self.hub.uploaded[oid] = content
            headers = {"X-Linked-ETag": f'"{oid}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": sha}
            self.send(302, b"", {**headers, "Location": f"{self.hub.storage}/lfs/{oid}"})
        else:
            self.send(200, content, {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": sha})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.send(401, {"error": "Invalid username or password."})
        elif f"models/{name}" in self.hub.repositories:
            url = f"{self.hub.address}/{name}"
            self.send(409, {"error": "You already created this model repo", "url": url})
        else:
            private = asked.get("visibility") == "private" or bool(asked.get("private"))
            self.hub.repositories[f"models/{name}"] = Repository(private=private)
            self.send(200, {"url": f"{self.hub.address}/{name}"})

    def validate(self, body: bytes) -> None:
        self.send(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, kind: str, name: str, revision: str) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
        self.send(200, {"files": modes})

    def batch(self, body: bytes, name: str) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.storage}/lfs/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        self.send(200, {"transfer": "basic", "objects": objects})

    def large(self, body: bytes, oid: str) -> None:
        if self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == oid
            self.hub.uploaded[oid] = body
            self.send(200, b"")
        else:
            self.send(200, self.hub.uploaded[oid], {"ETag": f'"{oid}"'})

    def commit(self, body: bytes, kind: str, name: str, revision: str) -> None:
        found = self.hub.repositories[f"{kind}/{name}"]
        files = dict(found.commits[-1]) if found.commits else {}
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.uploaded[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        found.commits.append(files)
        url = f"{self.hub.address}/{name}/commit/{found.sha()}"
        self.send(200, {"success": True, "commitUrl": url, "commitOid": found.sha()})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


_KIND, _REPOSITORY, _REVISION = "(models|datasets)", "([^/]+(?:/[^/]+)?)", "([^/]+)"
ROUTES = {
    r"/api/repos/create": Handler.create,
    r"/api/validate-yaml": Handler.validate,
    rf"/api/{_KIND}/{_REPOSITORY}/revision/{_REVISION}": Handler.info,
    rf"/api/{_KIND}/{_REPOSITORY}/tree/{_REVISION}(?:/(.+))?": Handler.tree,
    rf"/api/{_KIND}/{_REPOSITORY}/paths-info/{_REVISION}": Handler.paths_info,
    rf"/api/{_KIND}/{_REPOSITORY}/preupload/{_REVISION}": Handler.preupload,
    rf"/api/{_KIND}/{_REPOSITORY}/commit/{_REVISION}": Handler.commit,
    rf"/api/{_KIND}/{_REPOSITORY}": Handler.info,
    rf"/{_REPOSITORY}\.git/info/lfs/objects/batch": Handler.batch,
    r"/lfs/([0-9a-f]{64})": Handler.large,
    rf"(?:/(datasets))?/{_REPOSITORY}/resolve/{_REVISION}/(.+)": Handler.resolve,
}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """A server on a free port while the block runs."""
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
