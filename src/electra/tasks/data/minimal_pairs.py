"""Files of minimal pairs -> pairs by phenomenon: an acceptable text, and one hardly different that is not.

.txt            as in Zorro: lines in pairs, the unacceptable text first; a file is one phenomenon
.jsonl .csv ... as in BLiMP: columns sentence_good and sentence_bad; UID names the phenomenon, or the file

Files may be compressed and in any encoding.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from electra.errors import InputError
from electra.seeds import numpy_generator
from electra.show import did_you_mean
from electra.tasks.data.columns import Cells
from electra.text.quarantine import strict_reading
from electra.text.sources import COMPRESSIONS, without_compression
from electra.text.tables import SUFFIXES, is_table, read_lines, read_table, table_source

TASK = "minimal_pairs"
GOOD, BAD, PHENOMENON = "sentence_good", "sentence_bad", "UID"
LINES = ".txt"
_SEED = 0


class MinimalPair(NamedTuple):
    """Two texts of which a model should prefer the good one."""

    good: str
    bad: str
    where: str
    """File and line."""


def load_minimal_pairs(path: str | Path, *, limit: int | None = None) -> dict[str, list[MinimalPair]]:
    """The pairs of each phenomenon, in a file or in all files of a folder.

    With a `limit`, as many pairs of each phenomenon are drawn, always the same ones, but not the first:
    neighbours in a file are often made from one pattern.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, expected 1 or more pairs of each phenomenon")
    found: dict[str, list[MinimalPair]] = {}
    sources: dict[str, Path] = {}
    for file in find_files(Path(path)):
        for name, pairs in read_file(file).items():
            if name in sources:
                raise InputError(f"{file}: the phenomenon {name} is in {sources[name]} as well: keep one")
            found[name], sources[name] = pairs, file
    return {name: drawn(name, pairs, limit) for name, pairs in found.items()}


def find_files(path: Path) -> list[Path]:
    """The files to read, by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError(f"{path}: no such file or folder{did_you_mean(path.name, near)}")
    found = [entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
    if not (tables := sorted(file for file in found if is_table(file))):
        raise InputError(
            f"{path}: no minimal pairs in it, expected files {' '.join(SUFFIXES)} (also with "
            f"{' '.join(COMPRESSIONS)})"
        )
    return tables


def read_file(path: Path) -> dict[str, list[MinimalPair]]:
    """The pairs of each phenomenon in one file."""
    name = Path(without_compression(path.name))
    found: dict[str, list[MinimalPair]] = {}
    pairs = _line_pairs(path) if name.suffix.lower() == LINES else _table_pairs(path)
    for phenomenon, pair in pairs:
        found.setdefault(phenomenon or name.stem, []).append(pair)
    if not found:
        raise InputError(f"{path}: no pairs in it")
    return found


def drawn(name: str, pairs: Sequence[MinimalPair], limit: int | None) -> list[MinimalPair]:
    """At most so many pairs, in their order."""
    if limit is None or len(pairs) <= limit:
        return list(pairs)
    chosen = numpy_generator(_SEED, TASK, name).choice(len(pairs), limit, replace=False)
    return [pairs[place] for place in sorted(chosen.tolist())]


def _line_pairs(path: Path) -> Iterator[tuple[str | None, MinimalPair]]:
    lines = [(number, line.strip()) for number, line in read_lines(path)]
    while lines and not lines[-1][1]:
        lines.pop()
    for number, line in lines:
        if not line:
            raise InputError(
                f"{path}:{number}: an empty line, expected lines in pairs, the unacceptable text first"
            )
    if len(lines) % 2:
        raise InputError(
            f"{path}:{len(lines)}: {len(lines):,} lines, so that the last one has no partner; expected lines "
            "in pairs, the unacceptable text first"
        )
    for (number, bad), (_, good) in zip(lines[::2], lines[1::2], strict=True):
        yield None, _pair(good, bad, f"{path}:{number}")


def _table_pairs(path: Path) -> Iterator[tuple[str | None, MinimalPair]]:
    for line, row in read_table(strict_reading(table_source(path))):
        cells = Cells(f"{path}:{line}", row)
        good, bad = (cells.text(column).strip() for column in (GOOD, BAD))
        for column, text in ((GOOD, good), (BAD, bad)):
            if not text:
                raise InputError(f"{cells.where}: {column!r} is empty, expected a text")
        name = None if cells.is_missing(PHENOMENON) else cells.text(PHENOMENON)
        yield name, _pair(good, bad, cells.where)


def _pair(good: str, bad: str, where: str) -> MinimalPair:
    if good == bad:
        raise InputError(f"{where}: both texts of the pair are {good[:60]!r}: correct or remove it")
    return MinimalPair(good, bad, where)


def count_pairs(phenomena: Mapping[str, Sequence[MinimalPair]]) -> int:
    """Pairs of all phenomena."""
    return sum(len(pairs) for pairs in phenomena.values())
