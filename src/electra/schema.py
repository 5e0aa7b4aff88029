"""Plain data from a file, and a type that says what it should be -> an error that names what differs, if any.

    class Settings(TypedDict, total=False):
        max_length: Annotated[int, Within(8)]

    check({"max_length": -3}, Settings, where="config.json")
    # InputError: config.json: max_length is -3, expected a whole number from 8 on

Whoever gives us a folder gives us every value in its files. A type is a TypedDict or a dataclass, of which
the keys are looked up, or int, float, str, bool, None, Any, a Literal, a list, tuple or Sequence of one type,
a dict or Mapping from names, or one of them or None. Keys that a type does not name are left to whoever put
them there.
"""

import dataclasses
import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from electra.errors import InputError

_LARGEST = 1e300
"""A whole number of JSON may be larger than any float."""
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 60


@dataclass(frozen=True)
class Within:
    """Bounds of a whole number: Annotated[int, Within(1)]."""

    least: int
    most: int | None = None

    def __str__(self) -> str:
        if self.most is not None:
            return f"a whole number from {self.least:,} to {self.most:,}"
        return "a positive whole number" if self.least == 1 else f"a whole number from {self.least} on"

    def holds(self, value: int) -> bool:
        """Whether a number lies within."""
        return self.least <= value and (self.most is None or value <= self.most)


def short(value: object) -> str:
    """A value as an error may show it, whatever its size."""
    return _shortened.repr(value)


def check(value: Any, form: Any, *, where: str, key: str = "") -> None:
    """Refuse data that is not of a form; `where` is the file it was read from, `key` its place there."""
    if get_origin(form) in (Union, UnionType) and NoneType in get_args(form):
        if value is None:
            return
        form = reduce(or_, (one for one in get_args(form) if one is not NoneType))
    items, keys = _item_form(form), _key_forms(form)
    if not _has_shape(value, form):
        place = ": ".join(filter(None, (where, key)))
        raise InputError(f"{place} {'is' if key else 'holds'} {short(value)}, expected {expected(form)}")
    if items is not None:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in pairs:
            below = f"{key}.{name}" if isinstance(value, dict) else f"{key}[{name}]"
            check(one, items, where=where, key=below.removeprefix("."))
    for name, (inner, is_required) in keys.items():
        below = f"{key}.{name}".removeprefix(".")
        if name in value:
            check(value[name], inner, where=where, key=below)
        elif is_required:
            lacks = f"{where} lacks {below}, expected {expected(inner)}: is it whole?"
            raise InputError(lacks.lstrip())


def check_arguments(values: Mapping[str, Any], build: Callable[..., Any], *, where: str, key: str) -> None:
    """Refuse values that are not the arguments of a function or a class."""
    known = inspect.signature(build).parameters
    for name in values:
        if name not in known:
            some = ", ".join(known)
            raise InputError(f"{where}: {key} has the unknown key {short(name)}, expected some of {some}")
    for name, parameter in known.items():
        if name in values:
            check(values[name], parameter.annotation, where=where, key=f"{key}.{name}")
        elif parameter.default is inspect.Parameter.empty:
            what = expected(parameter.annotation)
            raise InputError(f"{where} lacks {key}.{name}, expected {what}: is it whole?")


def expected(form: Any) -> str:
    """A form in words."""
    if get_origin(form) is Annotated:
        return str(get_args(form)[1])
    if get_origin(form) is Literal:
        return f"one of {', '.join(map(str, get_args(form)))}"
    if get_origin(form) in (Union, UnionType):
        return " or ".join(expected(one) for one in get_args(form))
    if _item_form(form) is not None and get_origin(form) not in (dict, Mapping):
        return f"a list, each of it {expected(_item_form(form))}"
    return _NAMES.get(form, "a JSON object")


def _has_shape(value: Any, form: Any) -> bool:
    """Whether a value is of a form, without what it contains."""
    origin = get_origin(form)
    if form is Any:
        return True
    if origin is Annotated:
        kind, bounds = get_args(form)
        return _has_shape(value, kind) and bounds.holds(value)
    if origin is Literal:
        return value in get_args(form)
    if origin in (Union, UnionType):
        return any(_has_shape(value, one) for one in get_args(form))
    if form is float:
        # False for NaN, too.
        return isinstance(value, int | float) and type(value) is not bool and abs(value) <= _LARGEST
    if form in _NAMES:
        # Not isinstance: to Python, true is a whole number.
        return type(value) is form
    return isinstance(value, list | tuple if _is_list(form) else dict)


def _is_list(form: Any) -> bool:
    return get_origin(form) in (list, tuple, Sequence)


def _item_form(form: Any) -> Any:
    """What each item of a list, or each value of a mapping, should be; None if it is neither."""
    if _is_list(form):
        return get_args(form)[0]
    return get_args(form)[1] if get_origin(form) in (dict, Mapping) else None


def _key_forms(form: Any) -> dict[str, tuple[Any, bool]]:
    """Of each key that is looked up: what it should be, and whether it must be there."""
    if is_typeddict(form):
        return {name: (inner, name in form.__required_keys__) for name, inner in _hints(form).items()}
    if dataclasses.is_dataclass(form):
        empty = dataclasses.MISSING
        return {
            field.name: (_hints(form)[field.name], field.default is field.default_factory is empty)
            for field in dataclasses.fields(form)
        }
    return {}


def _hints(form: Any) -> dict[str, Any]:
    hints = get_type_hints(form, include_extras=True)
    return {
        name: get_args(hint)[0] if get_origin(hint) is NotRequired else hint for name, hint in hints.items()
    }
