"""A row of a table -> texts, numbers, names and lists, each checked where it stands."""

import difflib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from electra.errors import InputError
from electra.tasks.table_files import Row

MISSING: tuple[object, ...] = (None, "", [])
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of one row. Strings, as CSV has them, and what JSON and parquet hold are read alike."""

    where: str
    """File and line."""
    row: Row

    def value(self, column: str) -> Any:
        """What stands in a column; a column that is not there is an error."""
        if column not in self.row:
            raise InputError(
                f"{self.where}: no column {column!r}, only {listed(self.row)}{nearest(column, self.row)}"
            )
        value = self.row[column]
        # pandas stores what is missing as NaN.
        return None if isinstance(value, float) and math.isnan(value) else value

    def values(self, column: str) -> list[Any]:
        """A list, or the only value as one; nothing if the column is empty."""
        value = self.value(column)
        return value if isinstance(value, list) else [] if self.is_missing(column) else [value]

    def is_missing(self, column: str) -> bool:
        """Whether nothing stands in a column, or there is no such column."""
        return column not in self.row or _bare(self.value(column)) in MISSING

    def has_no_text(self, column: str) -> bool:
        """Whether a column of a text or of texts has none, or one of the texts is blank."""
        values = self.values(column)
        return not values or any(_bare(value) in MISSING for value in values)

    def text(self, column: str) -> str:
        """A text as it is."""
        return self.text_of(column, self.value(column))

    def text_of(self, column: str, value: Any) -> str:
        """A single value of a column as text."""
        if isinstance(value, list | dict | bytes):
            raise InputError(f"{self.where}: {column!r} holds {str(value)[:60]}, expected a single text")
        return "" if value is None else str(value)

    def words(self, column: str, *, separator: str | None = None) -> tuple[str, ...]:
        """The names in a list, or in a text where blanks or a separator stand between them."""
        value = self.value(column)
        if isinstance(value, str):
            bare = value.strip()
            if bare.startswith(("['", '["')):
                raise InputError(
                    f"{self.where}: {column!r} is a list written as text, {bare[:40]}...: store it as JSON "
                    f"lines or parquet, or put {separator or 'blanks'} between the values"
                )
            value = bare.split(separator) if bare else []
        values = value if isinstance(value, list) else self.values(column)
        return tuple(self.name_of(column, part) for part in values)

    def name(self, column: str) -> str:
        """The name of a class, or an id."""
        return self.name_of(column, self.value(column))

    def name_of(self, column: str, value: Any) -> str:
        """A single value as a name: true as in JSON; 1.0, which pandas may have made of 1, is 1."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        name = self.text_of(column, value).strip()
        if not name:
            raise InputError(f"{self.where}: a value of {column!r} is empty: fill it in or remove the line")
        return name

    def number(self, column: str) -> float:
        """A finite number."""
        self.value(column)
        value = self.row[column]
        try:
            number = float(value) if isinstance(value, int | float | str) else math.nan
        except ValueError:
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            raise InputError(
                f"{self.where}: {column!r} is {value!r}, expected a number such as 3.5 (if the labels are "
                "classes, set kind to classification)"
            )
        return number


def _bare(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def listed(names: Collection[str]) -> str:
    """Names for a message, not more than a person reads."""
    shown = ", ".join(repr(name) for name in list(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def nearest(name: str, names: Collection[str]) -> str:
    """A hint at what may have been meant."""
    by_case = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_case, n=1)
    return f"; did you mean {by_case[near[0]]!r}?" if near else ""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, sorted; as numbers if all of them are."""
    unique = sorted(set(names))
    return tuple(sorted(unique, key=float) if all(map(_is_number, unique)) else unique)


def are_decimal(names: Collection[str]) -> bool:
    """Whether all names are numbers, and not all of them whole ones."""
    return all(map(_is_number, names)) and not all(float(name).is_integer() for name in names)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False
