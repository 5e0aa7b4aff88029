"""A run folder -> its config, records, events and samples; how each metric is presented.

Whatever is missing, torn or odd becomes a note on the page, not a failure.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from electra.errors import InputError
from electra.report.minimal_pairs import PairAccuracies, read_pairs
from electra.show import percent, short

_MOST_KEYS = 10_000
# A run's own config has 3 kB and 2 levels. Reading YAML takes long: 64 kB a second or two.
_YAML_BYTES, _YAML_DEPTH = 1 << 16, 32
_LARGEST = 1e100
"""Nothing that a run measures is larger, and sums and squares of what is not stay numbers."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Record = dict[str, float]
"""One line of measurements: step, tokens, seconds, flops and metrics; only finite numbers are in it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to the run."""

    step: float
    seconds: float | None
    event: str
    message: str


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One row as the networks saw it; a view that the objective does not have is empty."""

    original: list[str]
    masked: list[str]
    corrupted: list[str]
    replaced: list[bool]
    suspicion: list[float]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Some rows of one step."""

    step: float
    rows: list[SampleRow]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All that a run folder tells."""

    name: str
    folder: Path
    config: dict[str, Any]
    """Dotted key -> value."""
    environment: dict[str, Any]
    """Dotted key -> value."""
    train: list[Record]
    valid: list[Record]
    events: list[Event]
    samples: list[Samples]
    notes: list[str]
    """What could not be read."""
    minimal_pairs: PairAccuracies | None = None
    """None if the run was not scored on any."""


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Read every run; names are as short as they can be while they differ."""
    if not folders:
        raise InputError("no run folder is given")
    return [read_run(folder, name=name) for folder, name in zip(folders, _names(folders), strict=True)]


