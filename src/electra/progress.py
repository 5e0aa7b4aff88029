"""How far a long job has come -> a live line for a person, plain lines for a log."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

_PLAIN_EVERY_SECONDS = 10.0


class Progress:
    """Shows label, bar, share, rate and time left on stderr; plain lines where that is no terminal."""

    def __init__(self, label: str, *, total: float, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._begun = self._last_shown = time.monotonic()
        console = Console(stderr=True)
        self._live = Live(console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, done: float) -> None:
        """Show the new state if a person would want to see it now."""
        now = time.monotonic()
        if self._live:
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=self._total or None, completed=done, width=30)
            grid.add_row(self._label, bar, self._facts(done, now - self._begun))
            self._live.update(grid)
        elif now - self._last_shown >= _PLAIN_EVERY_SECONDS:
            self._last_shown = now
            print(f"{self._label}  {self._facts(done, now - self._begun)}", file=sys.stderr, flush=True)

    def _facts(self, done: float, seconds: float) -> str:
        rate = done / max(seconds, 1e-9)
        if not self._total:
            return f"{done:,.0f} {self._unit}  {rate:.1f} {self._unit}/s"
        share = min(1.0, done / self._total)
        left = max(0.0, self._total - done) / rate if rate else 0.0
        return (
            f"{share:.0%}  {done:,.0f}/{self._total:,.0f} {self._unit}  {rate:.1f} {self._unit}/s  "
            f"ETA {clock(left)}"
        )


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
