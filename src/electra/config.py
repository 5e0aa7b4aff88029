"""Command line, YAML file or Python values -> one frozen dataclass, every key checked.

A config is a dataclass beside what it configures. `read` gives each the same command line: `--key value`,
`--group.key value`, `--config FILE_OR_RECIPE`, `--print_config`, `--help`; `collect` takes the same keys as
Python values. Both return what was *given*, which `Given.config` lays over defaults that may depend on it:

    the class's defaults  <  defaults for what was given (the paper's)  <  file  <  command line or keyword
"""

import argparse
import dataclasses
import itertools
import json
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import jsonargparse
import yaml

from electra import show
from electra.errors import InputError
from electra.recipes import config_path
from electra.store import cache, remote, working

Config = TypeVar("Config")
Value = TypeVar("Value")

_CONFIG, _PRINT_CONFIG = "config", "--print_config"
# Far above any config, far below what keeps a computer busy: a few lines of YAML can stand for a billion.
_YAML_BYTES, _YAML_VALUES, _YAML_DEPTH = 1 << 20, 100_000, 32
# To YAML 1:30 is 90. The time that takes grows with the square of the digits, a minute for a file of 500 kB.
_LONG_NUMBER = re.compile(r"(?=.*:)[-+0-9_:.]{1000,}")

# The docstring below a field becomes its --help.
jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


@dataclass(frozen=True, kw_only=True)
class Given(Generic[Config]):
    """The keys somebody gave for a config, each with a valid value."""

    config_class: type[Config]
    values: Mapping[str, Any]
    """Dotted key -> value; keys that were not given are missing."""
    prog: str
    help: str
    """Where the person who gave them finds all keys."""
    print_option: str | None = None
    """`--print_config`, if it was on the command line."""

    def config(self, defaults: Mapping[str, Any] | None = None) -> Config:
        """The whole config: what was given over `defaults` (dotted keys) over the class's own defaults.

        If `--print_config` was given, prints the config instead and exits, as `--help` does.
        """
        return self._build(defaults or {}, options=[self.print_option] if self.print_option else [])

    def draft(self) -> Config:
        """The config as far as it is known before defaults that depend on what was given."""
        return self._build({})

    def changed(self, values: Mapping[str, Any]) -> "Given[Config]":
        """The same with some keys replaced."""
        return dataclasses.replace(self, values={**self.values, **self._checked_values(values)})

    @contextmanager
    def opened(
        self, *, reads: Sequence[str] = (), runs: Sequence[str] = (), writes: Sequence[str] = ()
    ) -> Iterator["Given[Config]"]:
        """The same with files and folders on this disk in place of URLs of object stores.

        What the keys `reads` and `runs` name is fetched before this begins, of runs also their checkpoints;
        what `writes` name is uploaded while this lasts and at its end. Errors name the URLs.
        """

        def local(key: str, value: Any) -> Any:
            if isinstance(value, list):
                return [local(key, item) for item in value]
            if not isinstance(value, str) or not remote.is_url(value):
                return value
            if key in writes:
                return str(stack.enter_context(working.working_copy(value)))
            return str(cache.fetch(value, checkpoints=key in runs))

        with ExitStack() as stack:
            keys = [key for key in (*reads, *runs, *writes) if key in self.values and not self.print_option]
            found = {key: local(key, self.values[key]) for key in keys}
            try:
                yield dataclasses.replace(self, values={**self.values, **found})
            except (InputError, KeyboardInterrupt) as error:
                if (text := cache.with_urls(str(error))) != str(error):
                    raise type(error)(text) from error
                raise

    def _build(self, defaults: Mapping[str, Any], *, options: Sequence[str] = ()) -> Config:
        parser = _parser(self.config_class, self.prog)
        whole = self._checked(lambda: parser.parse_object({**defaults, **self.values}))
        if options:
            self._checked(lambda: parser.parse_args(options, namespace=whole))
        parts = self._checked(lambda: parser.instantiate(whole))
        values = {key: value for key, value in vars(parts).items() if key != _CONFIG}
        return self._checked(lambda: self.config_class(**values))

    def _checked_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        parser = _parser(self.config_class, self.prog)
        plain = _plain(self.config_class, values)
        return self._checked(lambda: _flat(parser.parse_object(plain, defaults=False), self.config_class))

    def _checked(self, read: Callable[[], Value]) -> Value:
        return _checked(read, self.config_class, help=self.help)


