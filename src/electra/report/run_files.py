"""A run folder -> what is in it beside its records: its model, checkpoints, lock and data.

Nothing is written, and of checkpoints only as many are read as a resume would read.
"""

import fcntl
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.report.datasets import DataFacts, read_data
from electra.report.findings import command, damage_of, free_name
from electra.report.runs import RunRecord

FINAL, CHECKPOINTS, LOCK, CONFIG = "final", "checkpoints", ".lock", "config.yaml"
_CHECKPOINT = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class RunFiles:
    """The files of a pre-training run or of one seed of a fine-tuning."""

    folder: Path

    @property
    def has_model(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / FINAL / files.MANIFEST).is_file()

    @cached_property
    def model_damage(self) -> list[str]:
        """What is wrong with the files of its model; empty if there is none."""
        return damage_of(self.folder / FINAL) if self.has_model else []

    @cached_property
    def checkpoints(self) -> list[tuple[Path, list[str]]]:
        """(folder, damage), the newest first, up to the first whole one: older ones are not looked at."""
        places = (self.folder / CHECKPOINTS).glob("step-*")
        found = sorted(
            ((int(match[1]), path) for path in places if (match := _CHECKPOINT.fullmatch(path.name))),
            reverse=True,
        )
        looked_at: list[tuple[Path, list[str]]] = []
        for _, path in found:
            looked_at.append((path, damage_of(path)))
            if not looked_at[-1][1]:
                break
        return looked_at

    @property
    def whole_checkpoint(self) -> Path | None:
        """The one that a resume continues from."""
        return next((path for path, damage in self.checkpoints if not damage), None)

    @property
    def is_busy(self) -> bool:
        """Whether a process works on it now: it holds the lock."""
        return is_locked(self.folder / LOCK)


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock."""
    try:
        with path.open("rb") as file:
            # Freed at once: who wants it for good does not notice.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class Case:
    """A run with its files and its data."""

    run: RunRecord

    @cached_property
    def files(self) -> RunFiles:
        """What is in its folder."""
        return RunFiles(self.run.folder)

    @cached_property
    def data(self) -> DataFacts | None:
        """Its dataset, if it is where the config says, from here or from where the run was begun."""
        for place in self._places_of_data():
            try:
                return read_data(place)
            except (InputError, OSError):
                continue
        return None

    def _places_of_data(self) -> list[Path]:
        named = self.run.config.get("data")
        if not isinstance(named, str) or not named:
            return []
        return [Path(named), *([] if self._home is None else [self._home / named])]

    @cached_property
    def _home(self) -> Path | None:
        """The folder in which the run was begun, if its `out` and where it is now tell it."""
        out, folder = Path(str(self.run.config.get("out") or "")), self.run.folder.resolve()
        parts = out.parts
        if out.is_absolute() or not parts or ".." in parts or folder.parts[-len(parts) :] != parts:
            return None
        return Path(*folder.parts[: -len(parts)])

    @property
    def resume(self) -> str:
        """The command that continues the run, typed here."""
        return command("pretrain", {"config": self.run.folder / CONFIG, **self._places()})

    def again(self, **changes: Any) -> str:
        """The command that begins another run like this one, but for some keys (`__` is a dot)."""
        keys = {key.replace("__", "."): value for key, value in changes.items()}
        places = {**self._places(), "out": free_name(self.run.folder)}
        return command("pretrain", {"config": self.run.folder / CONFIG, **places, **keys})

    def by_recipe(self, name: str) -> str:
        """The command that trains by a recipe on the same data."""
        data = self.run.config.get("data") if self.data is None else self.data.folder
        return command(
            "pretrain", {"config": name, "data": data or "DATA", "out": free_name(self.run.folder)}
        )

    def _places(self) -> dict[str, Any]:
        """`data` and `out`, where the config's are not right as seen from here."""
        places: dict[str, Any] = {}
        config = self.run.config
        if self.data is not None and str(self.data.folder) != config.get("data"):
            places["data"] = self.data.folder
        if Path(str(config.get("out") or "")).resolve() != self.run.folder.resolve():
            places["out"] = self.run.folder
        return places
