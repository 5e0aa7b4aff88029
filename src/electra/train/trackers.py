"""Lines of metrics.jsonl -> TensorBoard's files, and trackio and wandb where they are asked for.

metrics.jsonl is what counts: a tracker that fails is left out with one warning, and training goes on. A run
that is continued stays the same run of a tracker, by the id in RUN/trackers.json. TensorBoard forgets the
steps that are taken again; trackio and wandb show them twice.
"""

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

from electra import files
from electra.errors import import_extra
from electra.train.tensorboard import TensorBoardFiles

TrackerName = Literal["trackio", "wandb"]

_IDENTITY = "trackers.json"
_PROJECT = "electra"


class Tracker(Protocol):
    """Where numbers go."""

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Take the numbers of a step."""

    def go_back(self, step: int) -> None:
        """Steps after this one are about to be written again."""

    def close(self) -> None:
        """Nothing more comes."""


class Trackers:
    """All trackers of a run; none of them can stop it."""

    def __init__(
        self, folder: Path, names: Sequence[TrackerName], *, on_problem: Callable[[str], None]
    ) -> None:
        self._folder, self._on_problem = folder, on_problem
        self._modules = {name: import_extra(name, extra=name) for name in names}
        self._open: dict[str, Tracker] = {}

    def open(self, config: Mapping[str, Any], *, step: int) -> None:
        """Begin, or continue after a step what was begun."""
        self._open["tensorboard"] = TensorBoardFiles(self._folder / "tensorboard")
        for name, module in self._modules.items():
            with self._left_out_if_it_fails(name):
                self._open[name] = _ADAPTERS[name](module, self._folder, config)
        self.go_back(step)

    def write(self, record: Mapping[str, Any]) -> None:
        """The numbers of a line, by the names `train/loss`, `valid/loss` and so on."""
        values, step = dict(_numbers(record)), record["step"]
        for name, tracker in [*self._open.items()]:
            with self._left_out_if_it_fails(name):
                tracker.write(values, step=step)

    def go_back(self, step: int) -> None:
        """Steps after this one are about to be written again."""
        for name, tracker in [*self._open.items()]:
            with self._left_out_if_it_fails(name):
                tracker.go_back(step)

    def close(self) -> None:
        """Nothing more comes."""
        for name, tracker in [*self._open.items()]:
            with self._left_out_if_it_fails(name):
                tracker.close()
        self._open.clear()

    @contextmanager
    def _left_out_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Others' code over a network raises what it likes, and no curve is worth a run.
            self._open.pop(name, None)
            self._on_problem(
                f"{name} failed and is left out from here on ({type(error).__name__}: {error}); "
                "metrics.jsonl has everything"
            )


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in {**record["metrics"], **record}.items():
        if name != "step" and isinstance(value, int | float) and math.isfinite(value):
            yield f"{record['kind']}/{name}", value


def _identity(folder: Path) -> str:
    """The id of a run for trackers, the same every time it is continued."""
    path = folder / _IDENTITY
    if not path.is_file():
        files.write_json(path, {"id": secrets.token_hex(4)})
    return str(files.read_json(path)["id"])


class Trackio:
    """A run of trackio, on this machine unless its own TRACKIO_SPACE_ID says otherwise."""

    def __init__(self, module: ModuleType, folder: Path, config: Mapping[str, Any]) -> None:
        self._module = module
        # A run is known by its name there.
        name = f"{folder.resolve().name}-{_identity(folder)}"
        module.init(project=_PROJECT, name=name, config=dict(config), resume="allow", embed=False)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step."""
        self._module.log(dict(values), step=step)

    def go_back(self, step: int) -> None:
        """What is logged there stays."""

    def close(self) -> None:
        """End the run, sending what is left."""
        self._module.finish()


class Wandb:
    """A run of wandb; whether it goes online is said by wandb's own settings, such as WANDB_MODE."""

    def __init__(self, module: ModuleType, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = module.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.resolve().name,
            id=_identity(folder),
            dir=str(folder),
            config=dict(config),
            resume="allow",
        )
        # Its own counter of steps drops whatever is not larger than before, such as steps taken again.
        self._run.define_metric("*", step_metric="step")

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step."""
        self._run.log({"step": step, **values})

    def go_back(self, step: int) -> None:
        """What is logged there stays."""

    def close(self) -> None:
        """End the run, sending what is left."""
        self._run.finish()


_ADAPTERS: dict[TrackerName, Callable[[ModuleType, Path, Mapping[str, Any]], Tracker]] = {
    "trackio": Trackio,
    "wandb": Wandb,
}
