"""`electra serve`: a model -> an HTTP API and a web page.

torch uses one thread per core; OMP_NUM_THREADS sets another number.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from electra import config
from electra.errors import InputError
from electra.prediction.load import Engine, load
from electra.serve.app import Server, build_app, listen, url_of
from electra.serve.hosts import ANY, Hosts, is_address, is_loopback
from electra.serve.limits import Limits
from electra.tasks.precision import PrecisionName
from electra.train import devices


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Limits):
    """A model, an address, and limits for clients."""

    model: str = ""
    """Folder of a run, a fine-tuned model or an exported model."""
    engine: Engine = "torch"
    """Library that runs the model: torch, or onnx for a model from `electra export --to onnx`."""
    device: str = "cpu"
    """Device for torch: cpu, cuda, cuda:1, mps, or auto for the fastest one available."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""
    host: str = "127.0.0.1"
    """Address to listen on; the default is reachable from this machine only."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key_file: str = ""
    """File with the key that clients must send as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Names, besides localhost and IP addresses, that browsers may find the server by; * for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port <= 65_535:
            raise InputError(f"port is {self.port}, expected 0 to 65535")
        Hosts(allowed=frozenset(self.allowed_hosts))


def main(arguments: Sequence[str]) -> None:
    """Serve a model until SIGINT or SIGTERM."""
    with config.read(ServeConfig, arguments, prog="electra serve").opened(reads=("model",)) as given:
        serve(given.config())


def serve(settings: ServeConfig) -> None:
    """Listen, load the model and answer."""
    if not settings.model:
        raise InputError("give --model DIR (see 'electra serve --help')")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    key = read_key(Path(settings.api_key_file)) if settings.api_key_file else None
    # First, because loading the model may take a while.
    with listen(settings.host, settings.port) as listening:
        devices.set_up_allocator()
        model = load(
            settings.model, device=settings.device, engine=settings.engine, precision=settings.precision
        )
        app = build_app(model, limits=settings, key=key, hosts=hosts_of(settings))
        if key is None and not is_loopback(settings.host):
            print(
                f"electra: warning: anyone who can reach {settings.host} can use the model: set "
                "--api_key_file FILE or --host 127.0.0.1",
                file=sys.stderr,
            )
        can = f"can {', '.join(model.abilities)} in {model.precision} ({model.precision_reason})"
        print(f"{url_of(listening)}  {can}  (Ctrl-C to stop)", flush=True)
        Server(app, drain_seconds=settings.drain_seconds).run(sockets=[listening])


def read_key(path: Path) -> str:
    """The key in a file, in characters that an HTTP header can carry."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"api_key_file: cannot read {path}: {error}") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"api_key_file: {path} must hold one key of printable ASCII characters without blanks; to make "
            f"one: openssl rand -hex 32 > {path}"
        )
    return key


def hosts_of(settings: ServeConfig) -> Hosts:
    """What requests may call the server.

    With a key there is nothing that a page of another site could do, so any name is as good. Without one, the
    server may still be meant for other machines, which know its address.
    """
    if settings.api_key_file and not settings.allowed_hosts:
        return Hosts(allowed=frozenset([ANY]))
    names = [settings.host] if not is_address(settings.host) else []
    return Hosts(
        allowed=frozenset([*names, *settings.allowed_hosts]), takes_addresses=not is_loopback(settings.host)
    )
