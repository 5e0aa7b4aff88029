"""Command line and YAML file -> one frozen dataclass, every key checked.

A config is a dataclass beside what it configures. `parse` gives each the same interface:
`--key value`, `--group.key value`, `--config FILE_OR_RECIPE`, `--print_config`, `--help`.
"""

import argparse
import dataclasses
import json
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import jsonargparse

from electra import show
from electra.errors import InputError
from electra.recipes import config_path

Config = TypeVar("Config")
Value = TypeVar("Value")

# The docstring below a field becomes its --help.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parse(config_class: type[Config], arguments: Sequence[str], *, prog: str) -> Config:
    """Read a command line into `config_class`; an InputError names the key and the nearest valid one."""
    parser = jsonargparse.ArgumentParser(prog=prog, exit_on_error=False, allow_abbrev=False)
    parser.add_argument(
        "--config", action="config", help="YAML file with any of the keys below, or a recipe."
    )
    parser.add_class_arguments(config_class)
    words = _join_lists(config_class, arguments)
    words = _checked(partial(_with_config_paths, words), config_class, prog)
    # Read by itself first, so that a mistake in a file is reported with the file's name.
    for path in _config_files(words):
        _checked(partial(parser.parse_path, path), config_class, prog, where=f"{path}: ")
    parts = _checked(lambda: parser.instantiate(parser.parse_args(words)), config_class, prog)
    values = {key: value for key, value in vars(parts).items() if key != "config"}
    return _checked(lambda: config_class(**values), config_class, prog)


def _checked(read: Callable[[], Value], config_class: type[Any], prog: str, where: str = "") -> Value:
    try:
        return read()
    except (argparse.ArgumentError, ValueError, TypeError, OSError) as error:
        known = [name for name, _ in _fields(config_class)]
        raise InputError(f"{where}{_explain(str(error), known)} (see '{prog} --help')") from error


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain values, for a manifest or a YAML file."""
    return dataclasses.asdict(config)


def _fields(config_class: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config with its type; a nested config's keys are dotted."""
    types = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        name, kind = prefix + field.name, types[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, f"{name}.")
        else:
            yield name, kind


def _join_lists(config_class: type[Any], arguments: Sequence[str]) -> list[str]:
    """Let a person type `--corpus a b c` where jsonargparse wants `--corpus=["a", "b", "c"]`."""
    lists = {f"--{name}" for name, kind in _fields(config_class) if typing.get_origin(kind) is list}
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        option, equals, value = option.partition("=") if option.startswith("--") else (option, "", "")
        if option not in lists:
            joined.append(option + equals + value)
            continue
        words = [value] if equals else []
        # A lone "-" is a value: standard input.
        while not equals and rest and (rest[0] == "-" or not rest[0].startswith("-")):
            words.append(rest.pop(0))
        already_json = len(words) == 1 and words[0].startswith("[")
        joined.append(f"{option}={words[0] if already_json else json.dumps(words)}")
    return joined


def _with_config_paths(words: Sequence[str]) -> list[str]:
    """Every `--config X` as `--config=PATH`, where X is a path or the name of a recipe."""
    replaced: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option == "--config" and (equals or rest):
            word = f"--config={config_path(value if equals else rest.pop(0))}"
        replaced.append(word)
    return replaced


def _config_files(words: Sequence[str]) -> list[str]:
    return [word.removeprefix("--config=") for word in words if word.startswith("--config=")]


_UNKNOWN_KEY = (
    r"unrecognized arguments: .*?--(?P<key>[^\s=]+)",
    r"Group '(?P<group>[^']*)' does not accept option '(?P<key>[^']*)'",
    r"Option '(?P<key>[^']*)' is not accepted",
)


def _explain(message: str, known: list[str]) -> str:
    """Put the nearest valid key beside an unknown one, and say plainly what is wrong with a value."""
    flat = " ".join(message.split())
    for pattern in _UNKNOWN_KEY:
        if found := re.search(pattern, flat):
            parts = found.groupdict()
            key = ".".join(filter(None, (parts.get("group"), parts["key"])))
            return f"unknown key {key!r}{show.did_you_mean(key, known, cutoff=0.5)}"
    flat = flat.replace("unrecognized arguments:", "unexpected value")
    flat = re.sub(r'Parser key "([^"]*)": Expected an? ', r"\1: expected ", flat)
    flat = re.sub(r"<class '([^']*)'>", r"\1", flat).replace("typing.Literal", "one of ")
    return flat.replace(". Got value: ", ", got ")
