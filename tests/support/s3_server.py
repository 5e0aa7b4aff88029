"""A real S3 server on loopback: moto's, in a thread of the test process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SECRET, KEY = "sEcReT/of+the+tests/0123456789", "AKIATESTSOFELECTRA00"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server that holds nothing yet."""
    moto = pytest.importorskip(
        "moto.server", reason="moto's server is not installed: pip install moto[server]"
    )
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'electra[store]'")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()
