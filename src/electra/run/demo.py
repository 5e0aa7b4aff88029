"""`electra demo`: the whole path, by the commands a person would type, on Python's own documentation."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config
from electra.cli import main as electra
from electra.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole path on Python's own documentation."""

    out: str = "demo"
    """Folder for everything the demo makes; what is there already is not made again."""


def main(arguments: Sequence[str]) -> None:
    """Run and show each command of the path."""
    out = Path(config.parse(DemoConfig, arguments, prog="electra demo").out)
    for command in [
        ["prepare", "--corpus", "builtin", "--vocab_size", "8192", "--out", str(out / "data")],
    ]:
        print(f"$ electra {shlex.join(command)}", flush=True)
        if code := electra(command):
            raise InputError(f"the demo stopped at 'electra {command[0]}' (exit code {code})")
    print(f"\nThe rows are in {out / 'data'}. On your own text: electra prepare --corpus FOLDER --out DATA")
