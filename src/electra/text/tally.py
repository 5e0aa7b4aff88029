"""What cannot be read -> problems with file, line and reason; what can -> counters.

Nothing is left out silently: every byte of the input is in a document, in a counter or in a problem.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from electra.text.sources import Source


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A file, or one row of it, that could not be used, and why."""

    file: str
    reason: str
    line: int | None = None
    """Line or row, counted from 1; None if the file as a whole is meant."""
    bytes: int = 0
    """Input bytes that are missing from the documents because of it."""


@dataclass(kw_only=True)
class Tally:
    """Counters that grow while documents are read."""

    source_bytes: int = 0
    """Bytes consumed on disk, for progress: a finished source has added its whole size."""
    text_bytes: int = 0
    """UTF-8 bytes of the documents given."""
    replaced_bytes: int = 0
    """Input bytes that became U+FFFD, and NULs that were removed; a bad JSON escape counts its six."""
    documents: int = 0
    documents_split: int = 0
    """Documents above the limit, each given as several."""
    bad_rows: int = 0
    encodings: dict[str, int] = field(default_factory=dict)
    """Number of text and JSON files by the encoding they were read in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One source on its way to documents, with the places where its counts and its problems go."""

    source: Source
    tally: Tally
    quarantine: Callable[[Problem], None]

    def problem(self, reason: str, *, line: int | None = None, lost: int = 0) -> None:
        """Record what is wrong with the file or with one line of it."""
        self.quarantine(Problem(file=self.source.name, reason=reason, line=line, bytes=lost))

    def bad_row(self, reason: str, *, line: int, lost: int = 0) -> None:
        """Record one row that gives no document."""
        self.tally.bad_rows += 1
        self.problem(reason, line=line, lost=lost)
