"""`electra serve`: a model -> an HTTP API and a web page.

torch computes with as many threads as it chooses, which is one for each core: OMP_NUM_THREADS sets another
number. One request is computed at a time, or several as one batch, so the threads do not compete.
"""

import ipaddress
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config
from electra.errors import InputError, import_extra
from electra.prediction.load import Engine, load
from electra.serve.limits import Limits
from electra.train import devices


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Limits):
    """A model, an address, and how much to take on at a time."""

    model: str = ""
    """Folder of a run, of a fine-tuned or of an exported model."""
    engine: Engine = "torch"
    """What computes: torch, or onnx for a model made by `electra export --to onnx`."""
    device: str = "cpu"
    """Where torch computes: cpu, cuda, cuda:1, mps, or auto for the fastest there is."""
    host: str = "127.0.0.1"
    """Address to listen on; by default only this machine can reach it."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key_file: str = ""
    """File with the key that clients have to send, as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port <= 65_535:
            raise InputError(f"port is {self.port}, expected 0 to 65535")


def main(arguments: Sequence[str]) -> None:
    """Serve a model until a signal asks to stop."""
    settings = config.parse(ServeConfig, arguments, prog="electra serve")
    if not settings.model:
        raise InputError("give --model DIR (see 'electra serve --help')")
    for module in ("fastapi", "prometheus_client", "uvicorn"):
        import_extra(module, extra="serve")
    from electra.serve.app import build_app
    from electra.serve.listening import Server, listen, url_of

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    key = read_key(Path(settings.api_key_file)) if settings.api_key_file else None
    # Before the model is loaded, which may take a while.
    with listen(settings.host, settings.port) as listening:
        devices.set_up_allocator()
        model = load(settings.model, device=settings.device, engine=settings.engine)
        application = build_app(model, limits=settings, key=key)
        if key is None and not is_loopback(settings.host):
            print(
                f"electra: warning: anyone who can reach {settings.host} may use the model: give "
                "--api_key_file FILE, or --host 127.0.0.1",
                file=sys.stderr,
            )
        print(f"{url_of(listening)}  can {', '.join(model.abilities)}  (Ctrl-C stops it)", flush=True)
        Server(application, drain_seconds=settings.drain_seconds).run(sockets=[listening])


def read_key(path: Path) -> str:
    """The key in a file, which a header can carry."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"api_key_file: cannot read {path}: {error}") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"api_key_file: {path} must hold one key of ASCII letters, digits and signs without blanks; make "
            f"one: openssl rand -hex 32 > {path}"
        )
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
