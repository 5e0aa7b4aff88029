"""What cannot be read -> problems with file, line and reason; what can be read -> counters.

Nothing is left out silently: every byte of the input is in a document, in a counter or in a problem. Whoever
starts a `Reading` decides what a problem is: `prepare` writes it to quarantine.jsonl and goes on with the
next row, up to a limit; a task's data is refused at the first one (`strict_reading`).
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO

from electra.errors import InputError
from electra.text.sources import Source


@dataclass(frozen=True, kw_only=True)
class ReadProblem:
    """Why a file, or one row of it, could not be used."""

    file: str
    reason: str
    line: int | None = None
    """Line or row, counted from 1; None for the file as a whole."""
    bytes: int = 0
    """Input bytes that were lost."""


@dataclass(kw_only=True)
class Tally:
    """Counters that grow while files are read."""

    source_bytes: int = 0
    """Bytes consumed on disk, for progress. A finished source has added its whole size."""
    text_bytes: int = 0
    """UTF-8 bytes of the documents."""
    replaced_bytes: int = 0
    """Input bytes that became U+FFFD and NULs that were removed; a bad JSON escape counts as six."""
    documents: int = 0
    documents_split: int = 0
    """Documents above the length limit, each delivered in parts."""
    bad_rows: int = 0
    encodings: dict[str, int] = field(default_factory=dict)
    """Number of text files by the encoding they were read in."""

    def add(self, found: "Tally", before: "Tally") -> None:
        """Count what somebody else has found since `before`."""
        for key in {one.name for one in fields(self)} - {"encodings"}:
            setattr(self, key, getattr(self, key) + getattr(found, key) - getattr(before, key))
        for name, count in found.encodings.items():
            self.encodings[name] = self.encodings.get(name, 0) + count - before.encodings.get(name, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One source being read, and where its counts and problems go."""

    source: Source
    tally: Tally
    quarantine: Callable[[ReadProblem], None]
    exact: bool = False
    """Deliver text as it stands: a byte that is no character is a problem instead of U+FFFD."""

    def problem(self, reason: str, *, line: int | None = None, lost: int = 0) -> None:
        """Record what is wrong with the file or with one line of it."""
        self.quarantine(ReadProblem(file=self.source.name, reason=reason, line=line, bytes=lost))

    def record_change(self, file: IO[bytes], *, lost: int) -> bool:
        """Whether a file has not stayed as it was when it was found, which is then recorded.

        `lost` is what is missing of it.
        """
        now, before = os.fstat(file.fileno()), self.source
        changed = before.modified and (now.st_size, now.st_mtime_ns) != (before.bytes, before.modified)
        if changed:
            self.problem(
                f"changed while the corpus was read: {before.bytes:,} bytes before, {now.st_size:,} now",
                lost=lost,
            )
        return bool(changed)

    def bad_row(self, reason: str, *, line: int, lost: int = 0) -> None:
        """Record one row that cannot be used."""
        self.tally.bad_rows += 1
        self.problem(reason, line=line, lost=lost)


def strict_reading(source: Source) -> Reading:
    """A reading in which the first problem is an InputError."""

    def refuse(problem: ReadProblem) -> None:
        raise InputError(describe_problem(problem))

    return Reading(source=source, tally=Tally(), quarantine=refuse, exact=True)


QUARANTINE = "quarantine.jsonl"
_NUM_SHOWN = 3


class Problems:
    """Counts problems and keeps the first few to show."""

    def __init__(self) -> None:
        self.num_problems = 0
        self.lost_bytes = 0
        self.first: list[ReadProblem] = []

    def __call__(self, problem: ReadProblem) -> None:
        """Record one problem."""
        self.num_problems += 1
        self.lost_bytes += problem.bytes
        if len(self.first) < _NUM_SHOWN:
            self.first.append(problem)

    def check(self, tally: Tally, *, max_bad_fraction: float) -> None:
        """Raise if more of the input was lost or replaced than the user accepts."""
        bad = tally.replaced_bytes + self.lost_bytes
        share = bad / max(1, tally.text_bytes + self.lost_bytes)
        if share > max_bad_fraction:
            examples = "".join(f"\n  {describe_problem(problem)}" for problem in self.first)
            raise InputError(
                f"{share:.1%} of the input's bytes could not be read (problems: {self.num_problems}, "
                f"replaced bytes: {tally.replaced_bytes}), more than max_bad_fraction "
                f"{max_bad_fraction:.1%}{self._listed()}{examples}"
            )

    def _listed(self) -> str:
        """Where all of them are to be found, if anywhere."""
        return ""


class Quarantine(Problems):
    """Writes every problem to a file, too."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = path.open("wb")

    def __enter__(self) -> "Quarantine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, problem: ReadProblem) -> None:
        """Record one problem."""
        line = json.dumps(asdict(problem), ensure_ascii=False)
        # A file name may hold bytes that are no characters.
        self._file.write(line.encode(errors="backslashreplace") + b"\n")
        super().__call__(problem)

    def _listed(self) -> str:
        return f"; all problems are listed in {self._path}"


def describe_problem(problem: ReadProblem) -> str:
    """One line for a person."""
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return f"{place}: {problem.reason}".encode(errors="backslashreplace").decode()
