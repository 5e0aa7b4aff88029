"""What README and docs say is so: their commands are accepted, and the files they name are there."""

import contextlib
import functools
import io
import itertools
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from electra import cli, recipes

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
GUIDES = [path for path in PAGES if "decisions" not in path.parts and path.stem not in ("log", "CHANGELOG")]


def name_of(path):
    return str(path.relative_to(ROOT))


def commands_in(path):
    """Command lines of `electra` in blocks and in running text, without comments, pipes and launchers."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    lines += re.findall(r"`(electra [a-z]+ --[^`]*)`", text)
    for line in lines:
        if re.match(r"(electra|torchrun) ", line):
            words = shlex.split(line.partition(" > ")[0], comments=True)
            words = words[words.index("-m") + 2 :] if words[0] == "torchrun" else words[1:]
            # `electra launch slurm ... -- COMMAND` has two in one.
            place = words.index("--") if "--" in words else len(words)
            yield words[:place]
            if words[place + 1 :]:
                yield words[place + 1 :]


@functools.cache
def choices_of(verb):
    """Key of a verb -> the values it takes, or none if it takes any; from its help."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    keys = re.findall(r"^  (?:-h, )?(--[\w.]+)(?: \{(.*?)\})?", shown.getvalue(), re.MULTILINE | re.DOTALL)
    also = {"--from": ["transformers", "tensorflow"]} if verb == "import" else {}
    return {**{key: choices.split(",") if choices else [] for key, choices in keys}, **also}


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_every_command_has_keys_and_values_that_exist(path):
    for verb, *rest in commands_in(path):
        if verb.startswith("-"):
            assert verb in ("--help", "--version")
            continue
        assert verb in cli.VERBS
        for key, value in itertools.pairwise([*rest, "--"]):
            if key.startswith("--"):
                choices = choices_of(verb)[key.partition("=")[0]]
                assert not choices or value.startswith("--") or value in choices, (verb, key, value)
            if key == "--config":
                assert value in recipes.NAMES or value.endswith(".yaml")


def test_commands_are_found():
    found = [words for path in GUIDES for words in commands_in(path)]
    assert {words[0] for words in found} >= {*cli.VERBS} - {"demo"}
    assert len(found) > 40
    assert choices_of("prepare")["--case"] == ["lower", "keep"]
    assert "--corpus" in choices_of("prepare")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_link_leads_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (path.parent / target).exists(), target
    if path in GUIDES:
        assert "../shared" not in text


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_every_module_that_is_named_is_there(path):
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_0-9]+\.py)`", path.read_text(encoding="utf-8"))
    places = (ROOT / "src" / "electra", ROOT, path.parent)
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_every_extra_that_is_named_is_there(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = path.read_text(encoding="utf-8")
    named = {
        extra for found in re.findall(r"(?:electra|')\.?\[([a-z,]+)\]", text) for extra in found.split(",")
    }
    assert named <= {*project["optional-dependencies"]}
    if path.stem == "install":
        table = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        assert {extra for row in table for extra in re.findall(r"`(\w+)`", row)} == {
            *project["optional-dependencies"]
        }


def test_guides_are_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        if path.stem != "log":
            assert f"docs/{path.name}" in readme


def test_every_test_that_the_threat_table_names_is_there():
    named = re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert set(named) <= there
