"""How far a long job has come -> a live line for a person, plain lines for a log."""

import sys
import time
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_PLAIN_EVERY_SECONDS = 10.0
_LIVE_EVERY_SECONDS = 0.1


class LiveLine:
    """One line that is always the latest, on stderr; plain lines now and then where that is no terminal."""

    def __init__(self, *, silent: bool = False, first_plain_after: float = 0.0) -> None:
        console = Console(stderr=True)
        self._silent = silent
        self._live = Live(console=console, transient=True) if console.is_terminal and not silent else None
        self._next = time.monotonic() + (0.0 if self._live else first_plain_after)

    def __enter__(self) -> "LiveLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def is_due(self) -> bool:
        """Whether a person would want to see something new now."""
        return time.monotonic() >= self._next

    def show(self, line: str, *, drawn: RenderableType | None = None) -> None:
        """The state of the job, if it is due; a terminal gets it as it is drawn."""
        if not self.is_due():
            return
        if self._live:
            self._live.update(drawn or Text(line, no_wrap=True, overflow="ellipsis"))
        else:
            self.say(line)
        self._next = time.monotonic() + (_LIVE_EVERY_SECONDS if self._live else _PLAIN_EVERY_SECONDS)

    def say(self, line: str) -> None:
        """Something that stays on the screen."""
        if self._silent:
            return
        if self._live:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


class Progress:
    """Shows label, bar, share, rate and time left in a live line."""

    def __init__(self, label: str, *, total: float, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._begun = time.monotonic()
        # What takes no longer than this needs no line in a log.
        self._line = LiveLine(first_plain_after=_PLAIN_EVERY_SECONDS)

    def __enter__(self) -> "Progress":
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, traceback)

    def update(self, done: float) -> None:
        """Show the new state if it is due; called for every document, so it costs nothing where it is not."""
        if not self._line.is_due():
            return
        facts = self._facts(done, time.monotonic() - self._begun)
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._total or None, completed=done, width=30)
        grid.add_row(self._label, bar, facts)
        self._line.show(f"{self._label}  {facts}", drawn=grid)

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