def parse(config_class: type[Config], arguments: Sequence[str], *, prog: str) -> Config:
    """Read a command line into `config_class`; an InputError names the key and the nearest valid one."""
    return read(config_class, arguments, prog=prog).config()


def with_first_words(arguments: Sequence[str], *, option: str) -> list[str]:
    """Give the words before the first option the name of a list: `electra report RUN RUN --out FILE`."""
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    return [*([option, *words] if words else []), *arguments[len(words) :]]


def read(config_class: type[Config], arguments: Sequence[str], *, prog: str) -> Given[Config]:
    """What a command line and the files it names give."""
    parser, help = _parser(config_class, prog), f"see '{prog} --help'"
    option = ""
    for argument in arguments:
        option = argument.partition("=")[0] if argument.startswith("--") else option
        value = argument.removeprefix(option).removeprefix("=")
        _checked(partial(require_small_yaml, value), config_class, help=help, where=f"{option}: ")
    words = _join_lists(config_class, arguments)
    prints = [word for word in words if word.partition("=")[0] == _PRINT_CONFIG]
    words = [word for word in words if word not in prints]
    words = _checked(partial(_with_config_paths, words), config_class, help=help)
    # Read by itself first, so that a mistake in a file is reported with the file's name.
    for path in _config_files(words):
        _checked_file(parser, path, config_class, help=help)
    found = _checked(
        lambda: _flat(_built(lambda: parser.parse_args(words, defaults=False)), config_class),
        config_class,
        help=help,
    )
    return Given(
        config_class=config_class,
        values=found,
        prog=prog,
        help=help,
        print_option=prints[-1] if prints else None,
    )


def collect(
    config_class: type[Config],
    values: Mapping[str, Any],
    *,
    prog: str,
    file: str | os.PathLike[str] | None = None,
) -> Given[Config]:
    """What Python values give, over those of a YAML file.

    Groups are mappings, `train={"steps": 10}`, or instances of the group's class, of which the fields that
    differ from their defaults count. None means not given, except inside a mapping.
    """
    help = f"see help({prog})"
    nothing = Given(config_class=config_class, values={}, prog=prog, help=help)
    in_file: dict[str, Any] = {}
    if file is not None:
        parser = _parser(config_class, prog)
        in_file = _checked_file(parser, str(config_path(os.fspath(file))), config_class, help=help)
    named = {key: value for key, value in values.items() if value is not None}
    return dataclasses.replace(nothing, values=in_file).changed(named)


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain values, for a manifest or a YAML file; what lies in a store has its URL."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return cache.with_urls(value) if isinstance(value, str) else value

    values: dict[str, Any] = plain(dataclasses.asdict(config))
    return values


_parsers: dict[tuple[type[Any], str], jsonargparse.ArgumentParser] = {}
"""Made once for each config: that takes longer than parsing does."""


def _parser(config_class: type[Any], prog: str) -> jsonargparse.ArgumentParser:
    if (config_class, prog) not in _parsers:
        parser = jsonargparse.ArgumentParser(prog=prog, exit_on_error=False, allow_abbrev=False)
        parser.add_argument(
            f"--{_CONFIG}",
            action="config",
            help="YAML file with any of the keys below, or the name of a recipe (see 'electra recipes').",
        )
        parser.add_class_arguments(config_class)
        _parsers[config_class, prog] = parser
    return _parsers[config_class, prog]


def read_yaml(path: Path) -> Any:
    """The values of a YAML file, or an InputError that names it."""
    try:
        text = _small_text(path)
        return _built(lambda: yaml.safe_load(text))
    except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not readable YAML: {' '.join(str(error).split())}") from error


def _small_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        # A pipe would keep us waiting for whoever writes to it.
        raise InputError("it is no file")
    with path.open("rb") as file:
        text = file.read(_YAML_BYTES + 1).decode()
    require_small_yaml(text)
    return text


