"""What happens in a run -> metrics.jsonl and samples.jsonl for programs, a live line for a person."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from electra.files import write_file

_PLAIN_EVERY_SECONDS = 10.0


class JsonLines:
    """A file of one JSON object a line, that can be cut back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; what is not a number becomes null."""
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(_without_nan(record), ensure_ascii=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Force the lines to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def cut(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Remove the lines that are not kept, and one that a crash left unfinished."""
        self.close()
        if not self._path.is_file():
            return
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and is_kept(json.loads(line))]
        if kept != lines:
            write_file(self._path, lambda file: file.writelines(kept))

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Display:
    """One line that is always the latest, on stderr; plain lines now and then where that is no terminal."""

    def __init__(self, *, silent: bool = False) -> None:
        console = Console(stderr=True)
        self._silent = silent
        self._last_shown = -math.inf
        self._live = Live(console=console, transient=True) if console.is_terminal and not silent else None

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, line: str) -> None:
        """The state of the run, if a person would want to see it now."""
        now = time.monotonic()
        if self._live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif now - self._last_shown >= _PLAIN_EVERY_SECONDS:
            self.say(line)
            self._last_shown = now

    def say(self, line: str) -> None:
        """Something that stays on the screen."""
        if self._silent:
            return
        if self._live:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


def shown(metrics: Mapping[str, float], headlines: Mapping[str, str]) -> str:
    """The loss and the metrics that a person wants to see, by their short names."""
    names = {"loss": "loss", **headlines}
    return "  ".join(f"{label} {metrics[name]:.3f}" for name, label in names.items() if name in metrics)
