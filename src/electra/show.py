"""Names, numbers and rows -> the text a person reads: one way of showing each, for every room."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

NOTHING = "–"
"""Stands for a value that is not there."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def table(
    rows: Mapping[str, object] | Iterable[Sequence[object]],
    *,
    numbers: bool = False,
    gap: int = 2,
    indent: int = 2,
) -> str:
    """Rows as aligned columns; a mapping gives names and values. `numbers` aligns all but the first right."""
    listed_rows = rows.items() if isinstance(rows, Mapping) else rows
    cells = [[str(cell) for cell in row] for row in listed_rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    align = str.rjust if numbers else str.ljust
    return "\n".join(
        " " * indent + (" " * gap).join([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])]).rstrip()
        for row in cells
    )


def listed(names: Collection[object], *, most: int = 8) -> str:
    """Names in a sentence, at most so many of them: `a, b and 3 more`."""
    shown = ", ".join(str(name) for name in list(names)[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def did_you_mean(word: str, known: Collection[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean 'steps'?` for the nearest of the known words in any case, or nothing."""
    by_case = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower(), by_case, n=1, cutoff=cutoff)
    return f"; did you mean {by_case[nearest[0]]!r}?" if nearest else ""


def short(value: float | None) -> str:
    """A number in about three digits: 0.123, 12.3, 1.23M; powers of ten where no prefix reaches."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 1e18 or 0 < size < 1e-3:
        return f"{value:.2e}".replace("e-0", "e-").replace("e+", "e")
    for scale, prefix in _PREFIXES:
        if size >= scale:
            return f"{_digits(value / scale)}{prefix}"
    return _digits(value)


def _digits(value: float) -> str:
    decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A fraction in percent, with one decimal."""
    return NOTHING if value is None else f"{value:.1%}"


def megabytes(count: float | None) -> str:
    """Bytes as `12.3 MB`."""
    return NOTHING if count is None else f"{count / 1e6:,.1f} MB"


def gigabytes(count: float | None) -> str:
    """Bytes as `1.23 GB`."""
    return NOTHING if count is None else f"{count / 1e9:,.2f} GB"


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 1:02:03, for what is still counting."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float | None) -> str:
    """Seconds in two units, for what is over or planned: 42 s, 7 min 5 s, 3 h 12 min, 4 d 3 h."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    large, unit, small, rest_unit = next(units for units in _TIMES if whole >= units[0])
    count, rest = divmod(whole, large)
    return f"{count} {unit}" + (f" {rest // small} {rest_unit}" if rest // small else "")
