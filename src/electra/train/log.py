"""Numbers of a step -> event files in RUN/tensorboard/, as TensorBoard reads them; it is not needed to write.

A file is a row of records: length, checksum of the length, data, checksum of the data (TFRecord). The data is
an `Event` of TensorBoard's event.proto in the wire format of Protocol Buffers. Every sitting of a run writes
a file of its own; a record at its start says from which step on the files before it do not count.

Lines of metrics.jsonl -> TensorBoard's files, and trackio and wandb where they are asked for.

metrics.jsonl is what counts: a tracker that fails is left out with one warning, and training goes on. A run
that is continued stays the same run of a tracker, by the id in RUN/trackers.json. TensorBoard forgets the
steps that are taken again; trackio and wandb show them twice.

What happens in a run -> RUN/metrics.jsonl, RUN/samples.jsonl and trackers, and words for a person.
"""

import json
import math
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, Protocol

import numpy as np

from electra import files
from electra.crc32c import crc32c, masked
from electra.errors import import_extra
from electra.files import write_file

_NAME = "events.out.tfevents."

# Numbers of the fields in Event, Summary, Summary.Value and SessionLog.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2
_STATUS, _START = 1, 1

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LARGEST_FLOAT32 = 3.4028234e38


class TensorBoardFiles:
    """The event files of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._first_step: int | None = None

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """One record with all numbers of a step."""
        if self._file is None:
            self._file = self._next_path().open("xb")
            self._append(_event(_field(_FILE_VERSION, b"brain.Event:2"), step=0))
        if self._first_step is not None:
            self._append(_event(_field(_SESSION_LOG, _number(_STATUS, _START)), step=self._first_step))
            self._first_step = None
        scalars = [
            _field(_VALUE, _field(_TAG, name.encode()) + _float(_SIMPLE_VALUE, value))
            for name, value in values.items()
        ]
        self._append(_event(_field(_SUMMARY, b"".join(scalars)), step=step))
        self._file.flush()

    def go_back(self, step: int) -> None:
        """What was written of later steps does not count; said when the next one is written."""
        self._first_step = step + 1

    def close(self) -> None:
        """Close the file; a later `write` begins another."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_path(self) -> Path:
        """TensorBoard reads files in the order of their names, which must not depend on a clock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [path.name.removeprefix(_NAME) for path in self._folder.glob(f"{_NAME}*")]
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return self._folder / f"{_NAME}{last + 1:06}"

    def _append(self, event: bytes) -> None:
        assert self._file is not None
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _event(content: bytes, *, step: int) -> bytes:
    wall_time = _varint(_WALL_TIME << 3 | _EIGHT_BYTES) + struct.pack("<d", time.time())
    return wall_time + _number(_STEP, step) + content


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _float(number: int, value: float) -> bytes:
    fitting = min(_LARGEST_FLOAT32, max(-_LARGEST_FLOAT32, value))
    return _varint(number << 3 | _FOUR_BYTES) + struct.pack("<f", fitting)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    assert value >= 0, f"negative: {value}"
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(crc32c(np.frombuffer(data, np.uint8))))


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


METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"


class JsonLines:
    """A file of one JSON object a line, that can be cut back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; what is not a number becomes null."""
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(_without_nan(record), ensure_ascii=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Force the lines to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def cut(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Remove the lines that are not kept, and one that a crash left unfinished."""
        self.close()
        if not self._path.is_file():
            return
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and is_kept(json.loads(line))]
        if kept != lines:
            write_file(self._path, lambda file: file.writelines(kept))

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunLog:
    """What a run tells of itself, step by step."""

    def __init__(self, folder: Path, trackers: Trackers) -> None:
        self._metrics, self._samples = JsonLines(folder / METRICS), JsonLines(folder / SAMPLES)
        self._trackers = trackers

    def open(self, config: Mapping[str, Any], *, step: int) -> None:
        """Begin, or continue after a step what was begun."""
        self._trackers.open(config, step=step)

    def measured(self, kind: Literal["train", "valid"], numbers: Mapping[str, Any]) -> None:
        """What a step did, or what held-out rows gave after it."""
        record = {"kind": kind, **numbers}
        self._metrics.write(record)
        self._trackers.write(record)

    def happened(self, event: Mapping[str, Any]) -> None:
        """What is no number."""
        self._metrics.write({"kind": "event", **event})

    def sampled(self, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Held-out rows as the model saw them."""
        self._samples.write({"step": step, "rows": rows})

    def go_back(self, *, step: int, evaluated_step: int) -> None:
        """Forget what came after a step, for it will be written again."""

        def is_past(record: Mapping[str, Any]) -> bool:
            return bool(record["step"] <= (evaluated_step if record["kind"] == "valid" else step))

        self._metrics.cut(is_past)
        self._samples.cut(lambda record: record["step"] <= evaluated_step)
        self._trackers.go_back(step)

    def sync(self) -> None:
        """Force the lines to the disk."""
        for lines in (self._metrics, self._samples):
            lines.sync()

    def close(self) -> None:
        """Nothing more comes."""
        self._trackers.close()
        for lines in (self._metrics, self._samples):
            lines.close()


def shown(metrics: Mapping[str, float], headlines: Mapping[str, str]) -> str:
    """The loss and the metrics that a person wants to see, by their short names."""
    names = {"loss": "loss", **headlines}
    return "  ".join(f"{label} {metrics[name]:.3f}" for name, label in names.items() if name in metrics)
