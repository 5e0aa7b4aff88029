"""`electra recipes [NAME]`: what each recipe is for, needs and gives; or the file of one of them."""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from electra import config
from electra.recipes import NAMES, Recipe, recipe

_MAX_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class RecipesConfig:
    """List the recipes, or print one."""

    name: str | None = None
    """Recipe to print as YAML; may also stand alone: electra recipes small."""


def main(arguments: Sequence[str]) -> None:
    """Print the list, or one recipe's file."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words.insert(0, "--name")
    settings = config.parse(RecipesConfig, words, prog="electra recipes")
    if settings.name:
        print(recipe(settings.name).path.read_text(encoding="utf-8"), end="")
        return
    print("Use one by its name: electra pretrain --config NAME --data DATA --out RUN\n")
    print("\n\n".join(describe(recipe(name)) for name in NAMES))


def describe(recipe: Recipe) -> str:
    """A recipe's name with what it is for, what it needs and what it gives, as indented lines."""
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    lines = [recipe.name]
    for field in ("for", "needs", "gives"):
        start = f"  {field:<7}"
        indent = " " * len(start)
        lines += textwrap.wrap(
            recipe.header[field],
            width,
            initial_indent=start,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