def _built(read: Callable[[], Value]) -> Value:
    """What is made of a text of YAML.

    For a value that is not what its tag says, such as `!!timestamp x` and `!!int ""`, PyYAML raises whatever
    went wrong inside it.
    """
    try:
        return read()
    except (ArithmeticError, AttributeError, LookupError, argparse.ArgumentError) as error:
        # jsonargparse has errors of its own for keys, and makes its ArgumentError of a plain KeyError, too.
        if isinstance(error, argparse.ArgumentError) and type(error.__cause__) is not KeyError:
            raise
        raise InputError(f"a value is not what its tag (!!name) says ({error}): leave out the tag") from error


def require_small_yaml(text: str) -> None:
    """Refuse a text that stands for more values than any config has, or for one that contains itself.

    What is no YAML is left to its reader. Aliases (`*name`) are counted as what they stand for.
    """
    if len(text) > _YAML_BYTES:
        raise InputError(f"more than {_YAML_BYTES:,} characters, too many for a config")
    count = 0
    sizes: dict[str, int] = {}
    unfinished: list[tuple[str | None, int]] = []
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                if event.anchor in (anchor for anchor, _ in unfinished):
                    raise InputError(f"*{event.anchor} contains itself: write out what it stands for")
                count += sizes.get(event.anchor or "", 1)
            elif isinstance(event, yaml.CollectionStartEvent):
                unfinished.append((event.anchor, count))
                count += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = unfinished.pop()
                sizes[anchor or ""] = count - before
            elif isinstance(event, yaml.ScalarEvent):
                count += 1
                sizes[event.anchor or ""] = 1
                if event.style is None and _LONG_NUMBER.fullmatch(event.value):
                    raise InputError(f"a number of {len(event.value):,} digits, too many for a config")
            if count > _YAML_VALUES or len(unfinished) > _YAML_DEPTH:
                raise InputError(
                    f"more than {_YAML_VALUES:,} values or {_YAML_DEPTH} levels, too many for a config; "
                    "aliases (*name) count as what they stand for"
                )
    except yaml.YAMLError:
        return


def _flat(found: jsonargparse.Namespace, config_class: type[Any]) -> dict[str, Any]:
    """The values by their dotted keys, none of them empty where a value is needed."""
    values = {key: value for key, value in found.items() if key != _CONFIG}
    for group in sorted(_groups(config_class) & values.keys()):
        shown = "nothing" if values[group] is None else values[group]
        raise InputError(f"{group}: expected a group of keys such as {group}.KEY, got {shown}")
    for key, kind in _fields(config_class):
        if key in values and values[key] is None and type(None) not in typing.get_args(kind):
            raise InputError(f"{key}: expected {_type_name(kind)}, got nothing; leave it out for its default")
    return values


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {list(typing.get_args(kind))}"
    return getattr(kind, "__name__", str(kind))


def _checked(read: Callable[[], Value], config_class: type[Any], *, help: str, where: str = "") -> Value:
    try:
        return read()
    except (argparse.ArgumentError, ValueError, TypeError, OSError, RecursionError) as error:
        known = [*_groups(config_class), *(name for name, _ in _fields(config_class))]
        raise InputError(f"{where}{_explain(str(error), known)} ({help})") from error


def _checked_file(
    parser: jsonargparse.ArgumentParser, path: str, config_class: type[Any], *, help: str
) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        text = _small_text(Path(path))
        if re.search(rf"^{_CONFIG}[ \t]*:[ \t]*\S", text, re.MULTILINE):
            raise InputError(f"{_CONFIG}: a file cannot name another one; give --config once for each")
        return _flat(_built(lambda: parser.parse_path(path, defaults=False)), config_class)

    return _checked(read, config_class, help=help, where=f"{path}: ")


