"""What cannot be read -> problems with file, line and reason; what can -> counters.

Nothing is left out silently: every byte of the input is in a document, in a counter or in a problem.

What could not be read -> a JSON line each, a sum, and an error if it is too much.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from electra.errors import InputError
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


QUARANTINE = "quarantine.jsonl"
_NUM_SHOWN = 3


class Quarantine:
    """Writes down every problem and keeps the first few to show."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self.num_problems = 0
        self.lost_bytes = 0
        self.first: list[Problem] = []

    def __enter__(self) -> "Quarantine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, problem: Problem) -> None:
        """Record one problem."""
        line = json.dumps(asdict(problem), ensure_ascii=False)
        # A file name may hold bytes that are no characters.
        self._file.write(line.encode(errors="backslashreplace") + b"\n")
        self.num_problems += 1
        self.lost_bytes += problem.bytes
        if len(self.first) < _NUM_SHOWN:
            self.first.append(problem)

    def check(self, tally: Tally, *, max_bad_fraction: float) -> None:
        """Stop if more of the input was lost or replaced than the user accepts."""
        bad = tally.replaced_bytes + self.lost_bytes
        share = bad / max(1, tally.text_bytes + self.lost_bytes)
        if share > max_bad_fraction:
            examples = "".join(f"\n  {describe(problem)}" for problem in self.first)
            raise InputError(
                f"{share:.1%} of the input's bytes could not be read (problems: {self.num_problems}, "
                f"replaced bytes: {tally.replaced_bytes}), more than max_bad_fraction "
                f"{max_bad_fraction:.1%}; all problems are listed in {self._path}{examples}"
            )


def describe(problem: Problem) -> str:
    """One line for a person."""
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return f"{place}: {problem.reason}".encode(errors="backslashreplace").decode()
