"""What happens in a run -> RUN/metrics.jsonl, RUN/samples.jsonl and trackers, and words for a person."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from electra.files import write_file
from electra.train.trackers import Trackers

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
