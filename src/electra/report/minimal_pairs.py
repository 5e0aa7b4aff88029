"""A run's minimal_pairs.json -> how often the model prefers the acceptable text, for one run or for several.

`electra score --task minimal_pairs` writes the file; a run that was not scored has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from electra import files
from electra.errors import InputError
from electra.show import percent

FILE = "minimal_pairs.json"


class _Phenomenon(TypedDict):
    accuracy: dict[str, float]


class _Content(TypedDict):
    accuracy: dict[str, float]
    phenomena: dict[str, _Phenomenon]
    pairs: int
    data_sha256: str


@dataclass(frozen=True, kw_only=True)
class PairAccuracies:
    """What the file tells. Methods and phenomena have the names that they have there."""

    accuracy: Mapping[str, float]
    """Method -> the mean of all phenomena."""
    phenomena: Mapping[str, Mapping[str, float]]
    """Phenomenon -> method -> accuracy."""
    num_pairs: int
    data_sha256: str
    """Of the pairs: results on others cannot be compared."""


def read_pairs(folder: Path, notes: list[str]) -> PairAccuracies | None:
    """The accuracies of a run, if it was scored; a file that is not as it should be becomes a note."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content: _Content = files.read_json(path, _Content)
    except InputError as error:
        notes.append(f"{FILE} is not readable: {' '.join(str(error).split())}")
        return None
    return PairAccuracies(
        accuracy=content["accuracy"],
        phenomena={name: one["accuracy"] for name, one in content["phenomena"].items()},
        num_pairs=content["pairs"],
        data_sha256=content["data_sha256"],
    )


def pair_facts(found: PairAccuracies | None) -> dict[str, str]:
    """The accuracy by each method, as a person reads it."""
    accuracy = {} if found is None else found.accuracy
    return {_title(method): percent(value) for method, value in accuracy.items()}


def _title(method: str) -> str:
    return f"minimal pairs by {method.replace('_', ' ')}"


@dataclass(frozen=True, kw_only=True)
class PairTable:
    """All phenomena, with a column for each run and method."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


def pair_table(runs: Mapping[str, PairAccuracies | None]) -> PairTable | None:
    """The runs that were scored side by side, by their names; None if none was."""
    scored = {name: found for name, found in runs.items() if found is not None}
    if not scored:
        return None
    columns = [(name, method) for name, found in scored.items() for method in found.accuracy]
    several = len(runs) > 1
    head = [
        f"{name}, {method.replace('_', ' ')}" if several else method.replace("_", " ")
        for name, method in columns
    ]
    phenomena = dict.fromkeys(name for found in scored.values() for name in found.phenomena)
    rows = [
        [
            phenomenon,
            *(percent(scored[name].phenomena.get(phenomenon, {}).get(method)) for name, method in columns),
        ]
        for phenomenon in phenomena
    ]
    overall = ["mean of all phenomena", *(percent(scored[name].accuracy[method]) for name, method in columns)]
    counts = ", ".join(
        f"{name}: {found.num_pairs:,} pairs" if several else f"{found.num_pairs:,} pairs"
        for name, found in scored.items()
    )
    notes = [f"{counts}. Guessing has 50 %, and a tie counts half."]
    if len({found.data_sha256 for found in scored.values()}) > 1:
        notes.append("The runs were not scored on the same pairs, so that their numbers do not compare.")
    if missing := [name for name in runs if name not in scored]:
        notes.append(f"Not scored: {', '.join(missing)}.")
    return PairTable(head=["phenomenon", *head], rows=[overall, *rows], notes=notes)
