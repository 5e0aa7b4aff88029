from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from electra import config
from electra.config import parse, to_dict
from electra.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: Literal["tiny", "small"] = "tiny"
    """How large."""
    layers: int = 2
    """How deep."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A config with a list, a group and a rule."""

    corpus: list[str] = field(default_factory=list)
    """What to read."""
    fraction: float = 0.5
    """How much of it."""
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.fraction > 1:
            raise InputError(f"fraction is {self.fraction}, expected at most 1")


def read(*arguments):
    return parse(Outer, arguments, prog="electra test")


def test_defaults():
    assert read() == Outer()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--corpus", "a", "-", "b c"],
        ["--corpus=a", "--corpus+=-", "--corpus+", "b c"],
        ["--corpus", '["a", "-", "b c"]'],
    ],
)
def test_a_list_is_typed_as_words(arguments):
    assert read(*arguments, "--fraction", "0.25") == Outer(corpus=["a", "-", "b c"], fraction=0.25)


def test_dotted_keys():
    assert read("--inner.size", "small", "--inner.layers=4").inner == Inner(size="small", layers=4)


def test_a_file_is_read_and_the_command_line_overrides_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("fraction: 0.1\ninner:\n  layers: 7\n")
    found = read("--config", str(path), "--fraction", "0.2")
    assert (found.fraction, found.inner.layers) == (0.2, 7)


def test_print_config_can_be_read_back(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        read("--corpus", "x", "--inner.layers", "9", "--print_config")
    assert stop.value.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    assert read("--config", str(path)) == Outer(corpus=["x"], inner=Inner(layers=9))


def test_help_shows_the_docstring_of_a_field(capsys):
    with pytest.raises(SystemExit):
        read("--help")
    out = capsys.readouterr().out
    assert "How much of it." in out
    assert "How deep." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fracton", "1"], "'fracton'.*'fraction'"),
        (["--inner.layer=3"], r"'inner\.layer'.*'inner\.layers'"),
        (["--fraction", "much"], "fraction.*float.*much"),
        (["--inner.size", "huge"], r"inner\.size.*\['tiny', 'small'\].*huge"),
        (["--fraction", "3"], r"fraction.*3\.0.*\b1\b"),
        (["stray"], "stray"),
        (["--config", "no-such-file.yaml"], "no-such-file.yaml"),
    ],
)
def test_a_mistake_names_the_key(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        read(*arguments)
    assert "electra test --help" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fracton: 1\n", "'fracton'.*'fraction'"),
        ("inner:\n  layer: 3\n", r"'inner\.layer'.*'inner\.layers'"),
        ("inner:\n  layers: three\n", "three"),
        ("fraction: [\n", "run.yaml"),
    ],
)
def test_a_mistake_in_a_file_names_the_key(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read("--config", str(path))
    assert str(error.value).startswith(str(path))


def test_to_dict():
    assert to_dict(Outer(inner=Inner(layers=3)))["inner"] == {"size": "tiny", "layers": 3}


def test_what_is_given_lies_over_defaults_that_depend_on_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("inner: {layers: 7}\n")
    defaults = {"inner.layers": 5, "fraction": 0.75, "inner.size": "small"}
    for given in (
        config.read(Outer, ["--config", str(path), "--fraction=1"], prog="electra test"),
        config.collect(Outer, {"fraction": 1.0}, prog="electra.test", file=path),
    ):
        assert given.values == {"inner.layers": 7, "fraction": 1.0}
        assert given.config(defaults) == Outer(fraction=1.0, inner=Inner(size="small", layers=7))
        assert given.draft() == Outer(fraction=1.0, inner=Inner(layers=7))
        assert given.changed({"inner": {"layers": 1}}).draft().inner.layers == 1


def test_a_way_to_print_that_there_is_not_is_refused(capsys):
    with pytest.raises(InputError, match="no_such_way"):
        read("--corpus", "x", "--print_config=no_such_way")


def test_print_config_shows_such_defaults_too(capsys):
    given = config.read(Outer, ["--print_config"], prog="electra test")
    with pytest.raises(SystemExit):
        given.config({"inner.layers": 5})
    assert "layers: 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"corpus": Path("a")}, {"corpus": ["a"]}),
        ({"corpus": ("a", Path("b"))}, {"corpus": ["a", "b"]}),
        ({"inner": Inner(layers=3)}, {"inner.layers": 3}),
        ({"inner": {"layers": 2}}, {"inner.layers": 2}),
        ({"fraction": None}, {}),
    ],
)
def test_python_values_are_taken_as_a_file_would_have_them(values, expected):
    assert config.collect(Outer, values, prog="electra.test").values == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"iner": {}, "fracton": 1}, "'fracton'.*'fraction'"),
        ({"inner": {"layer": 3}}, r"'inner\.layer'.*'inner\.layers'"),
        ({"inner": 3}, r"inner\b.*\b3\b"),
        ({"fraction": "much"}, "fraction.*float.*much"),
    ],
)
def test_a_mistake_in_python_values_names_the_key(values, message):
    with pytest.raises(InputError, match=message):
        config.collect(Outer, values, prog="electra.test")


def bomb(*, levels=12, each=9):
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * each)}]" for n in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "billions": bomb(),
    "itself": "inner: &a {layers: *a}",
    "deep": f"corpus: {'[' * 3000}{']' * 3000}",
    "long": "corpus: [" + "x, " * 200_000 + "x]",
    "large": "# " + "x" * (2 << 20),
    "another file": "config: other.yaml",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_would_keep_the_computer_busy_is_refused_by_name(tmp_path, text):
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"hostile\.yaml"):
        read("--config", str(path))
    with pytest.raises(InputError, match=r"hostile\.yaml"):
        config.collect(Outer, {}, prog="electra test", file=path)


@pytest.mark.parametrize("name", ["itself", "deep"])
def test_so_is_a_value_on_the_command_line(name):
    key, _, value = HOSTILE[name].partition(": ")
    with pytest.raises(InputError, match=key):
        read(f"--{key}={value}")


def test_aliases_of_a_usual_size_are_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("corpus: &all [a, b]\ninner: {layers: &few 3}\n")
    assert read("--config", str(path)) == Outer(corpus=["a", "b"], inner=Inner(layers=3))
    path.write_text("fraction: &half 0.25\ncorpus: [a]\ninner: {layers: 2}\n")
    assert read("--config", str(path), "--corpus", "[MASK] it & *").corpus == ["[MASK] it & *"]
