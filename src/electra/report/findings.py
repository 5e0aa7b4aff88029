"""What `electra doctor` and the reports say: findings, each with what was measured and a command to type.

A finding is made by one of `diagnosis.py` (pre-training), `datasets.py`, `studies.py` (fine-tuning) and
`models.py`; terminal, JSON and HTML show the same ones.
"""

import os
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra import files
from electra.errors import InputError

Severity = Literal["wrong", "watch", "note", "fine"]
"""wrong: damaged, unfinished, or hardly worth using. watch: it works, but loses quality or time. note: what
to know. fine: looked at, and as it should be."""
SEVERITIES: tuple[Severity, ...] = ("wrong", "watch", "note", "fine")
ILL: tuple[Severity, ...] = ("wrong", "watch")
_MAX_WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    key: str
    """Its name, for programs."""
    severity: Severity
    says: str
    """What was measured, in which range it is healthy, and what that means."""
    cure: str = ""
    """A command line to paste; empty if there is nothing to do."""

    @property
    def is_ill(self) -> bool:
        """Whether there is something to do about it."""
        return self.severity in ILL


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.severity != "wrong" for finding in findings)


def in_short(findings: Sequence[Finding]) -> str:
    """All findings in a few words, for a table."""
    ill = dict.fromkeys(finding.key.replace("_", " ") for finding in findings if finding.is_ill)
    if ill:
        return ", ".join(ill)
    return "too early to say" if any(finding.key == "early" for finding in findings) else "healthy"


def counted(findings: Sequence[Finding]) -> str:
    """How many are wrong, and how many to watch, as a sentence."""
    wrong, watch = (sum(finding.severity == word for finding in findings) for word in ILL)
    if not wrong and not watch:
        return "nothing is wrong"
    of_wrong = f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong" if wrong else "nothing is wrong"
    return of_wrong + (f", {watch} to watch" if watch else "")


def in_words(findings: Sequence[Finding]) -> str:
    """The findings for a terminal; commands stay on one line, so that they can be pasted."""
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    lines = []
    for finding in findings:
        start = f"  {finding.severity:<7}"
        lines += textwrap.wrap(
            finding.says,
            width,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
            break_long_words=False,
        )
        lines += [f"{' ' * len(start)}  {finding.cure}"] if finding.cure else []
    return "\n".join(lines)


def as_json(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """The findings as plain data."""
    return [
        {"key": one.key, "severity": one.severity, "says": one.says, "cure": one.cure} for one in findings
    ]


def command(verb: str, options: Mapping[str, Any]) -> str:
    """`electra VERB --key value ...`, quoted for a shell; a list has several values."""
    words = ["electra", verb]
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{key}", *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
    return shlex.join(words)


def free_name(folder: Path) -> str:
    """The next name beside a folder that nothing has yet: RUN-2, RUN-3, ..."""
    number = 2
    while os.path.lexists(f"{folder}-{number}"):
        number += 1
    return f"{folder}-{number}"


def seal_of(folder: Path) -> dict[str, Any]:
    """The manifest of a sealed folder of any kind; an InputError if it is damaged."""
    kind = files.read_json(folder / files.MANIFEST, dict[str, Any]).get("kind")
    return files.read_manifest(folder, kind=str(kind))


def damage_of(folder: Path) -> list[str]:
    """What is damaged in a sealed folder: its manifest, or files that are not as they were."""
    try:
        return list(files.damaged_files(folder, seal_of(folder)))
    except (InputError, OSError) as error:
        return [str(error)]
