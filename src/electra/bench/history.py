"""What benches measured -> lines of a file; two lines of one bench -> what got better or worse.

A history is a text file with a JSON object in each line, one for each bench of a command: date, code,
machine, precision, settings and ratios. It is only ever appended to. A ratio has the value of the table, and
the lowest and the highest of its rounds; the higher, the better. Where these ranges of two runs overlap, they
differ by no more than the noise. Only runs of the same work on the same processor are compared: on another
one, ratios differ for its own reasons.
"""

import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import electra
from electra import show
from electra.bench.tables import memory_ratio, point_on
from electra.bench.turns import Ratio, best_flops, machine_line, ratio
from electra.errors import InputError
from electra.train.engine import json_values

FORMAT = 1
USUAL = Path("benchmarks") / "history.jsonl"
"""Where a checkout keeps its history."""
AUTO, NONE = "auto", "none"
_PROCESSOR: dict[str, type] = {"cpu": str, "flags": list, "cores": int, "threads": int}
"""What makes a machine another one."""
_NOT_THE_WORK = ("repeats", "steps", "passes", "out")
"""Settings that say how often something is done and where it is kept, but not what."""
_GIT_SECONDS = 20


def history_file(name: str) -> Path | None:
    """The file of `--history`: with `auto` the usual one where it is, with `none` none."""
    if name == NONE:
        return None
    if name == AUTO:
        return USUAL if USUAL.is_file() else None
    return Path(name)


