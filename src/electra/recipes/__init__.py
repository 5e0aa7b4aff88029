"""The name of a recipe -> its YAML file, and what its header says about it.

A recipe is a file `NAME.yaml` in this folder: settings of `electra pretrain` below a header of comments,

    # for:     what it is for
    # data:    the command that prepares its data
    # command: the command that runs it
    # needs:   the machine and the time it needs
    # gives:   the scores to expect, and who measured them

where a comment without a field continues the one above. A new recipe is a file here and its name in `NAMES`.
"""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from electra.errors import InputError
from electra.show import did_you_mean

# In the order in which a reader chooses: first runs, the paper's models, its ablations, what came after it.
NAMES = (
    *("minutes", "hour", "night", "tiny"),
    *("small", "small_plus_plus", "base", "large"),
    *("mlm", "electra_15", "replace_mlm", "all_tokens_mlm", "two_stage", "adversarial", "electric"),
    *("single_pass", "replaced_span", "word_vectors"),
)
RENAMED = {"demo": "minutes"}
"""Recipes that went with version 0.1, and what has taken their place; this goes with version 0.3."""
FIELDS = ("for", "data", "command", "needs", "gives")

_FOLDER = Path(__file__).parent
_FIELD = re.compile(r"# (\w+): +(.*)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe's file and the fields of its header."""

    name: str
    path: Path
    header: dict[str, str]
    """Field -> its text on one line; the fields are `FIELDS`."""


def recipe(name: str) -> Recipe:
    """Read the header of the recipe called `name`."""
    if name not in NAMES:
        raise InputError(f"there is no recipe {name!r}{_suggestion(name)}")
    path = _FOLDER / f"{name}.yaml"
    header: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if field := _FIELD.fullmatch(line):
            header[field[1]] = field[2]
        else:
            last = next(reversed(header))
            header[last] += f" {line.removeprefix('#').strip()}"
    return Recipe(name=name, path=path, header=header)


def config_path(given: str) -> Path:
    """The file that `--config` means: a path, or else the name of a recipe."""
    path = Path(given)
    if path.is_file():
        return path
    if given in NAMES:
        return _FOLDER / f"{given}.yaml"
    if given in RENAMED:
        warnings.warn(
            f"the recipe {given} is gone: --config {given} now means --config {RENAMED[given]}",
            FutureWarning,
            stacklevel=2,
        )
        return _FOLDER / f"{RENAMED[given]}.yaml"
    if path.parent.name == "recipes" and path.suffix == ".yaml" and path.stem in NAMES:
        # Version 0.1 had the recipes in a folder of the checkout; this goes with version 0.3.
        warnings.warn(
            f"recipes are part of the package now: use --config {path.stem} instead of --config {given}",
            FutureWarning,
            stacklevel=2,
        )
        return _FOLDER / f"{path.stem}.yaml"
    raise InputError(f"--config {given}: no such file, and no recipe of that name{_suggestion(path.stem)}")


def _suggestion(name: str) -> str:
    return f"{did_you_mean(name, NAMES) or '.'} Recipes: {', '.join(NAMES)}"
