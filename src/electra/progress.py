"""How far a long job has come -> a bar with a live line on a terminal, now and then a line in a log."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from electra.show import clock

if TYPE_CHECKING:
    from rich.progress import TaskID

_PLAIN_EVERY_SECONDS = 10.0
_LIVE_EVERY_SECONDS, _LIVE_PER_SECOND = 0.1, 4
_BAR_WIDTH = 20


class LiveLine:
    """A bar and the latest state of a job on stderr; plain lines where stderr is no terminal."""

    def __init__(self, *, silent: bool = False, first_plain_after: float = 0.0) -> None:
        # Imported by those that show a bar: `electra predict` starts without.
        from rich import progress as rich_progress
        from rich.console import Console
        from rich.table import Column

        console = Console(stderr=True)
        self._silent, self._live = silent, console.is_terminal and not silent
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(_BAR_WIDTH),
            rich_progress.TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            transient=True,
            refresh_per_second=_LIVE_PER_SECOND,
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._next = time.monotonic() + (0.0 if self._live else first_plain_after)

    def __enter__(self) -> "LiveLine":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def is_due(self) -> bool:
        """Whether the line is old enough to be replaced; a job asks before it composes a new one."""
        return time.monotonic() >= self._next

    def show(self, line: str, *, done: float | None = None) -> None:
        """Replace the line if it is due; `done` is the finished share of the job, if that is known."""
        if not self.is_due():
            return
        if self._live:
            total = None if done is None else 1.0
            # The bar appears with the first line, not before.
            if self._task is None:
                self._task = self._bar.add_task(line, total=total)
            self._bar.update(self._task, description=line, total=total, completed=done)
        else:
            self.say(line)
        self._next = time.monotonic() + (_LIVE_EVERY_SECONDS if self._live else _PLAIN_EVERY_SECONDS)

    def say(self, line: str) -> None:
        """Print something that stays on the screen."""
        if self._silent:
            return
        if self._live:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


class Progress:
    """A job with a label, counted in a unit: shows share, rate and time left."""

    def __init__(self, label: str, *, total: float, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._begun = time.monotonic()
        # A job shorter than this needs no line in a log.
        self._line = LiveLine(first_plain_after=_PLAIN_EVERY_SECONDS)

    def __enter__(self) -> "Progress":
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, traceback)

    def update(self, done: float, note: str = "") -> None:
        """Show how much is done. Called for every document, so it costs next to nothing most of the time."""
        if not self._line.is_due():
            return
        rate = done / max(time.monotonic() - self._begun, 1e-9)
        speed = f"{rate:.1f} {self._unit}/s"
        if not self._total:
            self._line.show(f"{self._label}  {done:,.0f} {self._unit}  {speed}{note}")
            return
        share = min(1.0, done / self._total)
        left = max(0.0, self._total - done) / rate if rate else 0.0
        count = f"{done:,.0f}/{self._total:,.0f} {self._unit}"
        self._line.show(f"{self._label}  {share:.0%}  {count}  {speed}  ETA {clock(left)}{note}", done=share)
