"""What a run measures and what happens to it -> RUN/metrics.jsonl, RUN/samples.jsonl, and trackers.

metrics.jsonl is the record that counts. Trackers (TensorBoard, trackio, wandb) get the same numbers for their
own curves; one that fails is dropped with a warning, and training goes on. A resumed run continues the same
tracker run, found by the id in RUN/trackers.json. Steps that are taken again after a return to an earlier
checkpoint replace the old ones in metrics.jsonl and in TensorBoard; trackio and wandb keep both.
"""

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, Protocol

from electra import files
from electra.errors import import_extra
from electra.show import listed

METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"

TrackerName = Literal["tensorboard", "trackio", "wandb"]

_IDENTITY = "trackers.json"
_PROJECT = "electra"


class RunLog:
    """Everything a run writes about itself, step by step."""

    def __init__(self, folder: Path, trackers: "Trackers") -> None:
        self._metrics, self._samples = JsonLines(folder / METRICS), JsonLines(folder / SAMPLES)
        self._trackers = trackers

    def open(self, config: Mapping[str, Any], *, step: int) -> None:
        """Start the trackers, or continue them after a step."""
        self._trackers.open(config, step=step)

    def measured(self, kind: Literal["train", "valid"], numbers: Mapping[str, Any]) -> None:
        """Record the numbers of a training step, or of an evaluation on held-out rows."""
        record = {"kind": kind, **numbers}
        self._metrics.write(record)
        self._trackers.write(record)

    def happened(self, event: Mapping[str, Any]) -> None:
        """Record an event; it goes to metrics.jsonl only."""
        self._metrics.write({"kind": "event", **event})

    def sampled(self, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Record held-out rows as the model saw them."""
        self._samples.write({"step": step, "rows": rows})

    def go_back(self, *, step: int, evaluated_step: int) -> list[str]:
        """Drop every record after a step, because the run will write it again.

        Lines that are no records are dropped, too, and returned as problems: no step depends on them.
        """

        def is_past(record: Mapping[str, Any]) -> bool:
            return bool(record["step"] <= (evaluated_step if record.get("kind") == "valid" else step))

        dropped = {
            METRICS: self._metrics.cut(is_past),
            SAMPLES: self._samples.cut(lambda record: record["step"] <= evaluated_step),
        }
        self._trackers.go_back(step)
        return [
            f"{name}: {'line' if len(numbers) == 1 else 'lines'} {listed(numbers)} not readable, left out"
            for name, numbers in dropped.items()
            if numbers
        ]

    def sync(self) -> None:
        """Force both files to the disk."""
        for lines in (self._metrics, self._samples):
            lines.sync()

    def close(self) -> None:
        """Close files and trackers."""
        self._trackers.close()
        for lines in (self._metrics, self._samples):
            lines.close()


class JsonLines:
    """A file with one JSON object per line that can be cut back to an earlier state."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; NaN and infinity become null."""
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(_without_nan(record), ensure_ascii=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Force the lines to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def cut(self, is_kept: Callable[[dict[str, Any]], bool]) -> list[int]:
        """Remove the lines that are not kept, and a last line that a crash left incomplete.

        Lines that are no record of a step are removed, too: returns their numbers, counted from 1.
        """
        self.close()
        if not self._path.is_file():
            return []
        *lines, torn = self._path.read_bytes().split(b"\n")
        records = [_record(line) for line in lines]
        kept = [
            line + b"\n" for line, record in zip(lines, records, strict=True) if record and is_kept(record)
        ]
        if torn or len(kept) < len(lines):
            files.write_file(self._path, lambda file: file.writelines(kept))
        return [number for number, record in enumerate(records, start=1) if record is None]

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _record(line: bytes) -> dict[str, Any] | None:
    """A line as what was written; None if it is something else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("step"), int | float) else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Tracker(Protocol):
    """A destination for numbers."""

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Take the numbers of a step."""

    def go_back(self, step: int) -> None:
        """Prepare for the steps after this one to be written again."""

    def close(self) -> None:
        """End the run."""


class Trackers:
    """All trackers of a run. None of them can stop it."""

    def __init__(
        self, folder: Path, names: Sequence[TrackerName], *, on_problem: Callable[[str], None]
    ) -> None:
        self._folder, self._on_problem = folder, on_problem
        for name in names:
            # Before the run starts, while the user is still there to install it.
            import_extra(name, extra=name)
        # Everyone who has TensorBoard gets its files without asking.
        default: list[TrackerName] = ["tensorboard"] if find_spec("tensorboard") else []
        self._names = list(dict.fromkeys([*default, *names]))
        self._open: dict[str, Tracker] = {}

    def open(self, config: Mapping[str, Any], *, step: int) -> None:
        """Start, or continue after a step."""
        for name in self._names:
            with self._dropped_if_it_fails(name):
                self._open[name] = _TRACKERS[name](self._folder, config)
        self.go_back(step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Pass on the numbers of a record as `train/loss`, `valid/loss` and so on."""
        values, step = dict(_numbers(record)), record["step"]
        for name, tracker in [*self._open.items()]:
            with self._dropped_if_it_fails(name):
                tracker.write(values, step=step)

    def go_back(self, step: int) -> None:
        """Prepare for the steps after this one to be written again."""
        for name, tracker in [*self._open.items()]:
            with self._dropped_if_it_fails(name):
                tracker.go_back(step)

    def close(self) -> None:
        """End the run everywhere."""
        for name, tracker in [*self._open.items()]:
            with self._dropped_if_it_fails(name):
                tracker.close()
        self._open.clear()

    @contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Other people's code may raise anything, often over a network, and no curve is worth a run.
            self._open.pop(name, None)
            self._on_problem(
                f"{name} failed and gets no more numbers ({type(error).__name__}: {error}); "
                f"{METRICS} has everything"
            )


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in {**record["metrics"], **record}.items():
        if name != "step" and isinstance(value, int | float) and math.isfinite(value):
            yield f"{record['kind']}/{name}", value


class TensorBoard:
    """Event files in RUN/tensorboard, one for each start of the run and each return to a checkpoint.

    The writer is imported and opened with the first numbers: the import takes a third of a second, and a run
    that measures nothing leaves no file.
    """

    def __init__(self, folder: Path, _config: Mapping[str, Any]) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self._first_step = 0

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Write the numbers of a step, readable at once."""
        if self._writer is None:
            module = import_extra("torch.utils.tensorboard", extra="tensorboard")
            self._leave_second()
            self._writer = module.SummaryWriter(str(self._folder), purge_step=self._first_step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def _leave_second(self) -> None:
        """Wait until the newest file is of an earlier second: their order is that of their names.

        After the second these have the numbers of processes and writers, of which 10 comes before 9.
        """
        now = time.time()
        if any(f".{int(now):010d}." in path.name for path in self._folder.glob("*")):
            time.sleep(1 - now % 1)

    def go_back(self, step: int) -> None:
        """Begin a new file, which hides everything that earlier ones hold after this step."""
        self.close()
        self._first_step = step + 1

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Trackio:
    """A trackio run: local, unless trackio's own TRACKIO_SPACE_ID is set."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._module: ModuleType = import_extra("trackio", extra="trackio")
        # trackio identifies a run by its name.
        name = f"{folder.resolve().name}-{_identity(folder)}"
        self._module.init(project=_PROJECT, name=name, config=dict(config), resume="allow", embed=False)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step."""
        self._module.log(dict(values), step=step)

    def go_back(self, step: int) -> None:
        """Nothing: trackio keeps what it has logged."""

    def close(self) -> None:
        """End the run and send what is left."""
        self._module.finish()


class Wandb:
    """A wandb run; wandb's own settings, such as WANDB_MODE, decide whether it goes online."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = import_extra("wandb", extra="wandb").init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.resolve().name,
            id=_identity(folder),
            dir=str(folder),
            config=dict(config),
            resume="allow",
        )
        # wandb's own step counter drops steps that are not larger than the last one, such as repeated steps.
        self._run.define_metric("*", step_metric="step")

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of a step."""
        self._run.log({"step": step, **values})

    def go_back(self, step: int) -> None:
        """Nothing: wandb keeps what it has logged."""

    def close(self) -> None:
        """End the run and send what is left."""
        self._run.finish()


_TRACKERS: dict[TrackerName, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def _identity(folder: Path) -> str:
    """The id of a run for trackers, the same every time the run is resumed."""
    path = folder / _IDENTITY
    if not path.is_file():
        files.write_json(path, {"id": secrets.token_hex(4)})
    return str(files.read_json(path)["id"])


def headline(metrics: Mapping[str, float], headlines: Mapping[str, str]) -> str:
    """The loss and the headline metrics on one line, by their short names."""
    names = {"loss": "loss", **headlines}
    return "  ".join(f"{label} {metrics[name]:.3f}" for name, label in names.items() if name in metrics)