def read_run(folder: Path, *, name: str) -> RunRecord:
    """Read one run folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    if not any((folder / file).is_file() for file in ("config.yaml", "metrics.jsonl", "environment.json")):
        raise InputError(
            f"{folder} is no run folder: it has neither config.yaml nor metrics.jsonl nor environment.json"
        )
    notes: list[str] = []
    lines = list(_json_lines(folder / "metrics.jsonl", notes))
    return RunRecord(
        name=name,
        folder=folder,
        config=_keys(_mapping(folder / "config.yaml", notes), notes),
        environment=_keys(_mapping(folder / "environment.json", notes), notes),
        train=_records(lines, kind="train"),
        valid=_records(lines, kind="valid"),
        events=[_event(line) for line in lines if line.get("kind") == "event"],
        samples=[_samples(line) for line in _json_lines(folder / "samples.jsonl", notes)],
        notes=notes,
        minimal_pairs=read_pairs(folder, notes),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    parts = [folder.resolve().parts for folder in folders]
    longest = max(map(len, parts))
    for length in range(1, longest + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part[-1:])} ({number})" for number, part in enumerate(parts, 1)]


def _json_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        notes.append(f"{path.name} is missing")
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            value = _from_json(line.decode()) if line.strip() else None
        except (ValueError, RecursionError):
            torn = number == len(lines)
            notes.append(f"{path.name} line {number} is {'torn' if torn else 'not readable'}: left out")
            continue
        if isinstance(value, dict):
            yield value


def _from_json(text: str) -> Any:
    """JSON, with a question mark for each half of a character: no file and no terminal would take it."""
    value = json.loads(text)
    if _SURROGATE.search(text):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


class _PlainYaml(yaml.SafeLoader):
    """YAML as a run writes it. A stranger's aliases can stand for a billion values, and tags for anything."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse what a run never writes, before anything is made of it."""
        # PyYAML has no types here.
        event: Any = cast(Any, self).peek_event()
        self.depth += 1
        is_plain = not isinstance(event, yaml.AliasEvent) and getattr(event, "tag", None) is None
        if not is_plain or self.depth > _YAML_DEPTH:
            expected = f"expected plain values without aliases (*name) and tags (!!name), {_YAML_DEPTH} deep"
            raise yaml.MarkedYAMLError(problem=expected, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Refuse what Python could not even show."""
        value = int(super().construct_yaml_int(node))
        if abs(value) > _LARGEST:
            raise yaml.MarkedYAMLError(problem="a number beyond all measure", problem_mark=node.start_mark)
        return value


_PlainYaml.add_constructor("tag:yaml.org,2002:int", _PlainYaml.construct_yaml_int)


def _from_yaml(text: str) -> Any:
    if len(text) > _YAML_BYTES:
        raise InputError(f"more than {_YAML_BYTES:,} characters, too many for a config")
    # It is a SafeLoader, which makes plain values only.
    return yaml.load(text, Loader=_PlainYaml)


def _mapping(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notes.append(f"{path.name} is missing")
        return {}
    try:
        # JSON is YAML, but its own reader is faster and knows 1e-4 as a number.
        text = path.read_text(encoding="utf-8")
        value = _from_json(text) if path.suffix == ".json" else _from_yaml(text)
    except (OSError, ArithmeticError, ValueError, RecursionError, yaml.YAMLError) as error:
        notes.append(f"{path.name} is not readable: {' '.join(str(error).split())}")
        return {}
    return value if isinstance(value, dict) else {}


def _keys(values: Mapping[Any, Any], notes: list[str]) -> dict[str, Any]:
    """The values by their dotted keys, as many as anybody reads."""
    try:
        found = dict(islice(_flat(values), _MOST_KEYS + 1))
    except RecursionError:
        notes.append("groups of keys lie in each other too deep: left out")
        return {}
    if len(found) > _MOST_KEYS:
        notes.append(f"more than {_MOST_KEYS:,} keys: the others are left out")
    return found


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def number(value: object) -> float | None:
    """A number of a size that something can have, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # False for NaN, too.
    return float(value) if abs(value) <= _LARGEST else None


def _records(lines: Sequence[dict[str, Any]], *, kind: str) -> list[Record]:
    """The lines of a kind that say at which step they were measured."""
    records = (_record(line) for line in lines if line.get("kind") == kind)
    return [record for record in records if "step" in record]


def _record(line: dict[str, Any]) -> Record:
    metrics = line.get("metrics")
    values = {**(metrics if isinstance(metrics, dict) else {}), **line}
    return {key: known for key, value in values.items() if (known := number(value)) is not None}


def _event(line: dict[str, Any]) -> Event:
    return Event(
        step=number(line.get("step")) or 0.0,
        seconds=number(line.get("seconds")),
        event=str(line.get("event", "event")),
        message=str(line.get("message") or ""),
    )


def _samples(line: dict[str, Any]) -> Samples:
    rows = line.get("rows")
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return Samples(step=number(line.get("step")) or 0.0, rows=[_sample_row(row) for row in known])


def _sample_row(row: dict[str, Any]) -> SampleRow:
    def column(key: str) -> list[Any]:
        value = row.get(key)
        return value if isinstance(value, list) else []

    return SampleRow(
        original=[str(token) for token in column("original")],
        masked=[str(token) for token in column("masked")],
        corrupted=[str(token) for token in column("corrupted")],
        replaced=[bool(label) for label in column("replaced")],
        suspicion=[number(value) or 0.0 for value in column("suspicion")],
    )


Form = Literal["number", "percent", "count"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How one metric is presented."""

    key: str
    title: str
    says: str = ""
    form: Form = "number"
    scale: Literal["linear", "log"] = "linear"
    line: Literal["smoothed", "exact"] = "smoothed"
    """What is set and not measured has no noise to smooth away."""

    def format(self, value: float | None) -> str:
        """A value in the metric's own form."""
        return percent(value) if self.form == "percent" else short(value)


KNOWN = (
    Metric(key="loss", title="Loss", says="what training minimises: the weighted sum of the losses below"),
    Metric(
        key="mlm_loss",
        title="Generator loss",
        says="cross-entropy at chosen tokens, in nats, with those that it sees as they are",
    ),
    Metric(
        key="masked_loss",
        title="Loss at masks",
        says="the generator's where it sees [MASK] and nothing is given away",
    ),
    Metric(key="discriminator_loss", title="Discriminator loss", says="binary cross-entropy over all tokens"),
    Metric(
        key="discriminator_auc",
        title="Discriminator AUC",
        says="probability that a replaced token looks more suspicious than an original one; chance is 0.5",
    ),
    Metric(
        key="fixed_auc",
        title="AUC on a fixed set",
        says="the same for held-out tokens replaced by frequency, alike in all runs of the same data",
        line="exact",
    ),
    Metric(
        key="discriminator_recall",
        title="Discriminator recall",
        says="of the replaced tokens, how many are called replaced",
        form="percent",
    ),
    Metric(
        key="discriminator_precision",
        title="Discriminator precision",
        says="of the tokens called replaced, how many are",
        form="percent",
    ),
    Metric(
        key="mlm_accuracy",
        title="Generator accuracy",
        says="how often its most probable token is the original. As in the authors' code, chosen tokens "
        "count that it sees as they are (15 % of them) and may copy",
        form="percent",
    ),
    Metric(
        key="masked_accuracy",
        title="Accuracy at masks",
        says="the generator's where it sees [MASK]: what it can really guess",
        form="percent",
    ),
    Metric(
        key="sampled_accuracy",
        title="Sampled accuracy",
        says="how often the token it draws is the original: nothing is replaced there",
        form="percent",
    ),
    Metric(
        key="replaced_fraction",
        title="Replaced fraction",
        says="share of all tokens that differ from the original",
        form="percent",
    ),
    Metric(
        key="length_ratio",
        title="Length of rewritten spans",
        says="tokens that the generator writes, in proportion to the original ones: near 1 in time",
    ),
    Metric(key="generator_entropy", title="Generator entropy", says="of its distribution, in nats"),
    Metric(key="recovery_loss", title="Recovery loss", says="cross-entropy of naming the original tokens"),
    Metric(key="recovery_accuracy", title="Recovery accuracy", form="percent"),
    Metric(
        key="cloze_loss", title="Cloze loss", says="of telling tokens from the generator's by their energy"
    ),
    Metric(key="reward", title="Reward", says="what the generator gains by misleading the discriminator"),
    Metric(key="baseline", title="Expected reward"),
    Metric(
        key="discriminator_accuracy",
        title="Discriminator accuracy",
        says="high from the start, since most tokens are original: look at AUC and recall",
        form="percent",
    ),
    Metric(
        key="states_rank",
        title="Effective rank",
        says="of the last hidden states: in how many directions they differ, on held-out rows",
        line="exact",
    ),
    Metric(
        key="states_cosine",
        title="Mean cosine",
        says="of the last hidden states of two positions: near 1, all are alike",
        line="exact",
    ),
    Metric(key="gradient_norm", title="Gradient norm", says="before clipping, logarithmic", scale="log"),
    Metric(key="learning_rate", title="Learning rate", line="exact"),
    Metric(key="tokens_per_second", title="Throughput", says="tokens per second", form="count"),
    Metric(
        key="mfu",
        title="Use of the machine",
        says="share of the measured matrix-product peak",
        form="percent",
    ),
)
OF_LAYER = re.compile(r"states_(rank|cosine)_layer_(\d+)")
"""Metrics of the layers below the last one, which have a table in place of curves."""
BY_KEY = {metric.key: metric for metric in KNOWN}
_AXIS_KEYS = {"step", "tokens", "seconds", "flops"}


def metrics_of(runs: Sequence[RunRecord]) -> list[Metric]:
    """Every metric that some run has measured: those we know in our order, then the others by name."""
    keys = {key for run in runs for record in (*run.train, *run.valid) for key in record} - _AXIS_KEYS
    known = [metric for metric in KNOWN if metric.key in keys]
    others = sorted(key for key in keys - {metric.key for metric in known} if not OF_LAYER.fullmatch(key))
    return known + [Metric(key=key, title=key.replace("_", " ").capitalize()) for key in others]
