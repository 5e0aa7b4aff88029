"""What could not be read -> a JSON line each, a sum, and an error if it is too much."""

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from electra.errors import InputError
from electra.text.tally import Problem, Tally

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