def code_facts() -> dict[str, Any]:
    """The version, and the commit where the program runs from a checkout: whether it was changed since."""
    folder = Path(electra.__file__).parent
    facts: dict[str, Any] = {"version": electra.__version__, "commit": None, "dirty": None}
    # A package that was installed below somebody's checkout is no part of it.
    if _git(folder, "ls-files", "--error-unmatch", Path(electra.__file__).name) is None:
        return facts
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return {
        **facts,
        "commit": _git(folder, "rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
    }


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None if it is not installed or refuses."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if ran.returncode else ran.stdout.strip()


def run_facts() -> dict[str, Any]:
    """What all benches of a command have in common: when it began, and with which code."""
    return {"date": datetime.now(UTC).isoformat(timespec="milliseconds"), **code_facts()}


def line_of(
    bench: str, result: Mapping[str, Any], facts: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The line of a bench; `facts` are those of its command."""
    return {
        "format": FORMAT,
        "bench": bench,
        **facts,
        "machine": result["machine"],
        "precision": precisions_of(result),
        "ratios": ratios_of(result),
        "settings": json_values(settings),
    }


def precisions_of(result: Mapping[str, Any]) -> dict[str, str | None]:
    """Contestant, or row of quality, or `ours` -> the precision it computed in."""
    if "precision" in result:
        return dict(result["precision"])
    if "runs" in result:
        return {run["row"]: run["precision"] for run in result["runs"]}
    found = sorted({point["precision"] for point in result["points"] if point["precision"]})
    return {"ours": " or ".join(found) or None}


def ratios_of(result: Mapping[str, Any]) -> dict[str, Ratio]:
    """What can be compared with another run, by name; the higher the better."""
    if "summary" in result:
        return dict(_quality_ratios(result))
    return dict(_growth_ratios(result)) if "points" in result else dict(_contest_ratios(result))


def _contest_ratios(result: Mapping[str, Any]) -> Iterator[tuple[str, Ratio]]:
    """How many times faster each of ours is than each of the others, and what neighbours leave to it."""
    others = [name for name in result["contestants"] if name not in result["ours"]]
    places = {"": result, **{f" beside {number}": found for number, found in result["beside"].items()}}
    for place, found in places.items():
        for our in result["ours"]:
            for other in others:
                yield f"{our} against {other}{place}", ratio(found, other, found, our)
            if place:
                yield f"speed left to {our}{place}", found["left"][our]


def _growth_ratios(result: Mapping[str, Any]) -> Iterator[tuple[str, Ratio]]:
    """Each point's share of the peak, and what it needs as a share of what it holds. It is measured once."""
    for axis, values in result["axes"].items():
        for value in values:
            point, name = point_on(result, axis, value), f"{axis} {value}"
            full = point["flops_per_step"] / best_flops(result["peak"])
            shares = [full / seconds for seconds in (statistics.median(point["seconds"]), *point["seconds"])]
            yield f"{name}: of peak", _one_round(shares[0], shares)
            if memory := memory_ratio(point):
                yield f"{name}: needed of memory", _one_round(1 / memory, [1 / memory])


def _one_round(value: float, values: Sequence[float]) -> Ratio:
    return {"value": value, "min": min(values), "max": max(values), "rounds": 1}


def _quality_ratios(result: Mapping[str, Any]) -> Iterator[tuple[str, Ratio]]:
    """The scores, whose rounds are seeds."""
    for budget, by_row in result["summary"].items():
        for row, by_column in by_row.items():
            for heading, found in by_column.items():
                numbers = {"value": found["median"], "min": found["min"], "max": found["max"]}
                yield f"{row}, {budget}: {heading}", {**numbers, "rounds": len(found["values"])}


def check_writable(path: Path) -> None:
    """Refuse a history that cannot be written, before anything is measured."""
    if (
        path.is_dir()
        or not path.parent.is_dir()
        or not os.access(path if path.exists() else path.parent, os.W_OK)
    ):
        raise InputError(f"history is {path}, which cannot be written: give a file in a folder that exists")


def append(path: Path, line: Mapping[str, Any]) -> int:
    """Add a line as a whole, or nothing -> its number. Several commands may do so at a time."""
    text = json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with path.open("ab+", buffering=0) as file:
        # Freed when the file is closed.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = file.read()
        # A line that was cut off, such as by a power cut, stays a line of its own.
        text = text if before.endswith(b"\n") or not before else b"\n" + text
        try:
            written = file.write(text)
            os.fsync(file)
        except OSError:
            file.truncate(len(before))
            raise
        if written != len(text):
            file.truncate(len(before))
            raise OSError(f"{path}: no space left for another line")
    return (before + text).count(b"\n")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A line of a history."""

    number: int
    """Of the line, from 1 on."""
    bench: str
    date: str
    version: str
    commit: str | None
    dirty: bool | None
    machine: Mapping[str, Any]
    precision: Mapping[str, str | None]
    ratios: Mapping[str, Ratio]
    settings: Mapping[str, Any]

    @property
    def code(self) -> str:
        """The commit in short, with a + if the code was changed since; without one the version."""
        if self.commit is None:
            return f"version {self.version}"
        return self.commit[:8] + ("+" if self.dirty else "")

    @property
    def described(self) -> str:
        """A few words that say which one it is."""
        return f"{self.code} of {self.date[:16].replace('T', ' ')} (line {self.number})"


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("bench", "date", "version"), (str,)),
    "commit": (str, type(None)),
    "dirty": (bool, type(None)),
    **dict.fromkeys(("machine", "precision", "ratios", "settings"), (dict,)),
}
_NUMBERS = ("value", "min", "max", "rounds")


def read_record(number: int, line: bytes) -> Record:
    """A line, or a ValueError that says what is wrong with it."""
    content = json.loads(line)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if content.get("format") != FORMAT:
        raise ValueError(f"its format is {content.get('format')}, this program reads {FORMAT}")
    for key, kinds in _KINDS.items():
        if key not in content or not isinstance(content[key], kinds):
            raise ValueError(f"{key} is missing, or not what it should be")
    machine = content["machine"]
    if not all(isinstance(machine.get(key), kind) for key, kind in _PROCESSOR.items()):
        raise ValueError(f"machine lacks one of {', '.join(_PROCESSOR)}")
    if not all(
        isinstance(word, str) for word in [*machine["flags"], *filter(None, content["precision"].values())]
    ):
        raise ValueError("a flag or a precision is not a word")
    for name, found in content["ratios"].items():
        numbers = [found.get(key) for key in _NUMBERS] if isinstance(found, dict) else [None]
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
            raise ValueError(f"the ratio {name!r} is not four numbers: {', '.join(_NUMBERS)}")
    return Record(number=number, **{key: content[key] for key in _KINDS})


def read_history(path: Path) -> list[Record]:
    """All lines, the oldest first; a damaged one is reported and left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(
            f"history is {path}, which cannot be read ({error.strerror}): `electra bench WHAT "
            "--history FILE` writes one"
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(read_record(number, line))
        except ValueError as error:
            print(f"electra: warning: {path} line {number} is damaged and left out: {error}", file=sys.stderr)
    return sorted(records, key=lambda record: (record.date, record.number))


Verdict = Literal["better", "worse", "within the noise", "one round", ""]


class Change(NamedTuple):
    """A ratio in two runs; None where it was not measured."""

    name: str
    before: Ratio | None
    after: Ratio | None

    @property
    def verdict(self) -> Verdict:
        """Better or worse if the ranges of the rounds do not overlap. One round alone has no range."""
        if self.before is None or self.after is None:
            return ""
        if min(self.before["rounds"], self.after["rounds"]) < 2:
            return "one round"
        if self.after["min"] > self.before["max"]:
            return "better"
        return "worse" if self.after["max"] < self.before["min"] else "within the noise"


class Comparison(NamedTuple):
    """Two runs of a bench."""

    before: Record
    after: Record

    @property
    def changes(self) -> list[Change]:
        """Every ratio of either."""
        names = dict.fromkeys([*self.before.ratios, *self.after.ratios])
        return [Change(name, self.before.ratios.get(name), self.after.ratios.get(name)) for name in names]

    @property
    def worse(self) -> list[str]:
        """The ratios that are lower than the noise explains."""
        return [change.name for change in self.changes if change.verdict == "worse"]

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        runs = {"before": self.before, "after": self.after}
        return {
            "bench": self.after.bench,
            **{
                key: {"line": run.number, "date": run.date, "commit": run.commit} for key, run in runs.items()
            },
            "changes": [{**change._asdict(), "verdict": change.verdict} for change in self.changes],
        }


def compare(
    records: Sequence[Record],
    *,
    before: str | None,
    after: str | None,
    defaults: Mapping[str, Mapping[str, Any]],
) -> tuple[list[Comparison], list[str]]:
    """Each bench of a run beside an earlier run, and why others of its benches have none.

    `before`, `after`: line numbers or commits. Without them the benches of the newest command are compared
    with the newest earlier run of each that did the same work on the same processor. `defaults`: bench -> the
    settings that a record has which is older than they are.
    """
    if not records:
        raise InputError("nothing to compare: the history has no run of it yet")
    found, reasons = [], []
    for run in named(records, after, key="after") if after else newest(records):
        earlier = named(records, before, key="before") if before else records[: records.index(run)]
        others = [other for other in earlier if other.bench == run.bench and other != run]
        obstacles = [
            (differences(other, run, defaults.get(run.bench, {})), other) for other in reversed(others)
        ]
        # The newest of those that differ least.
        least, nearest = min(obstacles, key=lambda pair: len(pair[0]), default=(None, None))
        if nearest is None or least is None:
            reasons.append(f"{run.bench} of {run.described} has no other run of this bench to compare with")
        elif least:
            reasons.append(f"{run.bench} of {run.described} and {nearest.described} {'; '.join(least)}")
        elif not run.ratios.keys() & nearest.ratios.keys():
            reasons.append(f"{run.bench} of {run.described} and {nearest.described} have no ratio in common")
        else:
            found.append(Comparison(nearest, run))
    if not found:
        raise InputError(f"nothing to compare: {'; '.join(reasons)}")
    return found, reasons


def newest(records: Sequence[Record]) -> list[Record]:
    """What the last command measured: a bench, or all of them."""
    last = records[-1]
    return [record for record in records if (record.date, record.code) == (last.date, last.code)]


def named(records: Sequence[Record], name: str, *, key: str) -> list[Record]:
    """The record with a line number, or the newest one of each bench with a commit."""
    by_line = [record for record in records if str(record.number) == name]
    if by_line:
        return by_line
    by_commit = [record for record in records if record.commit and record.commit.startswith(name.lower())]
    commits = sorted({str(record.commit)[:12] for record in by_commit})
    if len(commits) > 1:
        raise InputError(f"{key} is {name}, which several commits begin with: {', '.join(commits)}")
    if not by_commit:
        known = ", ".join(dict.fromkeys(f"{record.number} ({record.code})" for record in records[-8:]))
        raise InputError(f"{key} is {name}, expected a line number or the beginning of a commit: {known}")
    return list({record.bench: record for record in by_commit}.values())


def differences(one: Record, other: Record, defaults: Mapping[str, Any]) -> list[str]:
    """Why two runs of a bench cannot be compared, if they cannot."""
    found = []
    if any(one.machine[key] != other.machine[key] for key in _PROCESSOR):
        found.append(
            f"ran on different processors: {machine_line(one.machine)} and {machine_line(other.machine)}"
        )
    known = json_values(defaults)
    first, second = ({**known, **record.settings} for record in (one, other))
    found += [
        f"have different settings: {key} is {first.get(key)} and {second.get(key)}"
        for key in sorted(first.keys() | second.keys())
        if key not in _NOT_THE_WORK and first.get(key) != second.get(key)
    ]
    return found


def comparison_table(comparison: Comparison) -> str:
    """Which two runs they are, and every ratio of both with its range and what became of it."""
    before, after = comparison.before, comparison.after
    lines = [
        f"{after.bench}: {before.described}, then {after.described}",
        machine_line(after.machine, *(f"{name} in {word}" for name, word in after.precision.items() if word)),
        *(
            f"  {name} computed in {before.precision[name]}, then in {precision}"
            for name, precision in after.precision.items()
            if name in before.precision and before.precision[name] != precision
        ),
    ]
    rows: list[tuple[str, ...]] = [("", "before (min - max)", "after (min - max)", "change", "")]
    rows += [
        (
            change.name,
            ratio_cell(change.before),
            ratio_cell(change.after),
            change_cell(change),
            change.verdict,
        )
        for change in comparison.changes
    ]
    return "\n".join([*lines, "", show.table(rows, numbers=True, gap=3)])


def ratio_cell(found: Ratio | None) -> str:
    """A ratio with its range."""
    if found is None:
        return show.NOTHING
    return f"{found['value']:.3f} ({found['min']:.3f} - {found['max']:.3f})"


def change_cell(change: Change) -> str:
    """By how much it is higher."""
    if not (change.before and change.after and change.before["value"]):
        return show.NOTHING
    return f"{change.after['value'] / change.before['value'] - 1:+.1%}"