def _fields(config_class: type[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config with its type; a nested config's keys are dotted."""
    types = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        name, kind = prefix + field.name, types[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _fields(kind, f"{name}.")
        else:
            yield name, kind


def _groups(config_class: type[Any]) -> set[str]:
    return {name.rpartition(".")[0] for name, _ in _fields(config_class)} - {""}


def _lists(config_class: type[Any]) -> set[str]:
    return {name for name, kind in _fields(config_class) if typing.get_origin(kind) is list}


def _join_lists(config_class: type[Any], arguments: Sequence[str]) -> list[str]:
    """Let a person type `--corpus a b c` where jsonargparse wants `--corpus=["a", "b", "c"]`."""
    lists = {f"--{name}" for name in _lists(config_class)}
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
        already_json = len(words) == 1 and _is_list(words[0])
        joined.append(f"{option}={words[0] if already_json else json.dumps(words)}")
    return joined


def _is_list(word: str) -> bool:
    """Whether a word is a list in JSON or YAML, and not just a text such as "[MASK] it"."""
    if not (word.startswith("[") and word.endswith("]")):
        return False
    try:
        return isinstance(_built(lambda: yaml.safe_load(word)), list)
    except (ValueError, TypeError, yaml.YAMLError):
        return False


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


def _plain(config_class: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Python values as a YAML file would have them, by dotted key: paths as strings, one item as a list."""
    lists, groups = _lists(config_class), _groups(config_class)
    found: dict[str, Any] = {}

    def add(key: str, value: Any) -> None:
        # What `electra.prepare` and others return is a path as well.
        is_path = isinstance(value, os.PathLike)
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_path:
            value = _changes(value)
        if isinstance(value, Mapping):
            for name, item in value.items():
                add(f"{key}.{name}" if key else name, item)
        elif key in groups:
            raise InputError(f"{key} is {value!r}, expected a mapping such as {{'key': value}}")
        elif isinstance(value, os.PathLike | str):
            found[key] = [os.fspath(value)] if key in lists else os.fspath(value)
        elif isinstance(value, list | tuple):
            found[key] = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in value]
        else:
            found[key] = value

    add("", values)
    return found


def _changes(config: Any) -> dict[str, Any]:
    """The fields of a config that differ from their defaults."""
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        make = field.default_factory
        default = field.default if make is dataclasses.MISSING else make()
        if value != default:
            changes[field.name] = value
    return changes


_UNKNOWN_KEY = (
    r"unrecognized arguments: .*?--(?P<key>[^\s=]+)",
    r"Group '(?P<group>[^']*)' does not accept option '(?P<key>[^']*)'",
    r"Option '(?P<key>[^']*)' is not accepted",
)


_UNION = re.compile(
    r'.*Parser key "(?P<key>[^"]*)": Does not validate against any of the Union subtypes Subtypes: .*? '
    r"Errors: (?P<errors>.*) Given value type: .*? Given value: (?P<value>.*)"
)
_EXPECTED = re.compile(r"- Expected an? (.*?)(?= - Expected|$)")
_NO_GROUP = re.compile(r'.*Parser key "(?P<key>[^"]*)": Unable to load config "(?P<value>.*)"')


def _explain(message: str, known: list[str]) -> str:
    """Put the nearest valid key beside an unknown one, and say plainly what is wrong with a value."""
    flat = " ".join(message.split())
    for pattern in _UNKNOWN_KEY:
        if found := re.search(pattern, flat):
            parts = found.groupdict()
            key = ".".join(filter(None, (parts.get("group"), parts["key"])))
            return f"unknown key {key!r}{show.did_you_mean(key, known, cutoff=0.5)}"
    if found := _UNION.search(flat):
        kinds = [kind for kind in _EXPECTED.findall(found["errors"]) if "NoneType" not in kind]
        flat = f'Parser key "{found["key"]}": Expected a {" or ".join(kinds)}. Got value: {found["value"]}'
    elif found := _NO_GROUP.search(flat):
        return f"{found['key']}: expected a group of keys such as {found['key']}.KEY, got {found['value']}"
    flat = flat.replace("unrecognized arguments:", "unexpected value")
    flat = flat.replace("Unexpected config:", "expected lines such as 'key: value', got")
    flat = re.sub(r'Parser key "([^"]*)": Expected an? ', r"\1: expected ", flat)
    flat = re.sub(r"<class '([^']*)'>", r"\1", flat).replace("typing.Literal", "one of ")
    return flat.replace(". Got value: ", ", got ")
