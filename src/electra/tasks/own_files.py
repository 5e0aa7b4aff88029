"""A file or folder of somebody's own data -> which table is trained on, scored on and predicted."""

import re
from collections.abc import Mapping
from pathlib import Path

from electra.errors import InputError
from electra.tasks.own_cells import listed, nearest
from electra.tasks.own_config import OwnTaskConfig
from electra.tasks.table_files import SUFFIXES, is_table, table_suffix
from electra.tasks.task import TRAIN

DEV, TEST = "dev", "test"
_NAMES: Mapping[str, tuple[str, ...]] = {
    TRAIN: ("train", "training"),
    DEV: ("dev", "valid", "validation", "val", "eval"),
    TEST: ("test",),
}


def find_files(config: OwnTaskConfig, path: Path) -> dict[str, Path]:
    """The table of each split that there is; a single file is what is trained on."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder{nearest(path.name, _names_in(path.parent))}")
    folder = path if path.is_dir() else path.parent
    given = {TRAIN: config.train, DEV: config.dev, TEST: config.test}
    found = {split: _named(folder, split, name) for split, name in given.items() if name is not None}
    if path.is_file():
        if config.train is not None:
            raise InputError(
                f"train is {config.train!r}, but {path} is a file already: give its folder as data"
            )
        found[TRAIN] = path
    else:
        tables = sorted(file for file in folder.iterdir() if file.is_file() and is_table(file))
        for split in given:
            if split not in found and (table := _by_name(split, tables)) is not None:
                found[split] = table
    if TRAIN not in found:
        raise InputError(
            f"{path}: no table to train on, expected one with 'train' in its name and one of "
            f"{' '.join(SUFFIXES)} (also with .gz) at its end; there are "
            f"{listed(_names_in(path)) or 'no files'}: name the file in train"
        )
    return {split: found[split] for split in given if split in found}


def _by_name(split: str, tables: list[Path]) -> Path | None:
    """The table with the split's name among the words of its own; one that has no other word goes first."""
    words = {table: re.split(r"[^a-z0-9]+", _stem(table)) for table in tables}
    found = [table for table in tables if not set(_NAMES[split]).isdisjoint(words[table])]
    exact = [table for table in found if _stem(table) in _NAMES[split]]
    chosen = exact or found
    if len(chosen) > 1:
        names = listed([table.name for table in chosen])
        raise InputError(f"{tables[0].parent}: several tables for {split}: {names}; name one in {split}")
    return chosen[0] if chosen else None


def _stem(table: Path) -> str:
    return table.name.lower().removesuffix(".gz").removesuffix(table_suffix(table))


def _named(folder: Path, split: str, name: str) -> Path:
    if not (folder / name).is_file():
        names = _names_in(folder)
        raise InputError(
            f"{split} is {name!r}: no such file in {folder}, only {listed(names)}{nearest(name, names)}"
        )
    return folder / name


def _names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
