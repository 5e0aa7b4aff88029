import logging

import pytest

from electra.store import cache
from s3_server import KEY, SECRET, s3_server


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache, and a process that uses nothing in it."""
    monkeypatch.setenv(cache.PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_held", {})
    yield tmp_path / "cache"
    for entry in cache._held.values():
        entry.end_use()


@pytest.fixture(scope="session")
def server():
    with s3_server() as address:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        yield address


@pytest.fixture
def bucket(server, monkeypatch, request):
    """A bucket of its own for each test, on a server that is found as users of s3fs say where it is."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        # None of the machine's own settings.
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = "b" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].rstrip("-")
    system = s3fs.S3FileSystem(use_listings_cache=False)
    system.mkdir(name)
    yield Bucket(system, name)
    s3fs.S3FileSystem.clear_instance_cache()


class Bucket:
    """What a test puts into and finds in its bucket, past our own code."""

    def __init__(self, system, name):
        self.system, self.name = system, name

    def url(self, name=""):
        return f"s3://{self.name}/{name}"

    def put(self, name, content):
        self.system.pipe_file(f"{self.name}/{name}", content)

    def read(self, name):
        return self.system.cat_file(f"{self.name}/{name}")

    def names(self, under=""):
        self.system.invalidate_cache()
        found = self.system.find(f"{self.name}/{under}".rstrip("/"))
        return [place.removeprefix(f"{self.name}/") for place in found]

    def contents(self, under=""):
        return {name.removeprefix(under).lstrip("/"): self.read(name) for name in self.names(under)}
